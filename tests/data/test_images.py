"""A folder of images: any size and mode in, uint8 of one size out."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from fedbridge.data import images
from fedbridge.data.load import load_task
from fedbridge.errors import DataError, DisagreementError, OptionError


@pytest.fixture
def folder(tmp_path):
    """Two domains with two classes of six images each: cats are dark, dogs are bright."""
    root = tmp_path / "pets"
    for domain, suffix in (("photo", "png"), ("sketch", "jpg")):
        for label, grey in (("cat", 30), ("dog", 220)):
            place = root / domain / label
            place.mkdir(parents=True)
            for k in range(6):
                Image.new("RGB", (20 + k, 30), (grey, grey, grey)).save(place / f"{k}.{suffix}")
    return root


def test_domains_and_classes_are_folders(folder):
    task = load_task(folder, target="photo")
    assert (task.name, task.source_names, task.target.name) == ("pets", ("sketch",), "photo")
    assert task.class_names == ("cat", "dog")
    assert task.input_shape == (3, 32, 32)
    assert (task.target.x.dtype, task.model) == (torch.uint8, "cnn")
    assert (len(task.target), len(task.test)) == (8, 4)
    assert task.target.x.float().mean((1, 2, 3)).tolist() == [
        30 if label == 0 else 220 for label in task.target.y
    ]


def test_batches_are_floats_in_the_unit_interval(folder):
    site = load_task(folder, target="photo").target
    batch = site.prepare(site.x, torch.Generator())
    assert batch.dtype == torch.float32
    assert batch.unique().tolist() == pytest.approx([30 / 255, 220 / 255])


def test_size_and_colours_are_options(folder):
    task = load_task(folder, target="photo", image_size=16, grayscale=True, n_target=2)
    assert task.input_shape == (1, 16, 16)
    assert sorted(task.target.y.tolist()) == [0, 1]
    assert task.notes[0] == "all images resized to 16x16 grey"


def test_the_manifest_names_files(folder):
    manifest = load_task(folder, target="photo").manifest
    assert "sketch/cat/0.jpg" in manifest["sources"]["sketch"]
    files = [*manifest["target"], *manifest["test"]]
    assert sorted(files) == sorted(f"photo/{c}/{k}.png" for c in ("cat", "dog") for k in range(6))


def test_hidden_and_other_files_are_passed_over(folder):
    (folder / "photo" / "cat" / "notes.txt").write_text("not an image")
    (folder / "photo" / "cat" / "._0.png").write_text("not an image")
    (folder / ".cache").mkdir()
    assert len(load_task(folder, target="sketch").sources[0]) == 12


def test_a_class_that_a_domain_lacks_is_noted(folder):
    place = folder / "sketch" / "eel"
    place.mkdir()
    Image.new("L", (9, 9)).save(place / "0.png")
    assert load_task(folder, target="photo").notes[1:] == (
        "site 'sketch' has classes that the target has no labelled rows of: 'eel'",
    )


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
def test_modes_are_brought_to_one(tmp_path, mode, colour, expected):
    Image.new(mode, (8, 8), colour).save(tmp_path / "a.png")
    pixels = images.decode_image(tmp_path / "a.png", 4, grayscale=False)
    assert pixels.shape == (3, 4, 4)
    assert (pixels == expected).all()


def test_palettes_with_transparency_are_images_too(tmp_path):
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 200, 200, 200])
    image.save(tmp_path / "a.png", transparency=bytes([0, 128]))
    assert (images.decode_image(tmp_path / "a.png", 4, grayscale=True) == 200).all()


def test_photographs_are_turned_upright(tmp_path):
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[:4] = 255
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    upright = images.decode_image(tmp_path / "a.png", 8, grayscale=True)
    assert upright[0, 0, 0] == 0
    assert upright[0, 7, 0] == 255


def broken(kind: str, good: bytes) -> bytes:
    return {"empty": b"", "text": b"hello", "truncated": good[: len(good) // 2]}[kind]


@pytest.mark.parametrize("kind", ["empty", "text", "truncated"])
def test_an_image_that_cannot_be_decoded_is_named(folder, kind):
    file = folder / "photo" / "dog" / "3.png"
    file.write_bytes(broken(kind, file.read_bytes()))
    with pytest.raises(DataError, match=r"dog.3\.png' cannot be decoded.*repair or remove"):
        load_task(folder, target="photo")


def test_other_formats_under_a_known_name_are_not_decoded(folder):
    Image.new("RGB", (8, 8)).save(folder / "photo" / "dog" / "3.png", format="GIF")
    with pytest.raises(DataError, match=r"3\.png' cannot be decoded"):
        load_task(folder, target="photo")


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
        images.decode_image(tmp_path / "a.png", 32, grayscale=False)


def test_a_domain_without_images_is_named(folder):
    (folder / "empty" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="folder of 'empty' holds no images"):
        load_task(folder, target="photo")


def test_class_folders_spelled_differently_are_a_disagreement(folder):
    (folder / "sketch" / "dog").rename(folder / "sketch" / "Dog")
    with pytest.raises(DisagreementError, match=r"sketch has 'Dog', 'cat'; photo has 'cat', 'dog'"):
        load_task(folder, target="photo")


@pytest.mark.parametrize("size", [0, 3, 5000, 32.0, True])
def test_a_size_out_of_range_is_refused(folder, size):
    with pytest.raises(OptionError, match="`image_size`"):
        load_task(folder, target="photo", image_size=size)


def test_own_data_need_a_target(folder):
    with pytest.raises(OptionError, match="one of 'photo', 'sketch'"):
        load_task(folder)
