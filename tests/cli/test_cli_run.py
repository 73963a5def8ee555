"""What a person sees in the terminal, also of runs in which not everything could be measured."""

import pytest

from fedbridge.cli.run import run_progress, summary_lines

SUMMARY = {
    "accuracy": 50.0,
    "accuracy_interval": [40.0, 60.0],
    "accuracy_last": 52.0,
    "balanced_accuracy": 48.0,
    "auc": None,
    "score": None,
    "rounds": 3,
    "n_test": 100,
    "stopped_early": False,
}
LINE = {"round": 1, "accuracy": 50.0, "loss": 0.5, "beta": [0.5, None]}


def test_a_summary_says_how_sure_it_is():
    lines = dict(summary_lines(SUMMARY))
    assert "40.0 to 60.0 (100 test rows)" in lines["accuracy (mean of the last 3 rounds)"]
    assert lines["accuracy after the last round"] == "52.0%"


def test_a_last_round_without_the_target_is_not_measured():
    lines = dict(summary_lines({**SUMMARY, "accuracy_last": None}))
    assert lines["accuracy after the last round"] == "not measured"
    assert lines["balanced accuracy"] == "48.0%"


def test_a_target_that_keeps_its_measures_to_itself():
    withheld = dict.fromkeys(("accuracy", "accuracy_interval", "accuracy_last", "score"))
    lines = summary_lines({**SUMMARY, **withheld})
    assert lines == [("the target's test rows", "not measured"), ("rounds", "3")]


def test_a_regression_has_a_score():
    lines = dict(summary_lines({**SUMMARY, "accuracy": None, "score": -0.25}))
    assert lines["score (negative test loss)"] == "-0.2500"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (LINE, "round 1, accuracy 50.0%, mean beta 0.50"),
        ({**LINE, "accuracy": None, "beta": None}, "round 1, loss 0.5000"),
        ({**LINE, "accuracy": None, "loss": None, "beta": None}, "round 1, not measured"),
    ],
)
def test_progress_says_what_a_round_brought(line, said, monkeypatch):
    told = []
    monkeypatch.setattr(
        "rich.progress.Progress.update",
        lambda bar, task, *, description=None, **others: told.append(description),
    )
    with run_progress(3, quiet=True) as update:
        update(line)
    assert said in told
