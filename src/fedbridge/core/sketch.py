"""Random sketches: inner products of long vectors from a few hundred numbers.

Two sites that share a seed each press a vector of millions of entries into a short one such that
inner products survive on average. A block of the model is pressed by giving every entry a random
sign and adding it to a random bucket (a count sketch): one pass and no matrix.

Every sketch has two independent *halves*, because a squared inner product needs them. From one
half, ``E⟨Ra, Rb⟩² = ⟨a, b⟩² + (‖a‖²‖b‖² + ...)/k``, biased by exactly the noise one wants to
measure. The product of two independent halves has no bias at all: ``E ⟨R₁a, R₁b⟩⟨R₂a, R₂b⟩ =
⟨a, b⟩²``. The standard deviation of one half's inner product is about ``‖a‖‖b‖/√k``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.base.errors import ShapeError
from fedbridge.base.options import check_whole

if TYPE_CHECKING:
    from fedbridge.core.blocks import Blocks

CHUNK = 2**16
"""Entries that are pressed at a time, so that no converted copy of a whole matrix is made."""


@dataclass(frozen=True)
class Sketch:
    """A seeded linear map that presses every block of a vector into 2 x ``size`` numbers.

    A block of at most ``size`` entries is kept as it is: its inner products are exact.
    """

    blocks: Blocks
    size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("size", self.size, least=1)

    def press(self, rows: Tensor) -> Tensor:
        """Sketches (r, K, 2, size) in float64 of the rows (r, m) of a matrix."""
        if rows.ndim != 2 or rows.shape[1] != self.blocks.total:
            raise ShapeError(
                f"Expected rows of {self.blocks.total} entries, but got {tuple(rows.shape)}."
            )
        width = len(self.blocks) * self.size
        pressed = torch.zeros((2, rows.shape[0], width), dtype=torch.float64)
        for start in range(0, self.blocks.total, CHUNK):
            chunk = rows[:, start : start + CHUNK].to("cpu", torch.float64)
            for half, (bucket, sign) in enumerate(self._halves):
                part = slice(start, start + CHUNK)
                pressed[half].index_add_(1, bucket[part].long(), chunk * sign[part])
        return pressed.view(2, rows.shape[0], len(self.blocks), self.size).permute(1, 2, 0, 3)

    @cached_property
    def _halves(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Bucket and sign of every entry, for either half; drawn once."""
        return tuple(self._draw(half) for half in range(2))

    def _draw(self, half: int) -> tuple[Tensor, Tensor]:
        buckets = torch.empty(self.blocks.total, dtype=torch.int32)
        signs = torch.ones(self.blocks.total, dtype=torch.int8)
        for index, columns in enumerate(self.blocks.slices()):
            width = columns.stop - columns.start
            if width <= self.size:
                buckets[columns] = torch.arange(width, dtype=torch.int32) + index * self.size
                continue
            generator = torch.Generator().manual_seed(_mixed_seed(self.seed, index, half))
            draw = torch.randint(2 * self.size, (width,), generator=generator, dtype=torch.int32)
            buckets[columns] = draw // 2 + index * self.size
            signs[columns] = (draw % 2 * 2 - 1).to(torch.int8)
        return buckets, signs

    def inner(self, left: Tensor, right: Tensor) -> Tensor:
        """Unbiased estimates (a, b, K, 2) of the inner products of sketched rows, per half."""
        return torch.einsum("akhs,bkhs->abkh", left, right)


def _mixed_seed(seed: int, index: int, half: int) -> int:
    """One well-spread 63-bit seed per block and half (a fixed mixing of the three numbers)."""
    mixed = (seed & (2**64 - 1)) ^ 0x9E3779B97F4A7C15
    for part in (2 * index + half + 1, 0xBF58476D1CE4E5B9):
        mixed = (mixed ^ part) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return mixed >> 1
