"""KD3A: the sources' models vote on the target's unlabelled rows, and the target learns the vote.

In every round the sources train from the global model and send their models to the target. There:

- *Knowledge vote.* For a row ``x`` only models ``p_k(x)`` with ``max p_k(x) ≥ gate`` are heard.
  Each gives its confidence to its class, the class with most of it is the consensus, and the
  knowledge ``p(x)`` is the mean over its supporters, ``n_p(x)`` in number. Where nobody is heard,
  ``p(x)`` is the mean over all and counts for next to nothing. The gate rises linearly from
  ``gate`` to ``last_gate`` over ``gate_rounds`` rounds and then stays.
- *Consensus focus.* The vote of a set of sources has the quality ``Q(S) = Σ_x n_p(x) max p(x)``; a
  source is worth ``CF(k) = Q(S) − Q(S∖k)``, which is 0 for one that is never sure or never agrees.
- *Distillation.* The target trains on its unlabelled rows as one more domain, by
  ``n_p(x)/K · KL(p(x) ‖ f(x))``, with the sources' step size and batch size.
- *Aggregation.* ``θ = α_T θ_T + Σ_k α_k θ_k`` with ``α_T = n_T/(n_T + Σ n_k)`` (``n_T`` unlabelled
  rows) and ``α_k ∝ n_k CF(k)``; by samples alone in a round in which nobody is heard.
- *Batch-norm MMD.* The distance of means and second moments in front of every BatchNorm, over all
  domains, is smallest at their mean with the weights ``α``: the model takes those statistics
  (unless ``buffers`` are kept or frozen).

Different from the paper: ``n_p`` is divided by the number ``K`` of sources, so that the target's
steps do not grow with it; the quality counts only rows where somebody is heard, since tiny counts
of the others would only be noise in ``CF``.

The method is unsupervised: labels of the target are not looked at, unless ``labelled=True`` adds
the loss on its labelled rows to the distillation. The target is where the models meet: per source
one model crosses the network each way, and no row or prediction leaves the target.

Feng, You, Chen, Zhang, Zhu, Wu, Wu, Chen: KD3A: Unsupervised Multi-Source Decentralized Domain
Adaptation via Knowledge Distillation, ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional

from fedbridge.base.options import check_flag, check_number, check_whole
from fedbridge.federation.needs import Need
from fedbridge.methods.rule import listed
from fedbridge.methods.unsupervised import UnsupervisedMethod
from fedbridge.training.job import TARGET, Job
from fedbridge.training.objective import Batch, Objective, StepContext
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from fedbridge.federation.evidence import Gathered
    from fedbridge.federation.federation import Federation
    from fedbridge.federation.method import Record
    from fedbridge.training.state import State

GATE, LAST_GATE, GATE_ROUNDS = 0.8, 0.95, 50

UNHEARD = 0.001
"""Supporters that a row counts as having when no source is sure of it."""


@dataclass(frozen=True)
class Consensus:
    """What sources agree on.

    Attributes:
        knowledge: (n, C) class probabilities of every row.
        supporters: (n,) how many sources stand behind them; 0 where nobody was heard.
        quality: Q, the confidence behind all of it.
    """

    knowledge: Tensor
    supporters: Tensor
    quality: float

    @property
    def share(self) -> float:
        """Share of the rows that have a supporter."""
        return float((self.supporters > 0).double().mean())


def knowledge_vote(answers: Tensor, gate: float) -> Consensus:
    """The vote of sources with class probabilities ``answers`` (K, n, C)."""
    confidence, choice = answers.max(dim=2)
    heard = confidence >= gate
    ballots = functional.one_hot(choice, answers.shape[2]) * (confidence * heard)[..., None]
    most, winner = ballots.sum(dim=0).max(dim=1)
    agrees = heard & (choice == winner)
    supporters = agrees.sum(dim=0)
    agreed = (answers * agrees[..., None]).sum(dim=0) / supporters.clamp(min=1)[:, None]
    knowledge = torch.where(supporters[:, None] > 0, agreed, answers.mean(dim=0))
    return Consensus(knowledge, supporters, float(most.sum()))


def consensus_focus(answers: Tensor, gate: float) -> Tensor:
    """(K,) how much of the vote's quality is lost without each source."""
    everyone = torch.arange(len(answers))
    whole = knowledge_vote(answers, gate).quality
    rest = [knowledge_vote(answers[everyone != k], gate).quality for k in everyone]
    return (whole - torch.tensor(rest, dtype=torch.float64)).clamp(min=0)


@dataclass(frozen=True)
class Distillation(Objective):
    """Divergence from the consensus on the client's own (unlabelled) rows.

    Attributes:
        knowledge: (n, C) class probabilities of every row of the site.
        weight: (n,) what a row counts for.
    """

    knowledge: Tensor
    weight: Tensor

    def __call__(self, context: StepContext) -> Tensor:
        """Mean of weight x KL(knowledge ‖ model)."""
        return self.divergence(context.module, context.own)

    def divergence(self, model: nn.Module, batch: Batch) -> Tensor:
        """The same on a given batch."""
        device = batch.x.device
        learnt = self.knowledge[batch.rows].to(device)
        logs = model(batch.x).log_softmax(dim=1)
        apart = functional.kl_div(logs, learnt, reduction="none").sum(dim=1)
        return (self.weight[batch.rows].to(device) * apart).mean()


@dataclass(frozen=True)
class DistillationAndLabels(Distillation):
    """The same on unlabelled rows beside the client's own, whose labels count as well."""

    def __call__(self, context: StepContext) -> Tensor:
        """Loss on the labels and divergence."""
        labelled = context.loss_of(context.module(context.own.x), context.own.y)
        return labelled + self.divergence(context.module, context.beside[0])


class KD3A(UnsupervisedMethod):
    """The target learns from the sources' vote on its unlabelled rows; good voters weigh more.

    Options:
        gate: how sure a source must be to be heard, at the start (0.8).
        last_gate: the same at the end (0.95).
        gate_rounds: rounds from the one to the other (50).
        labelled: use the target's labels too (false).
    """

    options: ClassVar[tuple[str, ...]] = ("gate", "last_gate", "gate_rounds", "labelled")
    needs: ClassVar[tuple[Need, ...]] = (Need.CLASSES, Need.UNLABELLED)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.gate = check_number("gate", options.get("gate", GATE), least=0, most=1)
        last = options.get("last_gate", max(self.gate, LAST_GATE))
        self.last_gate = check_number("last_gate", last, least=self.gate, most=1)
        self.gate_rounds = check_whole(
            "gate_rounds", options.get("gate_rounds", GATE_ROUNDS), least=1
        )
        self.labelled = check_flag("labelled", options.get("labelled", False))

    def gate_of(self, round: int) -> float:
        """The confidence that a source needs to be heard in a round."""
        progress = min(1.0, (round - 1) / max(1, self.gate_rounds - 1))
        return self.gate + progress * (self.last_gate - self.gate)

    def learn(self, round: int, trained: Gathered, models: list[State], record: Record) -> None:
        """Let the sources vote, train the target on the vote, aggregate."""
        federation, gate = self.federation, self.gate_of(round)
        answers = self._answers(models)
        with one_thread():
            consensus = knowledge_vote(answers, gate)
            focus = consensus_focus(answers, gate)
        record.extra = {"gate": gate, "consensus": consensus.share}
        lesson = self._lesson(round, consensus, len(models))
        own, outcome = self.train_target(round, lesson, self.state, record)
        record.seconds_train += outcome.seconds
        if own is None:
            record.notes.append("the target was lost: the model stays as it was")
            return
        target_share, shares = self._shares(trained.source_indices, focus, record)
        record.beta = listed(shares, trained.source_indices, federation.n_sources)
        self.mix([own, *models], [target_share, *shares.tolist()])

    def _answers(self, models: list[State]) -> Tensor:
        """(K, n, C) class probabilities of every source's model for the unlabelled rows."""
        outputs = [self.federation.predict(model, self.unlabelled) for model in models]
        with one_thread():
            return torch.stack(outputs).double().softmax(dim=2)

    def _lesson(self, round: int, consensus: Consensus, sources: int) -> Job:
        """The target's training on the consensus, with the step and batch size of the sources."""
        federation = self.federation
        site = federation.site_for(Need.UNLABELLED)
        knowledge = consensus.knowledge.float()
        weight = consensus.supporters.clamp(min=UNHEARD).float() / sources
        plan = federation.settings.source_plan(warm=False)
        if not self.labelled:
            lesson = Distillation(knowledge, weight)
            return federation.job(round, site, self.state, plan=plan, objective=lesson)
        weights = federation.plan(TARGET, round).class_weights
        steps = plan.total_steps(len(knowledge))
        return federation.job(
            round,
            TARGET,
            self.state,
            plan=replace(plan, steps=steps, class_weights=weights),
            objective=DistillationAndLabels(knowledge, weight),
            beside=(site,),
        )

    def _shares(self, sources: list[int], focus: Tensor, record: Record) -> tuple[float, Tensor]:
        """Shares of the target's model and of every source's."""
        counts = self.federation.sample_counts(sources)[1:]
        worth = counts * focus
        if not bool(worth.any()):
            worth = counts
            record.notes.append("no source is sure of any row: sources count by their samples")
        own = len(self.unlabelled)
        target_share = own / (own + float(counts.sum()))
        return target_share, (1 - target_share) * worth / worth.sum()
