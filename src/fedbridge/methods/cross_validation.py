"""Cross-validation inside the target: no labelled row judges a model that was trained on it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from fedbridge.base.options import check_whole
from fedbridge.evaluation.metrics import squared_error
from fedbridge.training.job import SPLITTING, TARGET, seed_of
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fedbridge.federation.federation import Federation
    from fedbridge.training.state import State

FOLDS = 5

TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Candidates for the temperature at which held-out losses are compared."""

HOPELESS = 1e30
"""Loss of a model that has diverged."""


def labelled_rows(federation: Federation) -> Tensor:
    """The target's labelled rows that may be trained on."""
    rows = federation.target_rows
    return torch.arange(len(federation.task.target)) if rows is None else rows


def deal_folds(federation: Federation, count: object) -> list[Tensor]:
    """Folds of the target's rows, at most one per row; each class is dealt out over them."""
    number = check_whole("folds", count, least=2)
    rows = labelled_rows(federation)
    chooser = np.random.default_rng(seed_of(federation.seed, 0, TARGET, SPLITTING + 1))
    order = rows[torch.from_numpy(chooser.permutation(len(rows)))]
    if federation.task.n_classes is not None:
        order = order[federation.task.target.y[order].argsort(stable=True)]
    return [order[start::number].sort().values for start in range(min(number, len(order)))]


def without(rows: Tensor, fold: Tensor) -> Tensor:
    """The rows that are not in a fold."""
    return rows[~torch.isin(rows, fold)]


def held_out_loss(
    federation: Federation, models: Sequence[State], folds: Sequence[Tensor]
) -> float:
    """Loss over all folds, each judged by the model that never saw it."""
    outputs, truth = held_out_outputs(federation, models, folds)
    with one_thread():
        return calibrated_loss(outputs, truth, federation.task.n_classes)


def held_out_outputs(
    federation: Federation, models: Sequence[State], folds: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Outputs for the rows of every fold by its own model, fold after fold, and their labels."""
    site = federation.task.target
    outputs = [
        federation.predict(model, site, rows=rows)
        for model, rows in zip(models, folds, strict=True)
    ]
    return torch.cat(outputs), site.y[torch.cat([*folds])]


def calibrated_loss(outputs: Tensor, truth: Tensor, n_classes: int | None) -> float:
    """Loss at the temperature that suits the outputs best.

    A model that has fitted a few samples is far too sure of itself, and its cross-entropy on
    other samples is poor even where most of its answers are right. Its answers are what counts.
    """
    if n_classes is None:
        loss = float(squared_error(outputs, truth))
        return loss if math.isfinite(loss) else HOPELESS
    losses = [float(functional.cross_entropy(outputs / t, truth)) for t in TEMPERATURES]
    return min((loss for loss in losses if math.isfinite(loss)), default=HOPELESS)
