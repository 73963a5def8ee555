"""Empirical risk minimisation: one model for the mean loss of the sources, and nothing else.

The loss of a step is ``1/N Σ_i ℓ_i``. DomainBed found it hard to beat, which makes it the first
baseline of domain generalisation. See ``generalisation`` for what all of these methods share.

With one source it is ``source-only``, to the bit for a model without buffers (whose buffers are the
target's there, the pool's here). With several it differs: ``source-only`` averages models that were
trained apart, this trains one on the pool.

Vapnik: Statistical Learning Theory, Wiley 1998.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbridge.methods.generalisation import Generalisation, batches_of, losses_of, together
from fedbridge.objectives import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from fedbridge.objectives import Desk


@dataclass(frozen=True)
class MeanLoss(Objective):
    """``1/N Σ_i ℓ_i``."""

    def __call__(self, desk: Desk) -> Tensor:
        """The mean over sources of the loss on a batch of each."""
        outputs = together(desk.module, [batch.x for batch in batches_of(desk)])
        return losses_of(desk, outputs).mean()


class ERM(Generalisation):
    """Pooled sources, mean loss: the baseline of domain generalisation."""

    def objective(self, round: int, present: list[int]) -> Objective:
        """The same in every round."""
        return MeanLoss()
