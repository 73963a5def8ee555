"""How sure one can be of a measure: confidence intervals, and what they mean in words.

Test sets of hospitals are small. The intervals of shares and of areas are score intervals, which
have a width even when every answer is right: 16 right answers of 16 are no proof of 100%, and a
bootstrap would say that they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

DRAWS = 1000
AT_A_TIME = 2_000_000
"""Numbers that the bootstrap holds in memory at once."""
THIN, FAIR = 10.0, 3.0
"""Distances to the farther end of an interval, in points: from which on it says little, or some."""
Z = 1.96


@dataclass(frozen=True)
class Interval:
    """A number with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2

    @property
    def reach(self) -> float:
        """How far the truth may be: the distance to the farther end of the interval."""
        return max(self.value - self.low, self.high - self.value)


@dataclass(frozen=True)
class WithInterval(Interval):
    """A measure with its confidence interval, and the number of rows behind it."""

    count: int


@dataclass(frozen=True)
class Evidence:
    """How much a test set can say, and that in a sentence for a reader."""

    level: Literal["little", "fair", "solid"]
    sentence: str


def wilson_interval(percent: float, count: int) -> tuple[float, float]:
    """Confidence interval of a percentage over ``count`` samples (Wilson's score interval)."""
    share, z = percent / 100, Z
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return 100 * max(0.0, (centre - spread) / scale), 100 * min(1.0, (centre + spread) / scale)


def share(part: int, count: int) -> WithInterval | None:
    """A share in percent with Wilson's interval; None of nothing."""
    if count == 0:
        return None
    percent = 100 * part / count
    low, high = wilson_interval(percent, count)
    return WithInterval(percent, min(low, percent), max(high, percent), count)


def auc_estimate(auc: float, positives: int, negatives: int) -> WithInterval:
    r"""An area under the ROC curve with Newcombe's score interval.

    Its ends are the areas :math:`\theta` with :math:`(\hat\theta - \theta)^2 = z^2 V(\theta)`,
    where V is the variance of Hanley and McNeil with both group sizes at their mean in its shape:

    .. math:: V = \frac{\theta (1 - \theta)}{mn}
        \left(1 + \left(\tfrac{m + n}{2} - 1\right)
        \left(\frac{1 - \theta}{2 - \theta} + \frac{\theta}{1 + \theta}\right)\right)

    Unlike a bootstrap it has a width when positives and negatives are separated perfectly.
    """

    def beyond(area: float) -> bool:
        """Whether an area is too far from the one seen to be believed."""
        shape = (1 - area) / (2 - area) + area / (1 + area)
        spread = 1 + ((positives + negatives) / 2 - 1) * shape
        variance = area * (1 - area) / (positives * negatives) * spread
        return (auc - area) ** 2 > Z * Z * variance

    low, high = _boundary(auc, 0.0, beyond), _boundary(auc, 1.0, beyond)
    return WithInterval(auc, low, high, positives + negatives)


def _boundary(inside: float, outside: float, beyond: Callable[[float], bool]) -> float:
    """Where, between two points, a condition begins to hold; by halving."""
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if beyond(middle) else (middle, outside)
    return inside


def mean_of_shares(shares: Sequence[WithInterval]) -> WithInterval:
    """The plain mean of independent shares; its interval combines theirs (the MOVER method).

    The distances from the mean to its two ends are the root sums of squares of the shares' own
    distances, over their number. Like theirs, it has a width when all are 100%.
    """
    number = len(shares)
    mean = fmean(part.value for part in shares)
    below = math.hypot(*(part.value - part.low for part in shares)) / number
    above = math.hypot(*(part.high - part.value for part in shares)) / number
    rows = sum(part.count for part in shares)
    return WithInterval(mean, max(0.0, mean - below), min(100.0, mean + above), rows)


def bootstrap_mean(values: NDArray[np.float64]) -> WithInterval:
    """A mean over rows with its percentile bootstrap interval."""
    random = np.random.default_rng(0)
    rows = len(values)
    chunk = max(1, AT_A_TIME // rows)
    means = np.concatenate(
        [
            values[random.integers(rows, size=(min(chunk, DRAWS - start), rows))].mean(1)
            for start in range(0, DRAWS, chunk)
        ]
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return WithInterval(float(values.mean()), float(low), float(high), rows)


def evidence(accuracy: WithInterval) -> Evidence:
    """What an accuracy on a test set of this size can say."""
    width, rows = accuracy.reach, _rows(accuracy.count)
    between = f"{accuracy.low:.1f}% to {accuracy.high:.1f}%"
    if width >= THIN:
        return Evidence(
            "little",
            f"A test set of {rows} says little: the true accuracy may lie anywhere from {between}, "
            f"and differences of less than {width:.0f} points between methods may well be chance.",
        )
    if width >= FAIR:
        return Evidence(
            "fair",
            f"On a test set of {rows} the accuracy is known to about {width:.0f} points "
            f"({between}); smaller differences between methods may be chance.",
        )
    return Evidence(
        "solid",
        f"On a test set of {rows} the accuracy is known to about {width:.1f} points ({between}).",
    )


def evidence_of_error(error: WithInterval) -> Evidence:
    """The same for the mean error of a delivered regression, in parts of itself."""
    part = error.half_width / error.value if error.value > 0 else 0.0
    rows, between = _rows(error.count), f"{error.low:.3g} to {error.high:.3g}"
    percent = math.ceil(100 * part)
    if error.count < 30 or percent >= 30:
        return Evidence(
            "little",
            f"A test set of {rows} says little: the delivered model's error on it is "
            f"{error.value:.3g}, and the true one may lie anywhere from {between}.",
        )
    return Evidence(
        "fair" if percent >= 10 else "solid",
        f"On a test set of {rows} the delivered model's error is {error.value:.3g}, known to "
        f"about {percent}% of itself ({between}).",
    )


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
