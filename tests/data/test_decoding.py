"""An image of any size and mode in, ``uint8`` of one shape out."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fedbridge.data.decoding import decode_image
from fedbridge.errors import DataError

UPSIDE_DOWN = 3


def test_colours_come_first_and_the_size_is_the_one_asked_for(tmp_path):
    Image.new("RGB", (30, 20), (10, 20, 30)).save(tmp_path / "a.png")
    pixels = decode_image(tmp_path / "a.png", 8, grayscale=False)
    assert (pixels.shape, pixels.dtype) == ((3, 8, 8), np.uint8)
    assert pixels[:, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 200, 200),
        ("RGBA", (200, 200, 200, 10), 200),
        ("1", 1, 255),
        ("I;16", 200 * 257, 200),
        ("LA", (200, 255), 200),
    ],
)
def test_modes_of_png_are_brought_to_one(tmp_path, mode, colour, expected):
    Image.new(mode, (8, 8), colour).save(tmp_path / "a.png")
    pixels = decode_image(tmp_path / "a.png", 4, grayscale=False)
    assert pixels.shape == (3, 4, 4)
    assert (pixels == expected).all()


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 200, (200, 200, 200)),
        ("RGB", (200, 200, 200), (200, 200, 200)),
        ("CMYK", (0, 100, 200, 0), (255, 155, 55)),
    ],
)
def test_modes_of_jpeg_are_brought_to_one(tmp_path, mode, colour, expected):
    Image.new(mode, (8, 8), colour).save(tmp_path / "a.jpg", quality=100)
    pixels = decode_image(tmp_path / "a.jpg", 4, grayscale=False)
    assert pixels[:, 1, 1].tolist() == pytest.approx(expected, abs=3)


@pytest.mark.parametrize("transparency", [{}, {"transparency": bytes([0, 128])}])
def test_palettes_are_looked_up(tmp_path, transparency):
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.save(tmp_path / "a.png", **transparency)
    pixels = decode_image(tmp_path / "a.png", 4, grayscale=False)
    assert pixels[:, 0, 0].tolist() == [200, 100, 50]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_photographs_are_turned_upright(tmp_path, kind):
    pixels = np.zeros((8, 8), dtype=kind)
    pixels[:4] = np.iinfo(kind).max
    exif = Image.Exif()
    exif[0x0112] = UPSIDE_DOWN
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    upright = decode_image(tmp_path / "a.png", 8, grayscale=True)
    assert upright[0, :, 0].tolist() == [0] * 4 + [255] * 4


@pytest.mark.parametrize("side", [9000, 60_000])
def test_a_small_file_that_unpacks_to_a_huge_image_is_refused(tmp_path, side):
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(1000)))
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b""))
    with pytest.raises(DataError, match=r"at most 64,000,000 pixels, but .*a\.png"):
        decode_image(tmp_path / "a.png", 32, grayscale=False)


@pytest.mark.parametrize("kind", ["empty", "text", "truncated", "gif"])
def test_a_file_that_cannot_be_decoded_is_named(tmp_path, kind):
    file = tmp_path / "3.png"
    Image.new("RGB", (50, 50)).save(file, format="GIF" if kind == "gif" else "PNG")
    whole = file.read_bytes()
    file.write_bytes({"empty": b"", "text": b"hello", "truncated": whole[:-40]}.get(kind, whole))
    with pytest.raises(DataError, match=r"3\.png' cannot be decoded.*repair or remove"):
        decode_image(file, 8, grayscale=False)
