"""``fedbridge.advise``: measure, decide, and say it.

A finished run of ``auto`` can speak instead of measuring rounds: its history holds what joining was
worth. Of any run it holds noise, distances and angles, and not the inner products between sources;
they bound the Delta errors of the averaging rules, since a mean over sources errs at most as much
as its parts do on average, and the other rules are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedbridge.advice.batches import RESAMPLES, TINY, Measures, interval
from fedbridge.advice.measure import (
    ADVICE,
    AFTER,
    SKETCH_SIZE,
    Gradients,
    Measuring,
    checked_samples,
)
from fedbridge.advice.predict import sample_counts
from fedbridge.advice.verdict import (
    TARGET_ONLY,
    Advice,
    Partner,
    Point,
    decided,
    enough_samples,
    ranked,
    role_of,
)
from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.base.options import check_whole
from fedbridge.core import rules
from fedbridge.data.load import check_weights, load_task
from fedbridge.data.task import check_is_task
from fedbridge.federation.federation import Federation
from fedbridge.federation.settings import MANY, split_options
from fedbridge.methods.auto import other_names
from fedbridge.methods.candidates import Worth
from fedbridge.models import build_model
from fedbridge.runs.folder import RunFolder
from fedbridge.runs.record import RunRecord, read_run
from fedbridge.training.job import INITIALISING, seed_of
from fedbridge.training.trainer import seeded

if TYPE_CHECKING:
    from fedbridge.data.task import FederatedTask

WITHHELD = "withheld"
"""The choice of a target that protects what leaves it."""

LAST_ROUNDS = 10
ONLY_AUTO = (
    "only a run of `auto` has tried what joining is worth: name the task instead of the folder, or "
    "run `auto`"
)
FITTED = (
    "the run has trained on the rows that show its noise, and rounds are not independent: noise "
    "and intervals may look smaller than they are"
)
BOUNDS = "the history bounds the errors of the averaging rules only; name the task for the others"

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
    measure: Measure | None = None,
    **options: Any,
) -> Advice:
    """Advice before joining, as ``fedbridge.advise`` gives it with the same arguments.

    ``measure`` runs the measuring rounds; None for this machine.
    """
    rounds = AFTER if after is None else check_whole("after", after, least=0, most=MANY)
    seed = check_whole("seed", seed, least=0)
    counts = checked_samples(samples)
    tell: Progress = progress or (lambda share, text: None)
    check_is_task(task)
    if isinstance(task, str | Path):
        if is_run(Path(task)):
            others = {"target": target, "after": after, **options}
            given = [name for name, value in others.items() if value is not None]
            if given:
                raise OptionError(
                    f"Expected no other options with the folder of a run, but got "
                    f"{', '.join(given)}: the run has decided them."
                )
            return advise_from_run(Path(task), counts)
        check_weights(task, options.get("model"), {})
        task = load_task(task, target, seed)
    elif target not in (None, task.target.name):
        raise OptionError(
            f"Expected a task of the target {target!r}, but got one of {task.target.name!r}: leave "
            f"`target` out, or give the task's name."
        )
    asked = AdviceRequest(task, seed, rounds, counts, {"sketch_size": SKETCH_SIZE, **options})
    line = (measure or measure_here)(asked, tell)
    return advice_of(line, task.name, task.target.name, seed, rounds)


@dataclass(frozen=True)
class AdviceRequest:
    """What is to be measured.

    Attributes:
        task: whose sites.
        seed: of everything random.
        rounds: of ``auto``.
        samples: numbers of samples to look ahead to; None for the usual ones.
        options: of the run.
    """

    task: FederatedTask
    seed: int
    rounds: int
    samples: tuple[int, ...] | None
    options: Mapping[str, Any]

    @property
    def of_method(self) -> dict[str, Any]:
        """Options of the method that measures."""
        ahead = {} if self.samples is None else {"samples": list(self.samples)}
        return {"after": self.rounds, **ahead}


Measure = Callable[[AdviceRequest, Progress], Mapping[str, Any]]
"""Runs the measuring rounds; what comes back is the last line of their history."""


def measure_here(asked: AdviceRequest, progress: Progress) -> dict[str, Any]:
    """The measuring rounds with all sites on this machine."""
    task, seed = asked.task, asked.seed
    settings, _ = split_options(dict(asked.options), "advise", (), task.defaults, task.model)
    with seeded(seed_of(seed, 0, 0, INITIALISING), torch.device("cpu")):
        model = build_model(settings.model or task.model, task)
    federation = Federation(task, model, settings, seed)
    warmup, steps = settings.warmup, settings.warmup + asked.rounds
    done = iter(range(steps + 1))

    def tell(text: str) -> None:
        progress(next(done) / (steps + 1), text)

    try:
        method = Measuring(federation, asked.of_method)
        slots, rows = method.room()
        federation.open(slots=slots, rows=rows)
        for number in range(1 - warmup, 1):
            tell(f"warm-up round {number + warmup} of {warmup}")
            federation.begin_round(number)
            method.warm_up(number)
        method.begin(method.state)
        for number in range(1, asked.rounds + 1):
            tell(f"round {number} of {asked.rounds}")
            federation.begin_round(number)
            record = method.run_round(number)
        if not asked.rounds:
            tell("measuring gradients")
            record = method.measure_at_once()
        progress(1.0, "done")
    finally:
        federation.close()
    return {"beta": record.beta, **record.extra}


def advice_of(line: Mapping[str, Any], task: str, target: str, seed: int, rounds: int) -> Advice:
    """The advice that the last of the measuring rounds gives, by its line of the history."""
    known = line.get(ADVICE) or {}
    names, rows = known.get("sources", []), known.get("rows", [])
    notes = [
        f"{n} could not be measured: {reason}" for n, reason in known.get("left_out", {}).items()
    ]
    if line.get("choice") == WITHHELD:
        notes.append(f"{target} protects what leaves it, and keeps what joining is worth to itself")
    if coding := other_names(str(line.get("said", ""))):
        notes.append(coding)
    worth = line.get("worth")
    blank = Advice(
        task=task,
        target=target,
        seed=seed,
        evidence=f"{_rounds(rounds)} of `auto`, and gradients of all sites at one point after them",
        samples=known.get("samples"),
        worth=None if worth is None else Worth(**worth),
        notes=tuple(notes),
    )
    if "sigma2" not in known:
        return decided(blank)
    found = Gradients.of_told(known)
    missing = [name for name in rules.names() if name not in found.errors]
    return decided(
        replace(
            blank,
            sigma2=found.measures.sigma2,
            partners=_partners(names, (known["samples"], *rows), found.measures, known["shares"]),
            rules=ranked(dict(found.errors), dict(found.relative)),
            curve=found.curve,
            enough=enough_samples(found.curve),
            notes=(*notes, *([f"no prediction for {', '.join(missing)}"] if missing else [])),
        )
    )


def _rounds(count: int) -> str:
    return f"{count} round{'s' * (count != 1)}"


def _partners(
    names: Sequence[str],
    samples: Sequence[int] | None,
    found: Measures,
    shares: Sequence[float | None],
) -> tuple[Partner, ...]:
    """The sources as the target sees them; ``samples`` are rows of the target and of each."""
    return tuple(
        Partner(
            name,
            None if samples is None else samples[k + 1],
            found.d2[k],
            found.cosine[k],
            found.ratio[k],
            found.weight[k],
            role_of(found.ratio[k], found.cosine[k]),
            shares[k],
        )
        for k, name in enumerate(names)
    )


class NoEvidenceError(FedbridgeError):
    """A run whose history says nothing about sources."""


def is_run(path: Path) -> bool:
    """Whether there is the folder of a run."""
    return path.is_dir() and RunFolder(path).config() is not None


def _tells(line: dict[str, Any]) -> bool:
    """Whether a round measured all sources."""
    known = (line.get("sigma2"), *(line.get("d2") or [None]), *(line.get("cosine") or [None]))
    return line["round"] >= 1 and None not in known


def advise_from_run(path: Path, counts: Sequence[int] | None = None) -> Advice:
    """Advice from what a run has measured.

    What joining is worth is known by runs of ``auto``; distances come from the last rounds in which
    all sources were measured, with intervals over them.

    Raises:
        NoEvidenceError: the run has neither.
    """
    record = read_run(path)
    config, summary = record.config, record.summary
    if record.history and record.history[-1].get(ADVICE):
        return _measured_before(path, record)
    told = [line for line in record.history if _tells(line)][-LAST_ROUNDS:]
    judged = record.worth
    if not told and not judged:
        raise NoEvidenceError(
            f"Expected a run whose rounds measured the sources, but {str(path)!r} (method "
            f"{config['method']!r}) has none: name the task instead of the folder, or run `auto`."
        )
    samples = None
    if summary is not None:
        samples = tuple(record.rows_of(name) or 0 for name in (config["target"], *record.sources))
    seen = len(told)
    blank = Advice(
        task=config["task"],
        target=config["target"],
        seed=config["seed"],
        evidence=f"a run of {config['method']}, its last choice and {_rounds(seen)} with distances"
        if judged
        else f"the last {_rounds(seen)} of a run of {config['method']}",
        samples=None if samples is None else samples[0],
        worth=Worth(**judged) if judged else None,
        notes=() if judged else (ONLY_AUTO,),
    )
    if not told:
        return decided(blank)
    trusted = next(
        (line["beta"] for line in reversed(record.history) if line.get("beta")),
        [None] * len(config["sources"]),
    )
    drawn = torch.randint(seen, (RESAMPLES, seen), generator=torch.Generator().manual_seed(0))

    def means(name: str) -> Tensor:
        """The mean over the rounds, then over every resample of them."""
        values = torch.tensor([line[name] for line in told], dtype=torch.float64)
        return torch.cat((values.mean(0, keepdim=True), values[drawn].mean(1)))

    sigma2, d2, cosine = map(means, ("sigma2", "d2", "cosine"))
    found = Measures.of(sigma2, d2, cosine)
    errors = error_bounds(sigma2, d2, samples)
    points = () if samples is None else _curve(sigma2[:1], d2[:1], samples, counts)
    return decided(
        replace(
            blank,
            sigma2=found.sigma2,
            partners=_partners(config["sources"], samples, found, trusted),
            rules=ranked(
                {name: interval(error) for name, error in errors.items()},
                {name: interval(error / sigma2.clamp(min=TINY)) for name, error in errors.items()},
                bound=True,
            ),
            curve=points,
            enough=enough_samples(points),
            notes=(*blank.notes, FITTED, BOUNDS),
        )
    )


def _measured_before(path: Path, record: RunRecord) -> Advice:
    """What measuring rounds over a network have left in their folder."""
    config, line = record.config, record.history[-1]
    absent = (record.summary or {}).get("absent", {})
    notes = [f"{name} took no part: {reason}" for name, reason in absent.items()]
    try:
        found = advice_of(line, config["task"], config["target"], config["seed"], config["rounds"])
    except (ValueError, IndexError, KeyError) as error:
        raise NoEvidenceError(
            f"Expected what advice has measured in {str(path)!r}, but it does not fit "
            f"together ({error}): measure again."
        ) from error
    return found.with_notes(*(str(note).rstrip(".") for note in (*notes, *line["notes"])))


def _curve(
    sigma2: Tensor, d2: Tensor, samples: Sequence[int], counts: Sequence[int] | None
) -> tuple[Point, ...]:
    now, *others = samples
    points = []
    for count in sample_counts(now, counts):
        bounds = error_bounds(sigma2 * now / count, d2, (count, *others))
        errors = {name: float(bound) for name, bound in bounds.items()}
        points.append(Point.of(count, errors.pop(TARGET_ONLY), errors))
    return tuple(points)


def error_bounds(sigma2: Tensor, d2: Tensor, samples: Sequence[int] | None) -> dict[str, Tensor]:
    """Bounds (R,) of the Delta errors of the averaging rules from noise (R,), distances (R, N).

    A mean over sources errs at most as much as its parts do on average, and all sources together
    allow what the best of them allows alone. ``samples`` are rows of the target and the sources.
    """
    apart = d2.clamp(min=0.0)
    own = sigma2[:, None]
    best = own * apart / (own + apart).clamp(min=TINY)
    errors = {
        TARGET_ONLY: sigma2,
        "source-only": apart.mean(1),
        "fedda": ((own + apart) / 4).mean(1),
        "fedda-auto": best.mean(1),
        "fedda-joint": best.amin(1),
    }
    if samples is not None:
        counts = torch.tensor(samples, dtype=torch.float64)
        shares = counts / counts.sum()
        led = shares[1:] / shares[1:].sum()
        errors["fedavg"] = shares[0] ** 2 * sigma2 + shares[1:].sum() ** 2 * (apart @ led)
    return errors
