"""Fashion-MNIST, MNIST and CIFAR-10 as they lie on disk: read once per process, never changed.

Their formats are old binary ones, idx files and CIFAR-10's batches. A file is believed only when
its header, its length and its labels agree; otherwise the error names it and says what was
expected and what was found.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from math import prod
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeAlias, cast

import numpy as np

from fedbridge.base.errors import DataError
from fedbridge.base.files import read_bytes, readable_size
from fedbridge.base.places import require_dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    Part: TypeAlias = Literal["train", "test"]
    Arrays: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.uint8]]
    PartReader: TypeAlias = Callable[[Path, Part, int], Arrays]

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
DIGITS = tuple(map(str, range(10)))
CIFAR_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
CIFAR_FOLDER = "cifar-10-batches-bin"
PARTS: tuple[Part, ...] = ("train", "test")
PUBLISHED = {
    "fashion-mnist": "ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f",
    "mnist": "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",
    "cifar10": "32e5966899bde482c0ef7d076bf69809b4b1488c806f657a814cfca4646ec493",
}
"""The digest of each set as its publishers have it."""

UNSIGNED_BYTES = 0x08
SIZE_BYTES = 4
MAX_IDX_BYTES = 2**30
"""No idx file of ours is nearly as large; a header that asks for more is not one."""

CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 1 + prod(CIFAR_SHAPE)
"""Each record is one byte of label and the pixels, channel by channel."""

GZIP = b"\x1f\x8b"


@dataclass(frozen=True, eq=False)
class Images:
    """Pixels ``(n, channels, height, width)`` with class indices ``(n,)``; both read-only."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A data set with its official division into training and test images.

    Attributes:
        name: What the data set is called.
        train: The training images; row numbers in manifests count these.
        test: The test images, counted apart.
        class_names: Names by class index.
        digest: SHA-256 of all pixels and labels, whatever files they came in.
    """

    name: str
    train: Images
    test: Images
    class_names: tuple[str, ...]
    digest: str

    @property
    def notes(self) -> tuple[str, ...]:
        """That these are not the published images, whose results others could compare."""
        if self.digest == PUBLISHED[self.name]:
            return ()
        return (f"{self.name!r} is not as published: see `fedbridge data check {self.name}`",)


def fashion_mnist() -> ImageSet:
    """Fashion-MNIST: 60,000 and 10,000 grey images of 28x28 pixels."""
    return _cached(_read_idx_part, "fashion-mnist", FASHION_CLASSES)


def mnist() -> ImageSet:
    """MNIST: 60,000 and 10,000 grey images of 28x28 pixels."""
    return _cached(_read_idx_part, "mnist", DIGITS)


def cifar10() -> ImageSet:
    """CIFAR-10: 50,000 and 10,000 colour images of 32x32 pixels."""
    return _cached(_read_cifar_part, "cifar10", CIFAR_CLASSES)


def _cached(read_part: PartReader, name: str, class_names: tuple[str, ...]) -> ImageSet:
    folder = require_dataset(name)
    files = ((file, file.stat()) for file in sorted(folder.rglob("*")))
    stamps = tuple((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in files)
    return _read_once(read_part, name, folder, class_names, stamps)


@lru_cache(maxsize=2)
def _read_once(
    read_part: PartReader,
    name: str,
    folder: Path,
    class_names: tuple[str, ...],
    stamps: tuple[tuple[str, int, int], ...],
) -> ImageSet:
    """The set, read again only when a file of its folder has changed (``stamps``)."""
    train, test = (_frozen(*read_part(folder, part, len(class_names))) for part in PARTS)
    content = sha256()
    for array in (train.pixels, train.labels, test.pixels, test.labels):
        content.update(np.ascontiguousarray(array).astype(np.uint8, copy=False).data)
    return ImageSet(name, train, test, class_names, content.hexdigest())


def _read_idx_part(folder: Path, part: Part, n_classes: int) -> Arrays:
    stem = {"train": "train", "test": "t10k"}[part]
    image_file = _plain_or_zipped(folder / f"{stem}-images-idx3-ubyte")
    label_file = _plain_or_zipped(folder / f"{stem}-labels-idx1-ubyte")
    pixels, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(pixels) != len(labels):
        raise DataError(
            f"Expected one label per image, but {str(image_file)!r} has {len(pixels)} images and "
            f"{str(label_file)!r} {len(labels)} labels: get both files again."
        )
    _check_labels(labels, n_classes, label_file)
    return pixels[:, None], labels


def _read_cifar_part(folder: Path, part: Part, n_classes: int) -> Arrays:
    names = {
        "train": [f"data_batch_{k}.bin" for k in range(1, 6)],
        "test": ["test_batch.bin"],
    }[part]
    batches = []
    for file in (folder / CIFAR_FOLDER / name for name in names):
        batches.append(read_cifar_batch(file))
        _check_labels(batches[-1][1], n_classes, file)
    pixels, labels = zip(*batches, strict=True)
    return np.concatenate(pixels), np.concatenate(labels)


def _plain_or_zipped(path: Path) -> Path:
    zipped = path.with_name(f"{path.name}.gz")
    return path if path.exists() and not zipped.exists() else zipped


def _check_labels(labels: NDArray[np.uint8], n_classes: int, file: Path) -> None:
    if len(labels) and int(labels.max()) >= n_classes:
        row = int((labels >= n_classes).argmax())
        raise DataError(
            f"Expected labels from 0 to {n_classes - 1} in {str(file)!r}, but row {row} (from 0) "
            f"has {int(labels[row])}: get the file again."
        )


def _frozen(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Images:
    images = Images(pixels, labels.astype(np.int64))
    for array in (images.pixels, images.labels):
        array.flags.writeable = False
    return images


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
        content = read_bytes(path)
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
    readable_size(path)
    with path.open("rb") as file:
        zipped = file.read(len(GZIP)) == GZIP
    return cast("BinaryIO", gzip.open(path) if zipped else path.open("rb"))
