"""KD3A: the sources' models vote on the target's unlabelled rows, and the target learns the vote.

In every round the sources train from the global model and send their models to the target. There:

- *Knowledge vote.* For a row ``x`` only models ``p_k(x)`` with ``max p_k(x) > gate`` are heard
  (where none is, all are). Each gives its confidence to its class, and the class ``c(x)`` with most
  of it is the consensus. The gate rises linearly from ``gate`` to ``last_gate``.
- *Distillation.* The target trains on its unlabelled rows as one more domain, on mixtures of the
  rows of a batch, ``x̃ = λ x + (1 − λ) x′`` with ``λ ~ Beta(2, 2)`` once per batch:

      w(x) · CE(f(x̃), λ 1[c(x)] + (1 − λ) 1[c(x′)]) ,    w(x) = 1 if somebody is heard on x, else 0.

- *Consensus focus.* The vote of a set ``S`` of sources is worth ``Q(S)``, the confidence behind
  ``c(x)`` summed over the rows on which one of them is heard. A source's focus is its mean
  contribution over all sets of the others (Shapley's value),

      CF(k) = Σ_{S ∌ k} |S|! (K − |S| − 1)! / K! · [Q(S ∪ k) − Q(S)] .

- *Aggregation.* ``θ = α_T θ_T + Σ_k α_k θ_k`` with ``α_T = heard/(K + 1)`` (``heard`` is the share
  of rows with ``w = 1``) and ``α_k ∝ CF(k)`` (all alike in a round in which nobody is heard). The
  shares are kept, and follow those of a round by ``α ← 0.9 α + 0.1 α_round``.
- *Batch-norm MMD.* The distance of means and second moments in front of every BatchNorm, over all
  domains, is smallest at their mean with the weights ``α``: the model takes those statistics
  (unless ``buffers`` are kept or frozen). A model without BatchNorm has none, and this part falls
  away.
- *Schedule.* Learning rates of all domains fall by a cosine to ``last_lr`` of what they were.

The method is unsupervised: labels of the target are not looked at, unless ``labelled=True`` (ours)
adds the loss on its labelled rows to the distillation and counts all its rows as heard. The target
is where the models meet, as in the paper, over a network too (``Vote``): per source one model goes
to it in a round, and what leaves it is its own update, every source's focus and ``heard``; no row
and no prediction. What is mixed of these, and by which shares, the coordinator does.

The authors' text and their code (github.com/FengHZ/KD3A) differ. Ours is the code, but for the
first two points:

- Whole models are averaged, as in the text; the code averages feature extractors, and every domain
  has a classifier of its own that starts by itself: ``heads="own"`` (here they start alike).
- BatchNorm's variances are pooled with what lies between the means, as in the text; the code takes
  the mean of the variances. It also votes with the sources' BatchNorm in training mode, so that
  their statistics take in the target's batches; here a source votes as it was trained, once per
  row before the target's training.
- In the text the target learns the mean probabilities of those who agree, weighed by their number
  (``labels="soft"``, divided by ``K`` so that steps do not grow with it), a source's focus is what
  all lose without it (``focus="leave-one-out"``, which costs K + 1 votes instead of 2^K; taken by
  itself for more than 10 sources), and shares go by samples (``weights="samples"``): ``α_T`` times
  ``n_T (K + 1)/(n_T + Σ n_k)`` and ``α_k ∝ n_k CF(k)``. In the code all domains have as many rows.
- The code's momentum of the optimiser lives through rounds, ours through one; its gates are 0.8 or
  0.9 at the start, by data set; its learning rate falls one round later; it rounds shares to four
  digits and mixes no rows of text (``mixup=0``).

Feng, You, Chen, Zhang, Zhu, Wu, Wu, Chen: KD3A: Unsupervised Multi-Source Decentralized Domain
Adaptation via Knowledge Distillation, ICML 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional

from fedbridge.base.options import check_choice, check_flag, check_number, check_whole
from fedbridge.federation.needs import Need
from fedbridge.methods.generalisation import draw_shares
from fedbridge.methods.rule import listed
from fedbridge.methods.unsupervised import UnsupervisedMethod
from fedbridge.models import head_slices
from fedbridge.training.job import TARGET, Job, LocalPlan
from fedbridge.training.objective import Ask, AskModel, Batch, Objective, StepContext
from fedbridge.training.state import Slices, State, put

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from fedbridge.federation.evidence import Gathered
    from fedbridge.federation.federation import Federation
    from fedbridge.federation.method import Record

GATE, LAST_GATE, LAST_LR, SCHEDULE = 0.8, 0.95, 0.02, 50
MIXUP, MOMENTUM = 2.0, 0.9
CHOICES = {
    "focus": ("subsets", "leave-one-out"),
    "labels": ("one-hot", "soft"),
    "heads": ("mean", "own"),
}
"""Options that are words, the usual one first."""

MODELS, FOCUS, HEARD = "models", "focus", "heard"
"""What a vote is made of, and what is told of it."""

UNHEARD = 0.001
"""Supporters that a row counts as having when no source is sure of it and labels are soft."""
MANY = 10
"""With more sources than that their sets are too many to go through."""
AT_ONCE = 2**21
"""Numbers of a table of votes that are worked on at a time."""


@dataclass(frozen=True)
class Consensus:
    """What sources agree on.

    Attributes:
        classes: (n,) the class with the most confidence behind it.
        soft: (n, C) mean probabilities of those who are heard and agree, or of all.
        supporters: (n,) how many are heard and agree; 0 where nobody is heard.
    """

    classes: Tensor
    soft: Tensor
    supporters: Tensor

    @property
    def share(self) -> float:
        """Share of the rows that have a supporter."""
        return float((self.supporters > 0).double().mean())


def knowledge_vote(answers: Tensor, gate: float) -> Consensus:
    """The vote of sources with class probabilities ``answers`` (K, n, C)."""
    confidence, choice = answers.max(dim=2)
    heard = confidence > gate
    counts = confidence * (heard | ~heard.any(dim=0))
    ballots = functional.one_hot(choice, answers.shape[2]) * counts[..., None]
    winner = ballots.sum(dim=0).argmax(dim=1)
    agrees = heard & (choice == winner)
    supporters = agrees.sum(dim=0)
    agreed = (answers * agrees[..., None]).sum(dim=0) / supporters.clamp(min=1)[:, None]
    soft = torch.where(supporters[:, None] > 0, agreed, answers.mean(dim=0))
    return Consensus(winner, soft, supporters)


def vote_worth(answers: Tensor, gate: float, sets: Tensor) -> Tensor:
    """(s,) Q of the vote of every set of sources, given as rows of 0 and 1 (s, K)."""
    confidence, choice = answers.max(dim=2)
    ballots = (
        functional.one_hot(choice, answers.shape[2]) * (confidence * (confidence > gate))[..., None]
    )
    rows = max(1, AT_ONCE // (len(sets) * answers.shape[2]))
    parts = ballots.split(rows, dim=1)
    return torch.stack(
        [torch.einsum("sk,knc->snc", sets, part).amax(dim=2).sum(dim=1) for part in parts]
    ).sum(dim=0)


def consensus_focus(answers: Tensor, gate: float, focus: str = "subsets") -> Tensor:
    """(K,) what every source contributes to the vote: over all sets of the others, or to all."""
    count = len(answers)
    places = torch.arange(count)
    if focus == "leave-one-out":
        sets = torch.ones(count + 1, count, dtype=torch.float64)
        sets[places, places] = 0
        worth = vote_worth(answers, gate, sets)
        return (worth[-1] - worth[:-1]).clamp(min=0)
    numbers = torch.arange(2**count)
    sets = (numbers[:, None] >> places) & 1
    worth = vote_worth(answers, gate, sets.double())
    chance = torch.tensor(
        [1 / (count * math.comb(count - 1, size)) for size in range(count)], dtype=torch.float64
    )
    found = []
    for place in range(count):
        without = numbers[sets[:, place] == 0]
        gains = worth[without + 2**place] - worth[without]
        found.append((chance[sets[without].sum(dim=1)] * gains).sum())
    return torch.stack(found).clamp(min=0)


@dataclass(frozen=True)
class Distillation(Objective):
    """Cross-entropy to the consensus on mixtures of the client's own (unlabelled) rows.

    Attributes:
        knowledge: (n, C) class probabilities of every row of the site.
        weight: (n,) what a row counts for.
        mixup: of the Beta distribution of the shares in a mixture; 0 mixes nothing.
        found: what the vote says of the models and of itself, which is told.
    """

    knowledge: Tensor
    weight: Tensor
    mixup: float = 0.0
    found: Mapping[str, Tensor] = field(default_factory=dict)

    def __call__(self, context: StepContext) -> Tensor:
        """Mean of weight x cross-entropy."""
        return self.lesson(context.module, context.own)

    def reports(self) -> dict[str, Tensor]:
        """What the vote has found."""
        return dict(self.found)

    def report(self, labels: Tensor, ask: Ask) -> dict[str, Tensor]:
        """The same."""
        return dict(self.found)

    def lesson(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss on a given batch."""
        x, taught = batch.x, self.knowledge[batch.rows].to(batch.x.device)
        if self.mixup:
            (share,) = draw_shares(self.mixup, 1).tolist()
            order = torch.randperm(len(x)).to(x.device)
            x = share * x + (1 - share) * x[order]
            taught = share * taught + (1 - share) * taught[order]
        losses = functional.cross_entropy(model(x), taught, reduction="none")
        return (self.weight[batch.rows].to(losses) * losses).mean()


@dataclass(frozen=True)
class DistillationAndLabels(Distillation):
    """The same on unlabelled rows beside the client's own, whose labels count as well."""

    def __call__(self, context: StepContext) -> Tensor:
        """Loss on the labels and distillation."""
        labelled = context.loss_of(context.module(context.own.x), context.own.y)
        return labelled + self.lesson(context.module, context.beside[0])


@dataclass(frozen=True)
class Vote(Objective):
    """To learn what other models agree on; where the rows are, and nobody else is told of them.

    Attributes:
        models: (K, m) their parameters.
        buffers: (K, ...) their buffers, by name.
        gate: how sure a model must be to be heard.
        round: whose draws of noise the rows have, where that is drawn anew.
        mixup, focus, labels, labelled: options of the method.
    """

    models: Tensor
    buffers: Mapping[str, Tensor]
    gate: float
    round: int
    mixup: float = MIXUP
    focus: str = CHOICES["focus"][0]
    labels: str = CHOICES["labels"][0]
    labelled: bool = False

    def __post_init__(self) -> None:
        check_number("gate", self.gate, least=0, most=1)
        check_number("mixup", self.mixup, least=0)
        check_choice("focus", self.focus, CHOICES["focus"])
        check_choice("labels", self.labels, CHOICES["labels"])
        check_flag("labelled", self.labelled)

    @classmethod
    def of_models(cls, models: Sequence[State], gate: float, round: int, **options: Any) -> Vote:
        """The vote of some models."""
        names = models[0].buffers
        buffers = {name: torch.stack([m.buffers[name] for m in models]) for name in names}
        return cls(torch.stack([m.parameters for m in models]), buffers, gate, round, **options)

    def tensors(self) -> dict[str, Tensor]:
        """The models."""
        return {MODELS: self.models, **{f"{MODELS}.{n}": own for n, own in self.buffers.items()}}

    def numbers(self) -> dict[str, Any]:
        """All else."""
        return {f.name: getattr(self, f.name) for f in fields(self)[2:]}

    @classmethod
    def of_parts(cls, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> Vote:
        """What ``tensors`` and ``numbers`` of a vote say."""
        buffers = {k.removeprefix(f"{MODELS}."): v for k, v in tensors.items() if k != MODELS}
        return cls(tensors[MODELS], buffers, **numbers)

    def reports(self) -> dict[str, Tensor]:
        """Of every model its focus, and the share of the rows on which one was heard."""
        count = len(self.models)
        return {
            FOCUS: torch.zeros(count, dtype=torch.float64),
            HEARD: torch.zeros((), dtype=torch.float64),
        }

    def taught(self, ask: AskModel) -> Distillation:
        """Let the models vote."""
        states = [
            State(own, {name: each[k] for name, each in self.buffers.items()})
            for k, own in enumerate(self.models)
        ]
        outputs = [ask(state, round=self.round) for state in states]
        answers = torch.stack(outputs).double().softmax(dim=2)
        consensus = knowledge_vote(answers, self.gate)
        by = self.focus if len(answers) <= MANY else "leave-one-out"
        found = {
            FOCUS: consensus_focus(answers, self.gate, by),
            HEARD: torch.tensor(consensus.share, dtype=torch.float64),
        }
        if self.labels == "soft":
            knowledge = consensus.soft.float()
            weight = consensus.supporters.clamp(min=UNHEARD).float() / len(answers)
        else:
            knowledge = functional.one_hot(consensus.classes, consensus.soft.shape[1]).float()
            weight = (consensus.supporters > 0).float()
        kind = DistillationAndLabels if self.labelled else Distillation
        return kind(knowledge, weight, self.mixup, found)

    def __call__(self, context: StepContext) -> Tensor:
        """Not before the vote."""
        raise NotImplementedError("a vote is held before the first step")


class KD3A(UnsupervisedMethod):
    """The target learns from the sources' vote on its unlabelled rows; good voters weigh more.

    Options:
        gate: how sure a source must be to be heard, at the start (0.8).
        last_gate: the same at the end (0.95).
        gate_rounds: rounds from the one to the other, and of the fall of the learning rate (50).
        last_lr: the learning rate at the end, as a share of that at the start (0.02).
        mixup: of the Beta distribution by which rows are mixed; 0 mixes none (2).
        weight_momentum: how much of the domains' shares is kept from round to round (0.9).
        focus: a source's worth by all "subsets" of the others, or by "leave-one-out" ("subsets").
        labels: the vote as a "one-hot" class, or "soft" probabilities as the text ("one-hot").
        heads: classifiers are a "mean" like the rest, or every domain's "own" ("mean").
        labelled: use the target's labels too (false).
    """

    options: ClassVar[tuple[str, ...]] = (
        "gate",
        "last_gate",
        "gate_rounds",
        "last_lr",
        "mixup",
        "weight_momentum",
        "focus",
        "labels",
        "heads",
        "labelled",
    )
    needs: ClassVar[tuple[Need, ...]] = (Need.CLASSES, Need.UNLABELLED)
    travels: ClassVar[bool] = True
    plain_jobs: ClassVar[bool] = False
    remembers: ClassVar[tuple[str, ...]] = ("shares", "heads")

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        get = options.get
        self.gate = check_number("gate", get("gate", GATE), least=0, most=1)
        last = get("last_gate", max(self.gate, LAST_GATE))
        self.last_gate = check_number("last_gate", last, least=self.gate, most=1)
        self.gate_rounds = check_whole("gate_rounds", get("gate_rounds", SCHEDULE), least=1)
        self.last_lr = check_number("last_lr", get("last_lr", LAST_LR), above=0, most=1)
        self.mixup = check_number("mixup", get("mixup", MIXUP), least=0)
        self.momentum = check_number(
            "weight_momentum", get("weight_momentum", MOMENTUM), least=0, below=1
        )
        self.choices = {name: get(name, known[0]) for name, known in CHOICES.items()}
        for name, known in CHOICES.items():
            check_choice(name, self.choices[name], known)
        self.labelled = check_flag("labelled", get("labelled", False))
        own_heads = self.choices["heads"] == "own"
        self.head: Slices = head_slices(federation.bench.model) if own_heads else ()
        self.shares = torch.zeros(federation.n_sources + 1, dtype=torch.float64)
        self.heads = self._everyone(federation.initial)

    def room(self) -> tuple[int, int]:
        """Every source starts from its own head."""
        return self.federation.n_sources, self.federation.n_sources

    def begin(self, state: State) -> None:
        """All heads start alike."""
        super().begin(state)
        self.heads = self._everyone(state)

    def progress(self, round: int) -> float:
        """How much of the schedule is over at the start of a round."""
        return min(1.0, (round - 1) / self.gate_rounds)

    def gate_of(self, round: int) -> float:
        """The confidence that a source needs to be heard in a round."""
        return self.gate + self.progress(round) * (self.last_gate - self.gate)

    def slowed(self, plan: LocalPlan, round: int) -> LocalPlan:
        """A plan with the learning rate that its round has."""
        fall = (1 + math.cos(math.pi * self.progress(round))) / 2
        return replace(plan, lr=plan.lr * (self.last_lr + (1 - self.last_lr) * fall))

    def train_sources(self, round: int) -> tuple[Gathered, list[State]]:
        """The sources' training, each from its own head and at the learning rate of the round."""
        federation = self.federation
        present, failures = federation.present(round, with_target=False)
        starts = [self._start(client) for client in present]
        jobs = [
            federation.job(
                round,
                client,
                start,
                slot=slot,
                plan=self.slowed(federation.plan(client, round), round),
            )
            for slot, (client, start) in enumerate(zip(present, starts, strict=True))
        ]
        outcomes, rows = federation.do(jobs, starts, round)
        federation.count_bytes(present, outcomes)
        failures |= federation.failures(round, present, outcomes)
        models = {
            client: federation.trained(start, row, outcome)
            for client, start, row, outcome in zip(present, starts, rows, outcomes, strict=True)
            if outcome.failure is None
        }
        for client, model in models.items():
            self.heads[client] = self._head_of(model)
        return federation.sort(present, outcomes, rows, failures), [*models.values()]

    def learn(self, round: int, trained: Gathered, models: list[State], record: Record) -> None:
        """Let the sources vote at the target, which learns the vote; aggregate."""
        federation, gate = self.federation, self.gate_of(round)
        record.extra = {"gate": gate}
        own, outcome = self.train_target(
            round, self._lesson(round, models, gate), self.state, record
        )
        record.seconds_train += outcome.seconds
        if own is None:
            record.notes.append("the target was lost: the model stays as it was")
            return
        share = float(outcome.told[HEARD])
        record.extra["consensus"] = share
        sources = trained.source_indices
        heard = 1.0 if self.labelled else share
        shares = self._shares(sources, outcome.told[FOCUS], heard, record)
        record.beta = listed(shares[1:], sources, federation.n_sources)
        self.mix([own, *models], shares.tolist())
        put(self.state.parameters, self._head_of(own), self.head)

    def _lesson(self, round: int, models: list[State], gate: float) -> Job:
        """The target's training on the consensus, with the step and batch size of the sources."""
        federation = self.federation
        site = federation.site_for(Need.UNLABELLED)
        vote = Vote.of_models(
            models,
            gate,
            round,
            mixup=self.mixup,
            focus=self.choices["focus"],
            labels=self.choices["labels"],
            labelled=self.labelled,
        )
        plan = self.slowed(federation.settings.source_plan(warm=False), round)
        if not self.labelled:
            return federation.job(round, site, self.state, plan=plan, objective=vote)
        weights = federation.plan(TARGET, round).class_weights
        steps = plan.total_steps(len(self.unlabelled))
        return federation.job(
            round,
            TARGET,
            self.state,
            plan=replace(plan, steps=steps, class_weights=weights),
            objective=vote,
            beside=(site,),
        )

    def _shares(self, sources: list[int], focus: Tensor, heard: float, record: Record) -> Tensor:
        """(1 + K,) shares of the target's model and of the sources', near those of rounds before.

        Those who are not there keep what they had; the others share the rest among themselves.
        """
        rows = torch.ones(len(sources) + 1, dtype=torch.float64)
        if self.federation.settings.weights == "samples":
            rows = self.federation.sample_counts(sources)
            rows[0] = len(self.unlabelled)
        worth = rows[1:] * focus
        if not bool(worth.any()):
            worth = rows[1:]
            record.notes.append("no source is sure of any row: sources count by their rows alone")
        own = heard * rows[:1] / rows.sum()
        shares = torch.cat((own, (1 - own) * worth / worth.sum()))
        places = torch.tensor([0, *(source + 1 for source in sources)])
        before = self.shares[places]
        if bool(before.any()):
            kept = before.sum()
            shares = self.momentum * before / kept + (1 - self.momentum) * shares
            self.shares = self.shares.index_copy(0, places, kept * shares)
        else:
            self.shares = self.shares.index_copy(0, places, shares)
        return shares

    def _everyone(self, state: State) -> Tensor:
        """(N+1, h) the same head for every domain."""
        return self._head_of(state).repeat(self.federation.n_sources + 1, 1)

    def _head_of(self, state: State) -> Tensor:
        """(h,) the head of a model, if heads are every domain's own; else nothing."""
        parts = [state.parameters[start:end] for start, end in self.head]
        return torch.cat([state.parameters[:0], *parts])

    def _start(self, client: int) -> State:
        """The model that a source starts from."""
        parameters = self.state.parameters.clone()
        put(parameters, self.heads[client], self.head)
        return State(parameters, self.state.buffers)
