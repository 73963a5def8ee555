"""pFedFDA: a Gaussian per class in feature space, between the target's statistics and everyone's.

Features of class ``y`` are taken as normal, ``φ(x) ~ N(μ_y, Σ)``, so that the best last layer is
known (linear discriminant analysis):

    w_y = Σ⁻¹ μ_y ,     b_y = −½ μ_yᵀ Σ⁻¹ μ_y + log π_y .

In every round each client puts the head of the global ``(μ, Σ)`` and its own class shares ``π`` on
the shared body and trains the body alone, the head held fixed. Then it estimates ``(μ̂, Σ̂)`` from
its own features and interpolates,

    μ ← β μ̂ + (1 − β) μ ,     Σ ← β Σ̂ + (1 − β) Σ ,

with the ``β`` in [0, 1] whose head has the smallest cross-entropy in two-fold cross-validation on
its rows. The server averages bodies and interpolated statistics by samples. The target's model is
the new body with a head interpolated once more, on the features of that body. ``β = 0`` is the
global classifier, ``β = 1`` the target's own.

McLaughlin, Su: Personalized Federated Learning via Feature Distribution Adaptation, NeurIPS 2024,
and its code (cj-mclaughlin/pFedFDA), whose constants these are: means drawn from U(0, 1) and ``Σ =
I`` at the start, ``Σ̂`` with the unit matrix added, ``Σ`` shrunk by 1e-4 towards a multiple of the
unit matrix, shares never below 1e-4, and classes of at most two rows left at their global mean.

Differences: one ``β`` (the code's ``single_beta``; without it means and covariance have one each),
from a grid of 21 instead of ten steps of L-BFGS from ½; folds are those of the other methods here,
dealt out class by class, so that classes with a single row stay in; a client's features are those
of its trained body in evaluation mode, where the code gathers them while it trains; and the code's
slip of adding 1e-4 to all entries of ``Σ̂`` is left out. A warm-up, if there is one, trains an
ordinary head, which is then dropped. A linear model has no body: its features are the inputs.

Class means and covariances of features leave the sites: over a network only from sites that have
said so beforehand (``most-statistics``), and never beside differential privacy, which does not
cover them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional

from fedbridge.base.options import check_number
from fedbridge.federation.needs import Need
from fedbridge.federation.personal import BesideFedAvg
from fedbridge.methods.cross_validation import labelled_rows
from fedbridge.models import HeadPlace, head_inputs
from fedbridge.training.job import TARGET, Job, Outcome, seed_of
from fedbridge.training.objective import Ask, Supervised
from fedbridge.training.state import State, complement
from fedbridge.training.target_side import Decision, News, TargetSide
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from fedbridge.federation.evidence import Gathered
    from fedbridge.federation.federation import Federation
    from fedbridge.federation.method import Record

    Statistics = tuple[Tensor, Tensor]
    Head = tuple[Tensor, Tensor]

EPSILON = 1e-4
FEW = 2
"""A class of so many rows or fewer keeps its global mean."""

GRID = tuple(step / 20 for step in range(21))
MEANS, COVARIANCE, OWN = "means", "covariance", "own"
"""What statistics, and the weight of the target's own ones, are told as."""

DRAWING, DEALING = 500, 501
"""Purposes of the seeds of the first means and of the folds."""


def class_shares(labels: Tensor, classes: int) -> Tensor:
    """Shares of the classes, none of them 0."""
    shares = functional.one_hot(labels, classes).double().mean(0) + EPSILON
    return shares / shares.sum()


def estimate(features: Tensor, labels: Tensor, known: Statistics) -> Statistics:
    """Means and common covariance of a client's features; rare classes keep the known mean."""
    means = known[0].clone()
    for label in labels.unique():
        own = features[labels == label]
        if len(own) > FEW:
            means[label] = own.mean(0)
    centred = features - means[labels]
    scatter = centred.T @ centred / max(1, len(labels) - 1)
    return means, scatter + torch.eye(len(scatter), dtype=scatter.dtype)


def interpolate(local: Statistics, known: Statistics, beta: float) -> Statistics:
    """``β`` local and ``1 − β`` known."""
    means, covariance = (
        torch.lerp(theirs, own, beta) for own, theirs in zip(local, known, strict=True)
    )
    return means, covariance


def gaussian_head(statistics: Statistics, shares: Tensor) -> Head:
    """Weights and biases of linear discriminant analysis."""
    means, covariance = statistics
    unit = torch.eye(len(covariance), dtype=covariance.dtype)
    shrunk = torch.lerp(covariance, covariance.diagonal().mean() * unit, EPSILON)
    weight = torch.linalg.solve(shrunk, means.T).T
    return weight, shares.log() - (means * weight).sum(1) / 2


def best_beta(features: Tensor, labels: Tensor, known: Statistics, halves: Tensor) -> float:
    """The ``β`` of the grid with the smallest cross-entropy over both halves.

    Args:
        features: (n, d) of one client.
        labels: (n,) their classes.
        known: the global statistics.
        halves: (n,) which of the two folds a row is in.
    """
    shares = class_shares(labels, len(known[0]))
    parts = [(halves != half, halves == half) for half in (0, 1)]
    if not all(bool(out.any()) for _, out in parts):
        return 0.0
    local = [estimate(features[rest], labels[rest], known) for rest, _ in parts]

    def loss(beta: float) -> float:
        total = 0.0
        for own, (_, out) in zip(local, parts, strict=True):
            weight, bias = gaussian_head(interpolate(own, known, beta), shares)
            outputs = features[out] @ weight.T + bias
            total += float(functional.cross_entropy(outputs, labels[out]))
        return total

    return min(GRID, key=loss)


@dataclass(frozen=True)
class UnderGaussianHead(Supervised):
    """Training below the head of known statistics, and the client's own statistics after it.

    Attributes:
        means: (C, f) of the classes' features, as all know them.
        covariance: (f, f) of the features.
        seed: of the two folds by which the client chooses its ``β``.
        round: whose draws of noise the features have, where that is drawn anew.
    """

    means: Tensor
    covariance: Tensor
    seed: int
    round: int

    def prepared(self, module: nn.Module, start: Tensor, labels: Tensor) -> Tensor:
        """The start with the head of the known statistics and the client's class shares."""
        place = HeadPlace.of(module)
        head = gaussian_head((self.means, self.covariance), class_shares(labels, place.shape[0]))
        return place.put(start, *(part.to(start.device) for part in head))

    def tensors(self) -> dict[str, Tensor]:
        """Means and covariance, as all know them."""
        return {MEANS: self.means, COVARIANCE: self.covariance}

    def reports(self) -> dict[str, Tensor]:
        """The same of the client."""
        return self.tensors()

    def report(self, labels: Tensor, ask: Ask) -> dict[str, Tensor]:
        """The client's statistics, interpolated with the known ones."""
        features = ask(head_inputs, round=self.round).double()
        (means, covariance), _ = adapted(features, labels, (self.means, self.covariance), self.seed)
        return {MEANS: means, COVARIANCE: covariance}


def adapted(
    features: Tensor, labels: Tensor, known: Statistics, seed: int, beta: float | None = None
) -> tuple[Statistics, float]:
    """Interpolated statistics of a client, and their ``β``: chosen unless given."""
    if beta is None:
        beta = best_beta(features, labels, known, _halves(labels, seed))
    return interpolate(estimate(features, labels, known), known, beta), beta


class GaussianSide(TargetSide):
    """The target's head, interpolated on the features of the shared body."""

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        self.federation = federation
        beta = options.get("beta")
        self.beta = None if beta is None else check_number("beta", beta, least=0, most=1)
        self.place = HeadPlace.of(federation.bench.model)

    def expects(self, initial: State, news: News) -> dict[str, Tensor]:
        """The shared body and the statistics before and after the round's."""
        means, covariance = first_statistics(self.federation, self.place)
        return {**initial.tensors(), MEANS: means, COVARIANCE: covariance}

    def decide(self, news: News) -> Decision:
        """Put the head of the interpolated statistics on the body."""
        federation, shared = self.federation, State.of_tensors(news.tensors)
        rows, site = labelled_rows(federation), federation.task.target
        labels = site.y[rows]
        features = federation.predict(shared, site, head_inputs, rows).double()
        seed = seed_of(federation.seed, federation.round, TARGET, DEALING)
        known = (news.tensors[MEANS], news.tensors[COVARIANCE])
        with one_thread():
            statistics, beta = adapted(features, labels, known, seed, self.beta)
            head = gaussian_head(statistics, class_shares(labels, self.place.shape[0]))
        own = replace(shared, parameters=self.place.put(shared.parameters, *head))
        return Decision(own, {"weights": {OWN: beta}})


class PFedFDA(BesideFedAvg):
    """A shared body and a Gaussian head between the target's feature statistics and everyone's.

    Options:
        beta: weight of the target's own statistics in its head, 0 for everyone's alone; None
            chooses it by cross-validation, as in what is averaged (None).
    """

    options: ClassVar[tuple[str, ...]] = ("beta",)
    needs: ClassVar[tuple[Need, ...]] = (Need.CLASSES, Need.LINEAR_HEAD)
    plain_jobs: ClassVar[bool] = False
    remembers: ClassVar[tuple[str, ...]] = ("shared", "means", "covariance")

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.place = HeadPlace.of(federation.bench.model)
        self.body = complement(self.place.slices, federation.blocks.total)
        self.means, self.covariance = first_statistics(federation, self.place)

    @classmethod
    def target_side(cls, federation: Federation, options: Mapping[str, Any]) -> TargetSide:
        """The target's head, with the target."""
        return GaussianSide(federation, options)

    def begin(self, state: State) -> None:
        """Heads follow from statistics from now on."""
        super().begin(state)
        self.federation.stays = self.place.slices

    def gather(self, round: int) -> Gathered:
        """Bodies under fixed heads, and statistics, of which the means are known from now on."""
        federation = self.federation
        present, failures = federation.present(round)
        jobs = [self.job(round, client) for client in present]
        outcomes, rows = federation.do(jobs, [self.shared], round)
        self._count_bytes(present, outcomes)
        failures |= federation.failures(round, present, outcomes)
        gathered = federation.sort(present, outcomes, rows, failures)
        told = [*filter(None, (gathered.target,)), *(outcome for _, outcome in gathered.sources)]
        if told:
            samples = torch.tensor([outcome.samples for outcome in told], dtype=torch.float64)
            weights = samples / samples.sum()
            self.means, self.covariance = (
                torch.einsum("c,cij->ij", weights, torch.stack([each.told[name] for each in told]))
                for name in (MEANS, COVARIANCE)
            )
        return gathered

    def job(self, round: int, client: int) -> Job:
        """A client's training of the body under the head of the known statistics."""
        federation = self.federation
        seed = seed_of(federation.seed, round, client, DEALING)
        objective = UnderGaussianHead(self.means, self.covariance, seed, round)
        return federation.job(round, client, self.shared, moves=self.body, objective=objective)

    def news(self, before: State) -> News:
        """The shared body, whose head says nothing, and what is known of its features."""
        known = {MEANS: self.means, COVARIANCE: self.covariance}
        return News({**self.shared.tensors(), **known})

    def take(self, decision: Decision, record: Record) -> None:
        """Take the target's model."""
        super().take(decision, record)
        record.extra["own_share"] = decision.facts.get("weights", {}).get(OWN)

    def _count_bytes(self, clients: list[int], outcomes: list[Outcome]) -> None:
        """Bodies, means and covariances go both ways."""
        federation = self.federation
        federation.count_bytes(clients, outcomes)
        federation.bytes_down += 4 * len(clients) * (self.means.numel() + self.covariance.numel())


def first_statistics(federation: Federation, place: HeadPlace) -> Statistics:
    """Means from U(0, 1) and the unit matrix, the same at every site."""
    chooser = torch.Generator().manual_seed(seed_of(federation.seed, 0, TARGET, DRAWING))
    means = torch.rand(place.shape, generator=chooser, dtype=torch.float64)
    return means, torch.eye(place.shape[1], dtype=torch.float64)


def _halves(labels: Tensor, seed: int) -> Tensor:
    """Which of two folds a row is in; each class is dealt out over both."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]
    halves = torch.zeros_like(labels)
    halves[order[1::2]] = 1
    return halves
