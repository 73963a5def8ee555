"""``fedbridge.advise``: measure, predict, decide, and say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedbridge import rules
from fedbridge.advice.bootstrap import loss_gain, measures, predictions
from fedbridge.advice.curve import curve, enough_samples
from fedbridge.advice.measure import measure_task, probes_at_a_time
from fedbridge.advice.past import advise_from_run, is_run
from fedbridge.advice.record import Advice, Partner
from fedbridge.advice.verdict import decided, ranked, role_of
from fedbridge.data.load import load_task
from fedbridge.errors import OptionError
from fedbridge.federation import Federation
from fedbridge.models import build_model
from fedbridge.run import INITIALISING
from fedbridge.seeds import seed_of
from fedbridge.settings import split_options, whole_number
from fedbridge.training import seeded

if TYPE_CHECKING:
    from fedbridge.advice.bootstrap import Measures
    from fedbridge.advice.measure import Measured
    from fedbridge.advice.record import Estimated
    from fedbridge.data.task import FederatedTask
    from fedbridge.settings import Settings

AFTER = 10
"""Rounds of the sources before the measuring round."""

SKETCH_SIZE = 1024
"""Numbers per block and half of a batch gradient that a site reports."""

MEASURING = 0.7
"""Share of the work that is measuring, for progress bars."""

Progress = Callable[[float, str], object]
"""Called with the share that is done, and what is under way."""


def advise(
    task: FederatedTask | str | Path,
    target: str | None = None,
    seed: int = 0,
    *,
    after: int | None = None,
    samples: Sequence[int] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Advice:
    """Advice before joining: noise, distances, predicted errors of all rules, and a verdict.

    Args:
        task: a task, what ``load_task`` takes, or the folder of a run, whose last rounds then
            speak instead of a measuring round.
        target: the site that asks, if ``task`` is a name or path.
        seed: of the data split, the initial model and the measuring round.
        after: rounds of FedAvg over the sources before measuring, besides the task's warm-up;
            None for 10.
        samples: numbers of labelled samples for the curve; None for a quarter to 64 times as many
            as there are.
        progress: called with the share that is done, and what is under way.
        **options: options of the run (``Settings``); those of the task are given to ``load_task``.

    Example:
        >>> advice = advise("digits-contrast", workers=1)
        >>> advice.recommended
        'target-only'
    """
    rounds = AFTER if after is None else whole_number("after", after, least=0)
    seed = whole_number("seed", seed, least=0)
    counts = None if samples is None else _checked(samples)
    tell: Progress = progress or (lambda share, text: None)
    if isinstance(task, str | Path):
        if is_run(Path(task)):
            _check_nothing_else({"target": target, "after": after, **options})
            return advise_from_run(Path(task), counts)
        task = load_task(task, target, seed)
    elif target not in (None, task.target.name):
        raise OptionError(
            f"Expected a task of the target {target!r}, but got one of {task.target.name!r}: leave "
            f"`target` out, or give the task's name."
        )
    settings, _ = split_options(
        {"sketch_size": SKETCH_SIZE, **options}, "advise", (), task.defaults
    )
    measured = _measured(task, settings, seed, rounds, tell)
    return _Adviser(task, seed, rounds, measured, counts, tell).advice()


def _checked(samples: Sequence[int]) -> tuple[int, ...]:
    counts = tuple(whole_number("samples", count, least=1) for count in samples)
    if not counts:
        raise OptionError("Expected at least one number of `samples`, but got none.")
    return counts


def _check_nothing_else(options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise OptionError(
            f"Expected no other options with the folder of a run, but got {', '.join(given)}: the "
            f"run has decided them."
        )


def _measured(
    task: FederatedTask, settings: Settings, seed: int, after: int, progress: Progress
) -> Measured:
    with seeded(seed_of(seed, 0, 0, INITIALISING), torch.device("cpu")):
        model = build_model(settings.model or task.model, task)
    federation = Federation(task, model, settings, seed)
    steps = settings.warmup + after + 2
    done = iter(range(steps + 1))

    def tell(text: str) -> None:
        progress(MEASURING * next(done) / steps, text)

    try:
        slots, rows = probes_at_a_time(federation)
        federation.open(slots=slots, rows=rows)
        return measure_task(federation, after, tell)
    finally:
        federation.close()


@dataclass(frozen=True)
class _Adviser:
    """Turns what was measured into advice."""

    task: FederatedTask
    seed: int
    after: int
    measured: Measured
    counts: tuple[int, ...] | None
    progress: Progress

    def advice(self) -> Advice:
        """All of it."""
        batches = self.measured.batches
        conditions = replace(self.measured.conditions, seed=self.seed)
        trial = self.measured.trial
        blank = Advice(
            task=self.task.name,
            target=self.task.target.name,
            seed=self.seed,
            evidence=self._evidence(),
            samples=conditions.samples[0],
            losses=None if trial is None else loss_gain(trial, self.seed),
            notes=tuple(
                f"{name} could not be measured: {reason}"
                for name, reason in self.measured.left_out.items()
            ),
        )
        if batches.freedom < 1:
            return decided(blank, freedom=0)
        names = rules.names()
        errors, shares = predictions(batches, names, conditions, self._simulated)
        found = measures(batches, self.seed)
        points = curve(batches, names, conditions, self.counts)
        numbered = replace(
            blank,
            sigma2=found.sigma2,
            partners=self._partners(found),
            rules=ranked(errors, shares),
            curve=points,
            enough=enough_samples(points),
            notes=(*blank.notes, *_not_predicted(names, errors)),
        )
        return decided(numbered, freedom=batches.freedom)

    def _simulated(self, share: float) -> None:
        self.progress(MEASURING + (1 - MEASURING) * share, "predicting the rules' errors")

    def _evidence(self) -> str:
        rounds = f"{self.after} round{'s' * (self.after != 1)} of the sources"
        return f"gradients of all sites at one point, after {rounds}"

    def _partners(self, found: Measures) -> tuple[Partner, ...]:
        samples = self.measured.conditions.samples[1:]
        return tuple(
            Partner(
                self.task.sources[index].name,
                samples[k],
                found.d2[k],
                found.cosine[k],
                found.ratio[k],
                found.weight[k],
                role_of(found.ratio[k], found.cosine[k]),
            )
            for k, index in enumerate(self.measured.present)
        )


def _not_predicted(names: Sequence[str], errors: dict[str, Estimated]) -> list[str]:
    missing = [name for name in names if name not in errors]
    return [f"no prediction for {', '.join(missing)}"] if missing else []
