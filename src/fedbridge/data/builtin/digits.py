"""``digits-*``: scikit-learn's embedded handwritten digits, and a target that sees them shifted.

1797 images of 8x8 pixels need no download. Four sources share 60% of them as they are; the target
holds the other 40%, shifted, labels few and tests on 60% of its own. This is the paper's
noisy-target protocol at a size that runs in seconds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedbridge.base.options import check_choice
from fedbridge.data.arrays import SiteRows, assemble
from fedbridge.data.builtin.semi_synthetic import equal_sizes, stratified_shares
from fedbridge.data.builtin.shifts import Contrast, NoiseDraw, NoShift, Rotation, noise_shift
from fedbridge.data.split import BUILT_IN_SPLIT, SplitOptions, generator, split_target
from fedbridge.data.task import SHIFTED_TARGET, check_shifted_target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedbridge.data.builtin.shifts import Shift
    from fedbridge.data.split import Rows
    from fedbridge.data.task import FederatedTask

ShiftName = Literal["noise", "contrast", "rotation", "none"]

SOURCES = 4
TARGET_SHARE = 0.4
TEST_SHARE = 0.6
LABELLED = SplitOptions(n_target=30)
RUN_DEFAULTS = {"lr": 0.1, "epochs": 1, "batch_size": 16, "batch_size_target": 4}


def digits_task(
    target: str | None = None,
    seed: int = 0,
    *,
    shift: ShiftName = "noise",
    noise: float = 0.4,
    noise_draw: NoiseDraw = "fixed",
    contrast: float = 1.0,
    angle: float = 90.0,
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """Digits over four sources and a target with shifted images.

    Args:
        target: ``None`` or ``"target"``: the shifted client is the target.
        seed: Decides who holds which image, and the noise.
        shift: What happens to the target's images: Gaussian ``noise``, ``contrast`` (inverted),
            ``rotation``, or ``none``.
        noise: Standard deviation of the noise on pixels in [0, 1].
        noise_draw: One ``fixed`` draw per image, or ``redrawn`` at every access.
        contrast: 1 inverts the images, 0 leaves them, 0.5 makes them all grey.
        angle: Degrees of the rotation, counter-clockwise.
        split: How many of the target's training images are labelled; 30 unless it says so.
    """
    check_shifted_target(target)
    check_choice("shift", shift, get_args(ShiftName))
    shifts: dict[ShiftName, Shift] = {
        "noise": noise_shift(noise, noise_draw),
        "contrast": Contrast(contrast),
        "rotation": Rotation(angle),
        "none": NoShift(),
    }
    images, labels = _digits()
    n_own = round(len(labels) * TARGET_SHARE)
    sizes = [n_own, *equal_sizes(len(labels) - n_own, SOURCES)]
    own, *others = stratified_shares(labels, sizes, generator(seed, "sites"))
    rows = shifts[shift].stored(images[own], generator(seed, "noise"))
    return assemble(
        {
            f"source {number}": _site(images, labels, share)
            for number, share in enumerate(others, start=1)
        },
        replace(_site(images, labels, own), x=rows),
        split_target(labels[own], n_own, seed, split.or_else(LABELLED), round(n_own * TEST_SHARE)),
        name=f"digits-{shift}",
        origin="scikit-learn digits",
        seed=seed,
        target_name=SHIFTED_TARGET,
        class_names=tuple(map(str, range(10))),
        target_prepare=shifts[shift].prepare(rows),
        defaults=RUN_DEFAULTS,
    )


def _site(images: Tensor, labels: NDArray[np.int64], rows: Rows) -> SiteRows:
    return SiteRows(images[rows], torch.from_numpy(labels[rows]), rows.tolist())


@cache
def _digits() -> tuple[Tensor, NDArray[np.int64]]:
    # Imported here: it takes longer to import than all of fedbridge, and few tasks need it.
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    images = torch.from_numpy(bunch.images / 16).to(torch.float32).unsqueeze(1)
    return images, bunch.target.astype(np.int64)
