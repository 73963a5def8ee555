"""What a site does with its labels besides training on them: weigh classes, set rows aside."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedbridge.data.split import round_half_up, stratified_split
from fedbridge.distant import DistantSite
from fedbridge.errors import FedbridgeError
from fedbridge.jobs import TARGET
from fedbridge.seeds import SPLITTING, seed_of

if TYPE_CHECKING:
    from torch import Tensor

    from fedbridge.data.task import FederatedTask, Site
    from fedbridge.settings import Settings


def class_weights(
    given: str | tuple[float, ...] | None, labels: Tensor, n_classes: int
) -> tuple[float, ...]:
    """Weight of every class: as given, or (``balanced``) the rarer among the labels the more."""
    if isinstance(given, tuple):
        if len(given) != n_classes:
            raise FedbridgeError(f"Expected {n_classes} class weights, but got {len(given)}.")
        return given
    if given != "balanced":
        raise FedbridgeError(
            f"Expected `class_weights` to be 'balanced' or one number per class, but got {given!r}."
        )
    counts = torch.bincount(labels, minlength=n_classes)
    present = counts > 0
    weights = torch.where(present, counts.sum() / (present.sum() * counts.clamp(min=1)), 0.0)
    return tuple(weights.tolist())


def set_validation_aside(
    task: FederatedTask, settings: Settings, seed: int
) -> tuple[Site | None, Tensor | None]:
    """A validation split of the target's training rows, if early stopping needs one.

    Returns the split and the rows that are left; nothing where the target is elsewhere.
    """
    target = task.target
    if settings.early_stopping is None or isinstance(target, DistantSite):
        return None, None
    count = rows_to_train(len(target), settings)
    if count < 1:
        raise FedbridgeError(
            f"Expected enough target rows to set some aside for early stopping, but there "
            f"are {len(target)}: leave `early_stopping` out."
        )
    strata = None if task.n_classes is None else target.y.numpy()
    chooser = np.random.default_rng(seed_of(seed, 0, TARGET, SPLITTING))
    kept, aside = stratified_split(strata, len(target), count, chooser)
    rows = torch.from_numpy(aside)
    validation = replace(target, name="validation", x=target.x[rows], y=target.y[rows])
    return validation, torch.from_numpy(kept)


def rows_to_train(samples: int, settings: Settings) -> int:
    """How many of the target's rows are left to train on."""
    if settings.early_stopping is None:
        return samples
    return samples - max(1, round_half_up(settings.validation_fraction * samples))
