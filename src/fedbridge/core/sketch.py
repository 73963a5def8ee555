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
from fedbridge.core.gram import SAFE_RMS, accumulation_device, reliable_gram

if TYPE_CHECKING:
    from fedbridge.core.blocks import Blocks

CHUNK = 2**16
"""Columns that are pressed at a time, so that no converted copy of a whole matrix is made."""

ROOM = 2**18
"""Entries of the rows that are pressed at a time, for the same reason."""

ANGLES = 2048
"""Numbers that stand for a source's direction where there are too many to compare exactly."""

ROUNDING = 1e-5
"""How much is taken off a sketched cosine, so that float32 leaves a positive definite matrix."""


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
        few = max(1, ROOM // min(CHUNK, self.blocks.total))
        for start in range(0, self.blocks.total, CHUNK):
            part = slice(start, start + CHUNK)
            for first in range(0, len(rows), few):
                some = slice(first, first + few)
                chunk = rows[some, part].to("cpu", torch.float64)
                for half, (bucket, sign) in enumerate(self._halves):
                    pressed[half, some].index_add_(1, bucket[part].long(), chunk * sign[part])
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


def sketched_gram(
    target: Tensor,
    sources: Tensor,
    columns: slice,
    seen: tuple[Tensor, Tensor, Tensor],
    *,
    out: Tensor,
) -> None:
    """Gram matrix (N+1, N+1) of many vectors, target first: exact but for angles among sources.

    With ``t̂`` the target's direction, ``g_i = α_i t̂ + r_i`` and ``⟨g_i, g_j⟩ = α_i α_j +
    ‖r_i‖ ‖r_j‖ cos(r_i, r_j)``. All but the cosines is known exactly (``seen``, what ``star``
    measures), so lengths and products with the target are exact, and only the cosines of what is
    left beside the target come from sketches of ``ANGLES`` numbers, off by about ``1/√ANGLES``.
    The matrix stays positive semidefinite: it is one of real vectors. Short blocks are exact.
    """
    target2, inner, source2 = seen
    if columns.stop - columns.start <= ANGLES:
        out.copy_(reliable_gram((target[None], sources), columns))
        return
    length = target2.sqrt()
    along = inner / length if bool(length > 0) else torch.zeros_like(inner)
    beside = (source2 - along.square()).clamp(min=0.0).sqrt()
    count = columns.stop - columns.start
    rms = torch.cat((target2[None], source2)).div(count).sqrt()
    safe = ((rms >= SAFE_RMS[0]) & (rms <= SAFE_RMS[1])) | (rms == 0)
    single = target.dtype == sources.dtype == torch.float32 and bool(safe.all())
    pressed = _Folding(count, torch.float32 if single else torch.float64, sources.device)
    own = pressed(target[None, columns]) / (length if bool(length > 0) else 1.0)
    units = torch.empty((len(sources), ANGLES), dtype=torch.float32, device=pressed.device)
    few = max(1, ROOM // ANGLES)
    for first in range(0, len(sources), few):
        some = slice(first, first + few)
        rest = pressed(sources[some, columns]) - along[some, None].to(own) * own
        units[some] = rest / rest.norm(dim=1, keepdim=True).clamp(min=torch.finfo(rest.dtype).tiny)
    cosines = out[1:, 1:]
    for first in range(0, len(sources), few):  # one triangle, and its mirror image
        some = slice(first, first + few)
        cosines[first:, some] = units[first:] @ units[some].T
        cosines[some, first:] = cosines[first:, some].T
    cosines.mul_(1.0 - ROUNDING).mul_(beside).mul_(beside[:, None]).addr_(along, along)
    cosines.diagonal().copy_(source2)
    out[0, 0] = target2
    out[0, 1:] = out[1:, 0] = inner


class _Folding:
    """A count sketch in long strokes: runs of ``ANGLES`` columns with random signs are added up.

    Every run is first turned by a random shift. No inner product is biased, since signs are
    independent; two entries of one run never share a bucket, and memory is read in order.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.device = accumulation_device(device)
        self.dtype = dtype
        chance = torch.Generator().manual_seed(_mixed_seed(width, 0, 0))
        signs = torch.randint(2, (width,), generator=chance, dtype=torch.int8)
        self.signs = signs.mul_(2).sub_(1).to(self.device, dtype)
        runs = -(-width // ANGLES)
        self.shifts: list[int] = torch.randint(ANGLES, (runs,), generator=chance).tolist()

    def __call__(self, rows: Tensor) -> Tensor:
        """Sketches (r, ANGLES) of some rows."""
        pressed = torch.zeros((len(rows), ANGLES), dtype=self.dtype, device=self.device)
        for start, shift in zip(range(0, rows.shape[1], ANGLES), self.shifts, strict=True):
            turn = start + ANGLES - shift
            for first, end, place in ((start, turn, shift), (turn, start + ANGLES, 0)):
                columns = slice(first, min(end, rows.shape[1]))
                signs = self.signs[columns]
                if len(signs):
                    part = rows[:, columns].to(self.device, self.dtype)
                    pressed[:, place : place + len(signs)].addcmul_(part, signs)
        return pressed
