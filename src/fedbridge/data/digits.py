"""``digits-*``: scikit-learn's embedded handwritten digits, and a target that sees them shifted.

1797 images of 8x8 pixels need no download. Four sources share 60% of them as they are; the target
holds the other 40%, shifted, labels few and tests on 60% of its own. This is the paper's
noisy-target protocol at a size that runs in seconds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import cos, isfinite, radians, sin
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from fedbridge.data.arrays import SiteRows, assemble
from fedbridge.data.options import check_choice
from fedbridge.data.prepare import AddNoise
from fedbridge.data.split import generator, split_target, stratified_order
from fedbridge.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedbridge.data.split import Rows
    from fedbridge.data.task import FederatedTask

ShiftName = Literal["noise", "contrast", "rotation", "none"]
NoiseDraw = Literal["fixed", "redrawn"]

SOURCES = 4
TARGET_NAME = "target"
TARGET_SHARE = 0.4
TEST_SHARE = 0.6
N_TARGET = 30
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
    n_target: int | None = None,
    target_fraction: float | None = None,
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
        n_target: Labelled images at the target, 30 unless ``target_fraction`` is given.
        target_fraction: The same as a fraction of the target's training images.
    """
    if target not in (None, TARGET_NAME):
        raise OptionError(
            f"Expected the target {TARGET_NAME!r}, the shifted client, but got {target!r}: leave "
            f"`target` out."
        )
    check_choice("shift", shift, get_args(ShiftName))
    check_choice("noise_draw", noise_draw, get_args(NoiseDraw))
    images, labels = _digits()
    order = stratified_order(labels, len(labels), generator(seed, "sites"))
    n_own = round(len(labels) * TARGET_SHARE)
    own, *others = (np.sort(share) for share in (order[:n_own], *_chunks(order[n_own:])))
    redrawn = AddNoise(_std(noise)) if (shift, noise_draw) == ("noise", "redrawn") else None
    seen = images[own]
    if shift == "noise" and redrawn is None:
        seen = add_noise(seen, _std(noise), seed)
    elif shift == "contrast":
        seen = change_contrast(seen, contrast)
    elif shift == "rotation":
        seen = rotate(seen, angle)
    task = assemble(
        {
            f"source {k}": SiteRows(images[rows], torch.from_numpy(labels[rows]), rows.tolist())
            for k, rows in enumerate(others, start=1)
        },
        SiteRows(seen, torch.from_numpy(labels[own]), own.tolist()),
        split_target(
            labels[own],
            n_own,
            seed,
            n_target=N_TARGET if n_target is None and target_fraction is None else n_target,
            target_fraction=target_fraction,
            test_fraction=TEST_SHARE,
        ),
        name=f"digits-{shift}",
        origin="scikit-learn digits",
        seed=seed,
        target_name=TARGET_NAME,
        class_names=tuple(map(str, range(10))),
        target_prepare=redrawn,
    )
    return replace(task, model="mlp", defaults=dict(RUN_DEFAULTS))


def add_noise(images: Tensor, std: float, seed: int) -> Tensor:
    """The images plus one draw of Gaussian noise, without clipping."""
    noise = generator(seed, "noise").normal(scale=std, size=tuple(images.shape))
    return images + torch.from_numpy(noise).to(images.dtype)


def change_contrast(images: Tensor, contrast: float) -> Tensor:
    """Move every pixel towards its opposite: 0 leaves the images, 1 inverts them."""
    if not 0 <= contrast <= 1:
        raise OptionError(f"Expected `contrast` in [0, 1], but got {contrast}.")
    return images + contrast * (1 - 2 * images)


def rotate(images: Tensor, angle: float) -> Tensor:
    """The images ``(n, 1, H, W)`` turned counter-clockwise by ``angle`` degrees."""
    if not isfinite(angle):
        raise OptionError(f"Expected `angle` to be a finite number of degrees, but got {angle}.")
    c, s = cos(radians(angle)), sin(radians(angle))
    turn = torch.tensor([[c, -s, 0.0], [s, c, 0.0]]).expand(len(images), 2, 3)
    grid = affine_grid(turn, list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False)


@cache
def _digits() -> tuple[Tensor, NDArray[np.int64]]:
    # Imported here: it takes longer to import than all of fedbridge, and few tasks need it.
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    images = torch.from_numpy(bunch.images / 16).to(torch.float32).unsqueeze(1)
    return images, bunch.target.astype(np.int64)


def _chunks(order: Rows) -> list[Rows]:
    """Equal stretches of a stratified order, each of which is stratified itself."""
    return list(np.array_split(order, SOURCES))


def _std(noise: float) -> float:
    if not 0 <= noise < float("inf"):
        raise OptionError(f"Expected `noise` to be finite and not negative, but got {noise}.")
    return float(noise)
