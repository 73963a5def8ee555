"""``cifar10-noise``: CIFAR-10 over nine sources and a target, each with few of the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbridge.base.options import check_whole
from fedbridge.data.builtin.image_sets import CIFAR_CLASSES, cifar10
from fedbridge.data.builtin.semi_synthetic import (
    Shares,
    ShiftedSetting,
    deal_labels,
    shares_by_label,
    shifted_task,
)
from fedbridge.data.builtin.shifts import NoiseDraw, noise_shift
from fedbridge.data.split import BUILT_IN_SPLIT, SplitOptions, generator
from fedbridge.data.task import check_shifted_target

if TYPE_CHECKING:
    from fedbridge.data.task import FederatedTask

CLIENTS = 10
SETTING = ShiftedSetting(
    "cifar10-noise",
    SplitOptions(target_fraction=0.1),
    {
        "optimizer": "adam",
        "lr": 0.005,
        "lr_target": 0.0025,
        "batch_size": 64,
        "batch_size_target": 16,
        "epochs": 1,
        "warmup": 2,
    },
)


def cifar10_noise(
    target: str | None = None,
    seed: int = 0,
    *,
    noise: float = 0.4,
    noise_draw: NoiseDraw = "redrawn",
    labels_per_site: int = 4,
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """CIFAR-10 over nine sources and a target with noisy images, four classes at each site.

    Args:
        target: ``None`` or ``"target"``: the noisy client is the target.
        seed: Decides who holds which label and image, which are labelled, and a fixed noise.
        noise: Standard deviation of the noise on pixels in [0, 1].
        noise_draw: ``redrawn`` at every access, as the paper does, or one ``fixed`` draw per image.
        labels_per_site: How many of the ten classes each site holds; 10 gives all to everybody.
        split: How many of the target's 5000 images are labelled; by default 0.1 of them.
    """
    check_shifted_target(target)
    shift = noise_shift(noise, noise_draw)
    check_whole("labels_per_site", labels_per_site, least=2, most=len(CIFAR_CLASSES))
    images = cifar10()
    rng = generator(seed, "sites")
    hands = deal_labels(CLIENTS, len(CIFAR_CLASSES), labels_per_site, rng)
    *sources, own = shares_by_label(images.train.labels, hands, rng)
    test = np.flatnonzero(np.isin(images.test.labels, hands[-1]))
    return shifted_task(SETTING, images, Shares(sources, own, test), shift, seed, split)
