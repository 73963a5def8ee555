"""From archives of elsewhere to the layout of the catalogue.

Unpacking is stricter than the standard library's own filter for tar files, and the same for zip
files: only plain files and folders are taken, and their bytes are written by us with plain
permissions. So a link, a device, a path that climbs out or a bomb never reaches the disk, nothing
leaves the folder and nothing grows without bounds. Then top folders go and extras are left out.
"""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath, PureWindowsPath
from typing import IO, TYPE_CHECKING

from fedbridge.base.errors import DataError
from fedbridge.base.files import disk_error, require_space
from fedbridge.data.store.catalogue import Files, ImageTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fedbridge.data.store.catalogue import DataSet

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
CHUNK = 1 << 20
LARGEST_HEADER = 1 << 24
BROKEN = (
    *(EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError),
    *(gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile),
)

DEEPEST = 3

LOCATION = "location_"


@dataclass(frozen=True)
class Limits:
    """How much an archive may hold.

    Attributes:
        files: Files and folders.
        size: Bytes when unpacked.
        ratio: Times as large as the archive; JPEG hardly shrinks, text by twenty times.
        small: Bytes up to which the ratio does not matter.
    """

    files: int = 1_000_000
    size: int = 64 * 10**9
    ratio: int = 200
    small: int = 1 << 20

    def bytes_for(self, archive: Path) -> int:
        """Bytes that this archive may hold."""
        return min(self.size, max(self.small, self.ratio * archive.stat().st_size))


@dataclass(frozen=True)
class Member:
    """A file or folder in an archive; ``odd`` says what else it is, if anything."""

    name: str
    size: int
    is_folder: bool
    odd: str | None
    open: Callable[[], IO[bytes] | None]


def is_archive(file: Path) -> bool:
    """Whether the name is that of an archive."""
    return file.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, folder: Path, limits: Limits | None = None) -> None:
    """Unpack a zip or tar file into a new folder, or raise and leave nothing behind."""
    limits = limits or Limits()
    unfinished = folder.with_name(f".{folder.name}.unpacking")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        _write_all(archive, unfinished, limits)
        unfinished.replace(folder)
    except BROKEN as error:
        raise _refused(archive, f"it is damaged ({error or 'it ends early'})") from error
    except NotImplementedError as error:
        raise _refused(archive, f"it cannot be read ({error})") from error
    except OSError as error:
        raise disk_error(f"unpack {archive.name}", error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_all(archive: Path, folder: Path, limits: Limits) -> None:
    allowed = limits.bytes_for(archive)
    written = 0
    taken: dict[PurePosixPath, bool] = {}
    with _opened(archive, allowed) as (members, least_size):
        require_space(folder, max(least_size, archive.stat().st_size), f"unpack {archive.name}")
        for member in members:
            if member.odd is not None:
                raise _refused(archive, f"{member.name!r} is {member.odd}")
            path = _safe_path(archive, member.name)
            _take(archive, path, taken, member)
            if len(taken) > limits.files:
                raise _refused(archive, f"it holds more than {limits.files:,} files")
            written += member.size
            if written > allowed:
                raise _too_large(archive, allowed)
            _write(member, folder.joinpath(*path.parts))


def _take(
    archive: Path, path: PurePosixPath, taken: dict[PurePosixPath, bool], member: Member
) -> None:
    """Note a path; each file comes once, and a file is no folder."""
    known_twice = path in taken and not (taken[path] and member.is_folder)
    in_a_file = any(not taken.get(parent, True) for parent in path.parents)
    if known_twice or in_a_file or not (path.parts or member.is_folder):
        raise _refused(archive, f"it holds {member.name!r} twice")
    taken[path] = member.is_folder
    for parent in path.parents:
        taken[parent] = True


def _write(member: Member, path: Path) -> None:
    if member.is_folder:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    source = member.open()
    if source is None:
        raise tarfile.ReadError(f"{member.name!r} has no content")
    with source, path.open("xb") as file:
        left = member.size
        while left and (chunk := source.read(min(CHUNK, left))):
            file.write(chunk)
            left -= len(chunk)
    if left:
        raise EOFError(f"{member.name!r} ends early")


def _safe_path(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    elsewhere = path.is_absolute() or PureWindowsPath(name).anchor or ".." in path.parts
    if elsewhere or "\\" in name or "\0" in name:
        raise _refused(archive, f"the path {name!r} leads out of the folder")
    return path


@contextmanager
def _opened(archive: Path, allowed: int) -> Iterator[tuple[Iterator[Member], int]]:
    """The members of an archive, and the bytes that they need at least."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            total = sum(info.file_size for info in zipped.infolist())
            if total > allowed:
                raise _too_large(archive, allowed)
            yield _zip_members(zipped), total
    elif _is_gzip(archive):
        with (
            _BoundedGzip(archive, allowed) as stream,
            tarfile.open(fileobj=stream, mode="r:") as tar,
        ):
            yield _tar_members(tar), 0
            while stream.read(CHUNK):
                pass  # to the end, where the checksum is
    else:
        with tarfile.open(archive, mode="r:") as tar:
            yield _tar_members(tar), 0


class _BoundedGzip(gzip.GzipFile):
    """A gzip stream that never gives more than it may, nor a huge piece at a time.

    A header of a tar file is read in one piece, so a crafted one could fill the memory.
    """

    def __init__(self, archive: Path, allowed: int) -> None:
        super().__init__(archive, "rb")
        self._archive = archive
        self._allowed = allowed + LARGEST_HEADER

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= LARGEST_HEADER or self.tell() > self._allowed:
            raise _too_large(self._archive, self._allowed)
        return super().read(size)


def _zip_members(archive: zipfile.ZipFile) -> Iterator[Member]:
    for info in archive.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        odd = None if kind in (0, stat.S_IFREG, stat.S_IFDIR) else "a link or a device"
        if info.flag_bits & 0x1:
            odd = "encrypted"
        yield Member(info.filename, info.file_size, info.is_dir(), odd, partial(archive.open, info))


def _tar_members(archive: tarfile.TarFile) -> Iterator[Member]:
    for info in archive:
        plain = info.isdir() or (info.isreg() and not info.issparse())
        odd = None if plain else "a link, a device or a sparse file"
        size = info.size if info.isreg() else 0
        yield Member(info.name, size, info.isdir(), odd, partial(archive.extractfile, info))


def _is_gzip(archive: Path) -> bool:
    with archive.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _too_large(archive: Path, allowed: int) -> DataError:
    return _refused(archive, f"it holds more than {allowed:,} bytes")


def _refused(archive: Path, reason: str) -> DataError:
    return DataError(f"Expected {archive.name} to be an archive of plain files, but {reason}.")


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
        _arrange_camera_traps(entry.layout, unpacked, folder)
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


def _arrange_camera_traps(layout: ImageTree, unpacked: Path, folder: Path) -> None:
    """Fill ``location_*/class/`` with the images, which lie in one heap, as annotations say.

    Which locations and classes there are, and that an image with animals of two classes is in both
    folders, is as DomainBed does it.
    """
    heap = {file.name: file for file in unpacked.rglob("*.jpg")}
    homes: dict[str, set[str]] = defaultdict(set)
    for file in sorted(unpacked.rglob("*.json")):
        for image, home in _annotated(file, layout):
            homes[image].add(home)
    for image in sorted(homes.keys() & heap.keys()):
        for home in sorted(homes[image]):
            (folder / home).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(heap[image], folder / home / image)
        heap[image].unlink()


def _annotated(file: Path, layout: ImageTree) -> Iterator[tuple[str, str]]:
    """Names of images, and the folders below ``location_*`` that they belong into."""
    try:
        content = json.loads(file.read_bytes())
        classes = {row["id"]: row["name"] for row in content["categories"]}
        images = {row["id"]: row for row in content["images"]}
        found = []
        for row in content["annotations"]:
            image, own = images[row["image_id"]], classes[row["category_id"]]
            found.append((image["file_name"], f"{LOCATION}{image['location']}", own))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"Expected {file.name} to hold annotations of camera traps, but it does not "
            f"({type(error).__name__}: {error})."
        ) from error
    domains = {domain.name for domain in layout.domains}
    for image, domain, own in found:
        if domain in domains and own in layout.classes:
            yield image, f"{domain}/{own}"
