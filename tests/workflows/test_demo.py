"""The demo shows three regimes, and its words come from its numbers."""

import pytest

from fedbridge import rules
from fedbridge.runs.comparison import CellResult, Comparison
from fedbridge.workflows.compare import ALONE, compare
from fedbridge.workflows.demo import OPTIONS, ROUNDS, SETTINGS, run_demo, what_it_shows

LABELS = tuple(setting.label for setting in SETTINGS)
NOTHING_ELSE = {"score": None, "accuracy_interval": None}
NAMES = ("source-only", "target-only", "fedda", "auto")


def found(*columns, names=NAMES):
    """A comparison with the given accuracies, one column per setting."""
    cells = [
        CellResult(label, name, 0, None, {"accuracy": value, **NOTHING_ELSE})
        for label, column in zip(LABELS, columns, strict=True)
        for name, value in zip(names, column, strict=True)
    ]
    return Comparison(LABELS, names, (0,), ROUNDS, tuple(cells), "")


class TestWords:
    def test_they_say_when_sources_are_worth_following(self):
        text = what_it_shows(found((80, 60, 70, 81), (60, 62, 61, 50), (10, 70, 40, 66)))
        small, medium, large, worst = text.split(". ")
        assert "80% right, the target alone 60%, so the sources are worth following" in small
        assert "best is auto with 81%" in small
        assert "neither side is clearly better" in medium
        assert "whoever just follows the sources loses" in large
        assert "best is target-only with 70%" in large
        assert "auto stays nearest to the best, never more than 12.0 points behind" in worst
        assert "for source-only it is 60, for target-only 21" in worst

    def test_they_do_not_praise_auto_when_another_is_safer(self):
        text = what_it_shows(found((80, 60, 79, 50), (60, 62, 61, 50), (68, 70, 69, 40)))
        assert "fedda stays nearest to the best, never more than 1.0 points behind" in text
        assert "for auto it is 30" in text

    def test_a_run_that_failed_is_not_talked_about(self):
        comparison = found((None, 60, 70, 81), (60, 62, 61, 50), (10, 70, 40, 66))
        text = what_it_shows(comparison)
        assert "turned by 10" not in text
        assert "nearest to the best" not in text
        assert "turned by 30" in text


def test_all_rules_and_auto_take_part():
    demo = run_demo([0], rounds=1)
    assert set(demo.methods) == {*rules.names(), "auto", "target-only-matched", *ALONE}
    assert len(demo.finished) == len(SETTINGS) * len(demo.methods)


@pytest.fixture(scope="module")
def demo():
    return compare(SETTINGS, ["auto"], [0], ROUNDS, alone=False, **OPTIONS)


def test_the_table_shows_three_regimes(demo):
    small, medium, large = LABELS
    led = {label: demo.score(label, "source-only") for label in LABELS}
    alone = {label: demo.score(label, "target-only") for label in LABELS}
    assert led[small] > alone[small] + 10
    assert abs(led[medium] - alone[medium]) < 20
    assert led[large] < alone[large] - 30


def test_auto_is_near_the_better_side_everywhere(demo):
    for label in LABELS:
        better = max(demo.score(label, name) for name in ("source-only", "target-only"))
        assert demo.score(label, "auto") > better - 10
