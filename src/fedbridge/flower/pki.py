"""Keys and certificates: by what sites know the link, and the link knows the sites.

**Keys.** A site proves who it is with an ECDSA key on the curve P-384. The private key stays at the
site, in OpenSSH format (``flower-supernode --auth-supernode-private-key``); the public one goes to
the coordinator (``flwr supernode register``). Both are what ``ssh-keygen -t ecdsa -b 384`` makes.

**Certificates.** The coordinator's link has an authority of the federation's own and a certificate
that it signed. Every site gets the authority's certificate ``ca.crt`` and by it recognises the
link; nothing else of that folder leaves the coordinator. The server's certificate can be renewed
without the sites noticing, as long as the authority's key is kept.

The authority is renewed in two steps, between which both are trusted: ``ca.crt`` gets a new one
beside the old, which goes on to speak for the link until all sites have that file; then the link
gets a certificate of the new one. No site is ever locked out on the way.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import PRIVATE, file_name, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

T = TypeVar("T")

CURVE = ec.SECP384R1()
NODE = "node"
"""What a site's private key is called in the site's own folder."""

VALID_DAYS = 365
SOON = timedelta(days=30)
"""A certificate that ends within this should be renewed."""

MOST_DAYS = 36_500
CLOCKS_MAY_DIFFER = timedelta(days=2)
"""A clock that is a day behind is to be told so, instead of that a certificate is not valid yet."""
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


class KeyFileError(FedbridgeError):
    """A key that is missing, unreadable, of another kind, or open to others."""


@dataclass(frozen=True)
class NodeKey:
    """Where the two halves of a site's key are."""

    private: Path
    public: Path


def make_node_key(folder: Path, site: str) -> NodeKey:
    """Make the key pair of a site: ``folder/<site>`` (private) and ``folder/<site>.pub``."""
    key = node_key(folder, site)
    if key.private.exists():
        raise KeyFileError(
            f"Expected no private key in {key.private} yet, but there is one: "
            "keep it, or move it away first."
        )
    secret = ec.generate_private_key(CURVE)
    write_atomically(
        key.private,
        secret.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        mode=PRIVATE,
    )
    public = secret.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_atomically(key.public, public + f" {key.private.name}\n".encode())
    return key


def node_key(folder: Path, site: str) -> NodeKey:
    """Where the keys of a site are, made or not."""
    name = file_name(site)
    return NodeKey(private=folder / name, public=folder / f"{name}.pub")


def site_key(folder: Path, site: str) -> NodeKey:
    """Where a site's keys are in a folder that has one folder per site."""
    return node_key(folder / file_name(site), NODE)


def site_keys(folder: Path) -> dict[bytes, str]:
    """Whose public key is whose, by the folders in which they lie: ``folder/<site>/node.pub``."""
    found = sorted(folder.glob(f"*/{NODE}.pub"))
    if not found:
        raise KeyFileError(
            f"Expected the sites' public keys as NAME/{NODE}.pub in {folder}, but there are none: "
            "name the folder `sites` of the deployment."
        )
    return {read_public_key(path): path.parent.name for path in found}


def read_public_key(path: Path) -> bytes:
    """A site's public key as Flower stores it, to compare with ``grid.get_nodes()``."""
    key = _read(path, load_ssh_public_key, "a public key in OpenSSH format", _unreadable_key)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise _another_kind(path)
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def check_private_key(path: Path) -> bytes:
    """Raise if a node could not use this private key; the public key that belongs to it.

    Raises:
        KeyFileError: missing, unreadable, not an ECDSA key, or readable to others.
    """
    load = partial(load_ssh_private_key, password=None)
    key = _read(path, load, "a private key in OpenSSH format", _unreadable_key)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _another_kind(path)
    check_only_owner_reads(path)
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def check_only_owner_reads(path: Path) -> None:
    """Raise if others on this machine could read a private key."""
    mode = path.stat().st_mode
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(
            f"Expected a private key that only its owner can read, but {path} has mode "
            f"{stat.S_IMODE(mode):o}: run chmod 600 on it."
        )


def check_node_key(key: NodeKey) -> None:
    """Raise if the private key cannot be used or the public one belongs to another."""
    if check_private_key(key.private) != read_public_key(key.public):
        raise KeyFileError(
            f"Expected {key.public} to belong to {key.private}, but it is another key: "
            "make the pair anew and register it again."
        )


def _unreadable_key(path: Path, why: str) -> KeyFileError:
    return KeyFileError(
        f"Expected a site's key in {path}, but could not read it: {why}; "
        "check the file, or make a new key."
    )


def _another_kind(path: Path) -> KeyFileError:
    return KeyFileError(
        f"Expected an ECDSA key in {path}, but got one of another kind: "
        "make a new one, since Flower accepts only ECDSA keys."
    )


class CertificateError(FedbridgeError):
    """A certificate that is missing, unreadable, expired, for another host, or without its key."""


class Certificates:
    """The files of the coordinator's folder, made or not.

    Attributes:
        folder: where they are.
        ca: the authority's certificate, which every site gets; after it those of authorities
            before it that are still valid.
        ca_key: the authority's private key: needed only to renew certificates.
        server: the server's certificate.
        server_key: the server's private key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.crt"
        self.ca_key = folder / "ca.key"
        self.server = folder / "server.pem"
        self.server_key = folder / "server.key"


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
    _write_authority(files, days, [])
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


def renew_authority(folder: Path, hosts: Sequence[str], days: float = VALID_DAYS) -> Certificates:
    """Put a new authority beside the old one, whose last deed is a certificate for the server.

    Sites with the old ``ca.crt`` go on, and so do those with the new one. Once all have that, the
    server's certificate is renewed, by the new authority.
    """
    files = renew_server_certificate(folder, hosts, days)
    now = datetime.now(UTC)
    valid = [one for one in read_authorities(files.ca) if one.not_valid_after_utc > now]
    _write_authority(files, days, valid)
    return files


def ends_soon(certificate: x509.Certificate) -> bool:
    """Whether it is time to renew it."""
    return certificate.not_valid_after_utc - datetime.now(UTC) < SOON


def _write_authority(files: Certificates, days: float, others: list[x509.Certificate]) -> None:
    """A new authority; until its key is there, the one before it can still sign."""
    key = ec.generate_private_key(CURVE)
    subject = _name("fedbridge certificate authority")
    certificate = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, SHA384())
    )
    every = [one.public_bytes(Encoding.PEM) for one in (certificate, *others)]
    write_atomically(files.ca, b"".join(every))
    _write_key(files.ca_key, key)


def _write_server(files: Certificates, names: list[x509.GeneralName], days: float) -> None:
    authority_key = read_key(files.ca_key)
    signed = authority_key.public_key()
    authority = next((a for a in read_authorities(files.ca) if a.public_key() == signed), None)
    if authority is None:
        raise CertificateError(
            f"Expected the key of an authority of {files.ca} in {files.ca_key}, but got another "
            "key: bring back the two that belong together."
        )
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
    load = partial(load_pem_private_key, password=None)
    key = _read(path, load, "a private key in PEM format", _unreadable)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _unreadable(path, "it is not an ECDSA key")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file, or an error that says why there is none."""
    return _read(path, x509.load_pem_x509_certificate, "a certificate in PEM format", _unreadable)


def read_authorities(path: Path) -> list[x509.Certificate]:
    """All certificates in a ``ca.crt``, the newest first."""
    return _read(path, x509.load_pem_x509_certificates, "a certificate in PEM format", _unreadable)


def _read(
    path: Path,
    load: Callable[[bytes], T],
    what: str,
    unreadable: Callable[[Path, str], FedbridgeError],
) -> T:
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise unreadable(path, f"it is not {what}") from error


def _unreadable(path: Path, why: str) -> CertificateError:
    return CertificateError(
        f"Expected a certificate or its key in {path}, but could not read it: {why}; "
        "check the file, or make the certificates anew."
    )


def check_certificates(folder: Path, host: str, now: datetime | None = None) -> None:
    """Raise if a link with this folder's certificates would not be accepted as ``host``.

    Raises:
        CertificateError: the first thing that is wrong, in one sentence.
    """
    files = Certificates(folder)
    check_authority(files.ca, now)
    certificate = read_certificate(files.server)
    _check_dates(files.server, certificate, now)
    _check_dates(files.ca, signer(files), now)
    _check_key(files.server_key, certificate)
    _check_host(files.server, certificate, host)
    if files.ca_key.exists():
        check_only_owner_reads(files.ca_key)


def signer(files: Certificates) -> x509.Certificate:
    """The authority that signed the server's certificate."""
    certificate = read_certificate(files.server)
    for authority in read_authorities(files.ca):
        with suppress(ValueError, TypeError, InvalidSignature):
            certificate.verify_directly_issued_by(authority)
            return authority
    raise CertificateError(
        f"Expected {files.server} to be signed by {files.ca}, but another authority signed "
        "it: renew the server's certificate, or bring back the ca.crt that belongs to it."
    )


def check_authority(path: Path, now: datetime | None = None) -> x509.Certificate:
    """Raise if a site could not trust a link by this ``ca.crt``; the newest certificate in it."""
    authorities = read_authorities(path)
    for certificate in authorities:
        extensions = certificate.extensions
        with suppress(x509.ExtensionNotFound):
            if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
                continue
        raise CertificateError(
            f"Expected the certificate of an authority in {path}, but got one of a server: "
            "use the coordinator's ca.crt."
        )
    _check_dates(path, authorities[0], now)
    return authorities[0]


def _check_dates(path: Path, certificate: x509.Certificate, now: datetime | None) -> None:
    now = now or datetime.now(UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        raise CertificateError(
            f"Expected a valid certificate in {path}, but it expired on {last:%Y-%m-%d}: "
            f"make a new one, or set the clock of this machine if {now:%Y-%m-%d %H:%M} UTC is "
            f"wrong."
        )
    if now < first:
        raise CertificateError(
            f"Expected a valid certificate in {path}, but it is valid only from "
            f"{first:%Y-%m-%d %H:%M} UTC on: check the clock of this machine, which says "
            f"{now:%Y-%m-%d %H:%M} UTC."
        )


def _check_key(path: Path, certificate: x509.Certificate) -> None:
    key = read_key(path)
    if key.public_key() != certificate.public_key():
        raise CertificateError(
            f"Expected the key of the server's certificate in {path}, but got another key: "
            "renew the server's certificate."
        )
    check_only_owner_reads(path)


def _check_host(path: Path, certificate: x509.Certificate, host: str) -> None:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    wanted = general_name(host)
    if wanted not in names:
        known = ", ".join(str(name.value) for name in names) or "no host at all"
        raise CertificateError(
            f"Expected {path} to be for {host}, but it is for {known}: "
            "renew the server's certificate with the names that the sites use."
        )
