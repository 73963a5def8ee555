"""Local training: the flat workbench does what a plain PyTorch loop does, and measures noise."""

from dataclasses import replace

import pytest
import torch
from small import Normed, blobs, federation, line
from torch import nn
from torch.nn import functional

from fedbridge.base.errors import OptionError
from fedbridge.core.blocks import parameter_vector
from fedbridge.models import build_model
from fedbridge.training.job import Job, LocalPlan
from fedbridge.training.trainer import Workbench


def bench_for(task, model="mlp:8", **options):
    torch.manual_seed(0)
    module = build_model(model, task)
    return Workbench(module, task, **options), parameter_vector(module)


def train(bench, start, plan, client=1, seed=5, **job):
    result = torch.empty_like(start)
    return bench.run(Job(client, plan, seed, **job), start[None], result), result


def plain_loop(task, plan, seed, client=1, model="mlp:8"):
    """The same training by hand: ordinary parameters, ordinary optimiser."""
    torch.manual_seed(0)
    module = build_model(model, task)
    start = parameter_vector(module)
    kinds = {
        "sgd": lambda p: torch.optim.SGD(p, plan.lr),
        "momentum": lambda p: torch.optim.SGD(p, plan.lr, momentum=plan.momentum),
        "adam": lambda p: torch.optim.Adam(p, plan.lr, weight_decay=plan.weight_decay),
        "adamw": lambda p: torch.optim.AdamW(p, plan.lr, weight_decay=plan.weight_decay),
    }
    optimizer = kinds[plan.optimizer](module.parameters())
    site = (task.target, *task.sources)[client]
    generator = torch.Generator().manual_seed(seed)
    path = [start]
    for _ in range(plan.epochs):
        batches = torch.randperm(len(site), generator=generator).split(plan.batch_size)
        for rows in batches:
            if plan.drop_last and len(rows) < plan.batch_size:
                continue
            optimizer.zero_grad()
            functional.cross_entropy(module(site.x[rows]), site.y[rows]).backward()
            optimizer.step()
            path.append(parameter_vector(module))
    return torch.stack(path)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_flat_training_is_the_plain_loop(optimizer):
    task = blobs()
    plan = LocalPlan(optimizer, lr=0.05, batch_size=8, epochs=2, weight_decay=0.0)
    bench, start = bench_for(task)
    outcome, update = train(bench, start, plan)
    path = plain_loop(task, plan, seed=5)
    torch.testing.assert_close(update, path[-1] - path[0], rtol=1e-4, atol=1e-6)
    assert outcome.steps == len(path) - 1 == 10
    assert outcome.samples == 40
    assert outcome.time == pytest.approx(0.5)


def test_noise_is_that_of_the_batch_updates_of_the_first_epoch():
    task = blobs()
    for epochs in (1, 3):
        plan = LocalPlan(lr=0.05, batch_size=8, epochs=epochs, noise="size")
        bench, start = bench_for(task)
        outcome, _ = train(bench, start, plan)
        path = plain_loop(task, plan, seed=5).double()
        changes = path[1:6] - path[:5]
        batches = changes * outcome.steps
        spread = (batches - batches.mean(0)).square().sum() / (5 * 4)
        assert float(outcome.noise.sum()) == pytest.approx(float(spread), rel=1e-4)
        assert outcome.batches == 5


def test_a_sketch_comes_with_the_noise_when_asked_for():
    bench, start = bench_for(blobs(), sketch_size=4)
    outcome, _ = train(bench, start, LocalPlan(batch_size=8, noise="sketch"))
    assert outcome.sketches.shape == (4, len(bench.blocks), 2, 4)
    outcome, _ = train(bench, start, LocalPlan(batch_size=8))
    assert outcome.sketches is None
    assert outcome.noise is None


def test_one_batch_leaves_the_noise_open():
    bench, start = bench_for(blobs())
    outcome, _ = train(bench, start, LocalPlan(batch_size=64, noise="size"))
    assert outcome.batches == 1
    assert outcome.noise is None


def test_probe_is_the_mean_negative_gradient_without_a_step():
    task = blobs()
    bench, start = bench_for(task)
    plan = LocalPlan(batch_size=10)
    outcome, probe = train(bench, start, plan, kind="probe")
    module = bench.model
    module.zero_grad(set_to_none=False)
    functional.cross_entropy(module(task.sources[0].x), task.sources[0].y).backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    torch.testing.assert_close(probe, -gradient, rtol=1e-4, atol=1e-6)
    assert torch.equal(parameter_vector(module), start)
    assert outcome.batches == 4
    few, _ = train(bench, start, plan, kind="probe", max_batches=2)
    assert few.batches == 2


@pytest.mark.parametrize(
    ("samples", "drop_last", "steps"),
    [(100, False, 7), (100, True, 6), (10, True, 1), (96, True, 6), (1, False, 1)],
)
def test_steps_of_an_epoch(samples, drop_last, steps):
    assert LocalPlan(batch_size=16, drop_last=drop_last).total_steps(samples) == steps


def test_steps_replace_epochs_and_may_end_within_one():
    bench, start = bench_for(blobs())
    outcome, _ = train(bench, start, LocalPlan(batch_size=8, steps=7))
    assert outcome.steps == 7


def test_a_job_depends_on_its_seed_and_on_nothing_before_it():
    bench, start = bench_for(blobs())
    plan = LocalPlan(batch_size=8)
    _, first = train(bench, start, plan, seed=1)
    _, other = train(bench, start, plan, seed=2)
    torch.randn(3)
    _, again = train(bench, start, plan, seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_job_leaves_the_users_random_numbers_alone():
    bench, start = bench_for(blobs())
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train(bench, start, LocalPlan())
    assert torch.equal(torch.rand(2), expected)


def test_rows_restrict_training_to_them():
    task = blobs()
    bench, start = bench_for(task)
    rows = torch.tensor([0, 3, 6])
    outcome, some = train(bench, start, LocalPlan(batch_size=3), rows=rows)
    assert outcome.samples == 3
    site = task.sources[0]
    alone = replace(task, sources=(replace(site, x=site.x[rows], y=site.y[rows]),))
    bench, start = bench_for(alone)
    _, expected = train(bench, start, LocalPlan(batch_size=3))
    torch.testing.assert_close(some, expected)


def test_regression_minimises_the_squared_error():
    task = line()
    bench, start = bench_for(task, "linear")
    _, update = train(bench, start, LocalPlan(lr=0.05, epochs=30, batch_size=5))
    learned = start + update
    torch.testing.assert_close(learned[:3], torch.tensor([1.0, -2.0, 0.5]), atol=0.1, rtol=0)


def test_class_weights_ignore_a_class_of_weight_zero():
    task = blobs()
    bench, start = bench_for(task, "linear")
    rows = torch.nonzero(task.sources[0].y == 2).flatten()
    plan = LocalPlan(class_weights=(1.0, 1.0, 0.0))
    outcome, _ = train(bench, start, plan, rows=rows)
    assert "weight is 0" in outcome.failure  # no sample of this client counts


def test_a_batch_of_weight_zero_leaves_the_model_and_the_others_count():
    task = blobs()
    bench, start = bench_for(task, "linear")
    plan = LocalPlan(class_weights=(1.0, 1.0, 0.0), batch_size=1)
    outcome, some = train(bench, start, plan)
    assert outcome.failure is None
    assert bool((some != 0).any())


def test_buffers_come_back_and_start_from_those_given():
    fed = federation(model=Normed())
    outcome, _ = fed.do([fed.job(1, 1, fed.initial)], [fed.initial])
    assert int(outcome[0].buffers["norm.num_batches_tracked"]) == 5
    assert not torch.equal(outcome[0].buffers["norm.running_mean"], torch.zeros(2))
    again, _ = fed.do([fed.job(1, 1, fed.initial)], [fed.initial])
    assert torch.equal(
        again[0].buffers["norm.running_mean"], outcome[0].buffers["norm.running_mean"]
    )
    fed.close()


def test_frozen_statistics_are_those_that_training_and_prediction_normalise_by():
    model = Normed()
    model.norm.running_mean.copy_(torch.tensor([0.5, -1.0]))
    model.norm.running_var.copy_(torch.tensor([2.0, 0.25]))
    fed = federation(model=model, buffers="frozen", batch_size=8, epochs=2)
    (outcome,), rows = fed.do([fed.job(1, 1, fed.initial)], [fed.initial])
    for name, value in fed.initial.buffers.items():
        assert torch.equal(outcome.buffers[name], value)
    # by hand: an affine map of the rows, standardised by numbers that never change
    site = fed.task.sources[0]
    x = (site.x - torch.tensor([0.5, -1.0])) / (torch.tensor([2.0, 0.25]) + 1e-5).sqrt()
    parts = [p.detach().clone().requires_grad_() for p in model.parameters()]
    scale, shift, weight, bias = parts
    for batch in fed.bench.batches(fed.job(1, 1, fed.initial), 10):
        outputs = functional.linear(x[batch] * scale + shift, weight, bias)
        gradients = torch.autograd.grad(functional.cross_entropy(outputs, site.y[batch]), parts)
        with torch.no_grad():
            for part, gradient in zip(parts, gradients, strict=True):
                part -= 0.1 * gradient
    moved = torch.cat([part.detach().flatten() for part in parts]) - fed.initial.parameters
    torch.testing.assert_close(rows[0], moved, atol=1e-5, rtol=1e-4)
    assert bool((rows[0][:4] != 0).all())  # scale and shift learn, as in DomainBed


def test_frozen_statistics_need_no_second_row_in_a_batch():
    fed = federation(model=Normed(), buffers="frozen", batch_size=1)
    assert {len(rows) for rows in fed.bench.batches(fed.job(1, 1, fed.initial), 3)} == {1}
    usual = federation(model=Normed(), batch_size=1)
    assert {len(rows) for rows in usual.bench.batches(usual.job(1, 1, usual.initial), 3)} == {2}


def test_a_diverging_client_says_so_and_returns_nothing():
    bench, start = bench_for(line(), "linear")
    outcome, _ = train(bench, start, LocalPlan(lr=1e6, epochs=50))
    assert "NaN or Inf" in outcome.failure
    assert not outcome.lost


def test_a_model_that_raises_is_a_failure_of_its_client():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(2, 3)

        def forward(self, x):
            if self.training:
                raise RuntimeError("no memory left")
            return self.head(x)

    bench, start = bench_for(blobs(), Broken())
    outcome, _ = train(bench, start, LocalPlan())
    assert outcome.failure == "RuntimeError: no memory left"


def test_frozen_parameters_stay_put_even_with_weight_decay():
    task = blobs()
    torch.manual_seed(0)
    model = build_model("mlp:8", task)
    for parameter in model.features.parameters():
        parameter.requires_grad_(False)
    frozen = model.features[1].weight.clone()
    bench = Workbench(model, task)
    start = parameter_vector(model)
    assert bench.blocks.names == ("head.weight", "head.bias")
    train(bench, start, LocalPlan("adamw", weight_decay=0.5))
    assert torch.equal(model.features[1].weight, frozen)


@pytest.mark.parametrize(
    "wrong",
    [{"optimizer": "sdg"}, {"lr": 0.0}, {"lr": float("nan")}, {"batch_size": 0}, {"steps": 0}],
)
def test_plans_are_checked(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong)).replace("lr", "learning rate")):
        LocalPlan(**wrong)


def test_optimisers_are_made_anew():
    bench, start = bench_for(blobs(), "linear")
    (_, first), (_, second) = (train(bench, start, LocalPlan("adam")) for _ in range(2))
    assert torch.equal(first, second)
