"""MME: the head raises the entropy of unlabelled rows, the features lower it."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from small import blobs, federation, line, method, random_rows
from torch.nn import functional

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.core.blocks import parameter_vector
from fedbridge.federation.needs import Need, UnmetNeedError
from fedbridge.methods.mme import CosineHead, MinimaxEntropy
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


def objective(on, doubt):
    return MinimaxEntropy(doubt, head_slices(on.bench.model))


def entropy_after(on, doubt, moves):
    """Entropy of the unlabelled rows before and after a training in which some parts move."""
    site = on.site_for(Need.UNLABELLED)
    job = on.job(
        1, 0, on.initial, objective=objective(on, doubt), beside=(1, 2, 3, site, site), moves=moves
    )
    _, changes = on.do([replace(job, plan=replace(job.plan, steps=5))], [on.initial])
    states = (on.initial, on.initial.moved(changes[0]))
    return [float(entropy(on.predict(state, on.bench.sites[site]))) for state in states]


def test_the_head_raises_the_entropy_and_the_features_lower_it(on):
    head = head_slices(on.bench.model)
    features = complement(head, on.blocks.total)
    before, raised = entropy_after(on, 10.0, head)
    _, lowered = entropy_after(on, 10.0, features)
    assert raised > before > lowered
    assert raised > entropy_after(on, 0.0, head)[1]
    assert lowered < entropy_after(on, 0.0, features)[1]


def test_without_doubt_it_is_the_loss_on_all_labels(on):
    unlabelled = on.site_for(Need.UNLABELLED)
    jobs = [
        on.job(1, 0, on.initial, objective=objective(on, 0.0), beside=(1, 2, 3, beside, beside))
        for beside in (unlabelled, 1)
    ]
    _, changes = on.do(jobs, [on.initial])
    torch.testing.assert_close(changes[0], changes[1])


def test_the_loss_is_the_mean_over_the_rows_of_the_target_and_of_one_source():
    on = federation(unlabelled_blobs(sources=2), model="mlp:8", method="mme", batch_size=100)
    made = method("mme", on, doubt=0.0)
    job = made._job(1, [1, 2])
    (outcome,), _ = on.do([job], [on.initial])
    losses = [on.measure(on.initial, site).loss for site in on.bench.sites[:3]]
    expected = (9 * losses[0] + 40 * (losses[1] + losses[2]) / 2) / 49
    assert outcome.steps == 1
    assert outcome.loss == pytest.approx(expected, rel=1e-4)
    assert made.run_round(1).beta == pytest.approx([20 / 49] * 2)


def originals_iteration(net, optimizer, labelled, unlabelled, doubt):
    """Two steps, written from the paper with nothing of the implementation's own."""

    def logs(x):
        z = net.features(x)
        return (z / z.norm(dim=1, keepdim=True) @ net.head.last.weight.T / 0.05).log_softmax(1)

    x, y = labelled
    optimizer.zero_grad()
    (-logs(x)[torch.arange(len(y)), y].mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
    found = logs(unlabelled)
    (doubt * -(found.exp() * found).sum(1).mean()).backward()
    net.head.last.weight.grad.neg_()
    optimizer.step()


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_an_iteration_takes_two_steps_and_the_head_ten_times_longer_ones(optimizer):
    task = unlabelled_blobs(sources=1)
    settings = {"optimizer": optimizer, "weight_decay": 0.01, "lr": 0.002, "batch_size": 100}
    on = federation(task, model="mlp:8", method="mme", **settings, steps=3)
    made = method("mme", on, doubt=0.3)
    net = deepcopy(on.bench.model)
    groups = [
        {"params": list(net.features.parameters()), "lr": 0.002},
        {"params": list(net.head.parameters()), "lr": 0.02},
    ]
    kind = {
        "sgd": torch.optim.SGD,
        "momentum": partial(torch.optim.SGD, momentum=0.9),
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }[optimizer]
    steps = kind(groups, weight_decay=0.01)
    labelled = (
        torch.cat((task.sources[0].x, task.target.x)),
        torch.cat((task.sources[0].y, task.target.y)),
    )
    for _ in range(3):
        originals_iteration(net, steps, labelled, task.unlabelled, 0.3)
    made.run_round(1)
    torch.testing.assert_close(
        made.state.parameters, parameter_vector(net).detach(), rtol=1e-4, atol=1e-5
    )


def test_the_learning_rate_falls_and_the_batch_of_unlabelled_rows_is_twice_as_large(on):
    made = method("mme", on)
    first, later = made._job(1, [1, 2, 3]), made._job(101, [1, 2, 3])
    steps = first.plan.steps
    assert first.plan.lr == pytest.approx(1e-4)
    assert later.plan.lr == pytest.approx(1e-4 * (1 + 1e-4 * 100 * steps) ** -0.75)
    assert first.beside == (1, 2, 3, on.site_for(Need.UNLABELLED), on.site_for(Need.UNLABELLED))


def test_the_delivered_model_answers_as_the_one_that_was_tested():
    task = unlabelled_blobs()
    result = fb.run(task, "mme", **QUICK)
    with torch.no_grad():
        right = (result.model(task.test.x).argmax(1) == task.test.y).double().mean()
    assert 100 * float(right) == pytest.approx(result.history[-1]["accuracy"])
    tensors = result.model.state_dict()
    again = fb.methods.class_of("mme").restore(build_model("mlp:8", task), tensors)
    again.load_state_dict(tensors)
    assert torch.equal(again.eval()(task.test.x), result.model(task.test.x))


def test_the_head_sees_only_the_direction_of_the_features_and_has_no_bias():
    head = CosineHead(8, 3)
    features = torch.rand(4, 8)
    torch.testing.assert_close(head(features), head(7 * features))
    cosines = functional.cosine_similarity(features[:, None], head.last.weight[None], dim=2)
    expected = cosines * head.last.weight.norm(dim=1) / 0.05
    torch.testing.assert_close(head(features), expected)
    assert [name for name, _ in head.named_parameters()] == ["last.weight"]


def test_a_residual_network_gets_a_deep_head_whose_first_layer_sides_with_the_features():
    task = random_rows((1, 8, 8))
    model = fb.methods.class_of("mme").compose(build_model("resnet18", task), task)
    first, last = model.head.first, model.head.last
    assert (first.in_features, first.out_features, last.in_features) == (512, 512, 512)
    assert first.bias is not None
    assert last.bias is None
    seen = torch.rand(5, 512)
    head = model.head
    plain = torch.autograd.grad(entropy(head(seen)), list(head.parameters()))
    against = torch.autograd.grad(entropy(head.reversed(seen)), list(head.parameters()))
    for one, other, sign in zip(plain, against, (-1, -1, 1), strict=True):
        torch.testing.assert_close(other, sign * one)
    again = fb.methods.class_of("mme").restore(build_model("resnet18", task), model.state_dict())
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.eval()(task.test.x), model.eval()(task.test.x))


def moved(seed):
    """Five classes in 60 dimensions, each moved by chance at the target, which labels one row."""
    generator = torch.Generator().manual_seed(seed)
    centres, moves = torch.randn(2, 5, 60, generator=generator)

    def site(count, shift):
        y = torch.arange(count) % 5
        noise = 1.3 * torch.randn(count, 60, generator=generator)
        return (centres + shift * moves)[y] + noise, y

    return fb.FederatedTask.from_arrays(
        sources=[site(100, 0)],
        target=site(105, 1),
        test=site(200, 1),
        seed=seed,
        n_target=5,
    )


def test_unlabelled_rows_make_the_target_more_certain_and_more_often_right():
    """What the paper claims over training on all labels alone ("S+T")."""
    accuracy, doubt = {}, {}
    options = {"model": "mlp:32", "lr": 0.01, "optimizer": "momentum", "batch_size": 24}
    for weight in (0.0, 0.1):
        certain, right = [], []
        for seed in range(8):
            task = moved(seed)
            result = fb.run(task, "mme", rounds=15, seed=seed, workers=1, doubt=weight, **options)
            with torch.no_grad():
                certain.append(float(entropy(result.model(task.unlabelled))))
            right.append(result.accuracy)
        accuracy[weight], doubt[weight] = sum(right) / 8, sum(certain) / 8
    assert doubt[0.1] < 0.5 * doubt[0.0]
    assert accuracy[0.1] > accuracy[0.0] + 1


def test_learns_from_both_sides_of_a_shift():
    task = unlabelled_blobs(shift=1.0)
    result = fb.run(task, "mme", **{**QUICK, "rounds": 15})
    assert result.accuracy > 90
    assert result.history[-1]["entropy"] < 0.1
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
