"""Randomness that protects rows: the operating system's own, or of a seed where nobody is meant.

A seed of a run is known to its coordinator, and any seed of torch's generator, of which 32 bits
count, could be found by trying from entries that are known not to move. So a site draws noise, and
which rows take part in a step, number by number from the operating system. On one machine, where
the price of privacy is measured and nothing is hidden, a seed makes a run repeatable.
"""

from __future__ import annotations

import math
import os

import numpy as np
import torch
from torch import Tensor

DRAWS = 4
"""Normal numbers that are added for one entry of noise from the operating system."""

PIECE = 2**18
"""Entries whose noise is drawn at a time."""


class PrivateChance:
    """Draws of one job; None as its seed stands for the operating system."""

    def __init__(self, seed: int | None = None) -> None:
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def normals(self, count: int) -> Tensor:
        """Standard normal numbers, in float64."""
        if self._generator is None:
            return unpredictable_normals(count)
        return torch.randn(count, generator=self._generator, dtype=torch.float64)

    def subset(self, count: int, rate: float) -> Tensor:
        """Numbers below ``count``, each taken with chance ``rate`` whatever the others do."""
        if self._generator is None:
            drawn = torch.from_numpy(_uniforms(count))
        else:
            drawn = torch.rand(count, generator=self._generator, dtype=torch.float64)
        return (drawn <= rate).nonzero()[:, 0]


def unpredictable_normals(count: int) -> Tensor:
    """Standard normal numbers (float64) from the operating system's random bits.

    Four draws are added for each (before the sum is rounded), since a single draw of finite
    precision can betray what it was added to.
    """
    pieces = [_piece_of_normals(min(PIECE, count - start)) for start in range(0, count, PIECE)]
    return torch.from_numpy(np.concatenate(pieces)) if pieces else torch.zeros(0).double()


def _piece_of_normals(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Box and Muller's method: two uniform numbers give two normal ones."""
    pairs = DRAWS * count // 2
    uniform = _uniforms(2 * pairs).reshape(2, pairs)
    radius, angle = np.sqrt(-2.0 * np.log(uniform[0])), 2.0 * np.pi * uniform[1]
    normals = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
    summed: np.ndarray[tuple[int], np.dtype[np.float64]] = normals.reshape(DRAWS, count).sum(0)
    return summed / math.sqrt(DRAWS)


def _uniforms(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Numbers above 0 and up to 1."""
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    uniform: np.ndarray[tuple[int], np.dtype[np.float64]] = (
        (bits >> np.uint64(11)).astype(np.float64) + 1.0
    ) * 2.0**-53
    return uniform
