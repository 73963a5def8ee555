"""What happens to a batch between memory and model: small picklable functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

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
