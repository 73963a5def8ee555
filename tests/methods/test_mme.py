"""MME: the head raises the entropy of unlabelled rows, the features lower it."""

from dataclasses import replace

import pytest
import torch
from small import blobs, federation, line, method
from torch import nn

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.federation.needs import Need, UnmetNeedError
from fedbridge.methods.mme import TEMPERATURE, CosineModel, MinimaxEntropy
from fedbridge.methods.unsupervised import entropy, reverse_gradient
from fedbridge.models import build_model, head_slices
from fedbridge.training.state import complement

QUICK = {"rounds": 2, "workers": 1, "model": "mlp:8", "lr": 0.1, "batch_size": 8}


def unlabelled_blobs(**options):
    return blobs(**{"target_rows": 40, "n_target": 9, **options})


def test_a_reversed_gradient_is_the_opposite_of_the_gradient():
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    values = reverse_gradient(x, 0.5)
    assert torch.equal(values, x)
    values.square().sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([-1.0, 2.0]))


def test_entropy_of_even_and_of_certain_predictions():
    assert float(entropy(torch.zeros(2, 4))) == pytest.approx(torch.tensor(4.0).log().item())
    assert float(entropy(torch.tensor([[1e4, 0.0, 0.0]]))) == pytest.approx(0.0)


@pytest.fixture
def on():
    made = federation(unlabelled_blobs(), model="mlp:8", method="mme", lr=1e-4)
    made.open()
    return made


def entropy_after(on, doubt, moves):
    """Entropy of the unlabelled rows before and after a training in which some parts move."""
    site = on.site_for(Need.UNLABELLED)
    job = on.job(
        1, 0, on.initial, objective=MinimaxEntropy(doubt), beside=(1, 2, 3, site), moves=moves
    )
    _, changes = on.do([replace(job, plan=replace(job.plan, steps=5))], [on.initial])
    states = (on.initial, on.initial.moved(changes[0]))
    return [float(entropy(on.predict(state, on.bench.sites[site]))) for state in states]


def test_the_head_raises_the_entropy_and_the_features_lower_it(on):
    head = head_slices(on.bench.model.model)
    features = complement(head, on.blocks.total)
    before, raised = entropy_after(on, 10.0, head)
    _, lowered = entropy_after(on, 10.0, features)
    assert raised > before > lowered
    assert raised > entropy_after(on, 0.0, head)[1]
    assert lowered < entropy_after(on, 0.0, features)[1]


def test_without_doubt_it_is_the_loss_on_all_labels(on):
    unlabelled = on.site_for(Need.UNLABELLED)
    jobs = [
        on.job(1, 0, on.initial, objective=MinimaxEntropy(0.0), beside=(1, 2, 3, beside))
        for beside in (unlabelled, 1)
    ]
    _, changes = on.do(jobs, [on.initial])
    torch.testing.assert_close(changes[0], changes[1])


def test_sources_and_target_count_half_each():
    on = federation(unlabelled_blobs(sources=2), model="mlp:8", method="mme", batch_size=100)
    on.open()
    job = on.job(
        1, 0, on.initial, objective=MinimaxEntropy(0.0), beside=(1, 2, on.site_for(Need.UNLABELLED))
    )
    (outcome,), _ = on.do([replace(job, plan=replace(job.plan, steps=1))], [on.initial])
    losses = [on.measure(on.initial, site).loss for site in on.bench.sites[:3]]
    assert outcome.loss == pytest.approx((losses[0] + (losses[1] + losses[2]) / 2) / 2, rel=1e-4)


def test_the_delivered_model_answers_as_the_one_that_was_tested():
    task = unlabelled_blobs()
    result = fb.run(task, "mme", **QUICK)
    with torch.no_grad():
        right = (result.model(task.test.x).argmax(1) == task.test.y).double().mean()
    assert 100 * float(right) == pytest.approx(result.history[-1]["accuracy"])
    again = fb.methods.class_of("mme").restore(build_model("mlp:8", task), {})
    again.load_state_dict(result.model.state_dict())
    assert torch.equal(again.eval()(task.test.x), result.model(task.test.x))


def test_the_head_sees_only_the_direction_of_the_features():
    model = CosineModel(build_model("mlp:8", unlabelled_blobs()))
    features = torch.rand(4, 8)
    torch.testing.assert_close(model.answer(features), model.answer(7 * features))
    expected = model.model.head(nn.functional.normalize(features)) / TEMPERATURE
    torch.testing.assert_close(model.answer(features), expected)


def test_learns_from_both_sides_of_a_shift():
    task = unlabelled_blobs(shift=1.0)
    result = fb.run(task, "mme", **{**QUICK, "rounds": 15})
    assert result.accuracy > 90
    assert result.history[-1]["entropy"] < result.history[0]["entropy"]
    assert result.history[-1]["bytes_up"] == 0
    assert result.history[-1]["beta"] == pytest.approx([1 / 6] * 3)


def test_validation_rows_are_not_trained_on():
    on = federation(unlabelled_blobs(), model="mlp:8", method="mme", early_stopping=3)
    job = method("mme", on)._job(1, [1, 2, 3])
    assert torch.equal(job.rows, on.target_rows)


@pytest.mark.parametrize("options", [{"batch_size": 1, "steps": 5}, {"class_weights": "balanced"}])
def test_works_with_one_source_and_with_batches_of_one_row(options):
    result = fb.run(unlabelled_blobs(sources=1), "mme", **{**QUICK, **options})
    assert len(result.history) == 2


def test_what_is_missing_leaves_the_model_as_it_was(monkeypatch):
    on = federation(unlabelled_blobs(), model="mlp:8", method="mme")
    made = method("mme", on)
    for present, note in (([1, 2], "target"), ([0], "source")):
        monkeypatch.setattr(on, "present", lambda _, there=present: (there, {}))
        assert note in made.run_round(1).notes[0]
    assert made.state is on.initial


def test_needs_and_options_are_checked():
    with pytest.raises(UnmetNeedError, match="classes"):
        fb.run(line(), "mme", rounds=1)
    with pytest.raises(UnmetNeedError, match="unlabelled rows"):
        fb.run(blobs(), "mme", rounds=1)
    with pytest.raises(UnmetNeedError, match="feature extractor"):
        fb.run(unlabelled_blobs(), "mme", rounds=1, model="linear")
    with pytest.raises(OptionError, match="`doubt`"):
        method("mme", federation(unlabelled_blobs(), model="mlp:8", method="mme"), doubt=-1)
