"""Domain generalisation: learn from several sources what should hold at a target never seen.

The methods ``erm``, ``irm``, ``group-dro``, ``mixup`` and ``coral`` share this file's training and
differ in their objective. It is the pooled form of the literature (DomainBed: Gulrajani,
Lopez-Paz: In Search of Lost Domain Generalization, ICLR 2021): every step draws a batch of every
source, and the loss of source ``i`` on its batch is ``ℓ_i``. So the sources' rows must lie in one
place, which no federation allows: these methods are bounds to compare with, not ways to train
one, and no bytes are counted for them. The target trains nothing and its labels play no part.

A round takes as many steps as FedAvg's largest source takes; smaller sources go through their
rows again. Every source counts the same, whatever its number of rows, as in ``source-only``.

The plainest is here as well: ``erm``, empirical risk minimisation, one model for the mean loss
``1/N Σ_i ℓ_i`` of the sources. DomainBed found it hard to beat, which makes it the first baseline.
With one source it is ``source-only``, to the bit for a model without buffers (whose buffers are the
target's there, the pool's here). With several it differs: ``source-only`` averages models that were
trained apart, this trains one on the pool.

Vapnik: Statistical Learning Theory, Wiley 1998.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedbridge.federation.evidence import Gathered
from fedbridge.federation.method import Method, Record
from fedbridge.federation.needs import Need
from fedbridge.training.objective import Objective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from fedbridge.federation.federation import Federation
    from fedbridge.training.job import LocalPlan, Outcome
    from fedbridge.training.objective import Batch, StepContext


class Generalisation(Method):
    """Training on the rows of all sources in one place, without the target."""

    needs: ClassVar[tuple[Need, ...]] = (Need.POOLED,)

    @abstractmethod
    def objective(self, round: int, present: list[int]) -> Objective:
        """What the pool minimises; ``present`` are the numbers of the sources that are there."""

    def heed(self, outcome: Outcome, present: list[int]) -> Tensor:
        """Keep what the training reports; the share of every source present in the loss."""
        return torch.full((len(present),), 1.0 / len(present))

    def room(self) -> tuple[int, int]:
        """One training."""
        return 1, 1

    def run_round(self, round: int) -> Record:
        """One training of the pool: the first source with a batch of every other beside it."""
        federation, begun = self.federation, time.perf_counter()
        present, missing = federation.present(round, with_target=False)
        record = Record(failures=missing)
        if not present:
            record.notes.append("no source is there: the model stays as it was")
            return record
        first, *others = present
        job = federation.job(
            round,
            first,
            self.state,
            plan=pooled_plan(federation, round, present),
            objective=self.objective(round, present),
            beside=tuple(others),
        )
        (outcome,), rows = federation.do([job], [self.state])
        record.seconds_train = time.perf_counter() - begun
        if outcome.failure is not None:
            record.failures |= {federation.name_of(client): outcome.failure for client in present}
            record.notes.append("the pooled training failed: the model stays as it was")
            return record
        shares = self.heed(outcome, present).tolist()
        by_client = dict(zip(present, shares, strict=True))
        record.beta = [by_client.get(index + 1) for index in range(federation.n_sources)]
        record.extra |= {k: float(v) for k, v in outcome.told.items() if v.ndim == 0}
        pooled = Gathered(rows, None, ((first - 1, outcome),), {})
        self.state = federation.averaged(self.state, pooled)
        return record


def pooled_plan(federation: Federation, round: int, sources: list[int], *others: int) -> LocalPlan:
    """How a pool trains: as the first source does, in as many steps as the largest takes."""
    first, *rest = sources
    plan = federation.plan(first, round, beside=[*rest, *others])
    largest = max(len(federation.bench.sites[client]) for client in sources)
    return replace(plan, steps=plan.total_steps(largest))


def batches_of(context: StepContext) -> tuple[Batch, ...]:
    """A batch of every source."""
    return context.own, *context.beside


def together(module: nn.Module, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Outputs for the rows of several sources, in one pass: BatchNorm sees all of them at once."""
    outputs = module(torch.cat([*parts]))
    return torch.split(outputs, [len(part) for part in parts])


def losses_of(context: StepContext, outputs: Sequence[Tensor]) -> Tensor:
    """(N,) the loss of every source, given its outputs."""
    pairs = zip(outputs, batches_of(context), strict=True)
    return torch.stack([context.loss_of(answer, batch.y) for answer, batch in pairs])


@dataclass(frozen=True)
class MeanLoss(Objective):
    """``1/N Σ_i ℓ_i``."""

    def __call__(self, context: StepContext) -> Tensor:
        """The mean over sources of the loss on a batch of each."""
        outputs = together(context.module, [batch.x for batch in batches_of(context)])
        return losses_of(context, outputs).mean()


class ERM(Generalisation):
    """Pooled sources, mean loss: the baseline of domain generalisation."""

    def objective(self, round: int, present: list[int]) -> Objective:
        """The same in every round."""
        return MeanLoss()
