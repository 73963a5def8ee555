"""Methods ranked over many settings, and which differences of ranks can be believed.

Friedman's test asks whether the methods differ at all; Nemenyi's critical difference says by how
much two mean ranks must differ before one method can be called better than the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedbridge.base.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ALPHA = 0.05
OF_SEEDS = (
    "Runs of one setting with several seeds share its test rows: the order is that of these "
    "settings, and others may have another."
)


@dataclass(frozen=True)
class Ranked:
    """A method with its mean rank; 1 is the best, ties share the mean of their places."""

    method: str
    rank: float


@dataclass(frozen=True)
class Ranking:
    """Methods from the best mean rank to the worst.

    Attributes:
        entries: the methods.
        blocks: over how many blocks ranks were averaged.
        of: what a block is: a ``setting`` (mean over seeds), or a ``setting and seed``.
        statistic: of Friedman's test, corrected for ties.
        p_value: chance of such a statistic if all methods were equally good.
        critical_difference: of two mean ranks, by Nemenyi, at ``alpha``.
        alpha: chance of seeing a difference where there is none.
        left_out: methods that do not apply in every setting and so cannot be ranked.
    """

    entries: tuple[Ranked, ...]
    blocks: int
    of: Literal["setting", "setting and seed"]
    statistic: float
    p_value: float
    critical_difference: float
    alpha: float = ALPHA
    left_out: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The ranking in words."""
        over = f"Over {self.blocks} {'settings' if self.of == 'setting' else 'runs'} the methods"
        test = f"Friedman test, p = {self.p_value:.2g}"
        if self.p_value > self.alpha:
            found = f"{over} cannot be told apart ({test}): more settings or seeds are needed."
        else:
            found = (
                f"{over} differ ({test}); two of them do if their mean ranks are more than "
                f"{self.critical_difference:.2f} apart (Nemenyi, {self.alpha:.0%})."
            )
        return found if self.of == "setting" else f"{found} {OF_SEEDS}"

    @property
    def leaders(self) -> list[str]:
        """The method with the best mean rank, and those that cannot be told from it."""
        best = self.entries[0].rank
        differ = self.p_value <= self.alpha
        return [
            entry.method
            for entry in self.entries
            if not differ or entry.rank - best <= self.critical_difference
        ]


def rank_methods(
    methods: Sequence[str],
    scores: Sequence[Sequence[float]],
    *,
    of: Literal["setting", "setting and seed"] = "setting",
    alpha: float = ALPHA,
    left_out: Sequence[str] = (),
) -> Ranking:
    """Rank methods by their scores, larger is better, one line of scores per block."""
    table = np.array(scores, dtype=float)
    if table.ndim != 2 or table.shape[1] != len(methods) or min(table.shape) < 2:
        raise ShapeError(
            f"Expected two or more blocks with a score for each of two or more methods, but got "
            f"{table.shape} for {len(methods)} methods."
        )
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    places = rankdata(-table, axis=1)
    means = places.mean(0)
    order = np.argsort(means, kind="stable").tolist()
    entries = tuple(Ranked(methods[k], float(means[k])) for k in order)
    statistic, p_value = friedman(places)
    difference = critical_difference(len(methods), len(table), alpha)
    left = tuple(left_out)
    return Ranking(entries, len(table), of, statistic, p_value, difference, alpha, left)


def friedman(places: NDArray[np.float64]) -> tuple[float, float]:
    """Friedman's statistic of ranks (blocks, methods), corrected for ties, and its p-value.

    SciPy's own test refuses two methods, and ranks that are all tied.
    """
    from scipy.stats import chi2

    blocks, methods = places.shape
    spread = float(((places - (methods + 1) / 2) ** 2).sum())
    if spread == 0:
        return 0.0, 1.0
    between = blocks * float(((places.mean(0) - (methods + 1) / 2) ** 2).sum())
    statistic = blocks * (methods - 1) * between / spread
    return statistic, float(chi2.sf(statistic, methods - 1))


def critical_difference(methods: int, blocks: int, alpha: float = ALPHA) -> float:
    """Nemenyi: by how much two mean ranks of so many methods must differ to be believed."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * blocks))
