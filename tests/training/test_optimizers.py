"""Optimisers on a flat vector take the steps of torch.optim, to the bit."""

import pytest
import torch
from torch import nn

from fedbridge.training.job import OPTIMIZERS, LocalPlan
from fedbridge.training.optimizers import make_optimizer


def torchs(plan, parameter):
    if plan.optimizer in ("sgd", "momentum"):
        momentum = plan.momentum if plan.optimizer == "momentum" else 0.0
        return torch.optim.SGD(
            [parameter], lr=plan.lr, momentum=momentum, weight_decay=plan.weight_decay
        )
    kind = torch.optim.Adam if plan.optimizer == "adam" else torch.optim.AdamW
    return kind([parameter], lr=plan.lr, weight_decay=plan.weight_decay)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.03])
@pytest.mark.parametrize("lr", [0.001, 0.3])
def test_every_step_is_torchs(name, weight_decay, lr):
    plan = LocalPlan(optimizer=name, lr=lr, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1001, generator=generator)
    ours, theirs = start.clone(), nn.Parameter(start.clone())
    gradient = torch.zeros_like(ours)
    mine, other = make_optimizer(plan, ours, gradient), torchs(plan, theirs)
    for _ in range(20):
        gradient.copy_(torch.randn(1001, generator=generator))
        theirs.grad = gradient.clone()
        mine.step()
        other.step()
        assert torch.equal(ours, theirs.detach())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_moves_without_a_gradient(name):
    start = torch.randn(7)
    vector = start.clone()
    make_optimizer(LocalPlan(optimizer=name), vector, torch.zeros(7)).step()
    assert torch.equal(vector, start)
