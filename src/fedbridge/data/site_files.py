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


def site_files(folder: Path, suffix: str) -> dict[str, Path]:
    """The file of every site, by the site's name, in the order of the names."""
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() == suffix)
    hidden = [file.name for file in files if file.name.startswith(".")]
    if hidden:
        raise DataError(
            f"Expected every {suffix} in {str(folder)!r} to be a site's, but some are hidden, "
            f"{show(hidden)}: remove them, or rename what is meant."
        )
    check_names(files, [file.stem for file in files])
    found = {file.stem: file for file in files}
    check_copies({site: [file] for site, file in found.items()})
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


def check_copies(files: Mapping[str, Sequence[Path]]) -> None:
    """Refuse a site whose files are, byte for byte and in order, those of another."""
    sizes = {site: [*map(_size, own)] for site, own in files.items()}
    for one, other in combinations(files, 2):
        pairs = zip(files[one], files[other], strict=False)
        same = any(sizes[one]) and sizes[one] == sizes[other]
        if same and all(cmp(*pair, shallow=False) for pair in pairs):
            raise DataError(
                f"Expected data of its own at every site, but {one!r} is a copy of {other!r}: "
                f"remove one of them."
            )


def _size(file: Path) -> int:
    try:
        return readable_size(file)
    except OSError as error:
        raise DataError(
            f"Expected files of data in {str(file.parent)!r}, but {file.name!r} cannot be read "
            f"({error}): remove it."
        ) from error
