"""Splits are stratified, seeded, nested, and never lose a row."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbridge.base.errors import DataError, OptionError
from fedbridge.data.split import (
    OWN_SPLIT,
    SplitOptions,
    generator,
    split_target,
    split_test,
    stratified_order,
    stratified_split,
)

labels = st.lists(st.integers(0, 4), min_size=2, max_size=60).map(np.array)


@given(labels, st.integers(0, 100))
def test_the_order_is_a_permutation_fixed_by_the_seed(y, seed):
    orders = [stratified_order(y, len(y), generator(seed, "x")) for _ in range(2)]
    assert sorted(orders[0]) == list(range(len(y)))
    assert (orders[0] == orders[1]).all()


@given(labels, st.integers(0, 100))
def test_a_prefix_holds_every_class_as_soon_as_it_can(y, seed):
    classes = np.unique(y)
    order = stratified_order(y, len(y), generator(seed, "x"))
    assert set(y[order[: len(classes)]]) == set(classes)


@given(labels, st.integers(0, 100), st.floats(0.1, 0.9))
def test_classes_keep_their_shares(y, seed, fraction):
    first, _ = stratified_split(y, len(y), round(fraction * len(y)), generator(seed, "x"))
    classes, counts = np.unique(y, return_counts=True)
    for label, count in zip(classes, counts, strict=True):
        assert abs((y[first] == label).sum() - fraction * count) <= len(classes)


def test_balanced_classes_are_split_evenly():
    y = np.repeat(np.arange(10), 20)
    first, rest = stratified_split(y, 200, 50, generator(0, "x"))
    assert (np.bincount(y[first]) == 5).all()
    assert sorted([*first, *rest]) == list(range(200))


def test_more_labels_contain_fewer_labels():
    y = np.random.default_rng(0).integers(0, 3, 100)
    few, many = (split_target(y, 100, 0, replace(OWN_SPLIT, n_target=n)).labelled for n in (7, 20))
    assert set(few) < set(many)


@given(labels, st.integers(0, 20))
def test_the_targets_rows_are_divided_without_overlap(y, seed):
    split = split_target(y, len(y), seed, replace(OWN_SPLIT, target_fraction=0.5))
    roles = [*split.labelled, *split.unlabelled, *split.test]
    assert sorted(roles) == list(range(len(y)))
    assert len(split.test) == round(0.3 * len(y))


def test_what_is_asked_for_wins_over_what_is_usual():
    usual = SplitOptions(n_target=100)
    assert SplitOptions().or_else(usual).n_labelled(1000) == 100
    assert SplitOptions(target_fraction=0.5).or_else(usual).n_labelled(1000) == 500
    assert SplitOptions(n_target=7).or_else(usual).n_labelled(1000) == 7
    assert SplitOptions().n_labelled(1000) == 1000


def test_a_site_is_tested_on_the_same_rows_in_whatever_role():
    y = np.arange(50) % 2
    training, test = split_test(y, 50, 17, seed=3)
    split = split_target(y, 50, 3, SplitOptions(n_target=4), n_test=17)
    assert split.test.tolist() == test.tolist()
    assert split.training.tolist() == training.tolist()
    assert (len(split.labelled), len(split.test)) == (4, 17)


def test_a_class_of_one_row_trains():
    y = np.array([0] * 10 + [1] * 10 + [2])
    assert 20 in split_target(y, 21, seed=0).labelled


def test_regression_is_split_at_random():
    split = split_target(None, 10, 0, replace(OWN_SPLIT, n_target=2))
    assert (len(split.labelled), len(split.unlabelled), len(split.test)) == (2, 5, 3)


def test_seeds_and_purposes_give_different_draws():
    draws = {
        tuple(generator(s, p).permutation(20)) for s, p in [(0, "a"), (1, "a"), (0, "b"), (0, "a")]
    }
    assert len(draws) == 3


@pytest.mark.parametrize("seed", [-1, 0.5, True, "1"])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(OptionError, match="`seed`"):
        generator(seed, "x")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target_fraction": True}, OptionError, "`target_fraction`.*but got True"),
        ({"n_target": 0}, OptionError, "`n_target`.*at least 1"),
        ({"n_target": 2.5}, OptionError, "`n_target`"),
        ({"n_target": 8}, DataError, "7 training rows, but got 8: ask for fewer"),
        ({"target_fraction": 0}, OptionError, r"`target_fraction` in \(0, 1\]"),
        ({"target_fraction": 1.1}, OptionError, "`target_fraction`"),
        ({"target_fraction": "half"}, OptionError, "`target_fraction`.*but got 'half'"),
        ({"n_target": 2, "target_fraction": 0.5}, OptionError, "either.*got both"),
        ({"test_fraction": 1.0}, OptionError, "`test_fraction`"),
        ({"test_fraction": None}, OptionError, "`test_fraction`.*but got None"),
        ({"test_fraction": "half"}, OptionError, "`test_fraction`.*but got 'half'"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        split_target(np.arange(10) % 2, 10, 0, replace(OWN_SPLIT, **options))


def test_too_few_rows_to_test_on_are_refused():
    with pytest.raises(DataError, match="only 1: add rows"):
        split_target(np.array([0]), 1, 0)
