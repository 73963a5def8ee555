"""Image sets are read once, checked, and cannot be changed by a task."""

import gzip

import numpy as np
import pytest
import tiny_data
from real_data import needs

from fedbridge.data.image_sets import cifar10, fashion_mnist, mnist
from fedbridge.data.load import load_task
from fedbridge.errors import DataError


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
