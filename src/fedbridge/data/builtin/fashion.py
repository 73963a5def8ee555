"""``fashion-*``: Fashion-MNIST over nine sources and a target, in the paper's three settings.

The 60,000 training images go to ten clients; the last is the target. It is tested on official
test images, so that all its other rows may serve as unlabelled ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbridge.base.options import check_number, check_whole
from fedbridge.data.builtin.image_sets import FASHION_CLASSES, fashion_mnist
from fedbridge.data.builtin.semi_synthetic import (
    Shares,
    ShiftedSetting,
    deal_labels,
    equal_sizes,
    portions_by_label,
    shares_by_label,
    shifted_task,
    stratified_shares,
)
from fedbridge.data.builtin.shifts import NoiseDraw, NoShift, noise_shift
from fedbridge.data.split import BUILT_IN_SPLIT, SplitOptions, generator
from fedbridge.data.task import check_shifted_target

if TYPE_CHECKING:
    from fedbridge.data.builtin.image_sets import ImageSet
    from fedbridge.data.split import Rows
    from fedbridge.data.task import FederatedTask

SOURCES = 9
RARE_AT_SOURCES = (6, 8, 9)
"""The paper's D1: shirts, bags and ankle boots."""

RUN_DEFAULTS = {
    "optimizer": "adam",
    "lr": 0.01,
    "lr_target": 0.005,
    "batch_size": 64,
    "batch_size_target": 16,
    "epochs": 1,
    "warmup": 2,
}
LABELLED = SplitOptions(n_target=100)


def fashion_noise(
    target: str | None = None,
    seed: int = 0,
    *,
    noise: float = 0.4,
    noise_draw: NoiseDraw = "redrawn",
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """Fashion-MNIST over nine sources and a target with noisy images.

    Args:
        target: ``None`` or ``"target"``: the noisy client is the target.
        seed: Decides who holds which image, which are labelled, and a fixed noise.
        noise: Standard deviation of the noise on pixels in [0, 1].
        noise_draw: ``redrawn`` at every access, as the paper does, or one ``fixed`` draw per image.
        split: How many of the target's 6000 images are labelled; 100 unless it says so.
    """
    check_shifted_target(target)
    shift = noise_shift(noise, noise_draw)
    images = fashion_mnist()
    *sources, own = _equal_shares(images, seed)
    return shifted_task(
        ShiftedSetting("fashion-noise", LABELLED, RUN_DEFAULTS),
        images,
        Shares(sources, own, np.arange(len(images.test))),
        shift,
        seed,
        split,
    )


def fashion_labels(
    target: str | None = None,
    seed: int = 0,
    *,
    eta: float = 0.3,
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """Fashion-MNIST over nine sources and a target with other classes in the majority.

    Shirts, bags and ankle boots are D1, the seven other classes D2. The target holds ``1 - eta``
    of D1 and ``eta`` of D2; the sources share the rest.

    Args:
        target: ``None`` or ``"target"``: the client with the other classes is the target.
        seed: Decides who holds which image and which are labelled.
        eta: From 0 (no class in common) to 0.5 (no shift).
        split: How many of the target's images are labelled; by default 0.15 of them.
    """
    check_shifted_target(target)
    eta = check_number("eta", eta, least=0, most=0.5)
    images = fashion_mnist()
    portions = {
        label: 1 - eta if label in RARE_AT_SOURCES else eta for label in range(len(FASHION_CLASSES))
    }
    own, rest = portions_by_label(images.train.labels, portions, generator(seed, "sites"))
    test, _ = portions_by_label(images.test.labels, portions, generator(seed, "test images"))
    shared = stratified_shares(
        images.train.labels[rest], equal_sizes(len(rest), SOURCES), generator(seed, "sources")
    )
    return shifted_task(
        ShiftedSetting("fashion-labels", SplitOptions(target_fraction=0.15), RUN_DEFAULTS),
        images,
        Shares([rest[rows] for rows in shared], own, test),
        NoShift(),
        seed,
        split,
    )


def fashion_sources(
    target: str | None = None,
    seed: int = 0,
    *,
    labels_per_source: int = 3,
    noise: float = 0.4,
    noise_draw: NoiseDraw = "redrawn",
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """Fashion-MNIST over nine sources with few labels each and a target with noisy images.

    The target holds what it holds in ``fashion-noise``; only the sources differ from each other.

    Args:
        target: ``None`` or ``"target"``: the noisy client is the target.
        seed: Decides who holds which label and image, which are labelled, and a fixed noise.
        labels_per_source: How many of the ten labels each source holds; the paper has 3, 5, 7, 9.
        noise: Standard deviation of the target's noise on pixels in [0, 1].
        noise_draw: ``redrawn`` at every access, as the paper does, or one ``fixed`` draw per image.
        split: How many of the target's 6000 images are labelled; 100 unless it says so.
    """
    check_shifted_target(target)
    shift = noise_shift(noise, noise_draw)
    check_whole("labels_per_source", labels_per_source, least=2, most=len(FASHION_CLASSES))
    images = fashion_mnist()
    *others, own = _equal_shares(images, seed)
    rest = np.sort(np.concatenate(others))
    rng = generator(seed, "sources")
    hands = deal_labels(SOURCES, len(FASHION_CLASSES), labels_per_source, rng)
    shared = shares_by_label(images.train.labels[rest], hands, rng)
    return shifted_task(
        ShiftedSetting("fashion-sources", LABELLED, RUN_DEFAULTS),
        images,
        Shares([rest[rows] for rows in shared], own, np.arange(len(images.test))),
        shift,
        seed,
        split,
    )


def _equal_shares(images: ImageSet, seed: int) -> list[Rows]:
    labels = images.train.labels
    sizes = equal_sizes(len(labels), SOURCES + 1)
    return stratified_shares(labels, sizes, generator(seed, "sites"))
