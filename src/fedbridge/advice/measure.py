"""The measuring rounds: what ``auto`` makes of the target's labels, and gradients at one point.

``auto`` runs a few rounds. Its sources' model has never seen a label of the target, so that what
the target makes of it, and what it would make of its rows alone, can be compared where the rows
are, by cross-validation: that is the evidence. Then, at the sources' model, every site takes
gradients of its batches. At a random start all gradients point the same way (towards any sensible
model), and a conflict between sites does not show; after a few rounds what is left of the target's
gradient is what the sources do not explain. They tell who is near and who is far.

All of it is a method, so that it runs wherever sites are. The target's gradients, row by row, stay
with the target: its side gets sketches of the sources' batches and answers with what came of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedbridge.advice.batches import BatchGram, Measures, Stratum, measures
from fedbridge.advice.predict import Conditions, curve, predictions
from fedbridge.advice.verdict import Point
from fedbridge.base.errors import DataError, OptionError
from fedbridge.base.options import check_whole
from fedbridge.core import rules
from fedbridge.core.aggregate import apply_by_entries
from fedbridge.evaluation.intervals import Interval
from fedbridge.federation.method import Record
from fedbridge.federation.needs import rows_to_train
from fedbridge.federation.settings import MANY
from fedbridge.methods import add_unlisted
from fedbridge.methods.auto import Auto, AutoTargetSide
from fedbridge.methods.cross_validation import labelled_rows
from fedbridge.training.job import TARGET, Job, Outcome
from fedbridge.training.state import State
from fedbridge.training.target_side import Decision, News
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from fedbridge.federation.federation import Federation

ADVICE = "advice"
"""What the method is called; it is on no list, since it makes no model."""

AFTER = 8
"""Rounds of ``auto``; in this one it chooses anew."""

SKETCH_SIZE = 1024
"""Numbers per block and half of a batch gradient that a site reports."""

MOST_PARTS = 64
"""Batches that a site's gradient is measured in, at most: enough for every estimate."""

SOURCE_PARTS = 20
LARGEST_BATCH = 256
MOST_BATCHES = 1 << 31
"""Of all sources; what a coordinator that is not honest may say beyond is as wrong."""

SKETCHES, FIXED = "sketches.sources", "sketches.fixed"
"""In the news: sketches of the sources' batches, and of updates that no mixture of sites gives."""

NO_CHOICE = {"choice": "none", "losses": {}}

OnStep = Callable[[str], object]
"""Told what is under way."""


class Measuring(Auto):
    """``auto``, and in its last round gradients of all sites, which the target compares.

    Options:
        after: the round in which gradients are measured (8).
        samples: numbers of labelled samples to look ahead to (None: multiples of what there is).
    """

    options: ClassVar[tuple[str, ...]] = ("after", "samples")

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.after = check_whole("after", options.get("after", AFTER), least=0, most=MANY)
        self._known: dict[str, Any] = {}

    @classmethod
    def target_side(cls, federation: Federation, options: Mapping[str, Any]) -> MeasuringSide:
        """The candidates, and the target's own gradients."""
        return MeasuringSide(federation, options)

    def measure_at_once(self) -> Record:
        """Gradients without any round: nothing is tried."""
        self.federation.begin_round(0)
        record = Record()
        decision = self.federation.decide(0, self._news(0, 0.0))
        assert decision is not None
        self._take(decision, record)
        return record

    def _news(self, round: int, work: float) -> News:
        news = super()._news(round, work)
        return news if round != self.after else self._with_gradients(news)

    def _take(self, decision: Decision, record: Record) -> None:
        super()._take(decision, record)
        if self._known:
            names, shares = self.federation.task.source_names, record.beta or []
            own = [shares[names.index(name)] if shares else None for name in self._known["sources"]]
            gradients = decision.facts.get("gradients", {})
            if any(len(gradients.get(name, own * 3)) != 3 * len(own) for name in OF_SOURCES):
                record.notes.append("the target compared gradients of others than were asked")
                gradients = {}
            record.extra[ADVICE] = {**self._known, "shares": own, **gradients}

    def _with_gradients(self, news: News) -> News:
        """Ask all sites for gradients at the led model; those of the sources go to the target.

        Of the target this is its mean over all rows, for the rules that work entry by entry.
        """
        federation = self.federation
        own = rows_to_train(len(federation.task.target), federation.settings)
        jobs = [
            _probe(federation, TARGET, self.led, size=own),
            *(_source_probe(federation, k + 1, self.led) for k in range(federation.n_sources)),
        ]
        outcomes, rows = federation.do(jobs, [self.led], federation.round)
        clients = [job.client for job in jobs]
        federation.count_bytes(clients, outcomes)
        failures = federation.failures(federation.round, clients, outcomes)
        there = [k for k in clients if federation.name_of(k) not in failures]
        present = [k for k in there if k != TARGET]
        if not present:
            raise DataError(
                "Expected at least one source whose gradient can be measured, but all failed: "
                + "; ".join(f"{name}: {reason}" for name, reason in failures.items())
            )
        sketch = federation.bench.sketch
        parts = [
            batch_sketches(mean, outcomes[k].sketches)
            for k, mean in zip(present, sketch.press(rows[present]), strict=True)
        ]
        tensors = {**news.tensors, SKETCHES: torch.cat(parts)}
        facts = {**news.facts, "fixed": 0}
        if TARGET in there:
            fixed = fixed_updates(rows[TARGET], rows[present])
            tensors[FIXED], facts["fixed"] = sketch.press(fixed), len(fixed)
        for k, (client, part) in enumerate(zip(present, parts, strict=True)):
            facts |= {f"batches-{k}": len(part), f"rows-{k}": outcomes[client].samples}
        self._known = {
            "samples": own,
            "sources": [federation.name_of(k) for k in present],
            "rows": [outcomes[k].samples for k in present],
            "left_out": dict(failures),
        }
        return News(tensors, facts)


add_unlisted(ADVICE, Measuring)


class MeasuringSide(AutoTargetSide):
    """The target's candidates, and its gradients beside those of the sources."""

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, {})
        self.samples = checked_samples(options.get("samples"))

    def expects(self, initial: State, news: News) -> dict[str, Tensor]:
        """Besides the model, sketches in the round in which gradients are measured."""
        told = (value for name, value in news.facts.items() if name.startswith("batches-"))
        batches = int(min(sum(told), MOST_BATCHES))
        if not batches:
            return initial.tensors()
        one = (len(self.federation.blocks), 2, self.federation.settings.sketch_size)
        shapes = {SKETCHES: (batches, *one)}
        if news.facts.get("fixed"):
            shapes[FIXED] = (len(entry_rules()), *one)
        sketches = {
            name: torch.empty(shape, dtype=torch.float64, device="meta")
            for name, shape in shapes.items()
        }
        return {**initial.tensors(), **sketches}

    def decide(self, news: News) -> Decision:
        """Choose as ``auto`` does, and say what gradients tell where these are asked for."""
        decision = Decision(State.of_tensors(news.tensors), NO_CHOICE)
        if self.federation.round >= 1:
            decision = super().decide(news)
        if SKETCHES not in news.tensors:
            return decision
        batches, conditions = self.compare(news)
        if batches.freedom < 1:
            return decision
        known = Gradients.of(batches, conditions, self.samples)
        return replace(decision, facts={**decision.facts, "gradients": known.told()})

    def compare(self, news: News) -> tuple[BatchGram, Conditions]:
        """Inner products of the target's batch gradients and the sources', from sketches."""
        federation = self.federation
        led = State.of_tensors(news.tensors)
        classes = strata_of(federation)
        size = math.ceil(sum(map(len, classes)) / MOST_PARTS)
        jobs = [_probe(federation, TARGET, led, size=size, noise="sketch", rows=r) for r in classes]
        own = [self._taken(job, led) for job in jobs]
        counts: list[int] = []
        rows: list[int] = []
        while f"batches-{len(counts)}" in news.facts:
            rows.append(int(news.facts[f"rows-{len(counts)}"]))
            counts.append(int(news.facts[f"batches-{len(counts)}"]))
        shares = _shares(federation, jobs)
        strata = [
            Stratum(0, len(part), share, outcome.samples)
            for (part, outcome), share in zip(own, shares, strict=True)
        ]
        strata += [
            Stratum(k + 1, c, 1.0, n) for k, (c, n) in enumerate(zip(counts, rows, strict=True))
        ]
        fixed = tuple(entry_rules()) if FIXED in news.tensors else ()
        parts = [part for part, _ in own] + [news.tensors[SKETCHES]]
        parts += [news.tensors[FIXED]] if fixed else []
        pressed = torch.cat(parts).permute(1, 0, 2, 3).flatten(2)
        # Either half of a sketch gives the inner products without bias; their mean is taken.
        batches = BatchGram(pressed @ pressed.mT / 2, tuple(strata), fixed)
        count = len(labelled_rows(federation))
        conditions = Conditions(
            blocks=federation.rule_blocks,
            batches=federation.plan(TARGET, 1).batches_per_epoch(count),
            samples=(count, *rows),
            weights=federation.settings.weights,
            seed=federation.seed,
        )
        return batches.whole() if len(conditions.blocks) == 1 else batches, conditions

    def _taken(self, job: Job, led: State) -> tuple[Tensor, Outcome]:
        """Sketches of every batch gradient of a job, which is done here."""
        bench, vector = self.federation.bench, torch.empty_like(led.parameters)
        with one_thread():
            outcome = bench.run(job, led.parameters[None], vector)
        self.federation.failures(self.federation.round, [TARGET], [outcome])
        (mean,) = bench.sketch.press(vector[None])
        return batch_sketches(mean, outcome.sketches), outcome


@dataclass(frozen=True)
class Gradients:
    """What the gradients of all sites tell the target.

    Attributes:
        measures: noise, distances and angles.
        errors: in theory, the error of every rule's update, and
        relative: the same as a share of that of training alone.
        curve: in theory, how the answer changes with the target's samples.
    """

    measures: Measures
    errors: Mapping[str, Interval]
    relative: Mapping[str, Interval]
    curve: tuple[Point, ...]

    @classmethod
    def of(
        cls, batches: BatchGram, conditions: Conditions, samples: Sequence[int] | None
    ) -> Gradients:
        """All that follows from inner products."""
        names = rules.names()
        errors, relative = predictions(batches, names, conditions)
        points = curve(batches, names, conditions, samples)
        return cls(measures(batches, conditions.seed), errors, relative, points)

    def told(self) -> dict[str, Any]:
        """As plain values: every number with the ends of its interval, rules by their place."""
        found, names = self.measures, list(self.errors)
        points = [(p.samples, p.alone, p.best, names.index(p.rule)) for p in self.curve]
        return {
            "sigma2": list(astuple(found.sigma2)),
            **{name: _flat(getattr(found, name)) for name in OF_SOURCES},
            "rules": names,
            "errors": _flat(self.errors.values()),
            "relative": _flat(self.relative.values()),
            "curve": [float(number) for point in points for number in point],
        }

    @classmethod
    def of_told(cls, told: Mapping[str, Any]) -> Gradients:
        """What was told."""
        (sigma2,), names = _intervals(told["sigma2"]), [str(name) for name in told["rules"]]
        each = (tuple(_intervals(told[name])) for name in OF_SOURCES)
        errors, relative = (
            dict(zip(names, _intervals(told[name]), strict=True)) for name in ("errors", "relative")
        )
        points = zip(*[iter(told["curve"])] * 4, strict=True)
        return cls(
            Measures(sigma2, *each),
            errors,
            relative,
            tuple(Point(int(n), alone, best, names[int(k)]) for n, alone, best, k in points),
        )


OF_SOURCES = ("d2", "cosine", "ratio", "weight")
"""What is measured of every source."""


def _flat(numbers: Any) -> list[float]:
    return [float(value) for number in numbers for value in astuple(number)]


def _intervals(numbers: Sequence[float]) -> list[Interval]:
    return [Interval(*three) for three in zip(*[iter(numbers)] * 3, strict=True)]


def checked_samples(samples: Sequence[int] | None) -> tuple[int, ...] | None:
    """Numbers of samples that somebody wants to look ahead to."""
    if samples is None:
        return None
    counts = tuple(check_whole("samples", count, least=1) for count in samples)
    if not counts:
        raise OptionError("Expected at least one number of `samples`, but got none.")
    return counts


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


def _probe(federation: Federation, client: int, state: State, *, size: int, **more: Any) -> Job:
    """A site's gradient in batches of a size."""
    plan = replace(federation.plan(client, 1), batch_size=max(1, size))
    return federation.job(1, client, state, kind="probe", plan=plan, **more)


def _source_probe(federation: Federation, client: int, state: State) -> Job:
    """A source's gradient in a few large batches.

    A last one of a single row, which would count as much as the others and which no site tells
    anybody, is avoided where another size does that.
    """
    rows = len(federation.task.sources[client - 1])
    usual = federation.plan(client, 1).batch_size
    size = min(max(math.ceil(rows / SOURCE_PARTS), usual), LARGEST_BATCH)
    if size > 1:
        size = next((s for s in range(size, 2 * size) if rows % s != 1), size)
    job = _probe(federation, client, state, size=size, noise="sketch")
    return replace(job, max_batches=SOURCE_PARTS)


def entry_rules() -> dict[str, rules.CoordinateRule]:
    """Rules whose update is no mixture of the sites'."""
    every = {name: rules.get(name) for name in rules.names()}
    return {n: rule for n, rule in every.items() if isinstance(rule, rules.CoordinateRule)}


def fixed_updates(target: Tensor, sources: Tensor) -> Tensor:
    """(F, m) the updates of these rules."""
    found = [apply_by_entries(rule, target, sources) for rule in entry_rules().values()]
    return torch.stack(found) if found else target.new_zeros(0, len(target))


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
