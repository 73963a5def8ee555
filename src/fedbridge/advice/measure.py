"""The measuring round: gradients of all sites at one point, and the losses of a few models.

The sources first train a few rounds of FedAvg. At a random start all gradients point the same way
(towards any sensible model), and a conflict between sites does not show; after a few rounds what
is left of the target's gradient is what the sources do not explain.

The same rounds are a trial: their model has never seen the target's rows, so its loss on them
is honest, and it is compared with the loss of the target by itself, cross-validated. Gradients tell
how wrong one step is. Where the target has few rows they cannot tell a source that conflicts with
it from one that helps, since either is better than the noise; the loss can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from fedbridge.advice.batches import RESAMPLES, TINY, BatchGram, Stratum, interval
from fedbridge.advice.predict import Conditions
from fedbridge.advice.verdict import Losses
from fedbridge.base.errors import DataError
from fedbridge.core.aggregate import apply_by_entries
from fedbridge.core.rules import CoordinateRule, get, names
from fedbridge.federation.method import train_each
from fedbridge.methods.cross_validation import (
    FOLDS,
    TEMPERATURES,
    deal_folds,
    held_out_outputs,
    labelled_rows,
    without,
)
from fedbridge.training.job import TARGET, Job, Outcome
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from fedbridge.federation.federation import Federation
    from fedbridge.training.state import State

MOST_PARTS = 64
"""Batches that a site's gradient is measured in, at most: enough for every estimate."""

SOURCE_PARTS = 20
LARGEST_BATCH = 256

TRIAL_PURPOSE = 400
TRIAL_ROUNDS, MOST_STEPS = 20, 500
"""Rounds that the target trains in the trial, unless that would be more steps in all."""

OnStep = Callable[[str], object]
"""Told what is under way."""


@dataclass(frozen=True)
class Measured:
    """What one measuring round found.

    Attributes:
        batches: the sites' batch gradients.
        conditions: how a run with these settings would run its rounds.
        trial: losses on the target's rows; None where it has too few for folds.
        left_out: sources that could not be measured, and why.
        present: the sources that could, in the task's order.
    """

    batches: BatchGram
    conditions: Conditions
    trial: Trial | None
    left_out: dict[str, str]
    present: tuple[int, ...]


def probes_at_a_time(federation: Federation) -> tuple[int, int]:
    """Starting points and jobs at a time that the engine must have room for."""
    jobs = len(strata_of(federation)) + federation.n_sources
    return FOLDS, max(jobs, FOLDS)


def measure_task(federation: Federation, rounds: int, tell: OnStep) -> Measured:
    """Warm up, train the sources for a few rounds, probe all sites there, hold the trial."""
    warmup = federation.settings.warmup
    state = federation.initial
    for number in range(1 - warmup, 1):
        tell(f"warm-up round {number + warmup} of {warmup}")
        state, _ = federation.warm_up(number, state)
    start = state
    for number in range(1, rounds + 1):
        tell(f"round {number} of {rounds} of the sources")
        state, _ = federation.warm_up(number, state)
    tell("measuring gradients")
    return _measure(federation, start, state, tell)


def _measure(federation: Federation, start: State, state: State, tell: OnStep) -> Measured:
    classes = strata_of(federation)
    jobs = [_probe(federation, TARGET, state, rows) for rows in classes]
    jobs += [_probe(federation, k + 1, state) for k in range(federation.n_sources)]
    outcomes, rows = federation.do(jobs, [state])
    clients = [job.client for job in jobs]
    failures = federation.failures(0, clients, outcomes)
    there = [k for k, client in enumerate(clients) if federation.name_of(client) not in failures]
    present = tuple(clients[k] - 1 for k in there if clients[k] != TARGET)
    if not present:
        raise DataError(
            "Expected at least one source whose gradient can be measured, but all failed: "
            + "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        )
    batches = _batch_gram(
        federation, [jobs[k] for k in there], [outcomes[k] for k in there], rows[there]
    )
    counts = federation.sample_counts(present)
    conditions = Conditions(
        blocks=federation.rule_blocks,
        batches=federation.plan(TARGET, 1).batches_per_epoch(int(counts[0])),
        samples=tuple(int(count) for count in counts),
        weights=federation.settings.weights,
    )
    if len(conditions.blocks) == 1:
        batches = batches.whole()
    tell("trial on the target's rows")
    trial = hold_trial(federation, start, state)
    return Measured(batches, conditions, trial, failures, present)


def strata_of(federation: Federation) -> list[Tensor]:
    """The target's rows class by class; classes with a single row are taken together."""
    rows = labelled_rows(federation)
    if federation.task.n_classes is None:
        return [rows]
    labels = federation.task.target.y[rows]
    groups = [rows[labels == label] for label in labels.unique()]
    several = [group for group in groups if len(group) > 1]
    single = [group for group in groups if len(group) == 1]
    if len(single) == 1 and several:
        several[0] = torch.cat((several[0], single[0]))
        return several
    return several + ([torch.cat(single)] if single else [])


def _probe(federation: Federation, client: int, state: State, rows: Tensor | None = None) -> Job:
    """A probe in many small batches at the target and a few large ones at a source."""
    plan = federation.plan(client, 1)
    if client == TARGET:
        size, most = math.ceil(len(labelled_rows(federation)) / MOST_PARTS), None
    else:
        samples = len(federation.task.sources[client - 1])
        size = min(max(math.ceil(samples / SOURCE_PARTS), plan.batch_size), LARGEST_BATCH)
        most = SOURCE_PARTS
    plan = replace(plan, batch_size=size)
    job = federation.job(1, client, state, kind="probe", noise="sketch", plan=plan, rows=rows)
    return replace(job, max_batches=most)


def _batch_gram(
    federation: Federation, jobs: Sequence[Job], outcomes: Sequence[Outcome], rows: Tensor
) -> BatchGram:
    """Inner products of all batch gradients, from the sites' sketches."""
    sketch = federation.bench.sketch
    parts = [
        batch_sketches(mean, outcome.sketches)
        for mean, outcome in zip(sketch.press(rows), outcomes, strict=True)
    ]
    own = [k for k, job in enumerate(jobs) if job.client == TARGET]
    shares = [*_shares(federation, [jobs[k] for k in own]), *(1.0 for _ in jobs[len(own) :])]
    site = [0 if k in own else k - len(own) + 1 for k in range(len(jobs))]
    strata = tuple(
        Stratum(site[k], len(parts[k]), shares[k], outcomes[k].samples) for k in range(len(jobs))
    )
    target = torch.tensor([shares[k] for k in own], dtype=rows.dtype) @ rows[: len(own)]
    fixed = {
        name: apply_by_entries(rule, target, rows[len(own) :])
        for name in names()
        if isinstance(rule := get(name), CoordinateRule)
    }
    if fixed:
        parts.append(sketch.press(torch.stack([*fixed.values()])))
    pressed = torch.cat(parts).permute(1, 0, 2, 3).flatten(2)
    # Either half of a sketch gives the inner products without bias; their mean is taken.
    return BatchGram(pressed @ pressed.mT / 2, strata, (*fixed,))


def _shares(federation: Federation, jobs: Sequence[Job]) -> list[float]:
    """Share of every stratum of the target in its loss: by rows, and by the weights of classes.

    Weights only tell classes apart within a batch, and a batch here has one class.
    """
    labels = [federation.task.target.y[job.rows] for job in jobs]
    weights = jobs[0].plan.class_weights
    if weights is None:
        sizes = [float(len(own)) for own in labels]
    else:
        sizes = [float(torch.tensor(weights)[own].sum()) for own in labels]
    return [size / sum(sizes) for size in sizes]


def batch_sketches(mean: Tensor, differences: Tensor | None) -> Tensor:
    """Sketches (B, K, 2, size) of every batch from that of their mean and what a stream kept.

    A stream keeps ``√((n−1)/n) (g^n − mean of those before)`` of every batch but the first, and
    the mean after a batch gives the mean before it: ``m_{n−1} = m_n − (g^n − m_{n−1}) / n``.
    """
    found = []
    kept = [] if differences is None else list(differences)
    for number in range(len(kept) + 1, 1, -1):
        difference = kept[number - 2] / ((number - 1) / number) ** 0.5
        mean = mean - difference / number
        found.append(mean + difference)
    return torch.stack([mean, *reversed(found)])


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
    rounds = min(TRIAL_ROUNDS, max(1, MOST_STEPS // steps))
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
            federation.job(number, TARGET, state, slot=slot, rows=own, purpose=TRIAL_PURPOSE)
            for slot, (state, own) in enumerate(zip(found, rows, strict=True))
        ]
        found, _ = train_each(federation, jobs, found)
    return found


def _row_losses(federation: Federation, models: Sequence[State], folds: Sequence[Tensor]) -> Tensor:
    """Loss of every row by the model of its fold, in the order of the folds."""
    outputs, truth = held_out_outputs(federation, models, folds)
    with one_thread():
        return row_losses(outputs, truth, federation.task.n_classes)


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


def loss_gain(trial: Trial, seed: int) -> Losses:
    """What joining saves of the loss, with an interval over the target's rows."""
    alone, sources, adapted = (part.mean() for part in (trial.alone, trial.sources, trial.adapted))
    joined = trial.sources if sources <= adapted else trial.adapted
    generator = torch.Generator().manual_seed(seed)
    rows = len(joined)
    drawn = torch.randint(rows, (RESAMPLES, rows), generator=generator)
    own, theirs = (
        torch.cat((losses.mean()[None], losses[drawn].mean(1))) for losses in (trial.alone, joined)
    )
    gain = interval(1.0 - theirs / own.clamp(min=TINY))
    return Losses(float(alone), float(sources), float(adapted), gain, rows)
