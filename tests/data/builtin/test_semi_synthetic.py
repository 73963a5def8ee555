"""Shares lose no row, give none twice, and have the labels they should have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbridge.data.builtin.semi_synthetic import (
    deal_labels,
    draw_labels,
    equal_sizes,
    portions_by_label,
    shares_by_label,
    stratified_shares,
)
from fedbridge.data.split import generator

LABELS = np.repeat(np.arange(10), 60)


def rng():
    return generator(0, "test")


@given(st.integers(0, 500), st.integers(1, 20))
def test_equal_sizes_add_up_and_differ_by_one_at_most(n, parts):
    sizes = equal_sizes(n, parts)
    assert (len(sizes), sum(sizes)) == (parts, n)
    assert max(sizes) - min(sizes) <= 1


def test_stratified_shares_divide_every_label_evenly():
    shares = stratified_shares(LABELS, [60] * 10, rng())
    assert sorted(np.concatenate(shares)) == list(range(600))
    assert all((np.bincount(LABELS[share]) == 6).all() for share in shares)
    assert all((np.diff(share) > 0).all() for share in shares)


@given(st.integers(1, 12), st.integers(1, 10), st.integers(0, 50))
def test_labels_are_dealt_without_repetition_and_about_equally_often(clients, per_client, seed):
    hands = deal_labels(clients, 10, per_client, generator(seed, "deal"))
    assert [len(set(hand)) for hand in hands] == [per_client] * clients
    holders = np.bincount(np.concatenate(hands), minlength=10)
    assert holders.max() - holders.min() <= 1


@given(st.integers(1, 12), st.integers(1, 10), st.integers(0, 50))
def test_labels_are_drawn_freely_but_for_a_clients_own(clients, per_client, seed):
    hands = draw_labels(clients, 10, per_client, generator(seed, "deal"))
    assert [len(set(hand)) for hand in hands] == [per_client] * clients
    assert all(client % 10 in hand for client, hand in enumerate(hands))


def test_free_draws_leave_the_numbers_of_holders_to_chance():
    drawn = [draw_labels(10, 10, 4, generator(seed, "deal")) for seed in range(300)]
    others = [sum(label in hand for hand in hands[:-1]) for hands in drawn for label in hands[-1]]
    assert {1, 6} <= {*others}
    # 9 of the target's 4 own: 9 draws of 3 among 9; of the others one has it anyway, 8 by chance.
    expected = (9 / 3 + 3 * (1 + 8 / 3)) / 4
    assert abs(np.mean(others) - expected) < 4 * np.std(others) / len(others) ** 0.5


@pytest.mark.parametrize("deal", [deal_labels, draw_labels])
def test_hands_differ_between_clients_and_seeds(deal):
    hands = deal(9, 10, 3, generator(0, "deal"))
    assert len({tuple(hand) for hand in hands}) > 3
    assert hands != deal(9, 10, 3, generator(1, "deal"))


def test_each_label_is_shared_equally_among_those_who_hold_it():
    shares = shares_by_label(LABELS, [[0, 1], [1, 2], [1]], rng())
    counts = [np.bincount(LABELS[share], minlength=10)[:3].tolist() for share in shares]
    assert counts == [[60, 20, 0], [0, 20, 60], [0, 20, 0]]
    together = np.concatenate(shares)
    assert len(set(together)) == len(together)


@pytest.mark.parametrize("eta", [0.0, 0.1, 0.5])
def test_portions_take_their_part_of_every_label_and_leave_the_rest(eta):
    portions = {label: 1 - eta if label < 3 else eta for label in range(10)}
    taken, rest = portions_by_label(LABELS, portions, rng())
    assert sorted([*taken, *rest]) == list(range(600))
    expected = [60 * portions[label] for label in range(10)]
    assert np.bincount(LABELS[taken], minlength=10).tolist() == expected
