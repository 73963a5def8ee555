"""Intervals: the same numbers from resampled batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.advice.predict import predicted_errors
from fedbridge.advice.record import ALONE, Estimated, Losses
from fedbridge.advice.spectra import TINY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fedbridge.advice.batches import BatchGram, Estimates
    from fedbridge.advice.predict import Conditions
    from fedbridge.advice.trial import Trial

RESAMPLES = 300
"""For numbers that cost nothing."""

SIMULATED_RESAMPLES, DRAWS_EACH = 60, 2
"""For predicted errors, each of which is simulated."""

TAIL = 0.025
LARGEST_RATIO = 1e9


@dataclass(frozen=True)
class Measures:
    """Noise, distances and angles with their intervals.

    Attributes:
        sigma2: noise of the target's gradient.
        d2: squared distance of every source.
        cosine: of the angle of every source.
        ratio: ``d²/σ²`` of every source.
        weight: ``σ²/(σ² + d²)`` of every source.
    """

    sigma2: Estimated
    d2: tuple[Estimated, ...]
    cosine: tuple[Estimated, ...]
    ratio: tuple[Estimated, ...]
    weight: tuple[Estimated, ...]


def measures(batches: BatchGram, seed: int) -> Measures:
    """Estimates from all batches, and their bootstrap over the batches of all sites."""
    generator = torch.Generator().manual_seed(seed)
    whole = batches.whole()
    seen = whole.as_seen().estimates()
    drawn = [whole.resample(generator).estimates() for _ in range(RESAMPLES)]

    def each(number: Callable[[Estimates], Tensor]) -> tuple[Estimated, ...]:
        values = torch.stack([number(estimates) for estimates in drawn])
        point = number(seen)
        return tuple(quantiles(float(point[k]), values[:, k]) for k in range(len(point)))

    return Measures(
        sigma2=each(lambda e: torch.tensor([e.sigma2], dtype=torch.float64))[0],
        d2=each(lambda e: e.d2),
        cosine=each(lambda e: e.cosine),
        ratio=each(lambda e: noise_ratio(torch.tensor(e.sigma2), e.d2)),
        weight=each(lambda e: best_weight(e.sigma2, e.d2)),
    )


def noise_ratio(sigma2: Tensor, d2: Tensor) -> Tensor:
    """``d²/σ²``, kept finite for a target without noise."""
    return (d2 / sigma2.clamp(min=TINY)).clamp(-LARGEST_RATIO, LARGEST_RATIO)


def best_weight(sigma2: float | Tensor, d2: Tensor) -> Tensor:
    """``σ²/(σ² + d²)``: the trust in a source alone with the smallest error."""
    return sigma2 / (sigma2 + d2.clamp(min=0.0)).clamp(min=TINY)


def predictions(
    batches: BatchGram,
    rules: Sequence[str],
    conditions: Conditions,
    progress: Callable[[float], object] | None = None,
) -> tuple[dict[str, Estimated], dict[str, Estimated]]:
    """Delta errors of the rules, and the same as shares of that of training alone."""
    point = predicted_errors(batches.as_seen().truth(), rules, batches.fixed, conditions)
    generator = torch.Generator().manual_seed(conditions.seed)
    few = replace(conditions, draws=DRAWS_EACH)
    drawn = []
    for number in range(SIMULATED_RESAMPLES):
        truth = batches.resample(generator).truth()
        drawn.append(predicted_errors(truth, tuple(point), batches.fixed, few))
        if progress is not None:
            progress((number + 1) / SIMULATED_RESAMPLES)
    errors = {
        name: _interval(value, [there[name] for there in drawn]) for name, value in point.items()
    }
    shares = {
        name: _interval(
            _share(value, point[ALONE]), [_share(there[name], there[ALONE]) for there in drawn]
        )
        for name, value in point.items()
    }
    return errors, shares


def loss_gain(trial: Trial, seed: int) -> Losses:
    """What joining saves of the loss, with an interval over the target's rows."""
    alone, sources, adapted = (part.mean() for part in (trial.alone, trial.sources, trial.adapted))
    joined = trial.sources if sources <= adapted else trial.adapted
    generator = torch.Generator().manual_seed(seed)
    rows = len(joined)
    drawn = torch.randint(rows, (RESAMPLES, rows), generator=generator)
    own, theirs = trial.alone[drawn].mean(1), joined[drawn].mean(1)
    gain = 1.0 - float(joined.mean()) / max(float(alone), TINY)
    return Losses(
        float(alone),
        float(sources),
        float(adapted),
        quantiles(gain, 1.0 - theirs / own.clamp(min=TINY)),
        rows,
    )


def quantiles(point: float, values: Tensor) -> Estimated:
    """A 95% interval from draws; it holds the number itself."""
    low, high = values.quantile(torch.tensor([TAIL, 1 - TAIL], dtype=values.dtype)).tolist()
    return Estimated(point, min(low, point), max(high, point))


def _interval(point: float, values: Sequence[float]) -> Estimated:
    return quantiles(point, torch.tensor(values, dtype=torch.float64))


def _share(error: float, alone: float) -> float:
    return error / alone if alone > 0 else float(error > 0)
