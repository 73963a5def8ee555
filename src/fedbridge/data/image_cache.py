"""Rows of images kept on disk, so that a folder is decoded once and not at every run.

An entry is named by its content: a hash over path and bytes of every file, how rows are made of
them, and the software that does it. Whatever changes gives another name, so an entry is never out
of date. It is a convenience: a damaged entry is made again, and where nothing can be written
there is none. Several processes may use the cache at once, and deleting it is always safe.
"""

from __future__ import annotations

import errno
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
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

import numpy as np
import PIL
import torch

from fedbridge.data.file_hashes import content_hashes, stamp_of
from fedbridge.files import sha256, to_json
from fedbridge.places import data_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from fedbridge.data.file_hashes import Stamp
    from fedbridge.data.image_preprocessing import ImagePreprocessing

    Rows: TypeAlias = NDArray[np.generic]

FORMAT = 1
CHECKSUM_BYTES = 4
BLOCK = 1 << 20
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
    stamps = [stamp_of(file) for file in files]
    index = cache_folder() / f"{sha256(str(folder.resolve()).encode())}.json"
    key = _key(content_hashes(folder, files, stamps, index), how)
    entry = _Entry(cache_folder() / f"{key}.npy", (len(files), *how.row_shape), how.row_type)
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
class _Entry:
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
