"""From image files to the rows of a task: what is decided once and applied to every later image.

Saved with the model, so that a new image is resized, and sent through the same frozen backbone,
exactly as the training images were.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from multiprocessing import parent_process
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedbridge.base.errors import DataError, ModelError, OptionError
from fedbridge.base.files import parse_json, readable_size
from fedbridge.base.options import check_flag, check_whole
from fedbridge.base.processes import core_count
from fedbridge.base.text import console
from fedbridge.data.tables.preprocessing import Preprocessing, read_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from fedbridge.models.backbones import Backbone

T = TypeVar("T")

FORMAT = 1
KIND = "images"
SIZES = range(4, 1025)
CHUNK = 16
"""Images that a thread takes on at a time."""

SUFFIXES = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")
MAX_PIXELS = 64_000_000
PATIENCE = 2.0
"""Seconds of work before a progress bar is worth looking at."""


@dataclass(frozen=True)
class ImagePreprocessing:
    """How an image becomes a row: pixels, or what a frozen backbone makes of them.

    Attributes:
        size: Height and width that all images are resized to.
        grayscale: One channel instead of three.
        backbone: Name of the backbone, whose features are the rows; ``None`` for pixels.
        identity: That backbone with its weights, as it names itself.
    """

    size: int
    grayscale: bool = False
    backbone: str | None = None
    identity: str | None = None

    @classmethod
    def from_options(
        cls, image_size: int | None, grayscale: bool, backbone: str | None, default_size: int
    ) -> ImagePreprocessing:
        """What a user asks for, checked; a backbone has a size of its own."""
        check_flag("grayscale", grayscale)
        if backbone is None:
            return cls(_checked_size(default_size if image_size is None else image_size), grayscale)
        if grayscale:
            raise OptionError(
                f"Expected colour images for the backbone {backbone!r}, but got `grayscale`: leave "
                f"one of the two out."
            )
        loaded = _load_backbone(backbone)
        size = _checked_size(loaded.image_size if image_size is None else image_size)
        return cls(size, backbone=backbone, identity=loaded.identity)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        if self.backbone is not None:
            return (self.same_backbone().width,)
        return (1 if self.grayscale else 3, self.size, self.size)

    @property
    def row_type(self) -> np.dtype[Any]:
        """Pixels are ``uint8``, features ``float32``."""
        return np.dtype(np.uint8 if self.backbone is None else np.float32)

    @property
    def row_bytes(self) -> int:
        """Memory that a row takes."""
        return prod(self.row_shape) * self.row_type.itemsize

    def describe(self) -> str:
        """What was done, in plain words."""
        if self.backbone is not None:
            return (
                f"images of {self.size}x{self.size} through the frozen backbone "
                f"{self.backbone!r}: {self.row_shape[0]} features each, only the head is trained"
            )
        colours = "grey" if self.grayscale else "RGB"
        return f"all images resized to {self.size}x{self.size} {colours}"

    def chunks(self, files: Sequence[Path], site: str) -> Iterator[NDArray[np.generic]]:
        """The rows of many images, some at a time, in order; only a few are in memory at once."""
        return by_chunks(self.few_rows, files, CHUNK, f"images of {site}")

    def few_rows(self, files: Sequence[Path]) -> NDArray[np.generic]:
        """The rows of a few images, made in this thread."""
        pixels = np.stack([decode_image(file, self.size, self.grayscale) for file in files])
        if self.backbone is None:
            return pixels
        return self.same_backbone()(torch.from_numpy(pixels)).numpy()

    def rows(self, files: Sequence[Path], site: str) -> NDArray[np.generic]:
        """The rows of many images as one array."""
        rows = np.empty((len(files), *self.row_shape), self.row_type)
        done = 0
        for chunk in self.chunks(files, site):
            rows[done : done + len(chunk)] = chunk
            done += len(chunk)
        return rows

    def apply(self, path: Path) -> tuple[list[str], NDArray[np.generic]]:
        """Name and row of one image, or of all images of a folder, however deep."""
        files = [path]
        if path.is_dir():
            files = sorted(filter(is_image, path.rglob("*")))
        if not files:
            raise DataError(
                f"Expected images (png, jpg, jpeg) in {str(path)!r}, but there are none."
            )
        above = path if path.is_dir() else path.parent
        return [file.relative_to(above).as_posix() for file in files], self.rows(files, path.name)

    def to_json(self) -> str:
        """The preprocessing as JSON text with its kind and a format version."""
        return json.dumps({"kind": KIND, "format": FORMAT, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> ImagePreprocessing:
        """Read what :meth:`to_json` wrote; anything else is an error."""
        record = read_record(text, FORMAT)
        try:
            names = [record[key] for key in ("backbone", "identity")]
            if not all(isinstance(name, str | None) for name in names):
                raise TypeError(f"{names!r} are no names")
            return cls(_checked_size(record["size"]), bool(record["grayscale"]), *names)
        except (KeyError, TypeError, OptionError) as error:
            raise DataError(
                f"Expected complete preprocessing of format {FORMAT}, but it is damaged "
                f"({error}): run the training again."
            ) from error

    def same_backbone(self) -> Backbone:
        """The backbone, if it is still the one whose features the rows are."""
        backbone = _load_backbone(str(self.backbone))
        if backbone.identity != self.identity:
            raise ModelError(
                f"Expected the backbone {self.identity!r} that the run was trained with, but the "
                f"one installed is {backbone.identity!r}: install the same weights, or run the "
                f"training again."
            )
        return backbone


def read_preprocessing(text: str) -> Preprocessing | ImagePreprocessing:
    """Saved preprocessing, be it of images or of a table."""
    try:
        of_images = bool(parse_json(text)["kind"] == KIND)
    except (ValueError, TypeError, KeyError):
        of_images = False
    return (ImagePreprocessing if of_images else Preprocessing).from_json(text)


def _load_backbone(name: str) -> Backbone:
    from fedbridge.models.backbones import load_backbone  # networks are not needed to read pixels

    return load_backbone(name)


def _checked_size(size: object) -> int:
    return check_whole("image_size", size, least=SIZES.start, most=SIZES.stop - 1)


def is_image(file: Path) -> bool:
    """Whether a file is named like an image, and not hidden."""
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def decode_image(file: Path, size: int, grayscale: bool) -> NDArray[np.uint8]:
    """One image as ``uint8`` of shape (channels, size, size).

    Only PNG and JPEG decoders are tried, and no image of more than 64 million pixels is decoded:
    files come from elsewhere.
    """
    try:
        readable_size(file)
        with Image.open(file, formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise Image.DecompressionBombError(f"{opened.width}x{opened.height} pixels")
            image = _plain(ImageOps.exif_transpose(opened)).convert("L" if grayscale else "RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(
            f"Expected images of at most {MAX_PIXELS:,} pixels, but {str(file)!r} is larger "
            f"({error}): scale it down or remove it."
        ) from error
    except Exception as error:
        raise DataError(
            f"Expected a PNG or JPEG image, but {str(file)!r} cannot be decoded ({error}): repair "
            f"or remove it."
        ) from error
    pixels = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR), dtype=np.uint8)
    return pixels[None] if grayscale else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _plain(image: Image.Image) -> Image.Image:
    """Modes that Pillow would convert badly: 16-bit grey is scaled, palettes get their alpha."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image) / 257).clip(0, 255).astype(np.uint8))
    return image.convert("RGBA") if "transparency" in image.info else image


def by_chunks(
    function: Callable[[Sequence[Path]], T], files: Sequence[Path], size: int, doing: str
) -> Iterator[T]:
    """What ``function`` makes of the files, ``size`` at a time, in order, on all cores.

    Threads suit work that leaves Python alone: decoding images, running a network.
    Chunks are the same on every machine and each runs on one torch thread, so that results do not
    depend on the number of cores. Only a few results wait for the reader at any time.

    Args:
        function: Called with some files, in several threads at once.
        files: All files.
        size: Files per call.
        doing: What is being done, for the progress bar.
    """
    threads = core_count()
    waiting: deque[tuple[Future[T], int]] = deque()
    default_of_new_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1))
    try:
        with _late_progress(doing, len(files)) as advance:

            def oldest() -> T:
                future, count = waiting.popleft()
                result = future.result()
                advance(count)
                return result

            for start in range(0, len(files), size):
                chunk = files[start : start + size]
                waiting.append((pool.submit(function, chunk), len(chunk)))
                if len(waiting) > 2 * threads:
                    yield oldest()
            while waiting:
                yield oldest()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(default_of_new_threads)


@contextmanager
def _late_progress(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """A callback that counts, and shows a bar on a terminal once the work has taken a while."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    )
    counter = bar.add_task(doing, total=total)
    somebody_looks = sys.stderr.isatty() and parent_process() is None
    begun = monotonic()

    def advance(count: int) -> None:
        bar.advance(counter, count)
        if somebody_looks and not bar.live.is_started and monotonic() - begun > PATIENCE:
            bar.start()

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()
