"""Decoded images are kept under a name made of what they come from, and the cache never harms."""

import errno
import os
import shutil
import subprocess
import sys
import time
from collections import namedtuple

import numpy as np
import PIL
import pytest
from pictures import TINY, noise_image, register_tiny_backbone

from fedbridge.base.errors import DataError
from fedbridge.data.images import cache as image_cache
from fedbridge.data.images.cache import cached_rows
from fedbridge.data.images.preprocessing import ImagePreprocessing

PIXELS = ImagePreprocessing(8)
N_FILES = 5


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(image_cache, "cache_folder", lambda: folder)
    return folder


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for k in range(N_FILES):
        (folder / f"class{k % 2}").mkdir(parents=True, exist_ok=True)
        noise_image(folder / f"class{k % 2}" / f"{k}.png", seed=k)
    return folder


def load(folder, how=PIXELS):
    return cached_rows(folder, sorted(folder.rglob("*.png")), how)


def pixels(kept):
    return kept.rows.read(np.arange(kept.rows.shape[0]))


def entries(cache):
    return sorted(cache.glob("*.npy"))


def test_the_second_load_decodes_nothing_and_gives_the_same(photos, monkeypatch):
    first = load(photos)
    monkeypatch.setattr(ImagePreprocessing, "chunks", None)
    again = load(photos)
    assert (first.before, again.before) == (False, True)
    assert (first.rows.shape, first.rows.dtype) == ((N_FILES, 3, 8, 8), np.uint8)
    np.testing.assert_array_equal(pixels(first), pixels(again))


def test_rows_are_those_that_decoding_gives(photos):
    expected = PIXELS.rows(sorted(photos.rglob("*.png")), "photos")
    np.testing.assert_array_equal(pixels(load(photos)), expected)
    np.testing.assert_array_equal(pixels(load(photos)), expected)
    np.testing.assert_array_equal(load(photos).rows.read(np.array([4, 0, 4])), expected[[4, 0, 4]])


def test_an_entry_is_a_plain_array_for_other_software(photos, cache):
    rows = pixels(load(photos))
    np.testing.assert_array_equal(np.load(entries(cache)[0], allow_pickle=False), rows)


def test_changes_in_memory_do_not_reach_the_disk(photos):
    rows = pixels(load(photos))
    before = rows.copy()
    rows[:] = 0
    np.testing.assert_array_equal(pixels(load(photos)), before)


class TestKey:
    """Whatever decides the rows decides the name of the entry."""

    def test_a_changed_file_of_the_same_name_is_noticed(self, photos):
        before = pixels(load(photos))
        noise_image(photos / "class1" / "1.png", seed=99)
        after = load(photos)
        assert not after.before
        assert (pixels(after) != before).any(axis=(1, 2, 3)).sum() == 1

    def test_a_file_of_another_time_is_noticed_even_if_its_size_is_the_same(self, photos):
        load(photos)
        os.utime(photos / "class1" / "1.png", ns=(0, 1))
        assert not load(photos).before

    @pytest.mark.parametrize("change", ["add", "remove"])
    def test_new_and_removed_files_are_noticed(self, photos, change):
        load(photos)
        if change == "add":
            noise_image(photos / "class1" / "9.png", seed=9)
        else:
            (photos / "class1" / "3.png").unlink()
        assert not load(photos).before

    def test_a_renamed_file_is_noticed(self, photos):
        load(photos)
        (photos / "class0" / "0.png").rename(photos / "class0" / "9.png")
        assert not load(photos).before

    def test_a_copy_elsewhere_is_the_same(self, photos, tmp_path):
        load(photos)
        shutil.copytree(photos, tmp_path / "copy")
        assert load(tmp_path / "copy").before

    @pytest.mark.parametrize("other", [ImagePreprocessing(9), ImagePreprocessing(8, True)])
    def test_other_options_have_another_entry(self, photos, other):
        load(photos)
        assert not load(photos, other).before
        assert load(photos).before

    def test_another_pillow_has_another_entry(self, photos, monkeypatch):
        load(photos)
        monkeypatch.setattr(PIL, "__version__", "0.0")
        assert not load(photos).before

    def test_features_belong_to_a_backbone_with_its_weights(self, photos, monkeypatch):
        def features():
            return load(photos, ImagePreprocessing.from_options(8, False, TINY, 8))

        register_tiny_backbone(monkeypatch, weights="1")
        assert not load(photos).before
        assert not features().before
        assert features().rows.dtype == np.float32
        assert features().before
        register_tiny_backbone(monkeypatch, weights="2")
        assert not features().before


def truncated(content):
    return content[:-7]


def emptied(content):
    return b""


def of_other_rows(content):
    return content.replace(b"(5, 3, 8, 8)", b"(5, 3, 4, 8)")


def replaced(content):
    return b"\x80\x04pickle of something else"


@pytest.mark.parametrize("damage", [truncated, emptied, of_other_rows, replaced])
def test_a_damaged_entry_is_made_again(photos, cache, damage):
    expected = pixels(load(photos))
    (entry,) = entries(cache)
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    assert damage(whole) != whole
    again = load(photos)
    assert not again.before
    np.testing.assert_array_equal(pixels(again), expected)
    assert entry.read_bytes() == whole


class TestNoRoom:
    """Where nothing can be kept, it is said why; the rows are then read without a cache."""

    def check(self, photos, problem):
        found = load(photos)
        assert found.rows is None
        assert problem in found.problem

    def test_a_folder_that_cannot_be_made(self, photos, cache):
        cache.write_text("a file is in the way")
        self.check(photos, "exists")

    def test_a_disk_that_is_nearly_full(self, photos, cache, monkeypatch):
        usage = namedtuple("Usage", "free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100))
        self.check(photos, "more than half of the free disk space")
        assert not entries(cache)

    def test_a_disk_that_fills_up_meanwhile(self, photos, cache, monkeypatch):
        def full(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        load(photos, ImagePreprocessing(4))
        before = sorted(cache.iterdir())
        monkeypatch.setattr(os, "fsync", full)
        self.check(photos, "No space left on device")
        assert sorted(cache.iterdir()) == before

    def test_files_that_change_while_they_are_read(self, photos, cache, monkeypatch):
        really = ImagePreprocessing.chunks

        def change_then_read(self, files, site):
            noise_image(files[0], seed=int(time.time_ns() % 10**6))
            return really(self, files, site)

        monkeypatch.setattr(ImagePreprocessing, "chunks", change_then_read)
        self.check(photos, "files changed while they were read")
        assert not entries(cache)


def test_a_bad_image_is_an_error_and_leaves_nothing_behind(photos, cache):
    (photos / "class1" / "3.png").write_bytes(b"hello")
    with pytest.raises(DataError, match=r"3\.png' cannot be decoded"):
        load(photos)
    assert [file.name for file in cache.iterdir()] == [image_cache.LOCK]


def test_what_a_killed_process_left_is_removed(photos, cache):
    cache.mkdir()
    (cache / "half.partial").write_bytes(b"half")
    load(photos)
    assert sorted(cache.iterdir()) == [cache / image_cache.LOCK, *entries(cache)]


def test_of_several_processes_one_fills_the_cache_and_the_others_wait(photos, tmp_path):
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fedbridge.data.images.cache import cached_rows\n"
        "from fedbridge.data.images.preprocessing import ImagePreprocessing\n"
        "folder = Path(sys.argv[1])\n"
        "files = sorted(folder.rglob('*.png'))\n"
        "found = [cached_rows(folder, files, ImagePreprocessing(8)) for _ in range(3)]\n"
        "assert found[-1].before and not any(one.problem for one in found)\n"
        "print(found[0].before, found[-1].rows.read([0, 4]).sum())\n"
    )
    environment = os.environ | {"FEDBRIDGE_DATA": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, str(photos)]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    made, sums = zip(*(answer.split() for answer in answers), strict=True)
    assert sorted(made) == ["False", "True"]
    assert len({*sums}) == 1
    kept = tmp_path / "data" / "cache" / "images"
    assert len(entries(kept)) == 1
    assert not [*kept.glob("*.partial")]


def test_a_file_that_cannot_be_read_is_named(photos):
    (photos / "class0" / "0.png").unlink()
    (photos / "class0" / "0.png").symlink_to(photos / "nowhere")
    with pytest.raises(DataError, match=r"0\.png' cannot \(No such file"):
        load(photos)
