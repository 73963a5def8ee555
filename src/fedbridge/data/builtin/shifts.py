"""How the target sees its images: each shift says what is stored and what each batch goes through.

Images come as floats in [0, 1] or as ``uint8`` pixels. A shift that has to store other values
stores floats; one that works batch by batch leaves the images as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, radians, sin
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from fedbridge.base.options import check_choice, check_number
from fedbridge.data.preparing import AddNoise, InTurn, PixelsToUnit

if TYPE_CHECKING:
    import numpy as np

    from fedbridge.data.preparing import Prepare
    from fedbridge.data.rows import Features

NoiseDraw = Literal["fixed", "redrawn"]

MAX_NOISE = 1.0
"""Pixels lie in [0, 1]: a standard deviation above that is no longer a picture."""

BLOCK = 512
"""Rows of noise drawn at a time, which keeps the float64 draw small."""


class Shift(Protocol):
    """A change of the target's images."""

    def stored(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """The images as they lie in memory."""
        ...

    def prepare(self, images: Features) -> Prepare | None:
        """What each batch of these (stored) images goes through; None for the usual."""
        ...


class _Still:
    """A shift that is done once: batches need nothing special."""

    def prepare(self, images: Features) -> Prepare | None:
        """Nothing special."""
        return None


@dataclass(frozen=True)
class NoShift(_Still):
    """The target sees what the sources see."""

    def stored(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """The images."""
        return images


@dataclass(frozen=True)
class FixedNoise(_Still):
    """One draw of Gaussian noise for each image, without clipping."""

    std: float

    def stored(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """The images plus noise."""
        noisy = _as_unit(images).clone()
        for block in noisy.split(BLOCK):
            noise = rng.normal(scale=self.std, size=tuple(block.shape))
            block += torch.from_numpy(noise).to(block.dtype)
        return noisy


@dataclass(frozen=True)
class RedrawnNoise:
    """Gaussian noise drawn anew at every access, without clipping."""

    std: float

    def stored(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """The images, to which each batch adds its noise."""
        return images

    def prepare(self, images: Features) -> Prepare | None:
        """Adds noise, to pixels once they are floats."""
        noise = AddNoise(self.std)
        return noise if images.dtype.is_floating_point else InTurn((PixelsToUnit(), noise))


@dataclass(frozen=True)
class Contrast(_Still):
    """Every pixel moves towards its opposite: 0 leaves the images, 1 inverts them."""

    amount: float

    def __post_init__(self) -> None:
        check_number("contrast", self.amount, least=0, most=1)

    def stored(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """The images in their new contrast."""
        images = _as_unit(images)
        return images + self.amount * (1 - 2 * images)


@dataclass(frozen=True)
class Rotation(_Still):
    """The images ``(n, channels, H, W)`` turned counter-clockwise by an angle in degrees."""

    angle: float

    def __post_init__(self) -> None:
        check_number("angle", self.angle)

    def stored(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """The turned images."""
        images = _as_unit(images)
        c, s = cos(radians(self.angle)), sin(radians(self.angle))
        turn = torch.tensor([[c, -s, 0.0], [s, c, 0.0]]).expand(len(images), 2, 3)
        grid = affine_grid(turn, list(images.shape), align_corners=False)
        return grid_sample(images, grid, align_corners=False)


def noise_shift(noise: float, draw: NoiseDraw) -> Shift:
    """Gaussian noise of standard deviation ``noise``, drawn once or anew at every access."""
    check_choice("noise_draw", draw, get_args(NoiseDraw))
    std = check_number("noise", noise, least=0, most=MAX_NOISE)
    return FixedNoise(std) if draw == "fixed" else RedrawnNoise(std)


def _as_unit(images: Tensor) -> Tensor:
    return images if images.is_floating_point() else images.to(torch.float32) / 255
