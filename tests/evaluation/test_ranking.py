"""Ranks and critical differences against direct calculations and a published example."""

from math import erf, pi, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbridge.base.errors import ShapeError
from fedbridge.evaluation.ranking import (
    critical_difference,
    rank_methods,
)
from fedbridge.methods import is_bound
from fedbridge.runs.comparison import CellResult, Comparison

EXAMPLE = """
4 3 2 1 | 1 2 3 4 | 4 1 2 3 | 4 1 3 2 | 4 2 3 1 | 1 2.5 4 2.5 | 3 2 4 1 | 2.5 2.5 4 1 | 4 3 2 1
2.5 2.5 2.5 2.5 | 4 2.5 1 2.5 | 3 2 4 1 | 4 1 2 3 | 3 1 4 2
"""
"""Ranks of four variants of C4.5 on 14 data sets (Demsar, JMLR 2006, table 6)."""


def example():
    lines = EXAMPLE.strip().replace("\n", " | ").split("|")
    return [[-float(word) for word in line.split()] for line in lines]


def comparison_of(scores, unmet=()):
    """A comparison with the scores {(setting, method, seed): score}; None is not finished."""
    cells = [
        CellResult(
            setting,
            method,
            seed,
            summary=None if score is None else {"accuracy": score, "score": None},
            error="does not apply" if (setting, method) in unmet else None,
            unmet=(setting, method) in unmet,
        )
        for (setting, method, seed), score in scores.items()
    ]
    settings, methods, seeds = (tuple(dict.fromkeys(key[k] for key in scores)) for k in range(3))
    bounds = tuple(filter(is_bound, methods))
    return Comparison(settings, methods, seeds, 10, tuple(cells), "note", bounds)


def grid(settings, methods, seeds, score):
    return {
        (f"s{s}", m, seed): score(s, m, seed)
        for s in range(settings)
        for m in methods
        for seed in range(seeds)
    }


class TestPublishedExample:
    """Mean ranks 3.143, 2.000, 2.893, 1.964; chi2 = 9.28 without ties; CD = 1.25."""

    def test_mean_ranks(self):
        found = rank_methods(["c45", "m", "cf", "m+cf"], example())
        assert {entry.method: round(entry.rank, 3) for entry in found.entries} == {
            "m+cf": 1.964,
            "m": 2.0,
            "cf": 2.893,
            "c45": 3.143,
        }
        assert [entry.method for entry in found.entries] == ["m+cf", "m", "cf", "c45"]

    def test_friedman_statistic_but_for_the_correction_of_ties(self):
        tied = 3 * (2**3 - 2) + (4**3 - 4)
        correction = 1 - tied / (14 * (4**3 - 4))
        found = rank_methods("abcd", example())
        assert found.statistic * correction == pytest.approx(9.28, abs=0.01)

    def test_critical_difference(self):
        found = rank_methods("abcd", example())
        assert found.critical_difference == pytest.approx(1.25, abs=0.005)


@given(st.integers(0, 10**6), st.integers(3, 6), st.integers(2, 12))
def test_friedman_test_agrees_with_scipy_and_ties_share_their_places(seed, methods, blocks):
    scores = np.random.default_rng(seed).integers(0, 4, (blocks, methods)).astype(float)
    found = rank_methods([str(k) for k in range(methods)], scores)
    above = (scores[:, None, :] > scores[:, :, None]).sum(2)
    equal = (scores[:, None, :] == scores[:, :, None]).sum(2)
    expected = (above + (equal + 1) / 2).mean(0)
    assert {e.method: e.rank for e in found.entries} == pytest.approx(
        {str(k): rank for k, rank in enumerate(expected)}
    )
    if np.ptp(scores, axis=1).any():
        statistic, p_value = stats.friedmanchisquare(*scores.T)
        assert found.statistic == pytest.approx(statistic, abs=1e-9)
        assert found.p_value == pytest.approx(p_value)
    else:
        assert (found.statistic, found.p_value) == (0.0, 1.0)
    assert sum(entry.rank for entry in found.entries) == pytest.approx(methods * (methods + 1) / 2)


@pytest.mark.parametrize("count", [2, 3, 10, 40])
@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_the_range_of_normal_numbers_exceeds_the_difference_with_chance_alpha(count, alpha):
    """The chance of a smaller range is k times the integral of phi(z) (Phi(z) - Phi(z-q))^(k-1)."""
    q = sqrt(2) * critical_difference(count, 9, alpha) / sqrt(count * (count + 1) / (6 * 9))
    z = np.linspace(-8.5, 8.5, 4001)
    below = np.array([(1 + erf(v / sqrt(2))) / 2 - (1 + erf((v - q) / sqrt(2))) / 2 for v in z])
    density = np.exp(-z * z / 2) / sqrt(2 * pi)
    chance = np.trapezoid(count * density * below ** (count - 1), z)
    assert chance == pytest.approx(1 - alpha, abs=1e-7)


@pytest.mark.parametrize(("count", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_the_critical_values_are_those_that_were_published(count, q):
    """Demsar, JMLR 2006, table 5(a), alpha = 0.05."""
    scale = count * (count + 1) / 6
    assert critical_difference(count, 1) / sqrt(scale) == pytest.approx(q, abs=1e-3)


def test_two_methods_have_the_critical_difference_of_a_sign_test():
    assert critical_difference(2, 9) == pytest.approx(1.96 * sqrt(2 * 3 / (6 * 9)), rel=1e-4)


def test_too_few_blocks_or_methods_are_refused():
    for methods, scores in (("ab", [[1, 2]]), ("a", [[1], [2]]), ("ab", [[1], [2]])):
        with pytest.raises(ShapeError, match="two or more"):
            rank_methods(methods, scores)


class TestComparison:
    def test_few_settings_are_ranked_by_setting_and_seed(self):
        scores = grid(2, ["a", "b"], 3, lambda s, m, seed: 50.0 + (m == "b"))
        found = comparison_of(scores).ranking()
        assert (found.blocks, found.of) == (6, "setting and seed")
        assert [(entry.method, entry.rank) for entry in found.entries] == [("b", 1.0), ("a", 2.0)]
        assert "share its test rows" in found.sentence()

    def test_many_settings_are_ranked_by_the_mean_over_seeds(self):
        def score(s, m, seed):
            return {"a": [10.0, 90.0], "b": [40.0, 40.0]}[m][seed]

        found = comparison_of(grid(6, ["a", "b"], 2, score)).ranking()
        assert (found.blocks, found.of) == (6, "setting")
        assert found.entries[0].method == "a"
        assert "share its test rows" not in found.sentence()

    def test_bounds_do_not_compete(self):
        scores = grid(3, ["oracle", "fedavg", "fedda"], 1, lambda s, m, seed: float(len(m)))
        found = comparison_of(scores).ranking()
        assert {entry.method for entry in found.entries} == {"fedavg", "fedda"}

    def test_blocks_that_are_not_finished_do_not_count(self):
        scores = grid(3, ["a", "b"], 1, lambda s, m, seed: 1.0 + (m == "b"))
        scores["s0", "a", 0] = None
        assert comparison_of(scores).ranking().blocks == 2

    def test_a_method_that_does_not_apply_somewhere_is_left_out_and_named(self):
        scores = grid(3, ["a", "b", "c"], 1, lambda s, m, seed: float(ord(m)))
        scores["s1", "c", 0] = None
        found = comparison_of(scores, unmet={("s1", "c")}).ranking()
        assert found.left_out == ("c",)
        assert found.blocks == 3

    def test_one_block_is_too_little_to_rank(self):
        assert comparison_of(grid(1, ["a", "b"], 1, lambda *_: 1.0)).ranking() is None

    def test_equal_methods_cannot_be_told_apart_and_it_is_said(self):
        found = comparison_of(grid(6, ["a", "b"], 1, lambda *_: 1.0)).ranking()
        assert "cannot be told apart" in found.sentence()

    def test_methods_that_differ_are_said_to(self):
        scores = grid(12, ["a", "b", "c"], 1, lambda s, m, seed: float(ord(m)))
        assert "the methods differ" in comparison_of(scores).ranking().sentence()
