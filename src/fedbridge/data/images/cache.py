"""Rows of images kept on disk, so that a folder is decoded once and not at every run.

An entry is an ``.npy`` file named by all that decides its rows: names, sizes and times of the
images, how rows are made of them, and the software that does it. Whatever changes gives another
name, so an entry is never out of date; a broken one is made again, and deleting any is safe.
"""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import PIL
import torch
from filelock import FileLock

from fedbridge.base.errors import DataError
from fedbridge.base.files import sha256, to_json
from fedbridge.base.places import data_root
from fedbridge.data.rows import MappedRows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedbridge.data.images.preprocessing import ImagePreprocessing

FORMAT = 2
PARTIAL = ".partial"
LOCK = ".lock"


def cache_folder() -> Path:
    """Where rows of images are kept."""
    return data_root() / "cache" / "images"


class KeptRows(NamedTuple):
    """One site's rows in the cache, whether they were there before, and why there are none."""

    rows: MappedRows | None = None
    before: bool = False
    problem: str | None = None


def cached_rows(folder: Path, files: Sequence[Path], how: ImagePreprocessing) -> KeptRows:
    """The rows of the images below a folder: kept before, or made and kept now.

    One process at a time makes rows, on all cores; another that wants them waits.
    """
    entry = cache_folder() / f"{_key(folder, files, how)}.npy"
    shape = (len(files), *how.row_shape)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        rows = _read(entry, shape, how)
        if rows is None:
            with FileLock(entry.parent / LOCK):
                rows = _read(entry, shape, how)
                if rows is None:
                    _write(entry, folder, files, how)
                    return KeptRows(_read(entry, shape, how))
        return KeptRows(rows, before=True)
    except (OSError, NotImplementedError) as error:  # the latter where there are no locks
        return KeptRows(problem=getattr(error, "strerror", None) or str(error))


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


def _read(entry: Path, shape: tuple[int, ...], how: ImagePreprocessing) -> MappedRows | None:
    """The rows, mapped into memory; ``None`` if the file is not there or broken."""
    try:
        rows = MappedRows(entry)
    except (OSError, ValueError):
        return None
    return rows if (rows.shape, rows.dtype) == (shape, how.row_type) else None


def _write(entry: Path, folder: Path, files: Sequence[Path], how: ImagePreprocessing) -> None:
    """Chunk after chunk beside the entry, then in its place; what killed processes left goes."""
    for left in entry.parent.glob(f"*{PARTIAL}"):
        left.unlink()
    if len(files) * how.row_bytes > shutil.disk_usage(entry.parent).free / 2:
        raise OSError(errno.ENOSPC, "they would take more than half of the free disk space")
    partial = entry.with_suffix(PARTIAL)
    try:
        with partial.open("wb") as stream:
            kind, shape = np.lib.format.dtype_to_descr(how.row_type), (len(files), *how.row_shape)
            header = {"descr": kind, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            for chunk in how.chunks(files, folder.name):
                stream.write(chunk.data)
            stream.flush()
            os.fsync(stream.fileno())
        if _key(folder, files, how) != entry.stem:
            raise OSError("files changed while they were read")
        partial.replace(entry)
    finally:
        partial.unlink(missing_ok=True)
