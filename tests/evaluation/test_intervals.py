"""Intervals against independent calculations, and that none of them collapses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

from fedbridge.evaluation.intervals import (
    WithInterval,
    auc_estimate,
    bootstrap_mean,
    evidence,
    evidence_of_error,
    mean_of_shares,
    share,
    wilson_interval,
)

COUNTS = st.integers(1, 500)


@given(COUNTS, st.floats(0, 1))
def test_a_share_has_the_interval_of_scipy(count, part):
    right = round(part * count)
    ours = share(right, count)
    theirs = stats.binomtest(right, count).proportion_ci(0.95, method="wilson")
    assert ours.value == pytest.approx(100 * right / count)
    assert (ours.low, ours.high) == pytest.approx(
        (100 * theirs.low, 100 * theirs.high), rel=1e-3, abs=1e-3
    )
    assert ours.low <= ours.value <= ours.high
    assert ours.half_width > 0


def test_wilson_interval_of_a_small_test_set_is_wide_and_stays_inside():
    low, high = wilson_interval(100.0, 16)
    assert high == 100.0
    assert 75 < low < 85
    low, high = wilson_interval(50.0, 100)
    assert (low, high) == (pytest.approx(40.38, abs=0.01), pytest.approx(59.62, abs=0.01))


def test_a_share_of_nothing_is_none():
    assert share(0, 0) is None


def newcombe(auc, positives, negatives, end):
    """The end of the interval by another solver, from the formula as it is printed."""

    def gap(area):
        shape = (1 - area) / (2 - area) + area / (1 + area)
        spread = 1 + ((positives + negatives) / 2 - 1) * shape
        return abs(auc - area) - 1.96 * np.sqrt(area * (1 - area) * spread / positives / negatives)

    return brentq(gap, auc, end)


@given(st.floats(0.02, 0.98), st.integers(2, 200), st.integers(2, 200))
def test_an_area_has_newcombes_interval(auc, positives, negatives):
    found = auc_estimate(auc, positives, negatives)
    assert found.low == pytest.approx(newcombe(auc, positives, negatives, 0.0), abs=1e-6)
    assert found.high == pytest.approx(newcombe(auc, positives, negatives, 1.0), abs=1e-6)
    assert found.count == positives + negatives


def test_perfect_separation_of_a_few_rows_is_no_proof():
    found = auc_estimate(1.0, 8, 8)
    assert found.high == 1.0
    assert 0.6 < found.low < 0.9


def test_the_interval_of_an_area_holds_in_most_samples():
    random = np.random.default_rng(0)
    truth = stats.norm.cdf(1 / np.sqrt(2))
    inside = 0
    for _ in range(400):
        negatives, positives = random.normal(0, 1, 20), random.normal(1, 1, 15)
        auc = float((positives[:, None] > negatives).mean())
        found = auc_estimate(auc, 15, 20)
        inside += found.low <= truth <= found.high
    assert 0.91 < inside / 400 < 0.99


def test_the_mean_of_one_share_is_that_share():
    one, same = share(3, 10), mean_of_shares([share(3, 10)])
    assert (same.value, same.low, same.high) == pytest.approx((one.value, one.low, one.high))


def test_the_mean_of_shares_combines_their_distances():
    found = mean_of_shares([WithInterval(50, 40, 62, 9), WithInterval(70, 66, 75, 11)])
    assert found.value == 60
    assert found.low == pytest.approx(60 - np.sqrt(10**2 + 4**2) / 2)
    assert found.high == pytest.approx(60 + np.sqrt(12**2 + 5**2) / 2)
    assert found.count == 20


def test_the_interval_of_a_mean_of_shares_holds_in_most_samples():
    random = np.random.default_rng(1)
    inside = 0
    for _ in range(400):
        shares = [share(int(random.binomial(30, p)), 30) for p in (0.6, 0.8, 0.95)]
        found = mean_of_shares(shares)
        inside += found.low <= 100 * (0.6 + 0.8 + 0.95) / 3 <= found.high
    assert 0.91 < inside / 400 < 0.99


def test_the_bootstrap_agrees_with_scipy():
    values = np.random.default_rng(2).exponential(size=80)
    ours = bootstrap_mean(values)
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=4000, rng=3
    ).confidence_interval
    assert ours.value == pytest.approx(values.mean())
    assert ours.low == pytest.approx(theirs.low, abs=0.03)
    assert ours.high == pytest.approx(theirs.high, abs=0.03)


def test_the_bootstrap_is_the_same_every_time_and_in_pieces(monkeypatch):
    values = np.random.default_rng(2).normal(size=50)
    first = bootstrap_mean(values)
    monkeypatch.setattr("fedbridge.evaluation.intervals.AT_A_TIME", 130)
    assert bootstrap_mean(values) == first


@pytest.mark.parametrize(
    ("right", "rows", "level"),
    [(16, 16, "little"), (12, 16, "little"), (100, 200, "fair"), (9000, 10_000, "solid")],
)
def test_evidence_grows_with_the_test_set(right, rows, level):
    found = evidence(share(right, rows))
    assert found.level == level
    assert f"{rows:,} rows" in found.sentence


def test_sixteen_patients_say_little():
    sentence = evidence(share(12, 16)).sentence
    assert "says little" in sentence
    assert "50.5% to 89.8%" in sentence


def test_a_perfect_score_is_as_unsure_as_its_farther_end():
    sentence = evidence(share(50, 50)).sentence
    assert "to about 7 points (92.9% to 100.0%)" in sentence


def test_one_row_is_one_row():
    assert "A test set of 1 row says little" in evidence(share(1, 1)).sentence


def test_evidence_of_an_error_is_in_parts_of_itself():
    assert evidence_of_error(WithInterval(4.0, 2.0, 6.0, 100)).level == "little"
    assert evidence_of_error(WithInterval(4.0, 3.9, 4.1, 20)).level == "little"
    assert evidence_of_error(WithInterval(4.0, 3.5, 4.5, 100)).level == "fair"
    assert evidence_of_error(WithInterval(4.0, 3.9, 4.1, 1000)).level == "solid"
    assert evidence_of_error(WithInterval(0.0, 0.0, 0.0, 1000)).level == "solid"
