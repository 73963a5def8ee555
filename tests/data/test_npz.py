"""A folder of ``domain.npz`` files."""

import numpy as np
import pytest

from fedbridge.data.load import load_task
from fedbridge.errors import DataError, OptionError, ShapeError


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
