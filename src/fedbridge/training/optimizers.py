"""The optimisers on one flat vector: the same arithmetic as ``torch.optim``, to the bit.

For a small model most of the time of ``torch.optim.Adam.step`` goes into looking after lists of
tensors, devices and hooks that a single vector does not have; without them a step of a small model
takes about two thirds of the time. ``tests/training/test_optimizers.py`` compares every step with
torch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from fedbridge.training.job import LocalPlan

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Optimizer(Protocol):
    """Moves the parameters by their gradient."""

    def step(self) -> None:
        """One step."""


class FlatSGD:
    """``v ← μ v + g``, ``θ ← θ − η v`` with ``g`` the gradient plus ``weight_decay · θ``."""

    def __init__(
        self,
        parameters: Tensor,
        gradient: Tensor,
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self._parameters, self._gradient = parameters, gradient
        self._lr, self._momentum, self._weight_decay = lr, momentum, weight_decay
        self._velocity: Tensor | None = None

    @torch.no_grad()
    def step(self) -> None:
        """One step."""
        direction = self._gradient
        if self._weight_decay:
            direction = direction.add(self._parameters, alpha=self._weight_decay)
        if self._momentum:
            if self._velocity is None:
                self._velocity = direction.clone()
            else:
                self._velocity.mul_(self._momentum).add_(direction)
            direction = self._velocity
        self._parameters.add_(direction, alpha=-self._lr)


class FlatAdam:
    """``m ← β₁ m + (1−β₁) g``, ``v ← β₂ v + (1−β₂) g²``, ``θ ← θ − η m̂ / (√v̂ + ε)``.

    ``m̂`` and ``v̂`` are corrected for their start at zero. ``decoupled`` (AdamW) shrinks the
    parameters themselves; else the decay is a part of the gradient.
    """

    def __init__(
        self,
        parameters: Tensor,
        gradient: Tensor,
        *,
        lr: float,
        weight_decay: float,
        decoupled: bool,
    ) -> None:
        self._parameters, self._gradient = parameters, gradient
        self._lr, self._weight_decay, self._decoupled = lr, weight_decay, decoupled
        self._mean = torch.zeros_like(gradient)
        self._square = torch.zeros_like(gradient)
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:
        """One step."""
        self._steps += 1
        direction = self._gradient
        if self._weight_decay and self._decoupled:
            self._parameters.mul_(1 - self._lr * self._weight_decay)
        elif self._weight_decay:
            direction = direction.add(self._parameters, alpha=self._weight_decay)
        self._mean.lerp_(direction, 1 - BETA1)
        self._square.mul_(BETA2).addcmul_(direction, direction, value=1 - BETA2)
        scale = (1 - BETA2**self._steps) ** 0.5
        length = (self._square.sqrt() / scale).add_(EPSILON)
        step_size = self._lr / (1 - BETA1**self._steps)
        self._parameters.addcdiv_(self._mean, length, value=-step_size)


def make_optimizer(plan: LocalPlan, parameters: Tensor, gradient: Tensor) -> Optimizer:
    """The plan's optimiser over a vector and its gradient."""
    if plan.optimizer in ("sgd", "momentum"):
        momentum = plan.momentum if plan.optimizer == "momentum" else 0.0
        return FlatSGD(
            parameters, gradient, lr=plan.lr, momentum=momentum, weight_decay=plan.weight_decay
        )
    return FlatAdam(
        parameters,
        gradient,
        lr=plan.lr,
        weight_decay=plan.weight_decay,
        decoupled=plan.optimizer == "adamw",
    )
