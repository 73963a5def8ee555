"""Rows that need not fit into memory: which ones they are, and a store that reads some of them.

A task of many images holds numbers of rows. Whoever trains or predicts reads a batch, and other
processes get the numbers with the name of a file, or of many, but never the rows themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedbridge.base.files import check_memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MANY = 2048
VALUES = MANY * 3 * 32 * 32
"""What is read and predicted at a time: so many rows, or fewer where they are large."""


class RowStore(Protocol):
    """Where rows are when they are not in memory: their shape as one array, type and content."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.generic]:
        """A copy of the rows with these numbers, in this order."""


class MappedRows:
    """A ``.npy`` file mapped into memory, of which the system keeps what it has room for."""

    def __init__(self, file: Path) -> None:
        self.file, self._rows = file, np.lib.format.open_memmap(file, mode="r")
        self.shape, self.dtype = self._rows.shape, self._rows.dtype

    def __reduce__(self) -> tuple[object, ...]:
        return MappedRows, (self.file,)

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.generic]:
        """A copy of the rows with these numbers."""
        return np.asarray(self._rows[rows])


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Some rows of a store in a tensor's place: an index reads them, ``select`` does not."""

    store: RowStore
    index: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """As a tensor of the rows would have it."""
        return (len(self.index), *self.store.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Of such a tensor."""
        return torch.from_numpy(np.empty(0, self.store.dtype)).dtype

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, which: Tensor | slice | int) -> Tensor:
        """The rows with these places among them, read now."""
        numbers = self.index[which]
        found = torch.from_numpy(self.store.read(numbers.reshape(-1).numpy()))
        return found.reshape(*numbers.shape, *self.shape[1:])

    def select(self, which: Tensor) -> StoredRows:
        """The rows with these places among them, not read."""
        return StoredRows(self.store, self.index[which])


Features: TypeAlias = Tensor | StoredRows
"""The rows of a site, in memory or not; both have a length, a shape and a type, and an index."""


def take(x: Features, which: Tensor) -> Features:
    """Some of the rows, read only if they are in memory already."""
    return x.select(which) if isinstance(x, StoredRows) else x[which]


def some(x: Features, which: Tensor) -> Tensor:
    """Some of the rows, read now: what an index gives, in a third of the time for a batch."""
    return x.index_select(0, which) if isinstance(x, Tensor) else x[which]


def at_once(x: Features) -> int:
    """How many of such rows are read and predicted at a time, where nobody asks for another."""
    return max(1, min(MANY, VALUES // max(1, prod(x.shape[1:]))))


def in_batches(x: Features) -> Iterator[Tensor]:
    """All rows in their order, some at a time."""
    return (x[start : start + at_once(x)] for start in range(0, len(x), at_once(x)))


def whole(x: Features, what: str) -> Tensor:
    """All rows in one tensor, for whoever cannot do with less; an error if they do not fit."""
    if isinstance(x, Tensor):
        return x
    needed = prod(x.shape) * x.store.dtype.itemsize
    check_memory(needed, what, "choose a `backbone`, or a smaller `image_size`")
    return x[:]
