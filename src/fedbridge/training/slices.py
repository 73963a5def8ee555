"""Slices of a flat parameter vector: what of it moves, and what stays at home."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from torch import Tensor

Slices: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open intervals, in order and apart from each other."""


def complement(slices: Slices, size: int) -> Slices:
    """All entries that are not in the slices."""
    ends = [0, *(end for _, end in slices)]
    starts = [*(start for start, _ in slices), size]
    return tuple((end, start) for end, start in zip(ends, starts, strict=True) if end < start)


def overwrite(vector: Tensor, source: Tensor, slices: Slices) -> None:
    """Put the entries of another vector in place of the vector's own, in the slices."""
    for start, end in slices:
        vector[..., start:end] = source[..., start:end]


def entries(vector: Tensor, slices: Slices) -> Tensor:
    """What the vector holds in the slices, one after the other."""
    return torch.cat([vector[start:end] for start, end in slices])


def put(vector: Tensor, values: Tensor, slices: Slices) -> None:
    """Put values where ``entries`` would read them."""
    parts = values.split([end - start for start, end in slices])
    for (start, end), part in zip(slices, parts, strict=True):
        vector[start:end] = part
