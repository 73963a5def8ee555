"""FADA: features that do not tell a source from the target, sources weighed by what they bring.

Every source ``i`` trains from the global model on its labelled rows and the target's unlabelled
ones. A disentangler splits the features ``f = G(x)`` into an invariant part ``f_di = D(f)`` and a
domain-specific one, ``f_ds = D'(f)``. Four small networks of the source's own look at them: a class
identifier ``CI``, a domain identifier ``DI``, an estimator ``M`` of mutual information and a
reconstructor ``R``. Every batch takes two steps, each network with its own loss:

1. *Telling*. The head ``C`` learns the classes from ``f_di`` and ``CI`` from ``f_ds`` (which train
   ``G``, ``D`` and ``D'`` too); ``DI`` learns to tell the source's ``f_di`` from the target's,
   ``−E_s log DI − E_t log(1 − DI)``; ``M`` learns to estimate the mutual information of the two
   parts, ``E T(f_di, f_ds) − log E exp T(f_di, f_ds')`` with ``f_ds'`` of other rows.
2. *Hiding*, with all of these held fixed. ``G`` and ``D`` make both domains pass for the source,
   ``alignment · (−E_s log DI − E_t log DI)``; ``G`` and ``D'`` leave ``CI`` in doubt by an even
   prediction, ``disentangling · (−E log CI(f_ds))``; ``D`` and ``D'`` lower the mutual information
   (weight ``information``); and ``R`` rebuilds ``f`` from both parts, ``reconstruction · ‖R(f_di,
   f_ds) − f‖²``, so that nothing gets lost (``R``, ``D`` and ``D'`` learn from that).

*Dynamic attention*: the target's ``f_di`` are clustered by k-means, as many clusters as classes.
With the gap statistic ``I = Σ_r 1/(2 n_r) Σ_{j,l ∈ C_r} ‖f_j − f_l‖``, source ``i`` gains ``I(θ) −
I(θ + Δ_i)``, and the model moves by ``Σ_i softmax_i(attention · gain) Δ_i``. As printed, shrinking
all features is a gain, and a source of random labels, which does that, is preferred. ``relative``
takes ``I`` over that of a single cluster, which knows no scale (its gains are small: ``attention``
of some hundreds tells sources apart).

There is no code of the authors' to compare with. What follows is from the paper; the shape of the
networks, and that they see ``f_di`` and ``f_ds`` of both domains, from the code of its forerunner
by the same authors (VisionLearningGroup/DAL), whose ``M`` minimises what it should maximise.

What cannot be federated as published, or is changed:

- The paper's sources and target exchange models after every batch. Here a source trains for its
  local epochs between two exchanges, starts every round from the global model (there it goes on
  from its own), and the target's features in its training are those of its own current model and
  not of the target's.
- The paper's gain is that of one iteration. Here it is the mean over the steps of a round, with
  ``I`` taken on all unlabelled rows (at most 2000) and counted for as many as a batch has: the sum,
  hence the sharpness of the softmax, grows with them, and the paper does not say how many they are.
- The steps of the paper's algorithm are two, as above, with the run's optimiser. Weights of the
  losses are options: the paper names none.
- Small networks, without BatchNorm and dropout: ``D`` and ``D'`` are one full layer with ReLU,
  and ``D`` begins as the identity, so that a small model is not deepened by chance; ``CI`` and
  ``R`` are linear, ``DI`` and ``M`` have one hidden layer of 64. The model's own head is ``C``.

What leaves a site: models with both disentanglers, and features; ``CI``, ``DI``, ``M`` and ``R``
stay with their source. In every batch the target sends features of unlabelled rows twice and gets
back their gradient once (both are counted in the bytes); a network would also have to keep the
target's copy of the source's feature extractor up to date, which is not counted. Features can tell
much about rows: this is weaker protection than sending models alone. The method is unsupervised:
the target's labels are not used. Alignment takes for granted that the classes are as frequent at
the target as at the sources, and can do harm where the shift is already small: on digits (20
rounds, seeds 0 and 1) it was 10 points above ``source-only`` for images turned by 30 degrees and 4
below it for noisy ones, where with all weights at 0 it was within a point of it.

Peng, Huang, Zhu, Saenko: Federated Adversarial Domain Adaptation, ICLR 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, prod
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbridge.base.options import check_flag, check_number
from fedbridge.core.blocks import load_parameter_vector, parameter_vector
from fedbridge.federation.needs import Need
from fedbridge.methods.rule import listed
from fedbridge.methods.unsupervised import UnsupervisedMethod
from fedbridge.models import SplitModel, slices_of, split_model, try_out
from fedbridge.training.objective import Objective, Part, Step, StepContext
from fedbridge.training.state import State, entries, put
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.evidence import Gathered
    from fedbridge.federation.federation import Federation
    from fedbridge.federation.method import Record
    from fedbridge.training.state import Slices

ALIGNMENT = 1.0
DISENTANGLING = 1.0
INFORMATION = 0.01
RECONSTRUCTION = 0.1
ATTENTION = 1.0
HIDDEN = 64
SLOPE = 0.2
CLUSTERING_STEPS = 20
CLUSTERED_ROWS = 2000


class Disentangler(nn.Module):
    """One full layer with ReLU that keeps the shape of the features."""

    def __init__(self, width: int, *, identity: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        if identity:
            nn.init.eye_(self.layer.weight)
            nn.init.zeros_(self.layer.bias)

    def forward(self, features: Tensor) -> Tensor:
        """``ReLU(W f + b)``."""
        return cast("Tensor", self.layer(features.flatten(1)).relu().view_as(features))


class Dependence(nn.Module):
    """``T`` of the estimate of mutual information (Belghazi et al.: MINE, ICML 2018)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(2 * width, HIDDEN)
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """``E T(p, q) − log E exp T(p, q')`` in nats; the rows of ``q'`` are ``q``'s, shifted."""
        together, apart = (self._score(one, rows) for rows in (other, other.roll(1, dims=0)))
        return together.mean() - apart.logsumexp(dim=0) + log(len(one))

    def _score(self, one: Tensor, other: Tensor) -> Tensor:
        hidden = functional.leaky_relu(self.first(torch.cat((one, other), dim=1)), SLOPE)
        return cast("Tensor", self.last(hidden)).squeeze(1)


class Adversary(nn.Module):
    """A model, the disentanglers behind its features, and the networks that look at the parts."""

    def __init__(self, model: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.model = model
        self.invariant = Disentangler(width, identity=True)
        self.specific = Disentangler(width)
        self.classes = nn.Linear(width, classes)
        self.domain = nn.Sequential(
            nn.Linear(width, HIDDEN), nn.LeakyReLU(SLOPE), nn.Linear(HIDDEN, 1)
        )
        self.dependence = Dependence(width)
        self.rebuild = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The head's answer on the invariant part of the features."""
        return self.answer(self.invariant(self.features(x)))

    def features(self, x: Tensor) -> Tensor:
        """Features of the model itself."""
        features, _ = split_model(self.model)
        return cast("Tensor", features(x))

    def answer(self, invariant: Tensor) -> Tensor:
        """The head's answer."""
        _, head = split_model(self.model)
        return cast("Tensor", head(invariant))

    @property
    def tellers(self) -> Slices:
        """Where head, identifiers and estimator lie, which are held fixed in the second step."""
        _, head = split_model(self.model)
        return slices_of(self, head, self.classes, self.domain, self.dependence)

    @property
    def private(self) -> Slices:
        """Where the networks lie that stay with their source."""
        return slices_of(self, self.classes, self.domain, self.dependence, self.rebuild)


@dataclass(frozen=True)
class Alignment(Objective):
    """The two steps of a source, with a batch of the target's unlabelled rows beside its own.

    Attributes:
        alignment: weight of passing for the source.
        disentangling: weight of leaving the class identifier in doubt.
        information: weight of the mutual information.
        reconstruction: weight of the squared error of what is rebuilt.
        tellers: where head, identifiers and estimator lie.
        rebuild: where the reconstructor lies.
    """

    alignment: float
    disentangling: float
    information: float
    reconstruction: float
    tellers: Slices
    rebuild: Slices

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those that tell, the reconstructor, and the others: features and disentanglers."""
        return Part(self.tellers), Part(self.rebuild)

    def steps(self, context: StepContext) -> Iterator[Step]:
        """Telling and hiding."""
        yield Step(self(context), (0, 2))
        yield Step(self.hiding(context), (1, 2))

    def __call__(self, context: StepContext) -> Tensor:
        """What is learnt of classes, domains and dependence."""
        net = cast("Adversary", context.module)
        own, theirs = net.features(context.own.x), net.features(context.beside[0].x)
        ours, specific = net.invariant(own), net.specific(own)
        labels = context.own.y
        learnt = context.loss_of(net.answer(ours), labels)
        known = context.loss_of(net.classes(specific.flatten(1)), labels)
        seen = [part.detach().flatten(1) for part in (ours, net.invariant(theirs))]
        unlike = [part.detach().flatten(1) for part in (specific, net.specific(theirs))]
        return learnt + known + told_apart(net.domain, *seen) - dependence(net, seen, unlike)

    def hiding(self, context: StepContext) -> Tensor:
        """What features and disentanglers do against it, and what is rebuilt."""
        net = cast("Adversary", context.module)
        whole = [net.features(batch.x) for batch in (context.own, *context.beside)]
        passing = taken_for_source(net.domain, *(net.invariant(f).flatten(1) for f in whole))
        doubt = unevenness(net.classes(net.specific(whole[0]).flatten(1)))
        given = [features.detach() for features in whole]
        invariant = [net.invariant(features).flatten(1) for features in given]
        specific = [net.specific(features).flatten(1) for features in given]
        both = torch.cat((torch.cat(invariant), torch.cat(specific)), dim=1)
        lost = functional.mse_loss(net.rebuild(both), torch.cat(given).flatten(1))
        return (
            self.alignment * passing
            + self.disentangling * doubt
            + self.information * dependence(net, invariant, specific)
            + self.reconstruction * lost
        )


def told_apart(domain: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """``−E_s log DI − E_t log(1 − DI)``, the loss of the domain identifier."""
    return functional.softplus(-domain(source)).mean() + functional.softplus(domain(target)).mean()


def taken_for_source(domain: nn.Module, *parts: Tensor) -> Tensor:
    """``−E_s log DI − E_t log DI``, the loss of those who deceive it."""
    return torch.stack([functional.softplus(-domain(part)).mean() for part in parts]).sum()


def unevenness(logits: Tensor) -> Tensor:
    """``−E log p`` over rows and classes: smallest, ``log K``, for an even prediction."""
    return -logits.log_softmax(dim=1).mean()


def dependence(net: Adversary, invariant: list[Tensor], specific: list[Tensor]) -> Tensor:
    """The mean estimate over both domains of the mutual information of the two parts."""
    pairs = zip(invariant, specific, strict=True)
    return torch.stack([net.dependence(one, other) for one, other in pairs]).mean()


def spread_partition(features: Tensor, clusters: int) -> Tensor:
    """(n,) a first partition: rows far from each other, and to each the rows next to it.

    It begins with the row next to the mean and goes on with the row farthest from those chosen.
    """
    centres = features[[int((features - features.mean(dim=0)).norm(dim=1).argmin())]]
    for _ in range(min(clusters, len(features)) - 1):
        farthest = int(torch.cdist(features, centres).amin(dim=1).argmax())
        centres = torch.cat((centres, features[[farthest]]))
    return torch.cdist(features, centres).argmin(dim=1)


def tighten(features: Tensor, partition: Tensor) -> Tensor:
    """(n,) the clusters that k-means comes to from a partition."""
    for _ in range(CLUSTERING_STEPS):
        partition = torch.cdist(features, cluster_means(features, partition)).argmin(dim=1)
    return partition


def cluster_means(features: Tensor, partition: Tensor) -> Tensor:
    """The mean of every cluster that has rows."""
    member = functional.one_hot(partition.unique(return_inverse=True)[1]).to(features.dtype)
    return member.T @ features / member.sum(dim=0)[:, None]


def gap_statistic(features: Tensor, partition: Tensor, *, relative: bool = False) -> float:
    """``I = Σ_r 1/(2 n_r) Σ_{j,l ∈ C_r} ‖f_j − f_l‖`` over the number of rows.

    Relative, it is over that of a single cluster instead; features that do not vary have 1.
    """
    clusters = [features[partition == cluster] for cluster in partition.unique()]
    within, whole = (
        sum(float(torch.cdist(rows, rows).sum()) / (2 * len(rows)) for rows in parts)
        for parts in (clusters, [features] if relative else [])
    )
    if not relative:
        return within / len(features)
    return within / whole if whole else 1.0


class FADA(UnsupervisedMethod):
    """Adversarial alignment with the target's unlabelled rows; sources that tighten it count.

    Options:
        alignment: weight of the adversarial alignment (1).
        disentangling: weight of keeping classes out of the domain-specific features (1).
        information: weight of the mutual information of the two kinds of features (0.01).
        reconstruction: weight of rebuilding features from both kinds (0.1).
        attention: how sharply sources are told apart (1).
        relative: measure clusters against the spread of all rows (false).
    """

    options: ClassVar[tuple[str, ...]] = (
        "alignment",
        "disentangling",
        "information",
        "reconstruction",
        "attention",
        "relative",
    )
    needs: ClassVar[tuple[Need, ...]] = (Need.CLASSES, Need.FEATURES, Need.UNLABELLED)
    bound_by: ClassVar[str] = (
        "in every step a source needs features of the target's rows by its newest extractor, so "
        "that the target would answer each batch of each source"
    )
    remembers: ClassVar[tuple[str, ...]] = ("own",)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)

        def weight(name: str, default: float) -> float:
            return check_number(name, options.get(name, default), least=0)

        net = cast("Adversary", federation.bench.model)
        self.width = net.invariant.layer.in_features
        self.attention = weight("attention", ATTENTION)
        self.relative = check_flag("relative", options.get("relative", False))
        self.training = Alignment(
            weight("alignment", ALIGNMENT),
            weight("disentangling", DISENTANGLING),
            weight("information", INFORMATION),
            weight("reconstruction", RECONSTRUCTION),
            net.tellers,
            slices_of(net, net.rebuild),
        )
        federation.stays = net.private
        self.own = entries(federation.initial.parameters, net.private).repeat(
            federation.n_sources, 1
        )

    @classmethod
    def compose(cls, model: nn.Module, task: FederatedTask) -> nn.Module:
        """The model, and after it the disentanglers and the networks that look at the parts."""
        features, _ = split_model(model)
        found = cast("Tensor", try_out(features, task))
        assert task.n_classes is not None
        return Adversary(model, prod(found.shape[1:]), task.n_classes)

    @classmethod
    def restore(cls, model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The model with the disentangler in front of its head."""
        features, head = split_model(model)
        width = len(tensors["head.0.layer.bias"])
        return SplitModel(features, nn.Sequential(Disentangler(width), head))

    def deliver(self, model: nn.Module, state: State) -> nn.Module:
        """The same, with the parameters of a state."""
        size = parameter_vector(model).numel()
        features, head = split_model(super().deliver(model, state))
        disentangler = Disentangler(self.width)
        end = size + parameter_vector(disentangler).numel()
        load_parameter_vector(disentangler, state.parameters[size:end])
        return SplitModel(features, nn.Sequential(disentangler, head))

    def room(self) -> tuple[int, int]:
        """Every source starts with networks of its own."""
        return self.federation.n_sources, self.federation.n_sources

    def train_sources(self, round: int) -> tuple[Gathered, list[State]]:
        """Every source from the global model and its own small networks, which it keeps."""
        federation = self.federation
        clients, failures = federation.present(round, with_target=False)
        beside = (federation.site_for(Need.UNLABELLED),)
        starts = [self._start(client - 1) for client in clients]
        jobs = [
            federation.job(round, client, start, slot=slot, objective=self.training, beside=beside)
            for slot, (client, start) in enumerate(zip(clients, starts, strict=True))
        ]
        outcomes, rows = federation.do(jobs, starts, round)
        federation.count_bytes(clients, outcomes)
        failures |= federation.failures(round, clients, outcomes)
        gathered = federation.sort(clients, outcomes, rows, failures)
        models = []
        for change, (index, outcome) in zip(gathered.rows, gathered.sources, strict=True):
            models.append(federation.trained(self._start(index), change, outcome))
            self.own[index] = entries(models[-1].parameters, federation.stays)
        return gathered, models

    def learn(self, round: int, trained: Gathered, models: list[State], record: Record) -> None:
        """See what each source brings and move by that."""
        federation, present = self.federation, trained.source_indices
        self._count_features(round, trained)
        steps = torch.tensor([outcome.steps for _, outcome in trained.sources])
        gains = self._gains(models) / steps
        shares = (self.attention * gains).softmax(dim=0)
        record.extra["gain"] = listed(gains, present, federation.n_sources)
        record.beta = listed(shares, present, federation.n_sources)
        self.mix(models, shares.tolist())

    def _start(self, index: int) -> State:
        """The global model with the networks of a source."""
        parameters = self.state.parameters.clone()
        put(parameters, self.own[index], self.federation.stays)
        return State(parameters, self.state.buffers)

    def _count_features(self, round: int, trained: Gathered) -> None:
        """The target's features of both steps go out, their gradients of the second come back."""
        federation = self.federation
        for index, outcome in trained.sources:
            rows = min(federation.plan(index + 1, round).batch_size, len(self.unlabelled))
            federation.bytes_up += 2 * 4 * self.width * rows * outcome.steps
            federation.bytes_down += 4 * self.width * rows * outcome.steps

    def _gains(self, models: list[State]) -> Tensor:
        """(K,) how much tighter every source's model makes the clusters of the target's rows.

        All start from the clusters of the present model, so that none gains by a lucky start.
        """
        classes = self.federation.task.n_classes
        assert classes is not None
        every = -(-len(self.unlabelled) // CLUSTERED_ROWS)
        before, *after = (
            self.federation.predict(model, self.unlabelled, _invariant)[::every].double()
            for model in (self.state, *models)
        )
        with one_thread():
            clusters = tighten(before, spread_partition(before, classes))
            now = gap_statistic(before, clusters, relative=self.relative)
            gains = [
                now - gap_statistic(f, tighten(f, clusters), relative=self.relative) for f in after
            ]
        return self.federation.settings.batch_size * torch.tensor(gains, dtype=torch.float64)


def _invariant(module: nn.Module, x: Tensor) -> Tensor:
    net = cast("Adversary", module)
    return cast("Tensor", net.invariant(net.features(x))).flatten(1)
