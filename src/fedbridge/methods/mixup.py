"""Mixup between domains: rows between the rows of two sources, with labels in between as well.

In every step the sources are paired at random in a ring, ``j`` after ``i``, and every pair draws
``λ ~ Beta(α, α)``:

    1/N Σ_i [ λ ℓ(f(x̃), y_i) + (1 − λ) ℓ(f(x̃), y_j) ] ,        x̃ = λ x_i + (1 − λ) x_j .

For the squared error this is the loss on mixed values, up to a constant. ``alpha = 0`` means λ = 1
and gives ``erm``. Here ``i`` keeps all its rows, and those of ``j`` are drawn in a new order (again
from the start if they are too few), so that one source alone is mixed with itself as in the first
paper. See ``generalisation`` for what all of these methods share.

Zhang, Cisse, Dauphin, Lopez-Paz: mixup: Beyond Empirical Risk Minimization, ICLR 2018.
Yan, Song, Li, Zou, Ren: Improve Unsupervised Domain Adaptation with Mixup Training,
arXiv:2001.00677, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedbridge.base.options import check_number
from fedbridge.methods.generalisation import Generalisation, batches_of, losses_of, together
from fedbridge.training.objective import Objective

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbridge.federation.federation import Federation
    from fedbridge.training.objective import Batch, StepContext

ALPHA = 0.2


@dataclass(frozen=True)
class Mixed(Objective):
    """``1/N Σ_i [λ ℓ(f(x̃), y_i) + (1 − λ) ℓ(f(x̃), y_j)]``."""

    alpha: float

    def __call__(self, context: StepContext) -> Tensor:
        """The loss on mixtures of every source with another."""
        batches = batches_of(context)
        others = partners(batches)
        ours = draw_shares(self.alpha, len(batches))
        parts = zip(ours.tolist(), batches, others, strict=True)
        inputs = [share * batch.x + (1 - share) * x for share, batch, (x, _) in parts]
        outputs = together(context.module, inputs)
        pairs = zip(outputs, others, strict=True)
        theirs = torch.stack([context.loss_of(answer, y) for answer, (_, y) in pairs])
        ours = ours.to(theirs)
        return (ours * losses_of(context, outputs) + (1 - ours) * theirs).mean()


def partners(batches: Sequence[Batch]) -> list[tuple[Tensor, Tensor]]:
    """For every batch, as many rows and labels of the next source in a random ring."""
    ring = torch.randperm(len(batches)).tolist()
    after = dict(zip(ring, ring[1:] + ring[:1], strict=True))
    found = []
    for place, batch in enumerate(batches):
        other = batches[after[place]]
        order = torch.randperm(len(other.y))[torch.arange(len(batch.y)) % len(other.y)]
        order = order.to(other.y.device)
        found.append((other.x[order], other.y[order]))
    return found


def draw_shares(alpha: float, count: int) -> Tensor:
    """(count,) ``λ ~ Beta(α, α)``, and 1 for ``α = 0``."""
    if alpha == 0:
        return torch.ones(count)
    both = torch.full((count,), alpha, dtype=torch.float64)
    return torch.distributions.Beta(both, both).sample()


class Mixup(Generalisation):
    """Pooled sources, mixed in pairs: shares from Beta(``alpha``, ``alpha``), 0.2.

    Options:
        alpha: of the Beta distribution of the shares in a pair (0.2).
    """

    options: ClassVar[tuple[str, ...]] = ("alpha",)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.alpha = check_number("alpha", options.get("alpha", ALPHA), least=0)

    def objective(self, round: int, present: list[int]) -> Objective:
        """The same in every round."""
        return Mixed(self.alpha)
