"""Group DRO: a model that is good at its worst source.

The loss is ``max_q Σ_i q_i ℓ_i`` over shares ``q``; every step moves the shares a little towards
the sources with a large loss, then the model against them:

    q_i ← q_i exp(η ℓ_i) / Σ_j q_j exp(η ℓ_j) ,        loss = Σ_i q_i ℓ_i .

Shares start equal and are kept over rounds, as logarithms, so that none is lost to rounding. A
source that misses a round keeps its share; those present move theirs among themselves. The paper
draws one source per step and may correct losses for the number of rows; as in DomainBed all
sources are drawn and nothing is corrected. See ``generalisation`` for what all of these methods
share.

Sagawa, Koh, Hashimoto, Liang: Distributionally Robust Neural Networks for Group Shifts: On the
Importance of Regularization for Worst-Case Generalization, ICLR 2020.
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
    from collections.abc import Mapping

    from fedbridge.federation.federation import Federation
    from fedbridge.training.job import Outcome
    from fedbridge.training.objective import StepContext

STEP_SIZE = 0.01
LOG_SHARES = "log_shares"


@dataclass(frozen=True)
class WorstGroup(Objective):
    """``Σ_i q_i ℓ_i`` with shares that follow the losses.

    Attributes:
        log_shares: (N,) ``log q`` at the job's start.
        step_size: η.
    """

    log_shares: Tensor
    step_size: float

    def __call__(self, context: StepContext) -> Tensor:
        """Move the shares, then weigh the losses by them."""
        outputs = together(context.module, [batch.x for batch in batches_of(context)])
        losses = losses_of(context, outputs)
        before = context.told.get(LOG_SHARES, self.log_shares.to(losses.device))
        after = torch.log_softmax(before + self.step_size * losses.detach(), dim=0)
        context.told[LOG_SHARES] = after
        return after.exp() @ losses


class GroupDRO(Generalisation):
    """Pooled sources, worst source first: shares follow the losses, ``step_size`` 0.01.

    Options:
        step_size: how fast shares follow the losses (0.01).
    """

    options: ClassVar[tuple[str, ...]] = ("step_size",)
    remembers: ClassVar[tuple[str, ...]] = ("log_shares",)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.step_size = check_number("step_size", options.get("step_size", STEP_SIZE), least=0)
        self.log_shares = torch.zeros(federation.n_sources).log_softmax(0)

    def objective(self, round: int, present: list[int]) -> Objective:
        """The shares so far, among the sources that are there."""
        return WorstGroup(self.log_shares[_places(present)].log_softmax(0), self.step_size)

    def heed(self, outcome: Outcome, present: list[int]) -> Tensor:
        """Keep the shares; sources that are not there keep theirs."""
        places, found = _places(present), outcome.told[LOG_SHARES]
        self.log_shares = self.log_shares.clone()
        self.log_shares[places] = self.log_shares[places].logsumexp(0) + found
        return found.exp()


def _places(clients: list[int]) -> Tensor:
    """Where the sources with these numbers stand among all sources."""
    return torch.tensor(clients) - 1
