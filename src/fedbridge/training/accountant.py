"""What looks at the same rows have cost together: epsilon, and the noise that keeps within one.

Every look is a Gaussian mechanism, perhaps on a random part of the rows: noise of ``z`` times the
sensitivity, on rows that are taken with chance ``q`` each. Rényi differential privacy of order
``α`` adds up over looks, whoever chooses them and when, and is turned into an epsilon for a delta
(Mironov, Talwar, Zhang 2019; Balle et al. 2020); Opacus has the formulas.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedbridge.base.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ORDERS = (*range(2, 33), *(36, 40, 48, 56, 64, 80, 96, 128, 192, 256, 512))
"""Rényi orders that are tried for looks at a part of the rows: whole ones, since the others take
seconds for large parts and are rarely better."""

MOST_NOISE = 1e6
DIGITS = 4
"""Digits of a noise that is solved for: it is rounded up."""


class Look(NamedTuple):
    """One look at the rows.

    Attributes:
        rate: chance with which a row takes part, ``q``.
        noise: standard deviation of the noise over the sensitivity, ``z``.
    """

    rate: float
    noise: float


def composed_epsilon(looks: Mapping[Look, int], delta: float) -> float:
    """The ``ε`` of (ε, δ)-differential privacy after so many looks of each kind."""
    done = {look: count for look, count in looks.items() if count}
    if not done:
        return 0.0
    if any(look.noise == 0 for look in done):
        return math.inf
    orders: Sequence[float] = ORDERS
    if all(look.rate == 1 for look in done):
        together = 1 / math.sqrt(sum(count / look.noise**2 for look, count in done.items()))
        orders = _orders_of_gaussian(together, delta)
    costs = sum(count * _cost(look, tuple(orders)) for look, count in done.items())
    return max(0.0, float(np.nanmin(costs + _conversion(orders, delta))))


@lru_cache(maxsize=1024)
def noise_within(
    epsilon: float, delta: float, rate: float, steps: int, rounds: int, extra: int = 0
) -> float:
    """The least ``z`` of a message's looks so that ``rounds`` such messages cost ``epsilon``.

    A message holds ``steps`` looks, or ``extra`` more. The order is chosen for the plain message
    and kept for the longer one, so that messages of both kinds, in whatever number, add up to the
    budget after so many rounds.
    """

    def plain(noise: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        costs = rounds * steps * _cost(Look(rate, noise), ORDERS)
        total: np.ndarray[tuple[int], np.dtype[np.float64]] = costs + _conversion(ORDERS, delta)
        return total

    least = _least(lambda noise: float(np.nanmin(plain(noise))) <= epsilon)
    if not extra:
        return least
    best = int(np.nanargmin(plain(least)))
    order = (ORDERS[best],)
    allowed = epsilon - float(_conversion(order, delta)[0])
    looks = rounds * (steps + extra)
    return _least(lambda noise: looks * float(_cost(Look(rate, noise), order)[0]) <= allowed)


def _least(enough: Callable[[float], bool]) -> float:
    """The least noise that is enough, rounded up, by bisection of its logarithm."""
    low, high = 1e-2, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise OptionError(
                f"Expected a privacy budget that some noise keeps within, but even noise of "
                f"{MOST_NOISE:g} times the clip does not: raise the budget, or lower the rounds."
            )
    while high / low > 1 + 10.0**-DIGITS:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    unit = 10.0 ** (math.floor(math.log10(high)) - DIGITS + 1)
    return round(math.ceil(high / unit) * unit, 12)


@lru_cache(maxsize=4096)
def _cost(look: Look, orders: tuple[float, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Rényi divergence of one look, for every order."""
    try:
        from opacus.accountants.analysis.rdp import (  # type: ignore[import-untyped]
            compute_rdp,
        )
    except ImportError as error:
        raise OptionError(
            "Expected the accountant that reports epsilon, but it is not installed: "
            "pip install 'fedbridge[privacy]'."
        ) from error
    found = compute_rdp(q=look.rate, noise_multiplier=look.noise, steps=1, orders=list(orders))
    return np.asarray(found, dtype=np.float64)


def _conversion(
    orders: Sequence[float], delta: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What epsilon has beyond the divergence of an order (Balle et al. 2020, theorem 21)."""
    a = np.asarray(orders, dtype=np.float64)
    beyond: np.ndarray[tuple[int], np.dtype[np.float64]] = np.log1p(-1 / a) - (
        math.log(delta) + np.log(a)
    ) / (a - 1)
    return beyond


def _orders_of_gaussian(noise: float, delta: float) -> list[float]:
    """Orders around the best one for a Gaussian mechanism, ``1 + √(2 ln(1/δ)) z``."""
    best = noise * math.sqrt(2 * math.log(1 / delta))
    return [1 + best * 10 ** (k / 50 - 1) for k in range(101)]
