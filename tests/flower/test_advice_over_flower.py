"""Advice over Flower: the same verdict as on one machine, and what leaves a site for it."""

import pytest
from pretend import PretendGrid, nodes_of, run_over_pretended_flower
from small import blobs, line, same_numbers

import fedbridge as fb
from fedbridge.advice import batches, predict
from fedbridge.advice.advise import SKETCH_SIZE, advice_of
from fedbridge.advice.measure import ADVICE
from fedbridge.flower.messages import ReplyError, check_fields, read_choice

OPTIONS = {"lr": 0.1, "batch_size": 8}


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr(predict, "SIMULATED_RESAMPLES", 6)
    monkeypatch.setattr(batches, "RESAMPLES", 40)


def over_flower(task, folder, rounds=4, grid=None, **options):
    given = {**OPTIONS, "sketch_size": SKETCH_SIZE, "after": rounds, **options}
    found = grid or PretendGrid(nodes_of(task, folder, advice=True))
    strategy, _ = run_over_pretended_flower(task, ADVICE, rounds, folder, found, **given)
    history = strategy.result.history
    return advice_of(history[-1], task.name, task.target.name, 0, rounds), history, found


@pytest.mark.parametrize(
    ("task", "options"),
    [
        (blobs(target_rows=24), {}),
        (blobs(target_rows=24, rows=41, shift=1.0), {"model": "mlp:8", "warmup": 1}),
        (blobs(target_rows=24), {"class_weights": "balanced", "blocks": "model"}),
        (line(), {"samples": [20, 10]}),
    ],
    ids=["classes", "network", "weights", "numbers"],
)
def test_the_verdict_is_that_of_one_machine(task, options, tmp_path):
    here = fb.advise(task, after=4, workers=1, **OPTIONS, **options)
    there, _, _ = over_flower(task, tmp_path, **options)
    assert there.sigma2 is not None
    assert there.verdict == here.verdict
    same_numbers(there.to_json(), here.to_json())


def test_of_the_target_only_means_leave_and_of_its_test_rows_nothing(tmp_path):
    """A source sends few batches, none of a single row; the target no sketch at all."""
    task = blobs(target_rows=24, rows=41)
    _, _, grid = over_flower(task, tmp_path)
    for name, kind, content in grid.sent:
        check_fields(content)
        if name == "target":
            sketches = [r for n, r in content.array_records.items() if "sketches" in r]
            assert not sketches
        if name == "target" and kind == "evaluate":
            assert not {"loss", "accuracy", "validation-loss"} & {*content["metrics"]}
    *_, last = (c for n, kind, c in grid.sent if (n, kind) == ("site 0", "train"))
    assert last.array_records["noise-0"]["sketches"].numpy().shape[0] < 20
    assert not (tmp_path / "target" / "model").exists(), "advice keeps no model"


def test_a_source_that_does_not_agree_is_named_and_the_rest_is_told(tmp_path):
    task = blobs(target_rows=24)
    nodes = nodes_of(task, tmp_path, advice=True)
    next(node for node in nodes if node.name == "site 1").config.pop("advice")
    there, history, _ = over_flower(task, tmp_path, grid=PretendGrid(nodes))
    here = fb.advise(task, after=4, workers=1, **OPTIONS)
    same_numbers(there.to_json()["worth"], here.to_json()["worth"])
    assert [partner.name for partner in there.partners] == ["site 0", "site 2"]
    assert "site 1 could not be measured: " in there.notes[0]
    assert "advice = true" in there.notes[0]
    assert history[-1]["beta"][1] is not None, "it takes part in the rounds all the same"


def test_a_protected_target_keeps_it_all_to_itself(tmp_path):
    task = blobs(target_rows=24)
    nodes = nodes_of(task, tmp_path, advice=True)
    next(n for n in nodes if n.name == "target").config |= {"dp-clip": 1.0, "dp-noise": 0.1}
    there, _, grid = over_flower(task, tmp_path, rounds=1, grid=PretendGrid(nodes))
    assert there.worth is None
    assert there.decision == "unclear"
    assert any("keeps what joining is worth to itself" in note for note in there.notes)
    assert not [c for _, _, c in grid.sent if "gradients" in c]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["gradients"].update(d2=[1.0]),
        lambda content: content["gradients"].update(sigma2=[float("nan")] * 3),
        lambda content: content["gradients"].pop("curve"),
        lambda content: content["site"].pop("rules"),
        lambda content: content["gradients"].update(curve=[1.0, 1.0, 1.0, 99.0]),
    ],
)
def test_numbers_that_do_not_fit_are_refused(change, tmp_path):
    _, _, grid = over_flower(blobs(target_rows=24), tmp_path, rounds=1)
    (content,) = (c for n, kind, c in grid.sent if (n, kind) == ("target", "evaluate"))
    assert read_choice(content)["gradients"]["rules"] == fb.rules.names()
    change(content)
    with pytest.raises(ReplyError):
        read_choice(content)
