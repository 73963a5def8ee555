"""Predicted Delta errors, and what more samples would change."""

import pytest
import torch
from advice.gradients import gram_of
from helpers import RULES, assert_close

import fedbridge as fb
from fedbridge import Mix, theory
from fedbridge.advice.batches import Truth
from fedbridge.advice.predict import (
    FACTORS,
    Conditions,
    curve,
    predicted_errors,
    predictions,
    sample_counts,
)
from fedbridge.advice.verdict import Point, enough_samples
from fedbridge.base.errors import OptionError
from fedbridge.core.blocks import Blocks

M = 4
MIXED = [name for name in RULES if name not in ("median", "trimmed-mean")]


def problem(sigma2=2.0):
    target = torch.tensor([1.0, 0.0, 0.0, 0.0])
    sources = torch.tensor([[1.0, 0.5, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]])
    return theory.Problem(target, sources, sigma2)


def truth_of(known, mistaken=0.0):
    """The same as blocks of one: isotropic noise, and more that only rules believe in."""
    root = (known.sigma2 / M) ** 0.5 * torch.eye(M, dtype=torch.float64)
    return Truth(
        known.target[None],
        known.sources[None],
        known.sources[None, :1],
        root[None],
        mistaken**0.5 * torch.eye(1, M, dtype=torch.float64)[None],
    )


def conditions(draws=2, batches=10, blocks=None):
    return Conditions(blocks or Blocks.whole(M), batches, (10, 30, 60), draws=draws)


@pytest.fixture
def _registry_restored(monkeypatch):
    registry = fb.rules.registry
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))


class TestPredictedErrors:
    def test_fixed_weights_are_exact_whatever_the_draws(self):
        known = problem()
        errors = predicted_errors(
            truth_of(known), ["target-only", "source-only", "fedda", "fedavg"], (), conditions()
        )
        assert_close(errors["target-only"], known.sigma2)
        for name, weights in (("source-only", None), ("fedda", None), ("fedavg", (10, 30, 60))):
            mix = fb.rules.get(name)(known.geometry(weights=weights))
            assert_close(errors[name], theory.mix_delta(mix, known))

    @pytest.mark.parametrize("name", ["fedgp", "fedda-auto", "fedda-joint", "fedgp-joint"])
    def test_others_agree_with_a_plain_simulation(self, name):
        known = problem()
        found = predicted_errors(truth_of(known), [name], (), conditions(draws=600))[name]
        plain = theory.delta_error(name, known, batches=10, draws=600, seed=1)
        assert found == pytest.approx(plain.mean, abs=4 * plain.standard_error)

    def test_an_update_that_is_no_mixture_is_compared_as_it_is(self):
        known = problem()
        errors = predicted_errors(truth_of(known), ["median"], ("median",), conditions())
        assert_close(errors["median"], known.d2[0])

    def test_noise_that_only_rules_believe_in_makes_them_trust_sources_too_far(self):
        known = problem(sigma2=0.2)
        honest = predicted_errors(truth_of(known), ["fedda-auto"], (), conditions(40))
        misled = predicted_errors(truth_of(known, 5.0), ["fedda-auto"], (), conditions(40))
        assert misled["fedda-auto"] > 1.5 * honest["fedda-auto"]

    @pytest.mark.usefixtures("_registry_restored")
    def test_a_rule_that_refuses_is_left_out(self):
        @fb.rules.rule("picky")
        def picky(geometry):
            raise OptionError("Expected something else.")

        errors = predicted_errors(truth_of(problem()), ["picky", "fedda"], (), conditions())
        assert list(errors) == ["fedda"]

    @pytest.mark.usefixtures("_registry_restored")
    def test_a_registered_rule_is_predicted_like_any_other(self):
        @fb.rules.rule("halfway", noise="none")
        def halfway(geometry):
            half = torch.full((len(geometry.blocks), geometry.n_sources), 0.25)
            return Mix(0.5 * torch.ones(len(geometry.blocks)), half, half)

        errors = predicted_errors(truth_of(problem()), ["halfway", "fedda"], (), conditions())
        assert_close(errors["halfway"], errors["fedda"])


def gradients(distance=0.0, noise=1.0, batches=12, seed=0):
    """A target of noisy batches and a near-exact source at a distance."""
    generator = torch.Generator().manual_seed(seed)
    scatter = noise * torch.randn(batches, M, dtype=torch.float64, generator=generator)
    target = torch.ones(M, dtype=torch.float64) + scatter - scatter.mean(0)
    source = torch.ones(3, M, dtype=torch.float64)
    source[:, 0] += distance
    return gram_of([target, source], Blocks.whole(M))


class TestIntervals:
    def test_they_hold_the_prediction(self):
        errors, shares = predictions(gradients(0.5), ["target-only", "fedda"], self.alike())
        assert shares["target-only"].low == shares["target-only"].high == 1.0
        for interval in (*errors.values(), *shares.values()):
            assert interval.low <= interval.value <= interval.high

    def alike(self):
        return Conditions(Blocks.whole(M), 10, (12, 30), draws=4)


class TestCurve:
    def points(self, batches, counts=None):
        return curve(batches, MIXED, Conditions(Blocks.whole(M), 10, (12, 30), draws=4), counts)

    def test_noise_falls_with_samples_and_distance_stays(self):
        first, second = self.points(gradients(1.0), [12, 48])
        assert (first.samples, second.samples) == (12, 48)
        assert_close(second.alone, first.alone / 4)
        saved = [1 - point.best / point.alone for point in (first, second)]
        assert saved[1] < saved[0]

    def test_a_near_source_is_needed_for_longer_than_a_far_one(self):
        near, far = (enough_samples(self.points(gradients(d))) for d in (0.5, 3.0))
        assert far is not None
        assert near is None or near > far

    def test_the_same_gradient_is_always_worth_having(self):
        assert enough_samples(self.points(gradients(0.0))) is None

    def test_the_numbers_of_samples_are_multiples_unless_given(self):
        assert sample_counts(10, None) == sorted({round(10 * factor) for factor in FACTORS})
        assert sample_counts(10, [5, 5, 3]) == [3, 5]

    def test_break_even_is_interpolated(self):
        points = [Point(10, 1.0, 0.8, "a"), Point(1000, 1.0, 1.0, "a")]
        assert enough_samples(points) == 100

    def test_whoever_needs_nobody_now_needs_nobody(self):
        assert enough_samples([Point(10, 1.0, 1.0, "a"), Point(20, 0.5, 0.6, "a")]) == 10
        assert enough_samples([]) is None
