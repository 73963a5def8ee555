"""Advice from a run that is finished: what its last rounds measured.

The history holds noise, distances and angles, and not the inner products between sources. They
bound the Delta errors of the averaging rules, since a mean over sources errs at most as much as its
parts do on average; the other rules are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedbridge.advice.bootstrap import RESAMPLES, best_weight, noise_ratio, quantiles
from fedbridge.advice.curve import enough_samples, sample_counts
from fedbridge.advice.record import ALONE, Advice, Partner, Point
from fedbridge.advice.spectra import TINY
from fedbridge.advice.verdict import decided, ranked, role_of
from fedbridge.errors import FedbridgeError
from fedbridge.rundir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedbridge.advice.record import Estimated

LAST_ROUNDS = 10
FITTED = (
    "the run has trained on the rows that show its noise, and rounds are not independent: noise "
    "and intervals may look smaller than they are"
)
BOUNDS = "the history bounds the errors of the averaging rules only; name the task for the others"


class NoEvidenceError(FedbridgeError):
    """A run whose history says nothing about noise and distances."""


@dataclass(frozen=True)
class Rounds:
    """What the last rounds of a run measured.

    Attributes:
        config: the run's configuration.
        samples: rows of the target and of the sources; None if the run is not finished.
        sigma2: (R,) noise; of no round if it was undefined.
        d2: (R, N) squared distances of the sources.
        cosine: (R, N) their angles.
    """

    config: dict[str, Any]
    samples: tuple[int, ...] | None
    sigma2: Tensor
    d2: Tensor
    cosine: Tensor


def is_run(path: Path) -> bool:
    """Whether there is the folder of a run."""
    return path.is_dir() and RunFolder(path).config() is not None


def read_rounds(path: Path) -> Rounds:
    """The last rounds of a run in which all sources were there.

    Raises:
        NoEvidenceError: no round measured the sources.
    """
    folder = RunFolder(path)
    config, summary = folder.config(), folder.summary()
    assert config is not None
    lines = [line for line in folder.history() if _measured(line)][-LAST_ROUNDS:]
    if not lines:
        raise NoEvidenceError(
            f"Expected a run whose rounds measured the sources, but {str(path)!r} (method "
            f"{config['method']!r}) has none: name the task instead of the folder, or run "
            f"`fedda-joint` first."
        )
    samples = None
    if summary is not None:
        counts = summary["n_sources"]
        samples = (summary["n_target"], *(counts[name] for name in config["sources"]))
    told = [line for line in lines if line["sigma2"] is not None and line["d2"] is not None]
    return Rounds(
        config,
        samples,
        *(
            torch.tensor([line[name] for line in told], dtype=torch.float64)
            for name in ("sigma2", "d2", "cosine")
        ),
    )


def _measured(line: dict[str, Any]) -> bool:
    return line["round"] >= 1 and line["cosine"] is not None and None not in line["cosine"]


def advise_from_run(path: Path, counts: Sequence[int] | None) -> Advice:
    """Advice from the last rounds of a run, with intervals over these rounds."""
    rounds = read_rounds(path)
    seen = len(rounds.sigma2)
    blank = Advice(
        task=rounds.config["task"],
        target=rounds.config["target"],
        seed=rounds.config["seed"],
        evidence=f"the last {seen} round{'s' * (seen != 1)} of a run of {rounds.config['method']}",
        samples=None if rounds.samples is None else rounds.samples[0],
        notes=(FITTED, BOUNDS),
    )
    if not seen:
        return decided(blank, freedom=0)
    drawn = torch.randint(seen, (RESAMPLES, seen), generator=torch.Generator().manual_seed(0))
    sigma2, d2, cosine = (
        torch.cat((told.mean(0, keepdim=True), told[drawn].mean(1)))
        for told in (rounds.sigma2, rounds.d2, rounds.cosine)
    )
    errors = error_bounds(sigma2, d2, rounds.samples)
    points = () if rounds.samples is None else _curve(sigma2[:1], d2[:1], rounds.samples, counts)
    return decided(
        replace(
            blank,
            sigma2=_interval(sigma2),
            partners=_partners(rounds, sigma2, d2, cosine),
            rules=ranked(
                {name: _interval(error) for name, error in errors.items()},
                {name: _interval(error / sigma2.clamp(min=TINY)) for name, error in errors.items()},
                bound=True,
            ),
            curve=points,
            enough=enough_samples(points),
        ),
        freedom=seen - 1,
    )


def _interval(values: Tensor) -> Estimated:
    """The first number, with its interval from the others."""
    return quantiles(float(values[0]), values[1:])


def _partners(rounds: Rounds, sigma2: Tensor, d2: Tensor, cosine: Tensor) -> tuple[Partner, ...]:
    ratios = noise_ratio(sigma2[:, None], d2)
    weights = best_weight(sigma2[:, None], d2)
    partners = []
    for k, name in enumerate(rounds.config["sources"]):
        ratio, angle = _interval(ratios[:, k]), _interval(cosine[:, k])
        partners.append(
            Partner(
                name,
                None if rounds.samples is None else rounds.samples[k + 1],
                _interval(d2[:, k]),
                angle,
                ratio,
                _interval(weights[:, k]),
                role_of(ratio, angle),
            )
        )
    return tuple(partners)


def _curve(
    sigma2: Tensor, d2: Tensor, samples: Sequence[int], counts: Sequence[int] | None
) -> tuple[Point, ...]:
    now, *others = samples
    points = []
    for count in sample_counts(now, counts):
        bounds = error_bounds(sigma2 * now / count, d2, (count, *others))
        errors = {name: float(bound) for name, bound in bounds.items()}
        alone = errors.pop(ALONE)
        best = min(errors, key=errors.__getitem__)
        points.append(Point(count, alone, errors[best], best))
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
        ALONE: sigma2,
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
