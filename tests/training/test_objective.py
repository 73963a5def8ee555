"""Objectives: the training loop minimises what they say, and moves only what may move."""

from dataclasses import dataclass

import pytest
import torch
from small import blobs, federation
from torch import nn

import fedbridge as fb
from fedbridge.training.job import TARGET
from fedbridge.training.objective import Objective, Part, Proximal, Step


def change_of(fed, **job):
    outcomes, rows = fed.do([fed.job(1, TARGET, fed.initial, **job)], [fed.initial])
    assert outcomes[0].failure is None, outcomes[0].failure
    return rows[0].clone(), outcomes[0]


@dataclass(frozen=True)
class Shrink(Objective):
    """Half the squared length of the parameters, with no look at any row."""

    def __call__(self, context):
        context.told["length"] = context.flat.detach().norm()
        return context.flat.square().sum() / 2


@dataclass(frozen=True)
class SeesBeside(Objective):
    def __call__(self, context):
        context.told["sums"] = torch.stack([batch.x.sum() for batch in context.beside])
        context.told["count"] = torch.tensor(len(context.beside))
        return context.module(context.own.x).square().sum()


def test_a_loss_may_depend_on_the_parameters_directly():
    fed = federation(lr=0.5, steps_target=1)
    change, outcome = change_of(fed, objective=Shrink())
    torch.testing.assert_close(change, -0.5 * fed.initial.parameters)
    torch.testing.assert_close(outcome.told["length"], fed.initial.parameters.norm())


def test_the_pull_is_a_part_of_the_gradient():
    fed = federation(lr=0.5, steps_target=1)
    away = fed.initial.moved(torch.ones_like(fed.initial.parameters), {})
    fed.open(slots=2)
    (plain, pulled), rows = fed.do(
        [
            fed.job(1, TARGET, fed.initial),
            fed.job(1, TARGET, fed.initial, objective=Proximal(3.0), anchor=1),
        ],
        [fed.initial, away],
    )
    assert plain.failure is None
    assert pulled.failure is None
    torch.testing.assert_close(rows[1], rows[0] + 0.5 * 3.0)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize(("curvature", "penalty"), [(0.01, 1.0), (1.0, 0.3)])
def test_every_optimiser_ends_at_the_minimum_of_loss_and_pull(optimizer, curvature, penalty):
    """The loss k (w − 1)² and the pull λ w²/2 together are least at w = 2k / (2k + λ).

    A pull outside the gradient ends near 1/2 under Adam, whatever the curvature.
    """
    site = (torch.full((8, 1), curvature**0.5), torch.full((8, 1), curvature**0.5))
    task = fb.FederatedTask.from_arrays({"A": site}, target=site, test=site)
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    fed = federation(
        task, model=model, lr=0.02, optimizer=optimizer, steps_target=800, batch_size=8
    )
    change, _ = change_of(fed, objective=Proximal(penalty), anchor=0)
    least = 2 * curvature / (2 * curvature + penalty)
    assert float(fed.initial.parameters + change) == pytest.approx(least, rel=1e-3)


def test_only_the_named_stretches_move():
    fed = federation(weight_decay=0.1, optimizer="adam")
    change, _ = change_of(fed, moves=((1, 3),))
    assert bool((change[1:3] != 0).all())
    assert not bool(change[:1].any())
    assert not bool(change[3:].any())


def test_batches_of_other_sites_lie_beside_the_own():
    fed = federation(blobs(sources=2))
    _, outcome = change_of(fed, objective=SeesBeside(), beside=(1, 2))
    assert int(outcome.told["count"]) == 2
    assert float(outcome.told["sums"][0]) != float(outcome.told["sums"][1])


def test_a_failing_objective_is_the_clients_failure_and_nobody_elses():
    fed = federation()
    jobs = [fed.job(1, 1, fed.initial, objective=SeesBeside()), fed.job(1, 2, fed.initial)]
    outcomes, _ = fed.do(jobs, [fed.initial])
    assert outcomes[0].failure is not None
    assert outcomes[1].failure is None


@dataclass(frozen=True)
class OneAfterTheOther(Objective):
    """The parts go down on two losses by turns."""

    def __call__(self, context):
        return context.flat.square().sum() / 2

    @property
    def parts(self):
        return (Part(((1, 3),), 10.0),)

    def steps(self, context):
        yield Step(self(context))
        context.told["between"] = context.flat.detach().clone()
        yield Step(3 * self(context), (0,))
        yield Step(5 * self(context), (1,))


def test_parts_have_their_own_rate_and_move_when_it_is_their_turn():
    fed = federation(lr=0.01, steps_target=1)
    change, outcome = change_of(fed, objective=OneAfterTheOther())
    start = fed.initial.parameters
    rates = torch.full_like(start, 0.01)
    rates[1:3] = 0.1
    torch.testing.assert_close(outcome.told["between"], (1 - rates) * start)
    weights = torch.full_like(start, 5.0)
    weights[1:3] = 3.0
    torch.testing.assert_close(start + change, (1 - weights * rates) * (1 - rates) * start)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_part_that_waits_keeps_its_momentum(optimizer):
    fed = federation(lr=0.01, steps_target=4, optimizer=optimizer, weight_decay=0.1)
    change, _ = change_of(fed, objective=OneAfterTheOther())
    ends = []
    for cut, factors, lr in ((slice(1, 3), (1, 3), 0.1), (slice(3, None), (1, 5), 0.01)):
        entry = nn.Parameter(fed.initial.parameters[cut].clone())
        kind = torch.optim.SGD if optimizer == "momentum" else torch.optim.Adam
        more = {"momentum": 0.9} if optimizer == "momentum" else {}
        steps = kind([entry], lr=lr, weight_decay=0.1, **more)
        for _ in range(4):
            for factor in factors:
                entry.grad = factor * entry.detach()
                steps.step()
        ends.append((cut, entry.detach()))
    for cut, end in ends:
        torch.testing.assert_close((fed.initial.parameters + change)[cut], end)
