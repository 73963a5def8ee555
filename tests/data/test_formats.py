"""Binary files are believed only when header and length agree."""

import gzip

import numpy as np
import pytest
from tiny_data import cifar_bytes, idx_bytes

from fedbridge.data.formats import read_cifar_batch, read_idx
from fedbridge.errors import DataError

IMAGES = np.arange(3 * 4 * 5).reshape(3, 4, 5)


@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["gzipped", "plain"])
def test_an_idx_file_is_read_gzipped_or_not(tmp_path, pack):
    (tmp_path / "images").write_bytes(pack(idx_bytes(IMAGES)))
    (tmp_path / "labels").write_bytes(pack(idx_bytes(np.array([7, 0, 9]))))
    np.testing.assert_array_equal(read_idx(tmp_path / "images", 3), IMAGES)
    assert read_idx(tmp_path / "labels", 1).tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx_bytes(IMAGES)[:-1], "Expected 60 bytes after the header.*only 59"),
        (idx_bytes(IMAGES) + b"!", "Expected 60 bytes.*found more"),
        (idx_bytes(np.arange(3)), "starts with 00 00 08 03, but it starts with 00 00 08 01"),
        (b"<!DOCTYPE html>", "starts with 3c 21 44 4f"),
        (b"", "starts with nothing"),
        (bytes((0, 0, 8, 3)) + b"\xff" * 12, "sensible size"),
        (bytes((0, 0, 8, 3)) + b"\0\0\0\1", r"sensible size\(s\), but it gives \[1, 0, 0\]"),
        (bytes((0, 0, 8, 3)) + b"\0\0\0\1\0", "sensible size"),
        (gzip.compress(idx_bytes(IMAGES))[:-10], "whole idx file, but it cannot be read"),
        (gzip.compress(idx_bytes(IMAGES))[:-8] + bytes(8), "cannot be read.*CRC"),
        (b"\x1f\x8bnot gzip at all", "cannot be read"),
    ],
    ids=[
        "too short",
        "too long",
        "labels for images",
        "a web page",
        "empty",
        "absurd sizes",
        "half a header",
        "half a size",
        "cut gzip",
        "wrong checksum",
        "no gzip",
    ],
)
def test_an_idx_file_that_is_wrong_is_named_with_what_was_found(tmp_path, content, message):
    (tmp_path / "train-images").write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_idx(tmp_path / "train-images", 3)
    assert "train-images" in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere.*No such file"):
        read_idx(tmp_path / "nowhere", 1)
    with pytest.raises(DataError, match=r"nowhere.*No such file"):
        read_cifar_batch(tmp_path / "nowhere")


def test_a_cifar_batch_has_labels_before_pixels_channel_by_channel(tmp_path):
    record = bytes([7]) + b"\1" * 1024 + b"\2" * 1024 + b"\3" * 1024
    (tmp_path / "batch.bin").write_bytes(cifar_bytes(2, 0) + record)
    pixels, labels = read_cifar_batch(tmp_path / "batch.bin")
    assert pixels.shape == (3, 3, 32, 32)
    assert labels.tolist() == [0, 1, 7]
    assert (pixels[2] == np.array([1, 2, 3])[:, None, None]).all()


@pytest.mark.parametrize("cut", [0, 3072, 3073 + 5])
def test_a_cifar_batch_of_another_length_is_refused(tmp_path, cut):
    (tmp_path / "batch.bin").write_bytes(cifar_bytes(2, 0)[:cut])
    with pytest.raises(DataError, match=f"batch.bin.*3073 bytes, but found {cut} bytes"):
        read_cifar_batch(tmp_path / "batch.bin")
