"""The oracle is a bound: no method without its labels beats it by more than chance."""

import math

import pytest

import fedbridge as fb

STRONG = ("source-only", "fedavg", "mme", "offset", "alone-logistic")
"""The best where there is little shift; under a large one the oracle is far ahead of all."""


@pytest.mark.parametrize(
    "name", ["digits-none", "digits-noise", "digits-rotation", "digits-contrast"]
)
def test_nobody_without_its_labels_beats_it_by_more_than_chance(name):
    """After a few rounds; ``benchmarks/oracle_bound.py`` has more rounds and more rivals."""
    task = fb.load_task(name, seed=0)

    def accuracy(method):
        return fb.run(task, method, rounds=5, seed=0, workers=1).history[-1]["accuracy"]

    bound = accuracy("oracle")
    share = bound / 100
    chance = 200 * math.sqrt(2 * share * (1 - share) / len(task.test))  # two standard errors
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
