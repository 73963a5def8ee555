"""Random sketches: inner products of long vectors from a few hundred numbers.

Two sites that share a seed each press a vector of millions of entries into a short one such that
inner products survive on average. A block of the model is pressed by giving every entry a random
sign and adding it to a random bucket (a count sketch): one pass, no matrix, nothing to store.

Every sketch has two independent *halves*, because a squared inner product needs them. From one
half, ``E⟨Ra, Rb⟩² = ⟨a, b⟩² + (‖a‖²‖b‖² + ...)/k``, biased by exactly the noise one wants to
measure. The product of two independent halves has no bias at all: ``E ⟨R₁a, R₁b⟩⟨R₂a, R₂b⟩ =
⟨a, b⟩²``. The standard deviation of one half's inner product is about ``‖a‖‖b‖/√k``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.errors import OptionError, ShapeError

if TYPE_CHECKING:
    from fedbridge.blocks import Blocks

CHUNK = 2**16
"""Entries that are hashed at a time, so that memory does not grow with the model."""


@dataclass(frozen=True)
class Sketch:
    """A seeded linear map that presses every block of a vector into 2 x ``size`` numbers.

    A block of at most ``size`` entries is kept as it is: its inner products are exact.
    """

    blocks: Blocks
    size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise OptionError(f"Expected a sketch `size` of at least 1, but got {self.size}.")

    def press(self, rows: Tensor) -> Tensor:
        """Sketches (r, K, 2, size) in float64 of the rows (r, m) of a matrix."""
        if rows.ndim != 2 or rows.shape[1] != self.blocks.total:
            raise ShapeError(
                f"Expected rows of {self.blocks.total} entries, but got {tuple(rows.shape)}."
            )
        pressed = torch.zeros((rows.shape[0], len(self.blocks), 2, self.size), dtype=torch.float64)
        for index, columns in enumerate(self.blocks.slices()):
            width = columns.stop - columns.start
            if width <= self.size:
                pressed[:, index, :, :width] = rows[:, None, columns].to("cpu", torch.float64)
                continue
            for half in range(2):
                self._press_block(rows[:, columns], pressed[:, index, half], (index, half))
        return pressed

    def _press_block(self, rows: Tensor, pressed: Tensor, key: tuple[int, int]) -> None:
        generator = torch.Generator()
        generator.manual_seed(_mixed_seed(self.seed, *key))
        for start in range(0, rows.shape[1], CHUNK):
            chunk = rows[:, start : start + CHUNK].to("cpu", torch.float64)
            draw = torch.randint(2 * self.size, (chunk.shape[1],), generator=generator)
            sign = (draw % 2 * 2 - 1).to(torch.float64)
            pressed.index_add_(1, draw // 2, chunk * sign)

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
