"""How images become rows is decided once, saved, and found again; all cores help, in order."""

import io
import json
import struct
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import TINY, noise_image, register_tiny_backbone, write_images
from PIL import Image

from fedbridge.base.errors import DataError, ModelError
from fedbridge.data.images import preprocessing
from fedbridge.data.images.preprocessing import (
    CHUNK,
    ImagePreprocessing,
    by_chunks,
    decode_image,
    read_preprocessing,
)
from fedbridge.data.tables.preprocessing import Preprocessing

UPSIDE_DOWN = 3


@pytest.fixture
def tiny(monkeypatch):
    register_tiny_backbone(monkeypatch)
    return ImagePreprocessing.from_options(None, False, TINY, 32)


@pytest.fixture
def many(tmp_path):
    for k in range(2 * CHUNK + 3):
        noise_image(tmp_path / f"{k:02}.png", seed=k)
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize("backbone", [None, TINY])
def test_rows_do_not_depend_on_the_number_of_cores(many, monkeypatch, tiny, backbone):
    how = ImagePreprocessing(8) if backbone is None else tiny
    results = []
    for cores in (1, 3):
        monkeypatch.setattr(preprocessing, "core_count", lambda cores=cores: cores)
        results.append(how.rows(many, "site"))
    assert results[0].shape == (len(many), *how.row_shape)
    assert results[0].dtype == how.row_type
    np.testing.assert_array_equal(*results)


def test_rows_come_in_chunks(many):
    lengths = [len(chunk) for chunk in ImagePreprocessing(8).chunks(many, "site")]
    assert lengths == [CHUNK, CHUNK, 3]


def test_a_backbone_brings_its_size_and_width(tiny):
    assert tiny == ImagePreprocessing(8, False, TINY, "tiny-1")
    assert (tiny.row_shape, tiny.row_type) == ((3,), np.float32)


def test_an_image_or_a_folder_can_be_new_data(tmp_path):
    write_images(tmp_path, ["a"], ["cat"], count=2)
    (tmp_path / "a" / "._0.png").write_text("not an image")
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    names, rows = ImagePreprocessing(4, grayscale=True).apply(tmp_path)
    assert names == ["a/cat/0.png", "a/cat/1.png"]
    assert rows.shape == (2, 1, 4, 4)
    names, rows = ImagePreprocessing(4).apply(tmp_path / "a" / "cat" / "1.png")
    assert (names, rows.shape) == (["1.png"], (1, 3, 4, 4))


class TestSaved:
    @pytest.mark.parametrize(
        "how", [ImagePreprocessing(8, True), ImagePreprocessing(9, False, TINY, "tiny-1")]
    )
    def test_it_survives(self, how):
        assert read_preprocessing(how.to_json()) == how
        assert ImagePreprocessing.from_json(how.to_json()) == how

    def test_that_of_a_table_is_another_kind(self):
        table = Preprocessing("a", (), "label", None)
        assert read_preprocessing(table.to_json()) == table
        with pytest.raises(DataError):
            read_preprocessing("not JSON")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"format": 99}, "Expected preprocessing of format 1, but got 99"),
            ({"size": 0}, "damaged"),
            ({"size": "8"}, "damaged"),
            ({"backbone": 3}, "damaged"),
        ],
    )
    def test_anything_else_is_refused(self, change, message):
        content = json.loads(ImagePreprocessing(8).to_json())
        with pytest.raises(DataError, match=message):
            ImagePreprocessing.from_json(json.dumps(content | change))

    def test_a_missing_entry_is_refused(self):
        content = json.loads(ImagePreprocessing(8).to_json())
        del content["grayscale"]
        with pytest.raises(DataError, match="damaged"):
            ImagePreprocessing.from_json(json.dumps(content))

    def test_a_backbone_with_other_weights_is_refused(self, tiny, tmp_path, monkeypatch):
        noise_image(tmp_path / "a.png")
        register_tiny_backbone(monkeypatch, weights="2")
        with pytest.raises(ModelError, match=r"Expected the backbone 'tiny-1'.* is 'tiny-2'"):
            tiny.apply(tmp_path / "a.png")


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


FILES = [Path(str(k)) for k in range(23)]


def numbers(files):
    return [int(str(file)) for file in files]


@pytest.mark.parametrize("cores", [1, 2, 7])
def test_results_come_in_order_whatever_the_number_of_cores(monkeypatch, cores):
    monkeypatch.setattr(preprocessing, "core_count", lambda: cores)
    chunks = [*by_chunks(numbers, FILES, 5, "counting")]
    assert chunks == [[*range(start, min(start + 5, 23))] for start in range(0, 23, 5)]


def test_nothing_comes_of_nothing():
    assert [*by_chunks(numbers, [], 5, "counting")] == []


def test_only_a_few_results_wait_for_the_reader(monkeypatch):
    monkeypatch.setattr(preprocessing, "core_count", lambda: 1)
    begun = []

    def note(files):
        begun.append(files)

    results = by_chunks(note, FILES, 1, "counting")
    next(results)
    time.sleep(0.2)
    assert len(begun) <= 4
    results.close()
    assert len(begun) <= 4


def test_of_several_failures_the_first_in_order_is_told(monkeypatch):
    monkeypatch.setattr(preprocessing, "core_count", lambda: 4)
    another_failed = threading.Event()

    def fail(files):
        (number,) = numbers(files)
        if number == 0:
            another_failed.wait(5)
        another_failed.set()
        raise ValueError(f"job {number}")

    with pytest.raises(ValueError, match="job 0"):
        [*by_chunks(fail, FILES, 1, "failing")]


def test_jobs_run_on_one_torch_thread_and_leave_the_number_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert [*by_chunks(lambda _: torch.get_num_threads(), FILES, 10, "asking")] == [1, 1, 1]
        assert torch.get_num_threads() == 2
        fresh = []
        thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert fresh == [2]
    finally:
        torch.set_num_threads(before)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "patience", "shown"),
    [(Terminal(), 0.0, True), (Terminal(), 60.0, False), (io.StringIO(), 0.0, False)],
)
def test_a_bar_is_shown_on_a_terminal_when_it_takes_long(monkeypatch, stream, patience, shown):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(preprocessing, "PATIENCE", patience)
    list(by_chunks(numbers, FILES, 5, "counting"))
    assert ("counting" in stream.getvalue()) is shown
    assert shown or not stream.getvalue()
