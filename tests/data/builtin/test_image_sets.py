"""Image sets are read once, checked, and cannot be changed by a task."""

import gzip

import numpy as np
import pytest
import tiny_data
from real_data import needs
from tiny_data import cifar_bytes, idx_bytes

from fedbridge.base.errors import DataError
from fedbridge.data.builtin.image_sets import (
    cifar10,
    fashion_mnist,
    mnist,
    read_cifar_batch,
    read_idx,
)
from fedbridge.data.load import load_task

IMAGES = np.arange(3 * 4 * 5).reshape(3, 4, 5)


def test_a_set_is_read_once_and_again_when_a_file_changes(own_root):
    tiny_data.write_idx_set(own_root / "mnist")
    first = mnist()
    assert mnist() is first
    file = own_root / "mnist" / "t10k-labels-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(tiny_data.idx_bytes(np.zeros(tiny_data.TEST_ROWS))))
    assert mnist().test.labels.sum() == 0
    assert mnist().digest != first.digest


def test_nobody_can_change_what_all_share(tiny):
    images = fashion_mnist()
    for array in (images.train.pixels, images.train.labels, images.test.pixels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_the_wrapper_does_not_matter(own_root):
    tiny_data.write_idx_set(own_root / "mnist")
    zipped = mnist()
    for file in sorted((own_root / "mnist").iterdir()):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    assert mnist().digest == zipped.digest


@pytest.mark.parametrize("load", [fashion_mnist, mnist, cifar10])
def test_a_set_that_is_not_there_says_how_to_get_it(own_root, load):
    with pytest.raises(DataError, match="fedbridge data fetch"):
        load()


def test_a_label_outside_the_classes_is_named(own_root):
    tiny_data.write_idx_set(own_root / "mnist")
    labels = tiny_data.labels(tiny_data.TRAIN_ROWS)
    labels[3] = 11
    file = own_root / "mnist" / "train-labels-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(tiny_data.idx_bytes(labels)))
    with pytest.raises(DataError, match=r"from 0 to 9 in .*train-labels.*row 3 .* has 11"):
        mnist()
    tiny_data.write_cifar(own_root / "cifar10")
    batch = own_root / "cifar10" / "cifar-10-batches-bin" / "data_batch_2.bin"
    batch.write_bytes(b"\xff" + batch.read_bytes()[1:])
    with pytest.raises(DataError, match=r"data_batch_2.*row 0 .* has 255"):
        cifar10()


def test_images_without_their_labels_are_refused(own_root):
    tiny_data.write_idx_set(own_root / "mnist")
    file = own_root / "mnist" / "train-labels-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(tiny_data.idx_bytes(tiny_data.labels(5))))
    with pytest.raises(DataError, match=r"1100 images and .* 5 labels"):
        mnist()


def test_a_file_that_is_missing_is_named(own_root):
    tiny_data.write_cifar(own_root / "cifar10")
    (own_root / "cifar10" / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4\.bin"):
        cifar10()


def test_other_images_than_the_published_ones_are_noted(tiny):
    note = "'mnist' is not as published: see `fedbridge data check mnist`"
    assert mnist().notes == (note,)
    assert note in load_task("colored-mnist-14", target="plus90", n_target=20).notes
    noted = load_task("cifar10-noise", n_target=20).notes
    assert len(noted) == 2
    assert "'cifar10' is not as published" in noted[0]


@needs("fashion-mnist")
def test_the_real_fashion_mnist():
    images = fashion_mnist()
    assert images.notes == ()
    unit = images.train.pixels / np.float32(255)
    assert unit.mean(dtype=np.float64) == pytest.approx(0.28604, abs=5e-6)
    assert unit.std(dtype=np.float64) == pytest.approx(0.35302, abs=5e-6)
    assert np.bincount(images.train.labels).tolist() == [6000] * 10
    assert np.bincount(images.test.labels).tolist() == [1000] * 10


@needs("mnist")
def test_the_real_mnist():
    images = mnist()
    assert images.notes == ()
    assert (images.train.pixels.shape, len(images.test)) == ((60000, 1, 28, 28), 10000)
    assert np.bincount(images.train.labels).tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]


@needs("cifar10")
def test_the_real_cifar10():
    images = cifar10()
    assert images.notes == ()
    assert (images.train.pixels.shape, len(images.test)) == ((50000, 3, 32, 32), 10000)
    assert np.bincount(images.train.labels).tolist() == [5000] * 10
    assert np.bincount(images.test.labels).tolist() == [1000] * 10


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
