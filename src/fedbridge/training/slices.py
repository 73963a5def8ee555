"""Stretches of a flat parameter vector: what of it moves, and what stays at home."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from torch import Tensor

Stretches: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open intervals, in order and apart from each other."""


def complement(stretches: Stretches, size: int) -> Stretches:
    """All entries that are not in the stretches."""
    ends = [0, *(end for _, end in stretches)]
    starts = [*(start for start, _ in stretches), size]
    return tuple((end, start) for end, start in zip(ends, starts, strict=True) if end < start)


def overwrite(vector: Tensor, source: Tensor, stretches: Stretches) -> None:
    """Put the entries of another vector in place of the vector's own, in the stretches."""
    for start, end in stretches:
        vector[..., start:end] = source[..., start:end]


def entries(vector: Tensor, stretches: Stretches) -> Tensor:
    """What the vector holds in the stretches, one after the other."""
    return torch.cat([vector[start:end] for start, end in stretches])


def put(vector: Tensor, values: Tensor, stretches: Stretches) -> None:
    """Put values where ``entries`` would read them."""
    parts = values.split([end - start for start, end in stretches])
    for (start, end), part in zip(stretches, parts, strict=True):
        vector[start:end] = part
