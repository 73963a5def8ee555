"""The optimisers on one flat vector: the same arithmetic as ``torch.optim``, to the bit.

For a small model most of the time of ``torch.optim.Adam.step`` goes into looking after lists of
tensors, devices and hooks that a single vector does not have; without them a step of a small model
takes about two thirds of the time. ``tests/training/test_optimizers.py`` compares every step with
torch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedbridge.training.job import LocalPlan

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class FlatSGD:
    """``v ← μ v + g``, ``θ ← θ − η v`` with ``g`` the gradient plus ``weight_decay · θ``."""

    def __init__(self, plan: LocalPlan, parameters: Tensor, gradient: Tensor) -> None:
        self._parameters, self._gradient = parameters, gradient
        self._lr, self._weight_decay = plan.lr, plan.weight_decay
        self._momentum = plan.momentum if plan.optimizer == "momentum" else 0.0
        self._velocity: Tensor | None = None

    def _direction(self) -> Tensor:
        if not self._weight_decay:
            return self._gradient
        return self._gradient.add(self._parameters, alpha=self._weight_decay)

    def step(self) -> None:
        """One step."""
        direction = self._direction()
        if self._momentum:
            if self._velocity is None:
                self._velocity = direction.clone()
            else:
                self._velocity.mul_(self._momentum).add_(direction)
            direction = self._velocity
        self._parameters.add_(direction, alpha=-self._lr)


class FlatAdam(FlatSGD):
    """``m ← β₁ m + (1−β₁) g``, ``v ← β₂ v + (1−β₂) g²``, ``θ ← θ − η m̂ / (√v̂ + ε)``.

    ``m̂`` and ``v̂`` are corrected for their start at zero. AdamW shrinks the parameters themselves;
    else the decay is a part of the gradient.
    """

    def __init__(self, plan: LocalPlan, parameters: Tensor, gradient: Tensor) -> None:
        super().__init__(plan, parameters, gradient)
        self._shrink = 1.0
        if plan.optimizer == "adamw":
            self._shrink, self._weight_decay = 1 - plan.lr * plan.weight_decay, 0.0
        self._mean, self._square = torch.zeros_like(gradient), torch.zeros_like(gradient)
        self._length = torch.empty_like(gradient)
        self._steps = 0

    def step(self) -> None:
        """One step."""
        self._steps += 1
        if self._shrink != 1:
            self._parameters.mul_(self._shrink)
        direction = self._direction()
        self._mean.lerp_(direction, 1 - BETA1)
        self._square.mul_(BETA2).addcmul_(direction, direction, value=1 - BETA2)
        scale = (1 - BETA2**self._steps) ** 0.5
        length = torch.sqrt(self._square, out=self._length).div_(scale).add_(EPSILON)
        step_size = self._lr / (1 - BETA1**self._steps)
        self._parameters.addcdiv_(self._mean, length, value=-step_size)


def make_optimizer(plan: LocalPlan, parameters: Tensor, gradient: Tensor) -> FlatSGD:
    """The plan's optimiser over a vector and its gradient."""
    kind = FlatSGD if plan.optimizer in ("sgd", "momentum") else FlatAdam
    return kind(plan, parameters, gradient)
