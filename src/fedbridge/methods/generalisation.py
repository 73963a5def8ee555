"""Domain generalisation: learn from several sources what should hold at a target never seen.

``erm``, ``irm``, ``group-dro``, ``mixup`` and ``coral`` share one training and differ in their
objective. It is the pooled form of the literature (DomainBed: Gulrajani,
Lopez-Paz: In Search of Lost Domain Generalization, ICLR 2021): every step draws a batch of every
source, and the loss of source ``i`` on its batch is ``ℓ_i``. So the sources' rows must lie in one
place, which no federation allows: these methods are bounds to compare with, not ways to train
one, and no bytes are counted for them. The target trains nothing and its labels play no part.

A round takes as many steps as FedAvg's largest source takes; smaller sources go through their
rows again. Every source counts the same, whatever its number of rows, as in ``source-only``.

Read beside DomainBed's code (facebookresearch/DomainBed): losses, penalties and the defaults of all
options are the same. Different for all five: theirs is one long training by Adam, ours the run's
optimiser, made anew in every round; all sources go through the network in one pass, which DomainBed
does for ``erm`` and ``irm`` only (it matters to BatchNorm alone).

The plainest is here as well: ``erm``, empirical risk minimisation, one model for the mean loss
``1/N Σ_i ℓ_i`` of the sources. DomainBed found it hard to beat, which makes it the first baseline.
With one source it is ``source-only``, to the bit. With several it differs: ``source-only`` averages
models that were trained apart, this trains one on the pool.

Vapnik: Statistical Learning Theory, Wiley 1998.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from fedbridge.base.options import check_number, check_whole
from fedbridge.federation.evidence import Gathered
from fedbridge.federation.method import Method, Record
from fedbridge.federation.needs import Need
from fedbridge.models import split_model
from fedbridge.training.objective import Batch, Objective, StepContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fedbridge.federation.federation import Federation
    from fedbridge.training.job import LocalPlan, Outcome

LOG_SHARES = "log_shares"
STAGE_PURPOSE = 400
"""Batches of a round's second training come in another order than those of its first."""


class Generalisation(Method):
    """Training on the rows of all sources in one place, without the target."""

    needs: ClassVar[tuple[Need, ...]] = (Need.POOLED,)
    bound_by: ClassVar[str] = "every step draws rows of several sites, which must lie in one place"

    @abstractmethod
    def objective(self, round: int, present: list[int]) -> Objective:
        """What the pool minimises; ``present`` are the numbers of the sources that are there."""

    def stages(self, steps: int) -> list[int]:
        """Steps of the trainings that a round consists of, each with an optimiser of its own."""
        return [steps]

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
        plan = pooled_plan(federation, round, present)
        for stage, steps in enumerate(self.stages(plan.total_steps(1))):
            purpose = STAGE_PURPOSE + stage if stage else None
            self._train(round, present, replace(plan, steps=steps), purpose, record)
        record.seconds_train = time.perf_counter() - begun
        return record

    def _train(
        self, round: int, present: list[int], plan: LocalPlan, purpose: int | None, record: Record
    ) -> None:
        """One training of the pool, if none before it has failed."""
        if any(client in record.failures for client in map(self.federation.name_of, present)):
            return
        federation, (first, *others) = self.federation, present
        job = federation.job(
            round,
            first,
            self.state,
            plan=plan,
            purpose=purpose,
            objective=self.objective(round, present),
            beside=tuple(others),
        )
        (outcome,), rows = federation.do([job], [self.state])
        if outcome.failure is not None:
            record.failures |= {federation.name_of(client): outcome.failure for client in present}
            record.notes.append("the pooled training failed: the model stays as it was")
            return
        shares = self.heed(outcome, present).tolist()
        by_client = dict(zip(present, shares, strict=True))
        record.beta = [by_client.get(index + 1) for index in range(federation.n_sources)]
        record.extra |= {k: float(v) for k, v in outcome.told.items() if v.ndim == 0}
        pooled = Gathered(rows, None, ((first - 1, outcome),), {})
        self.state = federation.averaged(self.state, pooled)


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

    Features for which one head is best at every source. If a head is best for source ``i``, scaling
    its outputs by ``w`` cannot help, so the slope of the loss at ``w = 1`` is zero. IRMv1 punishes
    its square:

        1/N Σ_i [ ℓ_i + λ D_i² ] ,        D_i = d/dw ℓ_i(w · outputs) at w = 1 .

    ``D_i²`` of a batch would be too large on average by the variance of ``D_i``; the product of the
    slopes of two half batches is not, and stands in for it (it may be negative). A batch of one row
    has no halves and is squared.

    The weight is ``λ = penalty`` after ``anneal`` steps, and at most 1 until then: a model that has
    learnt nothing is invariant already and would stay so. At that very step the optimiser starts
    anew, as in DomainBed, since what it has learnt of gradients is no longer true: a round in which
    the step falls is two trainings. The whole loss is divided by a λ above 1, as in the authors'
    code but not in DomainBed's, so that a large one means less of ``ℓ`` and not longer steps; plain
    gradient descent lowers ``ℓ`` that much more slowly then, while Adam is indifferent. The history
    shows ``penalty`` (the mean of D_i² in a round's last step) and ``penalty_weight``.

    Arjovsky, Bottou, Gulrajani, Lopez-Paz: Invariant Risk Minimization, arXiv:1907.02893, 2019.

    Options:
        penalty: weight of the gradients that tell sources apart (100).
        anneal: steps before the penalty sets in (500).
    """

    options: ClassVar[tuple[str, ...]] = ("penalty", "anneal")
    remembers: ClassVar[tuple[str, ...]] = ("steps",)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.penalty = check_number("penalty", options.get("penalty", 100.0), least=0)
        self.anneal = check_whole("anneal", options.get("anneal", 500), least=0)
        self.steps = 0

    def objective(self, round: int, present: list[int]) -> Objective:
        """A mild penalty first, the whole of it later."""
        weight = self.penalty if self.steps >= self.anneal else min(1.0, self.penalty)
        return Invariant(weight)

    def stages(self, steps: int) -> list[int]:
        """Up to the step at which the penalty is switched on, and from there on."""
        mild = self.anneal - self.steps
        return [mild, steps - mild] if 0 < mild < steps else [steps]

    def heed(self, outcome: Outcome, present: list[int]) -> Tensor:
        """Count the steps."""
        self.steps += outcome.steps
        return super().heed(outcome, present)


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

    A model that is good at its worst source. The loss is ``max_q Σ_i q_i ℓ_i`` over shares ``q``;
    every step moves the shares a little towards the sources with a large loss, then the model
    against them:

        q_i ← q_i exp(η ℓ_i) / Σ_j q_j exp(η ℓ_j) ,        loss = Σ_i q_i ℓ_i .

    Shares start equal and are kept over rounds, as logarithms, so that none is lost to rounding. A
    source that misses a round keeps its share; those present move theirs among themselves. The
    paper draws one source per step and may correct losses for the number of rows; as in DomainBed
    all sources are drawn and nothing is corrected (DomainBed's very first shares are 1, not 1/N,
    which its first step's division makes the same).

    Sagawa, Koh, Hashimoto, Liang: Distributionally Robust Neural Networks for Group Shifts: On the
    Importance of Regularization for Worst-Case Generalization, ICLR 2020.

    Options:
        step_size: how fast shares follow the losses (0.01).
    """

    options: ClassVar[tuple[str, ...]] = ("step_size",)
    remembers: ClassVar[tuple[str, ...]] = ("log_shares",)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.step_size = check_number("step_size", options.get("step_size", 0.01), least=0)
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

    Rows between the rows of two sources, with labels in between as well. In every step the sources
    are paired at random in a ring, ``j`` after ``i``, and every pair draws ``λ ~ Beta(α, α)``:

        1/N Σ_i [ λ ℓ(f(x̃), y_i) + (1 − λ) ℓ(f(x̃), y_j) ] ,        x̃ = λ x_i + (1 − λ) x_j .

    For the squared error this is the loss on mixed values, up to a constant. ``alpha = 0`` means λ
    = 1 and gives ``erm``. Here ``i`` keeps all its rows, and those of ``j`` are drawn in a new
    order (again from the start if they are too few), so that one source alone is mixed with itself
    as in the first paper; DomainBed cuts both batches to the smaller and keeps their order.

    Zhang, Cisse, Dauphin, Lopez-Paz: mixup: Beyond Empirical Risk Minimization, ICLR 2018.
    Yan, Song, Li, Zou, Ren: Improve Unsupervised Domain Adaptation with Mixup Training,
    arXiv:2001.00677, 2020.

    Options:
        alpha: of the Beta distribution of the shares in a pair (0.2).
    """

    options: ClassVar[tuple[str, ...]] = ("alpha",)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.alpha = check_number("alpha", options.get("alpha", 0.2), least=0)

    def objective(self, round: int, present: list[int]) -> Objective:
        """The same in every round."""
        return Mixed(self.alpha)


@dataclass(frozen=True)
class Aligned(Objective):
    """The mean loss, and ``penalty`` times how far the features of the sources are apart."""

    penalty: float

    def __call__(self, context: StepContext) -> Tensor:
        """One pass through the features, one through the head."""
        features, head = split_model(context.module)
        clouds = together(features, [batch.x for batch in batches_of(context)])
        apart = moments_apart([cloud.flatten(1) for cloud in clouds])
        context.told["penalty"] = apart.detach()
        return losses_of(context, together(head, clouds)).mean() + self.penalty * apart


def moments_apart(clouds: Sequence[Tensor]) -> Tensor:
    """Mean over pairs of clouds of how far their means and covariances are apart."""
    moments = [(cloud.mean(0), covariance(cloud)) for cloud in clouds]
    pairs = [
        (mean - other_mean).square().mean() + (spread - other_spread).square().mean()
        for (mean, spread), (other_mean, other_spread) in combinations(moments, 2)
    ]
    return torch.stack(pairs).mean() if pairs else clouds[0].new_zeros(())


def covariance(cloud: Tensor) -> Tensor:
    """(d, d) covariance of the rows; 0 for a single row."""
    centred = cloud - cloud.mean(0)
    return centred.T @ centred / max(len(cloud) - 1, 1)


class CORAL(Generalisation):
    """Pooled sources, features with equal means and covariances: ``penalty`` 1.

    With ``m_i`` and ``C_i`` the mean and covariance of the ``d`` features of source ``i``'s batch,

        1/N Σ_i ℓ_i + λ · mean over pairs i < j of ( ‖m_i − m_j‖² / d + ‖C_i − C_j‖² / d² ) .

    The paper aligns the covariances of one source and a target and divides by ``4 d²``; this is
    DomainBed's form for several sources, means included. A batch of one row has covariance 0. The
    history shows ``penalty``, the mean over pairs in a round's last step.

    Sun, Saenko: Deep CORAL: Correlation Alignment for Deep Domain Adaptation, ECCV Workshops 2016.

    Options:
        penalty: weight of the difference of means and covariances (1).
    """

    options: ClassVar[tuple[str, ...]] = ("penalty",)
    needs: ClassVar[tuple[Need, ...]] = (Need.POOLED, Need.FEATURES)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.penalty = check_number("penalty", options.get("penalty", 1.0), least=0)

    def objective(self, round: int, present: list[int]) -> Objective:
        """The same in every round."""
        return Aligned(self.penalty)
