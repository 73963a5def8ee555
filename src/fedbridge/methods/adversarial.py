"""Pieces of adversarial training: parts of a network that pull in opposite directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from torch import Tensor


class _Reversal(torch.autograd.Function):
    """Identity on the way forward; the gradient comes back with its sign changed."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradients[0], None


def reverse_gradient(values: Tensor, strength: float = 1.0) -> Tensor:
    """The values as they are; what lies before them learns the opposite of what follows.

    Ganin et al.: Domain-Adversarial Training of Neural Networks, JMLR 2016.
    """
    return cast("Tensor", _Reversal.apply(values, strength))  # type: ignore[no-untyped-call]


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy ``−Σ_c p_c log p_c`` of the predictions, in nats."""
    logs = logits.log_softmax(dim=1)
    return -(logs.exp() * logs).sum(dim=1).mean()
