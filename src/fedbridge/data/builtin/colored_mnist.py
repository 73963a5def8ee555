"""``colored-mnist``: digits whose colour tells the label, but not the same way everywhere.

DomainBed's three domains: MNIST's 70,000 digits are dealt out in turn. The label says whether the
digit is below 5 and is wrong for a quarter of the images; the colour agrees with the label for
90% or 80% of them, or disagrees for 90%. Whoever trusts the colour fails in the third domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedbridge.data.arrays import SiteRows, assemble, training_rows
from fedbridge.data.builtin.image_sets import mnist
from fedbridge.data.split import BUILT_IN_SPLIT, SplitOptions, generator, split_target
from fedbridge.data.task import check_target_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedbridge.data.builtin.image_sets import ImageSet
    from fedbridge.data.split import Rows
    from fedbridge.data.task import FederatedTask

COLOUR_FLIPS = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
"""The domains, and how often the colour differs from the label in each."""

LABEL_FLIPS = 0.25
FIRST_HIGH_DIGIT = 5
CLASS_NAMES = ("5 to 9", "0 to 4")
TEST_SHARE = 0.2
LABELLED = SplitOptions(target_fraction=0.001)
RUN_DEFAULTS = {
    "optimizer": "adam",
    "lr": 1e-3,
    "lr_target": 2e-4,
    "batch_size": 64,
    "batch_size_target": 2,
    "epochs": 1,
    "warmup": 2,
}


@dataclass(frozen=True)
class Version:
    """A size of the images and the model for it; every ``stride``-th pixel is kept."""

    name: str
    model: str
    stride: int
    described: str

    def __str__(self) -> str:
        """What sets it apart, for lists of tasks."""
        return self.described


VERSIONS = (
    Version("colored-mnist", "mnist-cnn", 1, "2x28x28, for the CNN of the paper"),
    Version("colored-mnist-14", "mlp:256", 2, "2x14x14, every second pixel, for a small network"),
)


def colored_mnist(
    version: Version,
    target: str | None = None,
    seed: int = 0,
    *,
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """Coloured MNIST in three domains.

    Args:
        version: Which size.
        target: The domain that adapts: +90%, +80% or -90%; also plus90, plus80, minus90.
        seed: Decides who holds which image, labels, colours, and the splits.
        split: How many of the target's training images are labelled; by default 0.001 of them.
    """
    target_name = check_target_name(target, COLOUR_FLIPS)
    images = mnist()
    domains = _domains(images, version.stride, seed)
    own = domains[target_name]
    n_own = len(own.y)
    return assemble(
        {
            name: training_rows(rows, TEST_SHARE, seed)
            for name, rows in domains.items()
            if name != target_name
        },
        own,
        split_target(
            own.y.numpy(), n_own, seed, split.or_else(LABELLED), round(n_own * TEST_SHARE)
        ),
        name=version.name,
        origin="mnist, training then test images",
        seed=seed,
        target_name=target_name,
        class_names=CLASS_NAMES,
        model=version.model,
        defaults=RUN_DEFAULTS,
        digest=images.digest,
        notes=images.notes,
    )


def _domains(images: ImageSet, stride: int, seed: int) -> dict[str, SiteRows]:
    """All rows of each domain; chance decides by image, so that it is the same for any target."""
    grey = np.concatenate([images.train.pixels, images.test.pixels])[:, 0, ::stride, ::stride]
    digits = np.concatenate([images.train.labels, images.test.labels])
    order = generator(seed, "domains").permutation(len(digits))
    wrong = generator(seed, "label noise").random(len(digits)) < LABEL_FLIPS
    labels = (digits < FIRST_HIGH_DIGIT) ^ wrong
    chance = generator(seed, "colours").random(len(digits))
    domains = {}
    for number, (name, flips) in enumerate(COLOUR_FLIPS.items()):
        rows = np.sort(order[number :: len(COLOUR_FLIPS)])
        colours = labels[rows] ^ (chance[rows] < flips)
        domains[name] = _coloured(grey, rows, labels, colours)
    return domains


def _coloured(
    grey: NDArray[np.uint8], rows: Rows, labels: NDArray[np.bool_], colours: NDArray[np.bool_]
) -> SiteRows:
    """The rows with their grey values in the channel of their colour and nothing in the other."""
    pixels = np.zeros((len(rows), 2, *grey.shape[1:]), dtype=np.uint8)
    pixels[np.arange(len(rows)), colours.astype(np.int64)] = grey[rows]
    return SiteRows(
        torch.from_numpy(pixels), torch.from_numpy(labels[rows].astype(np.int64)), rows.tolist()
    )
