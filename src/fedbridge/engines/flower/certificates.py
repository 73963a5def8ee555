"""Certificates for the coordinator's link: an authority of the federation's own, and what it signs.

Every site gets the authority's certificate ``ca.crt`` and by it recognises the link; nothing else
of this folder leaves the coordinator. The server's certificate can be renewed without the sites
noticing, as long as the authority's key is kept.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedbridge.engines.flower.keys import CURVE
from fedbridge.errors import FedbridgeError
from fedbridge.files import PRIVATE, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VALID_DAYS = 365
MOST_DAYS = 36_500
CLOCKS_MAY_DIFFER = timedelta(hours=1)
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


class CertificateError(FedbridgeError):
    """A certificate that is missing, unreadable, expired, for another host, or without its key."""


@dataclass(frozen=True)
class Certificates:
    """The files of the coordinator's folder, made or not."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The authority's certificate, which every site gets."""
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        """The authority's private key: needed only to renew the server's certificate."""
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        """The server's private key."""
        return self.folder / "server.key"


def make_certificates(folder: Path, hosts: Sequence[str], days: float = VALID_DAYS) -> Certificates:
    """Make an authority, and a certificate for a server with these names and IP addresses."""
    files = Certificates(folder)
    names = _general_names(hosts)
    _check_days(days)
    if files.ca.exists() or files.ca_key.exists():
        raise CertificateError(
            f"Expected no certificate authority in {folder} yet, but there is one: "
            "renew the server's certificate with it, or choose another folder."
        )
    key = ec.generate_private_key(CURVE)
    subject = _name("fedbridge certificate authority")
    certificate = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, SHA384())
    )
    _write_key(files.ca_key, key)
    write_atomically(files.ca, certificate.public_bytes(Encoding.PEM))
    _write_server(files, names, days)
    return files


def renew_server_certificate(
    folder: Path, hosts: Sequence[str], days: float = VALID_DAYS
) -> Certificates:
    """Replace the server's key and certificate; the sites go on with the ``ca.crt`` they have."""
    files = Certificates(folder)
    _check_days(days)
    _write_server(files, _general_names(hosts), days)
    return files


def _write_server(files: Certificates, names: list[x509.GeneralName], days: float) -> None:
    authority, authority_key = read_certificate(files.ca), read_key(files.ca_key)
    key = ec.generate_private_key(CURVE)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _builder(_name("fedbridge link"), authority.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority_key, SHA384())
    )
    _write_key(files.server_key, key)
    write_atomically(files.server, certificate.public_bytes(Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_MAY_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _check_days(days: float) -> None:
    if not 0 < days <= MOST_DAYS:
        raise CertificateError(
            f"Expected certificates that are valid for more than 0 and up to {MOST_DAYS} days, but "
            f"got {days:g}."
        )


def _general_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    if not hosts:
        raise CertificateError(
            "Expected at least one host name or IP address of the link, but got none: "
            "name those by which the sites reach it."
        )
    return [general_name(host) for host in hosts]


def general_name(host: str) -> x509.GeneralName:
    """A host name or IP address as certificates hold it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if HOST_NAME.fullmatch(host):
            return x509.DNSName(host)
    raise CertificateError(
        f"Expected a host name such as link.example.org or an IP address, but got {host!r}: "
        "leave out port and https://."
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_atomically(path, content, mode=PRIVATE)


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key in a file, or an error that says why there is none."""
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _unreadable(path, "it is not a private key in PEM format") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _unreadable(path, "it is not an ECDSA key")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file, or an error that says why there is none."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise _unreadable(path, "it is not a certificate in PEM format") from error


def _unreadable(path: Path, why: str) -> CertificateError:
    return CertificateError(
        f"Expected a certificate or its key in {path}, but could not read it: {why}; "
        "check the file, or make the certificates anew."
    )
