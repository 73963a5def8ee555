"""Whose file is whose in a folder of sites: what would count twice, or by accident, is refused."""

from __future__ import annotations

from filecmp import cmp
from itertools import combinations
from typing import TYPE_CHECKING

from fedbridge.base.errors import DataError
from fedbridge.base.files import readable_size
from fedbridge.data.labels import show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def site_files(folder: Path, *suffixes: str) -> dict[str, Path]:
    """The file of every site, by the site's name, in the order of the names."""
    files = sorted(
        (file for file in folder.iterdir() if file.suffix.lower() in suffixes),
        key=lambda file: file.stem,
    )
    hidden = [file.name for file in files if file.name.startswith(".")]
    if hidden:
        raise DataError(
            f"Expected every {' and '.join(suffixes)} in {str(folder)!r} to be a site's, "
            f"but some are hidden, {show(hidden)}: remove them, or rename what is meant."
        )
    check_names(files, [file.stem for file in files])
    found = {file.stem: file for file in files}
    _check_copies(found)
    return found


def check_names(paths: Sequence[Path], sites: Sequence[str]) -> None:
    """Refuse two files or folders for one site, up to the case of its name."""
    known: dict[str, Path] = {}
    for path, site in zip(paths, sites, strict=True):
        other = known.setdefault(site.casefold(), path)
        if other is not path:
            raise DataError(
                f"Expected a name of its own for every site of {str(path.parent)!r}, in whatever "
                f"case, but got {other.name!r} and {path.name!r}: rename or remove one of them."
            )


def _check_copies(files: Mapping[str, Path]) -> None:
    """Refuse a file that is another's, byte for byte."""
    sizes = {site: _size(file) for site, file in files.items()}
    for one, other in combinations(files, 2):
        same = 0 < sizes[one] == sizes[other]
        if same and cmp(files[one], files[other], shallow=False):
            raise DataError(
                f"Expected data of its own at every site, but {files[one].name!r} is a copy of "
                f"{files[other].name!r}: remove one of them."
            )


def _size(file: Path) -> int:
    try:
        return readable_size(file)
    except OSError as error:
        raise DataError(
            f"Expected files of data in {str(file.parent)!r}, but {file.name!r} cannot be read "
            f"({error}): remove it."
        ) from error
