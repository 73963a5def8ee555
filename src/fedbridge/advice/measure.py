"""The measuring rounds: what ``auto`` makes of the target's labels, and gradients at one point.

``auto`` runs a few rounds. Its sources' model has never seen a label of the target, so that what
the target makes of it, and what it would make of its rows alone, can be compared where the rows
are, by cross-validation: that is the evidence. Then, at the sources' model, every site takes
gradients of its batches. At a random start all gradients point the same way (towards any sensible
model), and a conflict between sites does not show; after a few rounds what is left of the target's
gradient is what the sources do not explain. They tell who is near and who is far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.advice.batches import BatchGram, Stratum
from fedbridge.advice.predict import Conditions
from fedbridge.base.errors import DataError
from fedbridge.core.aggregate import apply_by_entries
from fedbridge.core.rules import CoordinateRule, get, names
from fedbridge.methods.auto import Auto
from fedbridge.methods.candidates import Worth
from fedbridge.methods.cross_validation import labelled_rows
from fedbridge.training.job import TARGET, Job, Outcome

if TYPE_CHECKING:
    from fedbridge.federation.federation import Federation
    from fedbridge.training.state import State

MOST_PARTS = 64
"""Batches that a site's gradient is measured in, at most: enough for every estimate."""

SOURCE_PARTS = 20
LARGEST_BATCH = 256

OnStep = Callable[[str], object]
"""Told what is under way."""


@dataclass(frozen=True)
class Measured:
    """What the measuring rounds found.

    Attributes:
        batches: the sites' batch gradients.
        conditions: how a run with these settings would run its rounds.
        worth: what joining is worth by the target's labels; None if there was nothing to tell.
        shares: the part of every source in the model of ``auto``, as far as it is known.
        left_out: sources that could not be measured, and why.
        present: the sources that could, in the task's order.
    """

    batches: BatchGram
    conditions: Conditions
    worth: Worth | None
    shares: Sequence[float | None]
    left_out: dict[str, str]
    present: tuple[int, ...]


def measure_task(federation: Federation, rounds: int, tell: OnStep) -> Measured:
    """Run ``auto`` for some rounds, then probe all sites at its sources' model."""
    auto = Auto(federation, {})
    slots, rows = auto.room()
    federation.open(slots=slots, rows=max(rows, len(strata_of(federation)) + federation.n_sources))
    warmup = federation.settings.warmup
    for number in range(1 - warmup, 1):
        tell(f"warm-up round {number + warmup} of {warmup}")
        federation.begin_round(number)
        auto.warm_up(number)
    auto.begin(auto.state)
    worth: Worth | None = None
    shares: Sequence[float | None] = [None] * federation.n_sources
    for number in range(1, rounds + 1):
        tell(f"round {number} of {rounds}")
        federation.begin_round(number)
        record = auto.run_round(number)
        if "worth" in record.extra:
            worth = Worth(**record.extra["worth"])
        shares = record.beta or shares
    tell("measuring gradients")
    return _measure(federation, auto.led, worth, shares)


def _measure(
    federation: Federation, state: State, worth: Worth | None, shares: Sequence[float | None]
) -> Measured:
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
    return Measured(batches, conditions, worth, shares, failures, present)


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
