"""How the answer changes with more labelled samples: the noise falls as 1/n, distances stay."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from fedbridge.advice.predict import predicted_errors
from fedbridge.advice.record import ALONE, Point
from fedbridge.advice.verdict import WORTH_IT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.advice.batches import BatchGram
    from fedbridge.advice.predict import Conditions

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Of the target's samples, unless somebody asks for others."""


DRAWS = 8
"""Simulated rounds per point."""


def curve(
    batches: BatchGram,
    rules: Sequence[str],
    conditions: Conditions,
    counts: Sequence[int] | None = None,
) -> tuple[Point, ...]:
    """Predicted errors alone and with the best joining rule, for several numbers of samples."""
    now = conditions.samples[0]
    truth, few = batches.as_seen().truth(), replace(conditions, draws=DRAWS)
    joining = [name for name in rules if name != ALONE]
    points = []
    for count in sample_counts(now, counts):
        there = truth.with_samples(count / now)
        errors = predicted_errors(there, joining, batches.fixed, few)
        best = min(errors, key=errors.__getitem__)
        points.append(Point(count, float(there.sigma2.sum()), errors[best], best))
    return tuple(points)


def sample_counts(now: int, wanted: Sequence[int] | None) -> list[int]:
    """The numbers of samples to look at: those somebody wants, or multiples of what there is."""
    return sorted({*(wanted or (max(1, round(now * factor)) for factor in FACTORS))})


def enough_samples(points: Sequence[Point]) -> int | None:
    """Samples from which on no rule saves enough; between two points by interpolation."""

    def spare(point: Point) -> float:
        return 1.0 - point.best / point.alone - WORTH_IT if point.alone > 0 else -WORTH_IT

    if not points or spare(points[-1]) > 0:
        return None
    crossing = None
    for before, after in pairwise(points):
        if spare(before) > 0 >= spare(after):
            part = spare(before) / (spare(before) - spare(after))
            low, high = math.log(before.samples), math.log(after.samples)
            crossing = round(math.exp(low + part * (high - low)))
    return crossing if crossing is not None else points[0].samples
