"""Whether a link would be accepted with the certificates it has, before anybody tries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from fedbridge.engines.flower.certificates import (
    CertificateError,
    Certificates,
    general_name,
    read_certificate,
    read_key,
)
from fedbridge.engines.flower.keys import check_only_owner_reads

if TYPE_CHECKING:
    from pathlib import Path


def check_certificates(folder: Path, host: str, now: datetime | None = None) -> None:
    """Raise if a link with this folder's certificates would not be accepted as ``host``.

    Raises:
        CertificateError: the first thing that is wrong, in one sentence.
    """
    files = Certificates(folder)
    authority = check_authority(files.ca, now)
    certificate = read_certificate(files.server)
    _check_dates(files.server, certificate, now)
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise CertificateError(
            f"Expected {files.server} to be signed by {files.ca}, but another authority signed "
            "it: renew the server's certificate, or bring back the ca.crt that belongs to it."
        ) from error
    _check_key(files.server_key, certificate)
    _check_host(files.server, certificate, host)


def check_authority(path: Path, now: datetime | None = None) -> x509.Certificate:
    """Raise if a site could not trust a link by this ``ca.crt``; the certificate in it."""
    certificate = read_certificate(path)
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        is_authority = constraints.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        raise CertificateError(
            f"Expected the certificate of an authority in {path}, but got one of a server: "
            "use the coordinator's ca.crt."
        )
    _check_dates(path, certificate, now)
    return certificate


def _check_dates(path: Path, certificate: x509.Certificate, now: datetime | None) -> None:
    now = now or datetime.now(UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        raise CertificateError(
            f"Expected a valid certificate in {path}, but it expired on {last:%Y-%m-%d}: "
            "make a new one."
        )
    if now < first:
        raise CertificateError(
            f"Expected a valid certificate in {path}, but it is valid only from "
            f"{first:%Y-%m-%d %H:%M} UTC on: check the clock of this machine."
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
