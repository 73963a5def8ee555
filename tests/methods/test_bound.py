"""The oracle is a bound: no method without its labels beats it by more than chance."""

import math
from statistics import mean

import pytest

import fedbridge as fb

STRONG = ("source-only", "fedavg", "mme", "offset", "alone-logistic")
"""The best where there is little shift; under a large one the oracle is far ahead of all."""


@pytest.mark.parametrize(
    ("task", "seeds"),
    [("digits-none", 2), ("digits-noise", 2), ("digits-rotation", 1), ("digits-contrast", 1)],
)
def test_nobody_without_its_labels_beats_it_by_more_than_chance(task, seeds):
    tasks = [fb.load_task(task, seed=seed) for seed in range(seeds)]

    def accuracy(method):
        runs = [fb.run(one, method, rounds=6, seed=s, workers=1) for s, one in enumerate(tasks)]
        return mean(one.history[-1]["accuracy"] for one in runs)

    bound = accuracy("oracle")
    share = bound / 100
    rows = sum(len(one.test) for one in tasks)
    chance = 200 * math.sqrt(2 * share * (1 - share) / rows)  # two standard errors of a difference
    assert bound > 70
    assert max(map(accuracy, STRONG)) <= bound + chance


def test_nor_where_values_are_predicted():
    """After ten rounds: what is solved at once is ahead of three rounds of training."""
    task = fb.load_task("rbf", seed=0)

    def loss(method):
        return fb.run(task, method, rounds=10, seed=0, workers=1).history[-1]["loss"]

    bound = loss("oracle")
    rivals = ("source-only", "fedavg", "target-only", "fedgp", "alone-logistic")
    assert all(loss(method) >= bound for method in rivals)
