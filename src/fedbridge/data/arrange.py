"""From what archives hold to the layout of the catalogue: top folders go, extras are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.data.camera_traps import arrange_camera_traps
from fedbridge.data.catalogue import Files, ImageTree
from fedbridge.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fedbridge.data.catalogue import DataSet

DEEPEST = 3


def arrange(entry: DataSet, unpacked: Path, folder: Path) -> None:
    """Move what the data set consists of into a new folder.

    Args:
        entry: The data set.
        unpacked: A folder with one folder per downloaded file.
        folder: The new one.
    """
    folder.mkdir(parents=True)
    if entry.arrangement == "camera-traps":
        assert isinstance(entry.layout, ImageTree)
        arrange_camera_traps(entry.layout, unpacked, folder)
    elif isinstance(entry.layout, Files):
        for content in entry.layout.contents:
            _move(_found(unpacked, content.path), folder / content.path)
    elif isinstance(entry.layout, ImageTree):
        for domain in entry.layout.domains:
            _move(_found(unpacked, domain.name), folder / domain.name)
        if entry.arrangement == "listed":
            _keep_listed(unpacked, folder)


def _found(unpacked: Path, path: str) -> Path:
    """A file or folder by the end of its path, as near to the top as there is one."""
    for place in _folders(unpacked, DEEPEST):
        if (place / path).exists():
            return place / path
    raise DataError(f"Expected {path!r} in the downloaded files, but it is in none of them.")


def _folders(top: Path, depth: int) -> Iterator[Path]:
    """Folders below one, those near the top first."""
    level = [top]
    for _ in range(depth):
        level = sorted(entry for folder in level for entry in folder.iterdir() if entry.is_dir())
        yield from level


def _move(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    source.replace(destination)


def _keep_listed(unpacked: Path, folder: Path) -> None:
    """Remove all images that no list names; a line is ``domain/class/image.jpg label``."""
    lists = sorted(unpacked.glob("*/*.txt"))
    listed = {
        line.rpartition(" ")[0]
        for file in lists
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
    }
    for image in list(folder.glob("*/*/*")):
        if image.relative_to(folder).as_posix() not in listed:
            image.unlink()
