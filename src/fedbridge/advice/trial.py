"""The trial: losses on the target's labelled rows by models that have not seen them.

Gradients tell how wrong one step is. Where the target has few rows they cannot tell a source that
conflicts with it from one that helps, since either is better than the noise; the loss can.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from fedbridge.jobs import TARGET
from fedbridge.methods.held_out import FOLDS, TEMPERATURES, deal_folds, labelled_rows, without
from fedbridge.training import one_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fedbridge.federation import Federation
    from fedbridge.state import State

PURPOSE = 400

ROUNDS, MOST_STEPS = 20, 500
"""Rounds that the target trains in the trial, unless that would be more steps in all."""


@dataclass(frozen=True)
class Trial:
    """Loss on every labelled row of the target, by three models.

    Attributes:
        alone: (n,) the target by itself, cross-validated.
        sources: (n,) the sources' model.
        adapted: (n,) the sources' model trained on by the target, cross-validated.
    """

    alone: Tensor
    sources: Tensor
    adapted: Tensor


def hold_trial(federation: Federation, start: State, shared: State) -> Trial | None:
    """Train replicas of the target without each fold, alone and from the sources' model."""
    rows = labelled_rows(federation)
    if len(rows) < 2:
        return None
    folds = deal_folds(federation, FOLDS)
    kept = [without(rows, fold) for fold in folds]
    steps = federation.plan(TARGET, 1).total_steps(len(kept[0]))
    rounds = min(ROUNDS, max(1, MOST_STEPS // steps))
    alone = _trained(federation, [start] * len(folds), kept, rounds)
    adapted = _trained(federation, [shared] * len(folds), kept, rounds)
    return Trial(
        _row_losses(federation, alone, folds),
        _row_losses(federation, [shared] * len(folds), folds),
        _row_losses(federation, adapted, folds),
    )


def _trained(
    federation: Federation, states: Sequence[State], rows: Sequence[Tensor], rounds: int
) -> list[State]:
    """Every model after so many rounds on its own rows of the target."""
    found = list(states)
    for number in range(1, rounds + 1):
        jobs = [
            federation.job(number, TARGET, state, slot=slot, rows=own, purpose=PURPOSE)
            for slot, (state, own) in enumerate(zip(found, rows, strict=True))
        ]
        outcomes, changes = federation.do(jobs, found)
        found = [
            state if outcome.failure else federation.trained(state, change.clone(), outcome)
            for state, outcome, change in zip(found, outcomes, changes, strict=True)
        ]
    return found


def _row_losses(federation: Federation, models: Sequence[State], folds: Sequence[Tensor]) -> Tensor:
    """Loss of every row by the model of its fold, in the order of the folds."""
    site = federation.task.target
    outputs = torch.cat(
        [
            federation.predict(model, replace(site, x=site.x[rows], y=site.y[rows]))
            for model, rows in zip(models, folds, strict=True)
        ]
    )
    with one_thread():
        return row_losses(outputs, site.y[torch.cat([*folds])], federation.task.n_classes)


def row_losses(outputs: Tensor, truth: Tensor, n_classes: int | None) -> Tensor:
    """Loss of every row, for classes at the temperature that suits the outputs best."""
    if n_classes is None:
        return (outputs - truth.view_as(outputs)).square().reshape(len(truth), -1).sum(1).double()
    losses = torch.stack(
        [
            functional.cross_entropy(outputs.double() / heat, truth, reduction="none")
            for heat in TEMPERATURES
        ]
    )
    return losses[losses.mean(1).argmin()]
