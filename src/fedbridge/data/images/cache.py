"""Rows of images kept on disk, so that a folder is decoded once and not at every run.

An entry is named by all that decides its rows: names, sizes and modification times of the files,
how rows are made of them, and the software that does it. Whatever changes gives another name, so
an entry is never out of date. It is a convenience: a damaged entry is made again, and where
nothing can be written there is none. Several processes may use the cache at once, and deleting it
is always safe.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

import numpy as np
import PIL
import torch

from fedbridge.base.errors import DataError
from fedbridge.base.files import sha256, to_json
from fedbridge.base.places import data_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from fedbridge.data.images.preprocessing import ImagePreprocessing

    Rows: TypeAlias = NDArray[np.generic]

FORMAT = 2
CHECKSUM_BYTES = 4
PARTIAL = ".partial"
ABANDONED = 24 * 3600
"""Seconds after which an unfinished entry must be that of a process that was killed."""


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
    key = _key(folder, files, how)
    entry = _RowFile(cache_folder() / f"{key}.npy", (len(files), *how.row_shape), how.row_type)
    rows = entry.read()
    if rows is not None:
        return KeptRows(rows, origin=entry.file)

    def chunks() -> Iterator[Rows]:
        yield from how.chunks(files, folder.name)
        if _key(folder, files, how) != key:
            raise OSError("files changed while they were read")

    problem = None
    try:
        entry.write(chunks())
        rows = entry.read()
    except OSError as error:
        problem = error.strerror or str(error)
    return KeptRows(how.rows(files, folder.name) if rows is None else rows, problem=problem)


def _key(folder: Path, files: Sequence[Path], how: ImagePreprocessing) -> str:
    """A name for the rows, from all that decides their bits."""
    software = [PIL.__version__, None if how.backbone is None else torch.__version__]
    stamps = []
    for file in files:
        try:
            found = file.stat()
        except OSError as error:
            raise DataError(
                f"Expected a file that can be read, but {str(file)!r} cannot "
                f"({error.strerror or error}): check its permissions, or remove it."
            ) from error
        stamps.append((file.relative_to(folder).as_posix(), found.st_size, found.st_mtime_ns))
    return sha256(to_json([FORMAT, software, asdict(how), stamps]).encode())


@dataclass(frozen=True)
class _RowFile:
    """An ``.npy`` file with a checksum behind its end, where readers of ``.npy`` do not look."""

    file: Path
    shape: tuple[int, ...]
    type: np.dtype[Any]

    def read(self) -> Rows | None:
        """The rows, mapped into memory; ``None`` if the file is not there or damaged."""
        try:
            content = np.memmap(self.file, np.uint8, "r")
            if _checksum(content[:-CHECKSUM_BYTES]) != content[-CHECKSUM_BYTES:].tobytes():
                return None
            rows: Rows = np.load(self.file, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return rows if (rows.shape, rows.dtype) == (self.shape, self.type) else None

    def write(self, chunks: Iterable[Rows]) -> None:
        """Write chunk after chunk beside the file, then take its place in one step."""
        place = self.file.parent
        place.mkdir(parents=True, exist_ok=True)
        _sweep(place)
        if prod(self.shape) * self.type.itemsize > shutil.disk_usage(place).free / 2:
            raise OSError(errno.ENOSPC, "they would take more than half of the free disk space")
        with NamedTemporaryFile(dir=place, prefix=".", suffix=PARTIAL, delete=False) as stream:
            partial = Path(stream.name)
            try:
                kind = np.lib.format.dtype_to_descr(self.type)
                header = {"descr": kind, "fortran_order": False, "shape": self.shape}
                np.lib.format.write_array_header_1_0(stream, header)
                for chunk in chunks:
                    stream.write(np.ascontiguousarray(chunk).data)
                stream.flush()
                stream.write(_checksum(np.memmap(partial, np.uint8, "r")))
                stream.flush()
                os.fsync(stream.fileno())
                stream.close()
                partial.replace(self.file)
            finally:
                partial.unlink(missing_ok=True)


def _checksum(content: NDArray[np.uint8]) -> bytes:
    return crc32(content.data).to_bytes(CHECKSUM_BYTES, "big")


def _sweep(place: Path) -> None:
    """Remove what killed processes have left."""
    for left in place.glob(f".*{PARTIAL}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                left.unlink()
