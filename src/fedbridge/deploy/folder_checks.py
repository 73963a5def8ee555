"""What must hold of every folder of a deployment, the coordinator's or a site's."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from fedbridge.deploy.description import own_versions
from fedbridge.deploy.findings import Finding
from fedbridge.deploy.folders import DeploymentError
from fedbridge.deploy.reaching import reach_link
from fedbridge.flower import pki

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.x509 import Certificate


def versions() -> str:
    """What is installed here."""
    return ", ".join(f"{name} {version}" for name, version in own_versions().items())


def authority(path: Path) -> list[Finding]:
    """Whether the authority that sites know the link by is valid."""
    return [valid_until(pki.check_authority(path), "the link's authority")]


def valid_until(certificate: Certificate, whose: str) -> Finding:
    """A certificate that is valid, with a word in time before it no longer is."""
    soon = pki.ends_soon(certificate)
    advice = "; renew it in time, as the runbook says" if soon else ""
    said = f"{whose}: valid until {certificate.not_valid_after_utc:%Y-%m-%d}{advice}"
    return Finding("certificates", "warning" if soon else "ok", said)


def modes(folder: Path) -> str:
    """Others must not be able to change anything here: settings, keys, programs, data."""
    loose = [str(p.relative_to(folder.parent)) for p in (folder, *folder.rglob("*")) if _loose(p)]
    if loose:
        more = f" and {len(loose) - 3} more" if len(loose) > 3 else ""
        raise DeploymentError(
            f"Expected that nobody else can write here, but others can write to "
            f"{', '.join(sorted(loose)[:3])}{more}: run chmod -R go-w {folder}"
        )
    return "nobody else can write here"


def _loose(path: Path) -> bool:
    """Whether others could write to this, which may be gone by now."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    return os.name == "posix" and not stat.S_ISLNK(mode) and bool(mode & others)


def reached(address: str, ca: Path) -> str:
    """Whether the link answers, and is the right one."""
    reach_link(address, ca)
    return f"answers at {address}, with the right certificate"
