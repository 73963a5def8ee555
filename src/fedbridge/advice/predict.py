"""Predicted Delta errors: what every rule would make of rounds drawn from a guess of the truth.

A rule sees a noisy target and estimated noise, and may choose its weights by looking at them, so
that no formula holds for all rules. Rounds are therefore simulated. What a rule with its *expected*
coefficients would err is known exactly, and only the difference to it is simulated, with the same
draws: a few draws are enough, and rules with fixed weights are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.advice.batches import BatchGram, Truth, interval
from fedbridge.advice.verdict import TARGET_ONLY, Point
from fedbridge.base.errors import FedbridgeError
from fedbridge.core.geometry import Geometry, Noise, read_weights
from fedbridge.core.rules import Mix, Rule, get
from fedbridge.federation.settings import counts_by_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fedbridge.core.blocks import Blocks
    from fedbridge.evaluation.intervals import Interval

MOST_BATCHES = 32
"""More batches than that estimate the noise no better for the purpose."""

SIMULATED_RESAMPLES, DRAWS_EACH = 60, 2
"""Resamples of the batches for an interval, and simulated rounds in each."""

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Points of the curve, as multiples of the target's samples, unless somebody asks for others."""

CURVE_DRAWS = 8
"""Simulated rounds per point of the curve."""


@dataclass(frozen=True)
class Conditions:
    """How rounds would be run.

    Attributes:
        blocks: the slices that a rule treats one by one.
        batches: batches of the target in a round.
        samples: rows of the target and of every source.
        weights: as in ``Settings``.
        draws: simulated rounds.
        seed: of the simulation.
    """

    blocks: Blocks
    batches: int
    samples: tuple[int, ...]
    weights: str | None = None
    draws: int = 32
    seed: int = 0


def predicted_errors(
    truth: Truth, rules: Sequence[str], fixed: Sequence[str], conditions: Conditions
) -> dict[str, float]:
    """The Delta error of every rule; one that cannot be asked here is left out.

    ``fixed`` are those whose update is given whole, in the order of ``truth.fixed``.
    """
    rounds = _Rounds.draw(truth, conditions)
    errors: dict[str, float] = {}
    for name in rules:
        if name in fixed:
            off = truth.fixed[:, fixed.index(name)] - truth.target
            errors[name] = float(off.square().sum())
            continue
        rule = get(name)
        if isinstance(rule, Rule):
            try:
                errors[name] = rounds.error(rule)
            except FedbridgeError:
                continue
    return errors


@dataclass(frozen=True)
class _Rounds:
    """Simulated rounds: the target's mean gradient and what is seen of its noise.

    Attributes:
        truth: what they were drawn from.
        conditions: how they are run.
        errors: (S, K, D) error of the target's mean.
        sigma2: (S, K) noise as estimated.
        covariance: (S, K, N, N) its covariance along the sources, as estimated.
        whole_covariance: (S, 1, N, N) the same over all blocks.
    """

    truth: Truth
    conditions: Conditions
    errors: Tensor
    sigma2: Tensor
    covariance: Tensor
    whole_covariance: Tensor

    @classmethod
    def draw(cls, truth: Truth, conditions: Conditions) -> _Rounds:
        """Draw rounds in pairs of opposite errors, so that what is linear in them cancels."""
        half = max(1, conditions.draws // 2)
        rank = truth.noise.shape[1]
        batches = min(max(conditions.batches, 2), MOST_BATCHES)
        generator = torch.Generator().manual_seed(conditions.seed)
        white = torch.randn(half, batches, rank, dtype=torch.float64, generator=generator)
        # The noise of a mean of `batches` batches: each has `batches` times its variance.
        every = torch.einsum("sbr,krd->skbd", white, truth.noise) * batches**0.5
        mean = every.mean(2)
        centred = every - mean[:, :, None]
        along = centred @ truth.sources.mT
        besides = truth.mistaken @ truth.sources.mT
        pairs = batches * (batches - 1)
        sigma2 = centred.square().sum((2, 3)) / pairs + truth.mistaken.square().sum((1, 2))
        covariance, whole = (
            _squared(seen) / pairs + _squared(mistaken)
            for seen, mistaken in (
                (along, besides),
                (along.sum(1, keepdim=True), besides.sum(0, keepdim=True)),
            )
        )
        twice = [torch.cat((each, each)) for each in (sigma2, covariance, whole)]
        return cls(truth, conditions, torch.cat((mean, -mean)), *twice)

    def error(self, rule: Rule) -> float:
        """Mean squared error of a rule's update."""
        expected = _coefficients(rule(self._expected(rule)))
        mixes = torch.stack(
            [_coefficients(rule(self._seen(rule, index))) for index in range(len(self.errors))]
        )
        exact = (
            self._off(expected).square().sum() + (expected[:, 0].square() * self.truth.sigma2).sum()
        )
        simulated = self._realised(mixes) - self._realised(expected.expand_as(mixes))
        return float(exact + simulated.mean())

    def _realised(self, coefficients: Tensor) -> Tensor:
        """(S,) squared error of the mixtures (S, K, N+1) in the rounds as drawn."""
        off = self._off(coefficients) + coefficients[..., 0, None] * self.errors
        return off.square().sum((-1, -2))

    def _off(self, coefficients: Tensor) -> Tensor:
        """How far mixtures of the true gradients are from the target's."""
        own = (coefficients[..., 0] - 1.0)[..., None] * self.truth.target
        return own + torch.einsum("...kn,knd->...kd", coefficients[..., 1:], self.truth.sources)

    def _expected(self, rule: Rule) -> Geometry:
        gram = _gram(self.truth.target, self.truth.sources)
        gram[:, 0, 0] += self.truth.sigma2
        seen = torch.cat((self.truth.noise, self.truth.mistaken), dim=1)
        along = seen @ self.truth.sources.mT
        whole = _squared(along.sum(0, keepdim=True))
        noise = Noise(seen.square().sum((1, 2)), _squared(along), whole_covariance=whole)
        return self._geometry(rule, gram, noise)

    def _seen(self, rule: Rule, index: int) -> Geometry:
        gram = _gram(self.truth.target + self.errors[index], self.truth.sources)
        seen = (each[index] for each in (self.sigma2, self.covariance, self.whole_covariance))
        sigma2, covariance, whole = seen
        return self._geometry(rule, gram, Noise(sigma2, covariance, whole_covariance=whole))

    def _geometry(self, rule: Rule, gram: Tensor, noise: Noise) -> Geometry:
        count = self.conditions.samples
        by_samples = counts_by_samples(self.conditions.weights, fedavg=rule.by_samples)
        counts = count if by_samples else None
        weights, samples = read_weights(counts, len(count) - 1)
        noise = replace(noise, batches=self.conditions.batches)
        return Geometry(self.conditions.blocks, gram, weights, samples, noise)


def _squared(rows: Tensor) -> Tensor:
    """(..., N, N) ``Σ_r x_r x_rᵀ`` over the rows (..., r, N)."""
    return rows.mT @ rows


def _gram(target: Tensor, sources: Tensor) -> Tensor:
    rows = torch.cat((target[:, None], sources), dim=1)
    return rows @ rows.mT


def _coefficients(mix: Mix) -> Tensor:
    """(K, N+1) the target's coefficient, then the sources'."""
    return torch.cat((mix.target[:, None], mix.sources), dim=1).to(torch.float64)


def predictions(
    batches: BatchGram,
    rules: Sequence[str],
    conditions: Conditions,
    progress: Callable[[float], object] | None = None,
) -> tuple[dict[str, Interval], dict[str, Interval]]:
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
    every = [point, *drawn]

    def over_all(number: Callable[[str, dict[str, float]], float]) -> dict[str, Interval]:
        each = {name: [number(name, errors) for errors in every] for name in point}
        return {k: interval(torch.tensor(v, dtype=torch.float64)) for k, v in each.items()}

    return (
        over_all(lambda name, errors: errors[name]),
        over_all(lambda name, errors: _share(errors[name], errors[TARGET_ONLY])),
    )


def _share(error: float, alone: float) -> float:
    return error / alone if alone > 0 else float(error > 0)


def curve(
    batches: BatchGram,
    rules: Sequence[str],
    conditions: Conditions,
    counts: Sequence[int] | None = None,
) -> tuple[Point, ...]:
    """Predicted errors alone and with the best joining rule, for several numbers of samples."""
    now = conditions.samples[0]
    truth, few = batches.as_seen().truth(), replace(conditions, draws=CURVE_DRAWS)
    joining = [name for name in rules if name != TARGET_ONLY]
    points = []
    for count in sample_counts(now, counts):
        there = truth.with_samples(count / now)
        errors = predicted_errors(there, joining, batches.fixed, few)
        points.append(Point.of(count, float(there.sigma2.sum()), errors))
    return tuple(points)


def sample_counts(now: int, wanted: Sequence[int] | None) -> list[int]:
    """The numbers of samples to look at: those somebody wants, or multiples of what there is."""
    return sorted({*(wanted or (max(1, round(now * factor)) for factor in FACTORS))})
