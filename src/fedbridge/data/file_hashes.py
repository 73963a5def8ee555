"""Hashes of many files, remembered: a file is read again only when it may have changed.

An index keeps the hash of each file with its stamp: size, times and inode. A file whose stamp is
the same is taken to be the same. That is safe only once its times are old enough for a further
change to show, so younger files are hashed every time.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from fedbridge.data.parallel import by_chunks
from fedbridge.errors import DataError
from fedbridge.files import StorageError, to_json, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMAT = 1
AT_ONCE = 64
SETTLED = 2 * 10**9
"""Nanoseconds after which a further change of a file is sure to give it another time."""


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
        if content["format"] != FORMAT:
            return {}
        return {name: (str(found), Stamp(*stamp)) for name, (found, stamp) in content["files"]}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _write_index(index: Path, known: dict[str, tuple[str, Stamp]]) -> None:
    with suppress(StorageError):
        write_atomically(index, to_json({"format": FORMAT, "files": list(known.items())}))


def _unreadable(file: Path, error: OSError) -> DataError:
    return DataError(
        f"Expected a file that can be read, but {str(file)!r} cannot ({error.strerror or error}): "
        f"check its permissions, or remove it."
    )
