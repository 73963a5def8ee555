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

from dataclasses import dataclass, replace
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

TILE = 32
"""Rows of a matrix of many sources that are worked on at a time."""

ANGLES = 2048
"""Numbers that stand for a source's direction where there are too many to compare exactly."""

SLICES = 2
"""Parts in which these numbers are made, so that all sources' are never in memory at once."""

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


@dataclass(frozen=True)
class JointAngles:
    """Products of very many sources in one block, the target's and their own: exact but for angles.

    With ``t̂`` the target's direction, ``g_i = α_i t̂ + r_i`` and ``⟨g_i, g_j⟩ = α_i α_j +
    ‖r_i‖ ‖r_j‖ cos(r_i, r_j)``. All but the cosines is known exactly, so lengths and products with
    the target are; only the cosines of what is left beside the target come from sketches of
    ``ANGLES`` numbers, off by about ``1/√ANGLES``. They are those of real vectors, so that the
    matrix is positive semidefinite, and they are all that is kept of N² numbers: in float32.

    Attributes:
        target2: ``‖t‖²``.
        inner: (N,) ``⟨t, g_i⟩``.
        source2: (N,) ``‖g_i‖²``.
        cosines: (N, N) ``cos(r_i, r_j)``.
    """

    target2: Tensor
    inner: Tensor
    source2: Tensor
    cosines: Tensor

    @property
    def length(self) -> Tensor:
        """``‖t‖``."""
        return self.target2.sqrt()

    @property
    def along(self) -> Tensor:
        """(N,) ``α_i``."""
        return _along(self.target2, self.inner)

    @property
    def beside(self) -> Tensor:
        """(N,) ``‖r_i‖``."""
        return (self.source2 - self.along.square()).clamp(min=0.0).sqrt()

    def times(self, vector: Tensor) -> Tensor:
        """The cosines' matrix times a vector (N,), with sums in float64."""
        room = torch.empty((TILE, len(vector)), dtype=torch.float64)
        found = torch.empty_like(vector)
        for tile, out in zip(self.cosines.split(TILE), found.split(TILE), strict=True):
            torch.mv(room[: len(tile)].copy_(tile), vector, out=out)
        return found

    def rescaled(self, factors: Tensor) -> JointAngles:
        """With every source multiplied by its factor (N,), which is above 0."""
        scaled = self.inner * factors, self.source2 * factors * factors
        return JointAngles(self.target2, *scaled, self.cosines)

    def gram(self) -> Tensor:
        """(N+1, N+1) all products in float64, the target first."""
        gram = torch.empty([len(self.inner) + 1] * 2, dtype=torch.float64)
        among = gram[1:, 1:].copy_(self.cosines)
        among.mul_(self.beside).mul_(self.beside[:, None]).addr_(self.along, self.along)
        among.diagonal().copy_(self.source2)
        gram[0, 0] = self.target2
        gram[0, 1:] = gram[1:, 0] = self.inner
        return gram


@dataclass(frozen=True)
class Columns:
    """A block so short that its products are taken exactly, when somebody reads them.

    Attributes:
        target: (w,) the target's entries.
        sources: (N, w) the sources'.
    """

    target: Tensor
    sources: Tensor

    def rescaled(self, factors: Tensor) -> Columns:
        """With every source multiplied by its factor (N,)."""
        return Columns(self.target, self.sources.to("cpu", torch.float64) * factors[:, None])

    def gram(self) -> Tensor:
        """(N+1, N+1) all products in float64, the target first."""
        return reliable_gram((self.target[None], self.sources), slice(0, len(self.target)))


def joint_block(
    target: Tensor, sources: Tensor, columns: slice, seen: tuple[Tensor, Tensor, Tensor]
) -> JointAngles | Columns:
    """What stands for the products among very many sources in one block.

    ``seen`` is what ``star`` measures: ``‖t‖²``, ``⟨t, g_i⟩`` and ``‖g_i‖²``.
    """
    if columns.stop - columns.start <= ANGLES:
        return Columns(target[columns].clone(), sources[:, columns].clone())
    target2, inner, source2 = seen
    count = columns.stop - columns.start
    rms = torch.cat((target2[None], source2)).div(count).sqrt()
    safe = ((rms >= SAFE_RMS[0]) & (rms <= SAFE_RMS[1])) | (rms == 0)
    single = target.dtype == sources.dtype == torch.float32 and bool(safe.all())
    pressed = _Folding(count, torch.float32 if single else torch.float64, sources.device)
    angles = JointAngles(
        target2, inner, source2, torch.zeros([len(sources)] * 2, device=pressed.device)
    )
    per_length = torch.where(angles.beside > 0, 1.0 / angles.beside, 0.0)
    share = _along(target2, angles.along)
    buckets = ANGLES // SLICES
    room = torch.empty((len(sources) + 1, buckets), dtype=pressed.dtype, device=pressed.device)
    for first in range(0, ANGLES, buckets):
        own, rest = room[:1], room[1:]
        pressed(target[None, columns], first, out=own)
        pressed(sources[:, columns], first, out=rest)
        rest.addr_(share.to(rest), own[0], alpha=-1.0).mul_(per_length.to(rest)[:, None])
        _add_products(rest.float(), angles.cosines)
    _normalise(angles.cosines)
    return replace(angles, cosines=angles.cosines.cpu())


def _along(target2: Tensor, inner: Tensor) -> Tensor:
    """Inner products with the target's direction; 0 where it has none."""
    return inner / target2.sqrt() if bool(target2 > 0) else torch.zeros_like(inner)


def _add_products(rows: Tensor, total: Tensor) -> None:
    """Add the products of the rows to the lower triangle of a matrix, some columns at a time."""
    for first in range(0, len(rows), TILE):
        some = slice(first, first + TILE)
        total[first:, some].addmm_(rows[first:], rows[some].T)


def _normalise(cosines: Tensor) -> None:
    """Make cosines of the products in a lower triangle, and mirror it."""
    per_length = 1.0 / cosines.diagonal().sqrt().clamp(min=torch.finfo(cosines.dtype).tiny)
    for first in range(0, len(cosines), TILE):
        some = slice(first, first + TILE)
        tile = cosines[first:, some].mul_(per_length[some]).mul_(per_length[first:, None])
        square = tile.mul_(1.0 - ROUNDING)[:TILE]
        square.copy_(square.tril() + square.tril(-1).T)
        cosines[some, first + TILE :] = tile[TILE:].T
    cosines.fill_diagonal_(1.0)


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

    def __call__(self, rows: Tensor, bucket: int, *, out: Tensor) -> None:
        """Sketches of some rows, from a bucket on as many as there is room for in ``out``."""
        few = max(1, ROOM // out.shape[1])
        last = bucket + out.shape[1]
        for part, pressed in zip(rows.split(few), out.zero_().split(few), strict=True):
            for start, shift in zip(range(0, rows.shape[1], ANGLES), self.shifts, strict=True):
                for turn in (start - shift, start - shift + ANGLES):
                    first = max(start, turn + bucket)
                    end = min(start + ANGLES, turn + last, rows.shape[1])
                    if first < end:
                        place = slice(first - turn - bucket, end - turn - bucket)
                        own = part[:, first:end].to(self.device, self.dtype)
                        pressed[:, place].addcmul_(own, self.signs[first:end])
