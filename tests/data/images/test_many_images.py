"""More images than fit into memory: rows are read a batch at a time, wherever they are."""

import pickle
import weakref

import pytest
import torch
from PIL import Image
from torch import nn

import fedbridge as fb
from fedbridge.base import files
from fedbridge.base.errors import DataError
from fedbridge.data.images import folder as folders
from fedbridge.data.images import preprocessing
from fedbridge.data.load import load_task
from fedbridge.data.rows import MappedRows, StoredRows
from fedbridge.data.site_package import save_site, sites_of
from fedbridge.runs.folder import fingerprint

SIZE = 224
ROW_BYTES = 3 * SIZE * SIZE
AT_ONCE = 41
"""Rows of this size that are read and predicted together."""


class Colours(nn.Module):
    """The means of every channel, then a linear layer."""

    def __init__(self):
        super().__init__()
        self.features, self.head = nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.features(x.mean(dim=(2, 3))))


def tiny_model():
    return Colours()


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """Two domains of 150 images, half of them dark and half bright, 45 MB as pixels."""
    root = tmp_path_factory.mktemp("crowd")
    for domain in ("photo", "sketch"):
        for label, grey in (("cat", 30), ("dog", 220)):
            place = root / domain / label
            place.mkdir(parents=True)
            for k in range(75):
                Image.new("RGB", (6, 5), (grey, grey, k)).save(place / f"{k:02}.png")
    return root


@pytest.fixture(params=["mapped", "decoded"])
def options(request, monkeypatch):
    """The machine has room for a batch and no more; options with and without a cache."""
    monkeypatch.setattr(folders, "HELD_BYTES", 0)
    monkeypatch.setattr(folders, "RECENT_BYTES", 20 * ROW_BYTES)
    monkeypatch.setattr(files, "machine_memory", lambda: AT_ONCE * ROW_BYTES)
    return {"image_size": SIZE, "cache": request.param == "mapped"}


@pytest.fixture
def held(options, monkeypatch):
    """How many rows were in memory at each time that some were read."""
    living, counts = [], []
    store = MappedRows if options["cache"] else folders.DecodedImages
    read = store.read

    def counted(self, rows):
        found = read(self, rows)
        living[:] = [one for one in living if one() is not None] + [weakref.ref(found)]
        counts.append(sum(len(one()) for one in living))
        return found

    monkeypatch.setattr(store, "read", counted)
    return counts


def test_loading_and_splitting_read_nothing(crowd, options, held):
    task = load_task(crowd, target="photo", n_target=20, **options)
    assert (len(task.sources[0]), len(task.unlabelled), len(task.test)) == (150, 85, 45)
    assert task.input_shape == (3, SIZE, SIZE)
    assert held == []
    sent = pickle.dumps(task.sources[0])
    assert len(sent) < 20_000 < ROW_BYTES
    assert torch.equal(pickle.loads(sent).x[:3], task.sources[0].x[:3])


@pytest.mark.parametrize("method", ["fedda", "oracle", "kd3a"])
def test_a_run_never_holds_more_than_a_few_batches(crowd, options, held, method):
    task = load_task(crowd, target="photo", n_target=20, **options)
    fb.run(task, method, 1, model=tiny_model, steps=2, batch_size=8, workers=1)
    fingerprint(task)
    assert sum(held) > len(task.sources[0]) + 2 * len(task.test)
    assert max(held) <= 2 * AT_ONCE


def test_the_result_is_that_of_rows_in_memory(crowd, options, monkeypatch):
    def outcome():
        task = load_task(crowd, target="photo", n_target=20, augment=True, **options)
        run = fb.run(task, "fedda", 1, model=tiny_model, steps=1, batch_size=4, workers=2)
        return type(task.test.x), run.history[0]["loss"]

    stored = outcome()
    monkeypatch.setattr(folders, "HELD_BYTES", 1 << 30)
    assert [stored, outcome()] == [(StoredRows, stored[1]), (torch.Tensor, stored[1])]


def test_without_room_for_a_cache_the_task_says_that_images_are_decoded(crowd, options, held):
    notes = load_task(crowd, target="photo", **options).notes
    said = "images are decoded when a batch needs them; the latest 2 MB of them stay in memory"
    assert (said in notes) == (not options["cache"])


def test_the_images_read_last_are_not_decoded_again(crowd, options, monkeypatch):
    if options["cache"]:
        pytest.skip("nothing is decoded again")
    rows = load_task(crowd, target="photo", **options).sources[0].x
    decoded = []
    really = preprocessing.decode_image
    monkeypatch.setattr(
        preprocessing, "decode_image", lambda *of: decoded.append(of) or really(*of)
    )
    for start in (0, 0, 5, 7):
        rows[start : start + 10]
    assert len(decoded) == 10 + 0 + 5 + 2


def test_who_needs_all_rows_at_once_is_told(crowd, options, tmp_path):
    task = load_task(crowd, target="photo", **options)
    with pytest.raises(DataError, match=r"would take .*: choose a `backbone`"):
        save_site(tmp_path / "site", sites_of(task)[0])
    with pytest.raises(DataError, match="all labelled rows at once"):
        fb.run(task, "alone-logistic", 1, model=tiny_model, workers=1)
