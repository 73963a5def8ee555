"""One image file, of whatever size and mode, as pixels of one shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from fedbridge.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SUFFIXES = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")
MAX_PIXELS = 64_000_000


def is_image(file: Path) -> bool:
    """Whether a file is named like an image, and not hidden."""
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def decode_image(file: Path, size: int, grayscale: bool) -> NDArray[np.uint8]:
    """One image as ``uint8`` of shape (channels, size, size).

    Only PNG and JPEG decoders are tried, and no image of more than 64 million pixels is decoded:
    files come from elsewhere.
    """
    try:
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
