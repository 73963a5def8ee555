"""Two old binary formats of images: MNIST's idx files and CIFAR-10's batches.

A file is believed only when its header, its length and its labels agree; otherwise the error
names it and says what was expected and what was found.
"""

from __future__ import annotations

import gzip
import zlib
from math import prod
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np

from fedbridge.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

UNSIGNED_BYTES = 0x08
SIZE_BYTES = 4
MAX_IDX_BYTES = 2**30
"""No idx file of ours is nearly as large; a header that asks for more is not one."""

CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 1 + prod(CIFAR_SHAPE)
"""Each record is one byte of label and the pixels, channel by channel."""

GZIP = b"\x1f\x8b"


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The bytes of an idx file, gzipped or not, in the shape that its header gives.

    Args:
        path: The file.
        dimensions: 3 for images ``(n, height, width)``, 1 for labels ``(n,)``.
    """
    try:
        with _opened(path) as file:
            magic = file.read(SIZE_BYTES)
            if magic != bytes((0, 0, UNSIGNED_BYTES, dimensions)):
                raise DataError(
                    f"Expected {str(path)!r} to be an idx file of bytes in {dimensions} "
                    f"dimension(s), which starts with 00 00 08 {dimensions:02x}, but it starts "
                    f"with {magic.hex(' ') or 'nothing'}: get the file again."
                )
            shape = tuple(int.from_bytes(file.read(SIZE_BYTES), "big") for _ in range(dimensions))
            if not 0 < prod(shape) <= MAX_IDX_BYTES:
                raise DataError(
                    f"Expected the header of {str(path)!r} to give {dimensions} sensible "
                    f"size(s), but it gives {list(shape)}: get the file again."
                )
            content = file.read(prod(shape) + 1)  # one more tells a file that is too long
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"Expected {str(path)!r} to be a whole idx file, but it cannot be read "
            f"({getattr(error, 'strerror', None) or error}): get the file again."
        ) from error
    if len(content) != prod(shape):
        found = f"only {len(content)}" if len(content) < prod(shape) else "more"
        raise DataError(
            f"Expected {prod(shape)} bytes after the header of {str(path)!r}, but found {found}: "
            f"get the file again."
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def read_cifar_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images ``(n, 3, 32, 32)`` and labels ``(n,)`` of one CIFAR-10 ``.bin`` file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"Expected the CIFAR-10 batch {str(path)!r}, but it cannot be read "
            f"({error.strerror or error}): get the file again."
        ) from error
    if not content or len(content) % CIFAR_RECORD:
        raise DataError(
            f"Expected {str(path)!r} to hold records of {CIFAR_RECORD} bytes, but found "
            f"{len(content)} bytes, which is not a whole number of them: get the file again."
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
    return records[:, 1:].reshape(-1, *CIFAR_SHAPE), records[:, 0]


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        zipped = file.read(len(GZIP)) == GZIP
    return cast("BinaryIO", gzip.open(path) if zipped else path.open("rb"))
