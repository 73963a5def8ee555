"""Tasks from arrays: who gets which row, under which label."""

import json

import numpy as np
import pytest
import torch

from fedbridge.base.errors import (
    DataError,
    DisagreementError,
    NonFiniteError,
    OptionError,
    ShapeError,
)
from fedbridge.data.load import load_task
from fedbridge.data.preparing import PixelsToUnit
from fedbridge.data.task import FederatedTask

from_arrays = FederatedTask.from_arrays


def rows(n: int, classes: int = 3, width: int = 2):
    """Rows that carry their own number, so that one can see where they went."""
    x = np.tile(np.arange(n, dtype=np.float64)[:, None], width)
    return x, np.arange(n) % classes


def test_arrays_tensors_and_lists_make_the_same_task():
    x, y = rows(6)
    made = [
        from_arrays({"A": (a, b)}, (a, b), (a, b))
        for a, b in [(x, y), (torch.tensor(x), torch.tensor(y)), (x.tolist(), y.tolist())]
    ]
    for task in made:
        assert torch.equal(task.sources[0].x, made[0].sources[0].x)
        assert task.target.x.dtype == torch.float32
        assert (task.target.y.dtype, task.n_classes) == (torch.int64, 3)


def test_sources_may_be_a_list():
    task = from_arrays([rows(6), rows(9)], rows(6), rows(6))
    assert task.source_names == ("source 0", "source 1")
    assert len(task.sources[1]) == 9


def test_without_a_test_set_30_percent_of_the_target_are_set_aside_stratified():
    task = from_arrays({"A": rows(6)}, rows(60), seed=1)
    assert task.test.y.bincount().tolist() == [6, 6, 6]
    assert task.target.y.bincount().tolist() == [14, 14, 14]
    numbers = torch.cat([task.target.x[:, 0], task.test.x[:, 0]]).tolist()
    assert sorted(numbers) == list(range(60))


def test_the_seed_decides_the_split():
    manifests = [
        json.dumps(from_arrays({"A": rows(6)}, rows(60), seed=seed, n_target=9).manifest["target"])
        for seed in (0, 0, 1)
    ]
    assert manifests[0] == manifests[1] != manifests[2]


def test_few_labels_leave_the_other_rows_unlabelled_and_in_the_pool():
    task = from_arrays({"A": rows(6)}, rows(30), rows(6), n_target=3)
    assert sorted(task.target.y.tolist()) == [0, 1, 2]
    assert (len(task.unlabelled), len(task.target_pool), len(task.test)) == (27, 30, 6)
    with_fraction = from_arrays({"A": rows(6)}, rows(30), rows(6), target_fraction=0.1)
    assert with_fraction.manifest == task.manifest


def test_all_rows_labelled_need_no_pool():
    task = from_arrays({"A": rows(6)}, rows(30), rows(6))
    assert task.unlabelled is None
    assert task.target_pool is None


def test_rows_that_never_had_a_label_follow_those_withheld():
    task = from_arrays({"A": rows(6)}, rows(6), rows(6), n_target=4, unlabelled=rows(5)[0])
    assert len(task.unlabelled) == 2 + 5
    assert task.manifest["unlabelled"][2:] == [0, 1, 2, 3, 4]


def test_the_manifest_says_which_rows_are_where():
    task = from_arrays({"A": rows(6), "B": rows(3)}, rows(20), n_target=5, seed=4)
    manifest = json.loads(json.dumps(task.manifest))
    assert manifest["sources"] == {"A": [0, 1, 2, 3, 4, 5], "B": [0, 1, 2]}
    assert (manifest["origin"], manifest["seed"]) == ("arrays", 4)
    for role, x in [("target", task.target.x), ("test", task.test.x)]:
        assert manifest[role] == x[:, 0].tolist()
    assert manifest["unlabelled"] == task.unlabelled[:, 0].tolist()


def test_labels_of_any_spelling_are_coded_over_all_sites():
    x, _ = rows(4)
    task = from_arrays(
        {"A": (x, ["b", "c", "b", "c"])}, (x, ["a", "b", "a", "b"]), (x, ["c", "b", "a", "a"])
    )
    assert task.class_names == ("a", "b", "c")
    assert task.test.y.tolist() == [2, 1, 0, 0]


def test_classes_that_sites_do_not_share_are_noted():
    x, _ = rows(4)
    task = from_arrays({"A": (x, [0, 1, 0, 1])}, (x, [1, 2, 1, 2]), (x, [1, 2, 1, 2]))
    assert task.notes == (
        "site 'A' has classes that the target has no labelled rows of: '0'",
        "site 'A' has no rows of classes that the target has: '2'",
    )


def test_float_labels_are_regression():
    x, _ = rows(10)
    task = from_arrays({"A": (x, x[:, 0])}, (x, x[:, 0]))
    assert (task.kind, task.outputs, task.class_names) == ("regression", 1, None)
    assert len(task.test) == 3


def test_images_stay_uint8_until_a_batch_is_used():
    x, y = np.full((6, 1, 4, 4), 255, dtype=np.uint8), np.arange(6) % 2
    task = from_arrays({"A": (x, y)}, (x, y), (x, y))
    assert task.target.x.dtype == torch.uint8
    assert task.target.prepare == PixelsToUnit()
    batch = task.target.prepare(task.target.x[:2], torch.Generator())
    assert torch.equal(batch, torch.ones(2, 1, 4, 4))


def test_flat_bytes_are_numbers_not_images():
    x, y = np.full((6, 5), 3, dtype=np.uint8), np.arange(6) % 2
    task = from_arrays({"A": (x, y)}, (x, y), (x, y))
    assert task.target.prepare is None
    assert task.target.x[0].tolist() == [3.0] * 5


X, Y = rows(6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: from_arrays({"A": (X, Y)}, (X[:, 0], Y)), ShapeError, r"shape \(n, \.\.\.\)"),
        (lambda: from_arrays({"A": (X, Y[:4])}, (X, Y)), ShapeError, "'A' has 6 rows and 4"),
        (lambda: from_arrays({"A": (X[:0], Y[:0])}, (X, Y)), DataError, "site 'A' has none"),
        (lambda: from_arrays({"A": X}, (X, Y)), ShapeError, r"'A' as a pair \(X, y\)"),
        (lambda: from_arrays({"A": ([["a"]], [0])}, (X, Y)), ShapeError, "array of numbers"),
        (lambda: from_arrays({"A": ([[1], [1, 2]], Y)}, (X, Y)), ShapeError, "'A'"),
        (lambda: from_arrays({"A": (X * 1j, Y)}, (X, Y)), ShapeError, "real features"),
        (lambda: from_arrays({"A": (X * 1e300, Y)}, (X, Y)), NonFiniteError, "'A'"),
        (lambda: from_arrays({"target": (X, Y)}, (X, Y)), DataError, "choose another"),
        (lambda: from_arrays({}, (X, Y)), DataError, "at least one source"),
        (lambda: from_arrays({"A": (X, Y)}, (X[:1], Y[:1])), DataError, "only 1: add rows"),
        (lambda: from_arrays({"A": (X, Y)}, (X, Y * 0)), DataError, "two classes at the target"),
        (lambda: from_arrays({"A": (X, Y)}, (X, Y * 1.0)), DisagreementError, "coded in one way"),
        (
            lambda: from_arrays({"A": (X, Y)}, (X, Y), (X, Y), unlabelled=X * np.nan),
            NonFiniteError,
            "unlabelled",
        ),
    ],
)
def test_bad_arrays_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_images_are_bytes_at_all_sites_or_at_none():
    x = np.zeros((6, 4, 4))
    with pytest.raises(DisagreementError, match=r"A has torch.uint8; target has torch.float32"):
        from_arrays({"A": (x.astype(np.uint8), Y)}, (x, Y))


@pytest.fixture
def folder(tmp_path):
    for k, domain in enumerate(("east", "north", "west")):
        np.savez(tmp_path / f"{domain}.npz", X=np.full((10, 3), k), y=np.arange(10) % 2)
    return tmp_path


def test_domains_are_files(folder):
    task = load_task(folder, target="north", n_target=4)
    assert (task.source_names, task.target.name) == (("east", "west"), "north")
    assert (task.sources[1].x == 2).all()
    assert (len(task.target), len(task.unlabelled), len(task.test)) == (4, 3, 3)
    assert task.name == folder.name


def test_own_data_need_a_target(folder):
    with pytest.raises(OptionError, match="one of 'east', 'north', 'west'"):
        load_task(folder)


def test_missing_arrays_are_named_with_those_there_are(folder):
    np.savez(folder / "west.npz", data=np.zeros(3), y=np.zeros(3))
    with pytest.raises(DataError, match=r"'west\.npz', but 'X' is missing; it has: 'data', 'y'"):
        load_task(folder, target="north")


def test_arrays_of_objects_are_refused_because_they_are_pickles(folder):
    np.savez(folder / "west.npz", X=np.array([[{}]]), y=np.zeros(1))
    with pytest.raises(DataError, match=r"'west\.npz' to be an \.npz of plain arrays"):
        load_task(folder, target="north")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"text"])
def test_a_broken_file_is_named(folder, content):
    (folder / "west.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"'west\.npz'.*cannot be read"):
        load_task(folder, target="north")


def test_a_plain_npy_under_this_name_is_refused(folder):
    with (folder / "west.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"'west\.npz'"):
        load_task(folder, target="north")


def test_samples_of_another_shape_name_their_site(folder):
    np.savez(folder / "west.npz", X=np.zeros((4, 7)), y=np.arange(4) % 2)
    with pytest.raises(ShapeError, match=r"west: \(7,\)"):
        load_task(folder, target="north")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("EAST.npz", r"in whatever case, but got 'EAST\.npz' and 'east\.npz'"),
        (".east.npz", r"some are hidden, '\.east\.npz'"),
        ("south.npz", r"'east\.npz' is a copy of 'south\.npz'"),
    ],
)
def test_two_files_of_a_site_hidden_ones_and_copies_are_named(folder, name, message):
    (folder / name).write_bytes((folder / "east.npz").read_bytes())
    with pytest.raises(DataError, match=message):
        load_task(folder, target="north")
