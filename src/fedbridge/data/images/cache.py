"""Rows of images kept on disk, so that a folder is decoded once and not at every run.

An entry is named by its content: a hash over path and bytes of every file, how rows are made of
them, and the software that does it. Whatever changes gives another name, so an entry is never out
of date. It is a convenience: a damaged entry is made again, and where nothing can be written
there is none. Several processes may use the cache at once, and deleting it is always safe.

Hashes are remembered: an index keeps the hash of each file with its stamp (size, times and inode),
and a file whose stamp is the same is taken to be the same. That is safe only once its times are
old enough for a further change to show, so younger files are hashed every time.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from itertools import chain
from math import prod
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
import PIL
import torch

from fedbridge.base.errors import DataError
from fedbridge.base.files import StorageError, sha256, to_json, write_atomically
from fedbridge.base.places import data_root
from fedbridge.data.images.parallel import by_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from fedbridge.data.images.preprocessing import ImagePreprocessing

    Rows: TypeAlias = NDArray[np.generic]

FORMAT = 1
CHECKSUM_BYTES = 4
BLOCK = 1 << 20
ABANDONED = 24 * 3600
"""Seconds after which an unfinished entry must be that of a process that was killed."""

INDEX_FORMAT = 1
AT_ONCE = 64
SETTLED = 2 * 10**9
"""Nanoseconds after which a further change of a file is sure to give it another time."""


def cache_folder() -> Path:
    """Where rows of images are kept."""
    return data_root() / "cache" / "images"


@dataclass(frozen=True, eq=False)
class KeptRows:
    """The rows of one site's images, and what there is to say about the cache.

    Attributes:
        rows: One row per file, in the order of the files.
        origin: The file in the cache that they come from; ``None`` if they were made now.
        problem: Why they could not be kept; ``None`` if they are.
    """

    rows: Rows
    origin: Path | None = None
    problem: str | None = None


def cached_rows(folder: Path, files: Sequence[Path], how: ImagePreprocessing) -> KeptRows:
    """The rows of one site's images: from the cache, or made now and kept for the next time.

    Args:
        folder: The site's folder.
        files: Its images, somewhere below the folder, in the order of the rows.
        how: How an image becomes a row.
    """
    stamps = [stamp_of(file) for file in files]
    index = cache_folder() / f"{sha256(str(folder.resolve()).encode())}.json"
    key = _key(content_hashes(folder, files, stamps, index), how)
    entry = _RowFile(cache_folder() / f"{key}.npy", (len(files), *how.row_shape), how.row_type)
    rows = entry.read()
    if rows is not None:
        return KeptRows(rows, origin=entry.file)
    problem = None
    try:
        entry.write(_if_unchanged(how.chunks(files, folder.name), files, stamps))
        rows = entry.read()
    except OSError as error:
        problem = error.strerror or str(error)
    return KeptRows(how.rows(files, folder.name) if rows is None else rows, problem=problem)


def _key(hashes: Sequence[tuple[str, str]], how: ImagePreprocessing) -> str:
    """A name for the rows, from all that decides their bits."""
    software = [PIL.__version__, None if how.backbone is None else torch.__version__]
    return sha256(to_json([FORMAT, software, asdict(how), hashes]).encode())


def _if_unchanged(
    chunks: Iterable[Rows], files: Sequence[Path], stamps: Sequence[Stamp]
) -> Iterator[Rows]:
    """All chunks, then an error if they may be of other files than those that were hashed."""
    yield from chunks
    if [stamp_of(file) for file in files] != stamps:
        raise OSError("files changed while they were read")


@dataclass(frozen=True)
class _RowFile:
    """An ``.npy`` file with a checksum behind its end, where readers of ``.npy`` do not look."""

    file: Path
    shape: tuple[int, ...]
    type: np.dtype[Any]

    def read(self) -> Rows | None:
        """The rows, mapped into memory; ``None`` if the file is not there or damaged."""
        try:
            if not self._is_whole():
                return None
            rows: Rows = np.load(self.file, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return rows if (rows.shape, rows.dtype) == (self.shape, self.type) else None

    def write(self, chunks: Iterable[Rows]) -> None:
        """Write chunk after chunk beside the file, then take its place in one step."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self._sweep()
        self._check_room()
        with NamedTemporaryFile(
            dir=self.file.parent, prefix=".", suffix=".partial", delete=False
        ) as stream:
            partial = Path(stream.name)
            try:
                checksum = 0
                for block in chain([self._header()], chunks):
                    data = np.ascontiguousarray(block).data
                    checksum = crc32(data, checksum)
                    stream.write(data)
                stream.write(checksum.to_bytes(CHECKSUM_BYTES, "big"))
                stream.flush()
                os.fsync(stream.fileno())
                stream.close()
                partial.replace(self.file)
            finally:
                partial.unlink(missing_ok=True)

    def _header(self) -> NDArray[np.uint8]:
        text = BytesIO()
        described = {
            "descr": np.lib.format.dtype_to_descr(self.type),
            "fortran_order": False,
            "shape": self.shape,
        }
        np.lib.format.write_array_header_1_0(text, described)
        return np.frombuffer(text.getvalue(), dtype=np.uint8)

    def _is_whole(self) -> bool:
        left = self.file.stat().st_size - CHECKSUM_BYTES
        checksum = 0
        with self.file.open("rb") as stream:
            while left > 0 and (block := stream.read(min(BLOCK, left))):
                checksum = crc32(block, checksum)
                left -= len(block)
            return left == 0 and stream.read() == checksum.to_bytes(CHECKSUM_BYTES, "big")

    def _sweep(self) -> None:
        """Remove what killed processes have left."""
        for left in self.file.parent.glob(".*.partial"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > ABANDONED:
                    left.unlink()

    def _check_room(self) -> None:
        """Refuse to take more than half of the space that is left."""
        needed = prod(self.shape) * self.type.itemsize
        if needed > shutil.disk_usage(self.file.parent).free / 2:
            raise OSError(errno.ENOSPC, "they would take more than half of the free disk space")


class Stamp(NamedTuple):
    """What changes with the content of a file, as far as one can tell without reading it."""

    size: int
    modified: int
    changed: int
    inode: int


def stamp_of(file: Path) -> Stamp:
    """The stamp of a file as it is now."""
    try:
        found = file.stat()
    except OSError as error:
        raise _unreadable(file, error) from error
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def content_hashes(
    folder: Path, files: Sequence[Path], stamps: Sequence[Stamp], index: Path
) -> list[tuple[str, str]]:
    """Path below the folder and SHA-256 of every file, in order.

    Args:
        folder: Where the files are.
        files: The files.
        stamps: Their stamps.
        index: Where hashes are remembered, if it can be read and written.
    """
    known = _read_index(index)
    names = [file.relative_to(folder).as_posix() for file in files]
    hashes = {
        name: known[name][0]
        for name, stamp in zip(names, stamps, strict=True)
        if name in known and known[name][1] == stamp
    }
    unknown = [name for name in names if name not in hashes]
    if unknown:
        settled = time.time_ns() - SETTLED
        paths = [folder / name for name in unknown]
        read = chain.from_iterable(by_chunks(_read_hashes, paths, AT_ONCE, "checking files"))
        hashes |= zip(unknown, read, strict=True)
        _write_index(
            index,
            {
                name: (hashes[name], stamp)
                for name, stamp in zip(names, stamps, strict=True)
                if max(stamp.modified, stamp.changed) < settled
            },
        )
    return [(name, hashes[name]) for name in names]


def _read_hashes(files: Sequence[Path]) -> list[str]:
    return [_read_hash(file) for file in files]


def _read_hash(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(file, error) from error


def _read_index(index: Path) -> dict[str, tuple[str, Stamp]]:
    """What is remembered; nothing if there is no index, or not one that can be understood."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
        if content["format"] != INDEX_FORMAT:
            return {}
        return {name: (str(found), Stamp(*stamp)) for name, (found, stamp) in content["files"]}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _write_index(index: Path, known: dict[str, tuple[str, Stamp]]) -> None:
    with suppress(StorageError):
        write_atomically(index, to_json({"format": INDEX_FORMAT, "files": list(known.items())}))


def _unreadable(file: Path, error: OSError) -> DataError:
    return DataError(
        f"Expected a file that can be read, but {str(file)!r} cannot ({error.strerror or error}): "
        f"check its permissions, or remove it."
    )
