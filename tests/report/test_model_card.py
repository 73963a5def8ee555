"""The card of a run: all of it is there, true, and plain text."""

import json
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from small import Normed, blobs, line

import fedbridge as fb
from fedbridge.report.model_card import FILE, TO_DO, model_card
from fedbridge.runs.record import read_run

QUICK = {"rounds": 3, "workers": 1, "lr": 0.1, "batch_size": 8}
SECTIONS = [
    "What it is",
    "Data",
    "How good it is",
    "Limits of use",
    "Settings",
    "How to make it again",
    "Left to the owner",
]
EVIL = "<script>alert(1)</script>|*x*"


def patients(test_rows=16, names=("healthy", "ill")):
    generator = torch.Generator().manual_seed(0)

    def site(rows):
        return torch.randn(rows, 2, generator=generator), [names[k % 2] for k in range(rows)]

    return fb.FederatedTask.from_arrays(
        sources={"Budapest": site(30), EVIL: site(20)}, target=site(10), test=site(test_rows)
    )


def card_of(task, out, method="fedda", **options):
    fb.run(task, method, **{**QUICK, "model": "linear", **options}, out=out)
    return (out / FILE).read_text(encoding="utf-8")


def section(card, heading):
    return card.split(f"## {heading}\n")[1].split("\n## ")[0]


def rows(text, first):
    """The cells of the lines of a table that begin with some text."""
    return [
        [cell.strip() for cell in ln.strip("|").split(" | ")]
        for ln in text.splitlines()
        if ln.startswith(f"| {first}")
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("card") / "run"
    card_of(patients(), out)
    return out


@pytest.fixture(scope="module")
def card(run):
    return (run / FILE).read_text(encoding="utf-8")


def test_it_has_all_sections(card):
    assert re.findall(r"^## (.*)$", card, re.MULTILINE) == SECTIONS


def test_sites_and_sample_counts(card):
    data = section(card, "Data")
    assert rows(data, "target")[0][:3] == ["target", "target", "10"]
    assert rows(data, "Budapest")[0][:3] == ["Budapest", "source", "30"]
    assert "Test set: 16 rows" in data


def test_measures_are_those_of_the_summary_and_have_intervals(card, run):
    summary = json.loads((run / "summary.json").read_text())
    measures = section(card, "How good it is")
    low, high = summary["accuracy_interval"]
    (scored,) = rows(measures, "accuracy, mean of the last 3 rounds")
    assert scored[1:] == [f"{summary['accuracy']:.1f}", f"{low:.1f}", f"{high:.1f}"]
    for name in (
        "area under the ROC",
        "sensitivity for ill at",
        "specificity for ill at",
        "balanced",
    ):
        (found,) = rows(measures, name)
        assert float(found[2]) <= float(found[1]) <= float(found[3])
    assert rows(measures, "ill")


def test_it_says_what_16_patients_can_say(card):
    assert "**A test set of 16 rows says little" in section(card, "How good it is")


def test_limits_name_the_target_and_what_the_run_shows(card):
    limits = section(card, "Limits of use")
    assert "tested on rows of that site only" in limits
    assert "Fewer than 10 test rows each are of healthy, ill." in limits
    assert "medical device" in limits


def test_a_site_that_failed_is_named(tmp_path):
    limits = section(card_of(blobs(), tmp_path / "run", dropout=0.9), "Limits of use")
    assert re.search(r"- site \d was missing in \d of 3 rounds\.", limits)


def test_names_from_data_are_text(tmp_path):
    card = card_of(patients(names=("healthy", EVIL)), tmp_path / "run")
    assert "<script>" not in card
    assert r"&lt;script&gt;alert(1)&lt;/script&gt;\|\*x\*" in section(card, "How good it is")


def test_what_only_the_owner_knows_is_marked(card):
    owner = section(card, "Left to the owner")
    assert owner.count(TO_DO) == owner.count("\n- ") == 5
    assert "Licence" in owner


def test_a_named_task_has_the_command(tmp_path):
    out = tmp_path / "run"
    fb.run(fb.load_task("digits-noise", n_target=12), "fedda", rounds=1, steps=2, out=out)
    again = section((out / FILE).read_text(), "How to make it again")
    assert "fedbridge run digits-noise --target target --method fedda --rounds 1" in again
    assert "--steps 2" in again


def test_arrays_have_a_call_that_gives_the_same_model(run, card):
    again = section(card, "How to make it again").split("```")[1]
    assert "model='linear'" in again
    result = eval(again.strip(), {"fedbridge": fb, "task": patients()})
    saved = load_file(run / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in result.model.state_dict().items())


def test_a_model_given_as_an_object_is_a_name_in_the_call(tmp_path):
    card = card_of(blobs(), tmp_path / "run", model=Normed())
    assert "model=model," in section(card, "How to make it again")


def test_values_have_errors_instead_of_accuracies(tmp_path):
    card = card_of(line(), tmp_path / "run")
    measures = section(card, "How good it is")
    (found,) = rows(measures, "mean squared error")
    assert float(found[2]) < float(found[1]) < float(found[3])
    assert "accuracy" not in measures
    assert "A test set of 20 rows says little" in measures
    assert "answers with 1 value." in card


@pytest.mark.parametrize("task", [patients, line])
def test_a_run_without_test_outputs_has_a_card_too(task, tmp_path):
    card_of(task(), tmp_path / "run")
    record = replace(read_run(tmp_path / "run"), tested=None)
    measures = section(model_card(record), "How good it is")
    assert "were not kept" in measures
    assert rows(measures, "test loss")
    if task is patients:
        assert "A test set of 16 rows says little" in measures
        assert rows(measures, "accuracy, mean of the last 3 rounds")[0][2] != "–"


def test_bounds_are_called_bounds(tmp_path):
    card = card_of(blobs(), tmp_path / "run", method="oracle")
    assert "a bound for comparison" in section(card, "Limits of use")
    assert "whose rows stay where they are" not in card


def test_a_class_without_test_rows_is_named(tmp_path):
    task = blobs()
    only = task.test.y < 2
    test = replace(task.test, x=task.test.x[only], y=task.test.y[only])
    card = card_of(replace(task, test=test), tmp_path / "run")
    assert "No test row is of 2: nothing is known of them." in section(card, "Limits of use")


def test_a_run_that_goes_on_has_no_old_card(tmp_path):
    def look(_):
        seen.append((tmp_path / "run" / FILE).exists())

    seen = []
    card_of(blobs(), tmp_path / "run")
    more = {**QUICK, "model": "linear", "rounds": 4}
    fb.run(blobs(), "fedda", **more, out=tmp_path / "run", resume=True, callbacks=[look])
    assert seen == [False]
    assert "Rounds: 4" in (tmp_path / "run" / FILE).read_text()


def test_notes_of_the_loader_are_in_it(tmp_path):
    noted = replace(blobs(), notes=("Imputed `age` with the median.",))
    data = section(card_of(noted, tmp_path / "run"), "Data")
    assert r"- Imputed \`age\` with the median." in data
