"""Small folders of images, and a backbone that needs no weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from torch import Tensor, nn

from fedbridge.models import backbones

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

TINY = "tiny"


def write_images(
    root: Path, domains: Iterable[str], classes: Iterable[str], count: int = 6, suffix: str = "png"
) -> Path:
    """``root/domain/class/k.png``: each class has a grey of its own, each image another size."""
    names = list(classes)
    for domain in domains:
        for label, name in enumerate(names):
            place = root / domain / name
            place.mkdir(parents=True)
            grey = 30 + 190 * label // max(1, len(names) - 1)
            for k in range(count):
                Image.new("RGB", (10 + k, 12), (grey, grey, grey)).save(place / f"{k}.{suffix}")
    return root


def noise_image(file: Path, seed: int = 0, level: int = 128) -> None:
    """An image of random pixels around a level."""
    pixels = np.random.default_rng(seed).integers(level - 30, level + 30, (9, 9, 3))
    Image.fromarray(pixels.astype(np.uint8)).save(file)


class ChannelMeans(nn.Module):
    """Three features: the mean of each colour."""

    def forward(self, x: Tensor) -> Tensor:
        """The means."""
        return x.mean(dim=(2, 3))


def register_tiny_backbone(patch: pytest.MonkeyPatch, weights: str = "1", name: str = TINY) -> None:
    """Make a backbone known for the time of a test; ``weights`` tell its identity."""
    tiny = backbones.Backbone(name, ChannelMeans(), 8, 3, f"{name}-{weights}")
    patch.setitem(backbones.registry._entries, name, lambda: tiny)
    backbones.load_backbone.cache_clear()
