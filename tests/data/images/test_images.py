"""A folder of images: pixels of one size, or features of a frozen backbone."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from pictures import TINY, register_tiny_backbone
from PIL import Image

import fedbridge as fb
from fedbridge.base.errors import DataError, DisagreementError, OptionError, UnknownNameError
from fedbridge.data.images import cache as image_cache
from fedbridge.data.load import load_task, possible_targets


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


@pytest.mark.parametrize("option", ["grayscale", "cache"])
def test_a_flag_that_is_neither_true_nor_false_is_refused(folder, option):
    with pytest.raises(OptionError, match=f"`{option}` to be true or false, but got 'maybe'"):
        load_task(folder, target="photo", **{option: "maybe"})


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
    assert load_task(folder, target="photo", cache=False).notes[1:] == (
        "site 'sketch' has classes that the target has no labelled rows of: 'eel'",
    )


def test_an_image_that_cannot_be_decoded_is_named(folder):
    (folder / "photo" / "dog" / "3.png").write_bytes(b"hello")
    with pytest.raises(DataError, match=r"dog.3\.png' cannot be decoded"):
        load_task(folder, target="photo")


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


def test_targets_are_known_without_decoding_anything(folder):
    (folder / "photo" / "dog" / "3.png").write_bytes(b"hello")
    assert possible_targets(folder) == ("photo", "sketch")


def test_images_are_decoded_once_and_come_from_the_cache_then(folder):
    first = load_task(folder, target="photo", image_size=9)
    again = load_task(folder, target="photo", image_size=9)
    assert first.notes == ("all images resized to 9x9 RGB",)
    assert again.notes[1].startswith("images of 2 of 2 sites were read before, and come from")
    assert torch.equal(first.target.x, again.target.x)
    assert torch.equal(first.sources[0].x, again.sources[0].x)


def test_without_the_cache_nothing_is_kept(folder):
    for _ in range(2):
        task = load_task(folder, target="photo", image_size=10, cache=False)
        assert task.notes == ("all images resized to 10x10 RGB",)


def test_where_the_cache_cannot_be_written_images_are_read_each_time(folder, monkeypatch):
    expected = load_task(folder, target="photo", image_size=11)
    monkeypatch.setattr(image_cache.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    task = load_task(folder, target="photo", image_size=12)
    assert task.notes[1] == (
        "images are read anew each time, since they cannot be kept: they would take more than half "
        "of the free disk space"
    )
    assert task.target.y.equal(expected.target.y)


class TestBackbone:
    @pytest.fixture(autouse=True)
    def _tiny(self, monkeypatch):
        register_tiny_backbone(monkeypatch)

    def test_rows_are_its_features(self, folder):
        task = load_task(folder, target="photo", backbone=TINY)
        assert (task.input_shape, task.target.x.dtype) == ((3,), torch.float32)
        shades = torch.where(task.target.y == 0, 30 / 255, 220 / 255)
        torch.testing.assert_close(task.target.x, shades.unsqueeze(1).expand(-1, 3))
        assert task.target.prepare is None

    def test_a_head_is_trained_on_images_of_its_size(self, folder):
        task = load_task(folder, target="photo", backbone=TINY)
        assert task.model == "linear"
        assert task.notes[0].startswith("images of 8x8 through the frozen backbone 'tiny': 3 feat")
        result = fb.run(task, "fedda", rounds=8, lr=0.1, workers=1)
        assert result.accuracy == 100

    def test_another_size_is_an_option(self, folder):
        task = load_task(folder, target="photo", backbone=TINY, image_size=16)
        assert task.notes[0].startswith("images of 16x16")

    def test_it_wants_colours(self, folder):
        with pytest.raises(OptionError, match="colour images for the backbone 'tiny'"):
            load_task(folder, target="photo", backbone=TINY, grayscale=True)

    def test_an_unknown_one_suggests_the_nearest(self, folder):
        with pytest.raises(UnknownNameError, match="Did you mean 'efficientnet-lite0'"):
            load_task(folder, target="photo", backbone="efficientnet-light")


def test_two_folders_of_a_domain_are_named(folder):
    shutil.copytree(folder / "photo", folder / "Photo")
    with pytest.raises(DataError, match="in whatever case, but got 'Photo' and 'photo'"):
        load_task(folder, target="photo")
