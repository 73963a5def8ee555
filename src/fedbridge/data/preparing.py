"""What each batch goes through before a model sees it: bytes to floats, noise, augmentation.

What is random is drawn row by row: a row's draw depends on the seed that whoever asks has for this
round and purpose, and on the row, but not on the batch it comes in. So it is the same for any
number of workers, in every engine and after a resume.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedbridge.base.errors import DataError
from fedbridge.data.images.augmentation import DRAWS, augment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Prepare = Callable[[Tensor, torch.Generator], Tensor]

GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
LAST = np.uint64(31)
MARGIN = 4


def row_seeds(seed: int, rows: Tensor) -> NDArray[np.uint64]:
    """A seed for every row: output number ``row`` of the generator SplitMix64 begun at ``seed``.

    Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    numbers = rows.cpu().numpy().astype(np.uint64) + np.uint64(1)
    state = np.uint64(seed) + numbers * GAMMA
    for shift, factor in MIX:
        state = (state ^ (state >> shift)) * factor
    return state ^ (state >> LAST)


@dataclass(frozen=True, eq=False)
class RowChance:
    """The random numbers of a batch, each row's from a generator of its own.

    Attributes:
        seeds: one per row.
        training: whether the batch trains; augmentation is for training alone.
    """

    seeds: NDArray[np.uint64]
    training: bool = False

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers in the shape of a batch."""
        drawn = torch.empty(like.shape)
        for row, generator in zip(drawn, self._generators(), strict=True):
            torch.randn(row.shape, generator=generator, out=row)
        return drawn.to(like.device)

    def uniform(self, count: int) -> Tensor:
        """(n, count) numbers in [0, 1)."""
        rows = [torch.rand(count, generator=each) for each in self._generators()]
        return torch.stack(rows)

    def _generators(self) -> Iterator[torch.Generator]:
        generator = torch.Generator()
        return (generator.manual_seed(int(seed)) for seed in self.seeds)


class Drawing:
    """A preparation that draws row by row."""

    def by_row(self, x: Tensor, chance: RowChance) -> Tensor:
        """The batch, with what chance has for each row."""
        raise NotImplementedError

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The batch as in training, its rows seeded by the generator."""
        return self.by_row(x, _chance_of(generator, len(x)))


@dataclass(frozen=True)
class PixelsToUnit:
    """``uint8`` pixels as floats in [0, 1], batch by batch: a quarter of the memory."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The batch divided by 255."""
        return x.to(torch.float32) / 255


@dataclass(frozen=True)
class AddNoise(Drawing):
    """Gaussian noise drawn anew at every access, without clipping, as the paper's scripts do."""

    std: float

    def by_row(self, x: Tensor, chance: RowChance) -> Tensor:
        """The batch plus a fresh draw."""
        return x + self.std * chance.normal(x)


@dataclass(frozen=True)
class Augment(Drawing):
    """Training images at random as DomainBed has them; what only predicts stays as it is."""

    def by_row(self, x: Tensor, chance: RowChance) -> Tensor:
        """Cropped, flipped, with other colours."""
        return augment(x, chance.uniform(DRAWS).to(x.device)) if chance.training else x


@dataclass(frozen=True)
class ShiftAndFlip(Drawing):
    """Training images moved by a few pixels and mirrored at random, as is usual for CIFAR-10.

    Margins of ``MARGIN`` pixels, the image reflected, are added and a window of the image's size
    is taken at random; what only predicts stays as it is.
    """

    def by_row(self, x: Tensor, chance: RowChance) -> Tensor:
        """Every image with a place and a side of its own."""
        if not chance.training:
            return x
        height, width = x.shape[-2:]
        wide = pad(x, (MARGIN,) * 4, mode="reflect")
        chances = chance.uniform(3).to(x.device)
        top, left = (chances[:, :2] * (2 * MARGIN + 1)).long().unbind(1)
        rows = top[:, None] + torch.arange(height, device=x.device)
        columns = left[:, None] + torch.arange(width, device=x.device)
        columns = torch.where(chances[:, 2:] < 0.5, columns.flip(1), columns)
        images = torch.arange(len(x), device=x.device)[:, None, None]
        moved = wide.movedim(1, -1)[images, rows[:, :, None], columns[:, None, :]]
        return moved.movedim(-1, 1).contiguous()


@dataclass(frozen=True)
class InTurn(Drawing):
    """Several preparations, one after the other."""

    steps: tuple[Prepare, ...]

    def by_row(self, x: Tensor, chance: RowChance) -> Tensor:
        """The batch after all steps."""
        for step in self.steps:
            x = prepared(step, x, chance)
        return x


def prepared(prepare: Prepare, x: Tensor, chance: RowChance) -> Tensor:
    """A batch as a model sees it; of others' preparations one generator serves all rows."""
    if isinstance(prepare, Drawing):
        return prepare.by_row(x, chance)
    return prepare(x, torch.Generator(x.device).manual_seed(int(chance.seeds[0] >> np.uint64(1))))


def is_redrawn(prepare: Prepare | None) -> bool:
    """Whether rows that are predicted look different each time; of others' preparations, yes."""
    if isinstance(prepare, InTurn):
        return any(map(is_redrawn, prepare.steps))
    return not (prepare is None or isinstance(prepare, PixelsToUnit | Augment | ShiftAndFlip))


def _chance_of(generator: torch.Generator, rows: int) -> RowChance:
    drawn = torch.randint(2**62, (rows,), generator=generator, device=generator.device)
    return RowChance(drawn.cpu().numpy().astype(np.uint64), training=True)


_KINDS: dict[str, type[PixelsToUnit | AddNoise | Augment | ShiftAndFlip]] = {
    "pixels-to-unit": PixelsToUnit,
    "add-noise": AddNoise,
    "augment": Augment,
    "shift-and-flip": ShiftAndFlip,
}


def prepare_to_record(prepare: Prepare | None) -> list[dict[str, Any]]:
    """A preparation as plain values, so that a site's file can name it; the way back is below."""
    if prepare is None:
        return []
    if isinstance(prepare, InTurn):
        return [record for step in prepare.steps for record in prepare_to_record(step)]
    for name, kind in _KINDS.items():
        if type(prepare) is kind:
            return [{"kind": name, **vars(prepare)}]
    raise DataError(
        f"Expected batches to be prepared by one of {', '.join(_KINDS)}, but got "
        f"{type(prepare).__name__}: another process cannot find it again; prepare the rows "
        f"beforehand."
    )


def prepare_from_record(records: list[dict[str, Any]]) -> Prepare | None:
    """What ``prepare_to_record`` described."""
    steps = tuple(_KINDS[record["kind"]](*map(float, _values(record))) for record in records)
    return InTurn(steps) if len(steps) > 1 else next(iter(steps), None)


def _values(record: dict[str, Any]) -> list[Any]:
    return [value for name, value in record.items() if name != "kind"]
