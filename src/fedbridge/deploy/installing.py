"""What a site installs: the coordinator's own fedbridge as a wheel, and the versions it runs with.

A site may have no package index that knows fedbridge, or none at all. So its folder holds the code
that the coordinator runs, whether that was installed or lies in a checkout, packed with nothing but
the standard library; the same code gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedbridge._version import __version__
from fedbridge.base.files import packaged_text, sha256, write_atomically
from fedbridge.deploy.description import own_versions
from fedbridge.deploy.folders import DeploymentError

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[1]
EXTRA = "flower"
ALSO = ("parquet", "privacy")
"""Extras that a site may want as well; versions of them are known where they are installed."""

CONSTRAINTS = "constraints.txt"
KEPT = ("METADATA", "entry_points.txt", "licenses/LICENSE")
"""Of what an installation says of itself, what does not depend on the machine."""

OF_REQUIREMENTS = ("Requires-Dist:", "Provides-Extra:")
WHEEL = "Wheel-Version: 1.0\nGenerator: fedbridge\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
MODE = 0o644 << 16


@dataclass(frozen=True)
class Wheel:
    """This very fedbridge, ready to be installed elsewhere."""

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        """By which a site sees that it has what the coordinator sent."""
        return sha256(self.content)


@cache
def own_wheel() -> Wheel:
    """The code that runs here as a wheel."""
    about = f"fedbridge-{__version__}.dist-info"
    files = {
        f"fedbridge/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes()
        for path in PACKAGE.rglob("*")
        if path.is_file() and not _is_litter(path.relative_to(PACKAGE))
    }
    own = _distribution("fedbridge")
    for name in KEPT:
        files[f"{about}/{name}"] = (own.read_text(name) or "").encode()
    files[f"{about}/METADATA"] = _metadata(own).encode()
    files[f"{about}/WHEEL"] = WHEEL.encode()
    record = [f"{name},{_checksum(files[name])},{len(files[name])}" for name in sorted(files)]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    packed = BytesIO()
    with ZipFile(packed, "w") as archive:
        for name in sorted(files):
            entry = ZipInfo(name)  # with the same date always
            entry.external_attr, entry.compress_type = MODE, ZIP_DEFLATED
            archive.writestr(entry, files[name])
    return Wheel(f"fedbridge-{__version__}-py3-none-any.whl", packed.getvalue())


def _is_litter(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return hidden or "__pycache__" in path.parts or path.suffix == ".pyc"


def _checksum(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def _distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise DeploymentError(
            f"Expected an installed {name}, of which every site gets a copy, but there is only its "
            f"code: install it with pip."
        ) from error


def _metadata(own: Distribution) -> str:
    """What the package says of itself; of a checkout, what it says today.

    An editable installation keeps the requirements and the version of the day it was made.
    """
    head, _, text = (own.read_text("METADATA") or "").partition("\n\n")
    lines = [line for line in head.splitlines() if not line.startswith(OF_REQUIREMENTS)]
    lines = [f"Version: {__version__}" if x.startswith("Version:") else x for x in lines]
    lines += [f"Provides-Extra: {extra}" for extra in _extras(own)]
    lines += [f"Requires-Dist: {requirement}" for requirement in _requirements(own)]
    return "\n".join(lines) + f"\n\n{text}"


def _project() -> dict[str, dict[str, list[str]]] | None:
    """What the checkout that this runs from says of the package; None if this is installed."""
    file = PACKAGE.parents[1] / "pyproject.toml"
    if not file.exists():
        return None
    project: dict[str, dict[str, list[str]]] = tomllib.loads(file.read_text("utf-8"))["project"]
    return project


def _extras(own: Distribution) -> list[str]:
    project = _project()
    if project is None:
        return sorted(own.metadata.get_all("Provides-Extra") or [])
    return sorted(project["optional-dependencies"])


def _requirements(own: Distribution) -> list[str]:
    project = _project()
    if project is None:
        return own.requires or []
    of_extras = [
        f"{requirement}; extra == '{extra}'"
        for extra, wanted in sorted(project["optional-dependencies"].items())
        for requirement in wanted
    ]
    return [*project["dependencies"], *of_extras]


@cache
def own_constraints() -> str:
    """The exact versions here of all that fedbridge needs at a site, as pip reads them.

    A build's own label (``+cpu``) stays out: a site with a GPU has another build of that version.
    """
    found: dict[str, str] = {}
    own = _distribution("fedbridge")
    wanted = [*map(Requirement, _requirements(own))]
    _follow(wanted, (EXTRA, *ALSO), found)
    lines = [f"{name}=={found[name].partition('+')[0]}" for name in sorted(found)]
    head = f"# What fedbridge {__version__} runs with at the coordinator, exactly.\n"
    return head + "".join(f"{line}\n" for line in lines)


def _follow(wanted: list[Requirement], extras: tuple[str, ...], found: dict[str, str]) -> None:
    """Put down the version of all that is needed here, and of what that needs."""
    for requirement in wanted:
        name, marker = canonicalize_name(requirement.name), requirement.marker
        needed = marker is None or any(marker.evaluate({"extra": e}) for e in (*extras, ""))
        if name in found or not needed:
            continue
        try:
            there = distribution(name)
        except PackageNotFoundError:
            continue  # of an extra that is not installed here
        found[name] = there.version
        _follow([*map(Requirement, there.requires or [])], tuple(requirement.extras), found)


def write_installation(folder: Path) -> None:
    """Put wheel and constraints into a site's folder, in place of those of another version."""
    wheel = own_wheel()
    for old in _wheels(folder):
        if old.name != wheel.name:
            old.unlink()
    write_atomically(folder / wheel.name, wheel.content)
    write_atomically(folder / CONSTRAINTS, own_constraints())


def _wheels(folder: Path) -> Iterator[Path]:
    return folder.glob("fedbridge-*.whl")


def how_to_install() -> str:
    """The commands with which a site installs what lies in its folder, with an index or without."""
    wheel = own_wheel()
    return packaged_text("fedbridge.deploy", "INSTALL.md").format(
        wheel=wheel.name,
        extra=EXTRA,
        sha256=wheel.sha256,
        version=__version__,
        python=own_versions()["python"],
    )
