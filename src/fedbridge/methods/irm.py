"""Invariant risk minimisation: features for which one head is best at every source.

If a head is best for source ``i``, scaling its outputs by ``w`` cannot help, so the slope of the
loss at ``w = 1`` is zero. IRMv1 punishes its square:

    1/N Σ_i [ ℓ_i + λ D_i² ] ,        D_i = d/dw ℓ_i(w · outputs) at w = 1 .

``D_i²`` of a batch would be too large on average by the variance of ``D_i``; the product of the
slopes of two half batches is not, and stands in for it (it may be negative). A batch of one row
has no halves and is squared.

The weight is ``λ = penalty`` from the first round after ``anneal`` steps, and at most 1 until then:
a model that has learnt nothing is invariant already and would stay so. The whole loss is divided
by a λ above 1, so that a large one means less of ``ℓ`` and not longer steps; plain gradient descent
lowers ``ℓ`` that much more slowly then, while Adam is indifferent. The history shows ``penalty``
(the mean of D_i² in a round's last step) and ``penalty_weight``. See ``generalisation`` for what
all of these methods share.

Arjovsky, Bottou, Gulrajani, Lopez-Paz: Invariant Risk Minimization, arXiv:1907.02893, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedbridge.base.options import check_number, check_whole
from fedbridge.methods.generalisation import Generalisation, batches_of, losses_of, together
from fedbridge.training.objective import Objective

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fedbridge.federation.federation import Federation
    from fedbridge.training.job import Outcome
    from fedbridge.training.objective import StepContext

PENALTY = 100.0
ANNEAL = 500


@dataclass(frozen=True)
class Invariant(Objective):
    """``1/N Σ_i [ℓ_i + λ D_i²]``, over ``max(1, λ)``."""

    weight: float

    def __call__(self, context: StepContext) -> Tensor:
        """The mean loss and the weighted mean penalty."""
        batches = batches_of(context)
        outputs = together(context.module, [batch.x for batch in batches])
        pairs = zip(outputs, batches, strict=True)
        penalties = [squared_slope(context.loss_of, answer, batch.y) for answer, batch in pairs]
        penalty = torch.stack(penalties).mean()
        context.told |= {"penalty": penalty.detach(), "penalty_weight": torch.tensor(self.weight)}
        return (losses_of(context, outputs).mean() + self.weight * penalty) / max(1.0, self.weight)


def squared_slope(
    loss_of: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, labels: Tensor
) -> Tensor:
    """An unbiased ``D²``: the product of the slopes of two half batches."""
    if len(outputs) == 1:
        return _slope(loss_of, outputs, labels).square()
    first, second = (_slope(loss_of, outputs[half::2], labels[half::2]) for half in (0, 1))
    return first * second


def _slope(loss_of: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, labels: Tensor) -> Tensor:
    scale = outputs.new_ones(()).requires_grad_()
    (slope,) = torch.autograd.grad(loss_of(scale * outputs, labels), scale, create_graph=True)
    return slope


class IRM(Generalisation):
    """Pooled sources, invariant risk: ``penalty`` 100 after ``anneal`` 500 steps.

    Options:
        penalty: weight of the gradients that tell sources apart (100).
        anneal: steps before the penalty sets in (500).
    """

    options: ClassVar[tuple[str, ...]] = ("penalty", "anneal")
    remembers: ClassVar[tuple[str, ...]] = ("steps",)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.penalty = check_number("penalty", options.get("penalty", PENALTY), least=0)
        self.anneal = check_whole("anneal", options.get("anneal", ANNEAL), least=0)
        self.steps = 0

    def objective(self, round: int, present: list[int]) -> Objective:
        """A mild penalty first, the whole of it later."""
        weight = self.penalty if self.steps >= self.anneal else min(1.0, self.penalty)
        return Invariant(weight)

    def heed(self, outcome: Outcome, present: list[int]) -> Tensor:
        """Count the steps."""
        self.steps += outcome.steps
        return super().heed(outcome, present)
