"""Rows on disk in the place of a tensor: indexed alike, selected unread, sent as names."""

import pickle

import numpy as np
import pytest
import torch

from fedbridge.base import files
from fedbridge.base.errors import DataError
from fedbridge.data import rows
from fedbridge.data.rows import MappedRows, StoredRows, in_batches, take, whole
from fedbridge.data.task import FederatedTask, Site
from fedbridge.federation.needs import rows_besides
from fedbridge.runs.folder import fingerprint

N, SHAPE = 10, (3, 2, 2)


@pytest.fixture
def tensor():
    return torch.arange(N * 12, dtype=torch.uint8).reshape(N, *SHAPE)


@pytest.fixture
def stored(tensor, tmp_path):
    np.save(tmp_path / "rows.npy", tensor.numpy())
    return StoredRows(MappedRows(tmp_path / "rows.npy"), torch.arange(N))


class Counting(MappedRows):
    """A file that notes how many rows were asked for at a time."""

    def __init__(self, file):
        super().__init__(file)
        self.asked = []

    def read(self, rows):
        self.asked.append(len(rows))
        return super().read(rows)


@pytest.mark.parametrize(
    "index",
    [
        torch.tensor([7, 0, 0]),
        torch.tensor([], dtype=torch.int64),
        torch.arange(N) % 3 == 0,
        slice(2, 5),
        slice(None),
        -1,
    ],
)
def test_an_index_gives_what_a_tensor_would(stored, tensor, index):
    assert torch.equal(stored[index], tensor[index])
    assert stored[index].dtype == tensor.dtype


def test_length_shape_and_type_are_those_of_the_tensor(stored, tensor):
    some = torch.tensor([4, 2])
    for found, expected in ((stored, tensor), (take(stored, some), tensor[some])):
        assert (len(found), found.shape, found.dtype) == (
            len(expected),
            expected.shape,
            torch.uint8,
        )


def test_large_rows_are_read_a_few_at_a_time(stored, tensor, monkeypatch):
    assert [len(batch) for batch in in_batches(stored)] == [N]
    monkeypatch.setattr(rows, "VALUES", 4 * 12 + 5)
    assert [len(batch) for batch in in_batches(stored)] == [4, 4, 2]
    assert torch.equal(torch.cat([*in_batches(stored)]), tensor)
    monkeypatch.setattr(rows, "VALUES", 3)
    assert [len(batch) for batch in in_batches(stored)] == [1] * N


def test_a_selection_of_a_selection_reads_nothing_until_it_is_asked(stored, tensor):
    store = Counting(stored.store.file)
    some = take(StoredRows(store, stored.index), torch.tensor([9, 5, 3, 1]))
    twice = take(some, torch.tensor([2, 0]))
    assert store.asked == []
    assert torch.equal(twice[:], tensor[[3, 9]])
    assert store.asked == [2]


def test_what_is_read_may_be_changed_and_the_file_stays(stored, tensor):
    stored[:].zero_()
    assert torch.equal(stored[:], tensor)


def test_another_process_gets_names_and_numbers(stored, tensor):
    sent = pickle.dumps(Site("A", take(stored, torch.tensor([1, 8])), torch.tensor([0, 1])))
    np.save(stored.store.file, 255 - tensor.numpy())
    assert torch.equal(pickle.loads(sent).x[:], 255 - tensor[[1, 8]])


def test_who_needs_all_rows_at_once_is_told_when_they_do_not_fit(stored, tensor, monkeypatch):
    assert torch.equal(whole(stored, "everything"), tensor)
    monkeypatch.setattr(files, "machine_memory", lambda: N * 12 - 1)
    with pytest.raises(DataError, match=r"fit into memory, .* but everything would take"):
        whole(stored, "everything")
    assert whole(tensor, "everything") is tensor


def test_a_task_of_stored_rows_is_the_same_data_to_a_run(stored, tensor):
    y = torch.arange(N) % 2

    def task(x):
        sites = [Site(name, x, y) for name in ("A", "B", "test")]
        return FederatedTask("t", (sites[0],), sites[1], sites[2], 2)

    assert fingerprint(task(stored)) == fingerprint(task(tensor))
    assert torch.equal(task(stored).two_samples(), task(tensor).two_samples())


def test_rows_held_back_leave_the_pool_one_for_one(stored):
    again = torch.tensor([0, 1, 2, 0, 1, 2])
    y = torch.tensor([0, 1, 1, 0, 0, 1])
    pool = Site("pool", take(stored, again), y)
    assert rows_besides(pool, pool.select(torch.tensor([3]))).tolist() == [1, 2, 3, 4, 5]
    assert rows_besides(pool, pool.select(torch.tensor([4, 5]))).tolist() == [0, 1, 3, 5]
