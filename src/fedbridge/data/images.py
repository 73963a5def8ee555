"""A folder ``domain/class/*.png|jpg|jpeg``: images of any size, resized and kept as ``uint8``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from fedbridge.data.arrays import task_from_domains
from fedbridge.data.split import TEST_FRACTION
from fedbridge.errors import DataError, OptionError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from fedbridge.data.task import FederatedTask

SUFFIXES = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")
MAX_PIXELS = 64_000_000
SIZES = range(4, 1025)


def images_task(
    path: Path,
    target: str | None = None,
    seed: int = 0,
    *,
    image_size: int = 32,
    grayscale: bool = False,
    n_target: int | None = None,
    target_fraction: float | None = None,
    test_fraction: float = TEST_FRACTION,
) -> FederatedTask:
    """A task whose domains are the folders of a folder, with one folder per class in each.

    Args:
        path: The folder.
        target: The domain that adapts.
        seed: Decides every random choice of rows.
        image_size: Height and width that all images are resized to.
        grayscale: One channel instead of three.
        n_target: Labelled images at the target; all its training images by default.
        target_fraction: The same as a fraction of its training images.
        test_fraction: Share of the target's images set aside for testing.
    """
    if isinstance(image_size, bool) or not isinstance(image_size, int) or image_size not in SIZES:
        raise OptionError(
            f"Expected `image_size` to be a whole number from {SIZES.start} to {SIZES.stop - 1}, "
            f"but got {image_size!r}."
        )
    files = {domain.name: _image_files(domain) for domain in _folders(path)}
    decode = partial(decode_image, size=image_size, grayscale=grayscale)
    with ThreadPoolExecutor() as pool:
        pixels = {domain: np.stack([*pool.map(decode, own)]) for domain, own in files.items()}
    task = task_from_domains(
        {name: (pixels[name], [file.parent.name for file in own]) for name, own in files.items()},
        target,
        seed,
        path=path,
        n_target=n_target,
        target_fraction=target_fraction,
        test_fraction=test_fraction,
        ids={
            name: [file.relative_to(path).as_posix() for file in own] for name, own in files.items()
        },
    )
    colours = "grey" if grayscale else "RGB"
    note = f"all images resized to {image_size}x{image_size} {colours}"
    return replace(task, model="cnn", notes=(note, *task.notes))


def decode_image(file: Path, size: int, grayscale: bool) -> NDArray[np.uint8]:
    """One image as ``uint8`` of shape (channels, size, size).

    Only PNG and JPEG decoders are tried, and no image of more than 64 million pixels is decoded:
    files come from elsewhere.
    """
    try:
        with Image.open(file, formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise Image.DecompressionBombError(f"{opened.width}x{opened.height} pixels")
            image = ImageOps.exif_transpose(_plain(opened)).convert("L" if grayscale else "RGB")
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


def _folders(path: Path) -> list[Path]:
    return sorted(
        entry
        for entry in path.iterdir()
        if entry.is_dir() and not entry.name.startswith((".", "__"))
    )


def _image_files(domain: Path) -> list[Path]:
    files = sorted(
        file
        for folder in _folders(domain)
        for file in folder.iterdir()
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    )
    if not files:
        raise DataError(
            f"Expected every site to have rows, but the folder of {domain.name!r} holds no images "
            f"as class/*.png, *.jpg or *.jpeg: add some or remove the folder."
        )
    return files
