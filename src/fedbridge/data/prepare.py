"""What happens to a batch between memory and model: small picklable functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedbridge.errors import DataError

if TYPE_CHECKING:
    from fedbridge.data.task import Prepare


@dataclass(frozen=True)
class PixelsToUnit:
    """``uint8`` pixels as floats in [0, 1], batch by batch: a quarter of the memory."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The batch divided by 255."""
        return x.to(torch.float32) / 255


@dataclass(frozen=True)
class AddNoise:
    """Gaussian noise drawn anew at every access, without clipping, as the paper's scripts do."""

    std: float

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The batch plus a fresh draw."""
        noise = torch.randn(x.shape, generator=generator, device=generator.device)
        return x + self.std * noise.to(x.device)


@dataclass(frozen=True)
class InTurn:
    """Several preparations, one after the other."""

    steps: tuple[Prepare, ...]

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The batch after all steps."""
        for step in self.steps:
            x = step(x, generator)
        return x


_KINDS: dict[str, type[PixelsToUnit] | type[AddNoise]] = {
    "pixels-to-unit": PixelsToUnit,
    "add-noise": AddNoise,
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
