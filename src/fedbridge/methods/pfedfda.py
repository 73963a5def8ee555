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

It does not run over a network: class means and covariances of features would have to leave the
sources, and they are not on the list of what may.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional

from fedbridge.base.options import check_number
from fedbridge.federation.method import Method, Record, train_each
from fedbridge.federation.needs import Need
from fedbridge.methods.cross_validation import labelled_rows
from fedbridge.models import HeadPlace, head_inputs
from fedbridge.training.job import TARGET, Outcome, seed_of
from fedbridge.training.state import State, complement
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.federation.federation import Federation

    Statistics = tuple[Tensor, Tensor]
    Head = tuple[Tensor, Tensor]

EPSILON = 1e-4
FEW = 2
"""A class of so many rows or fewer keeps its global mean."""

GRID = tuple(step / 20 for step in range(21))
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


class PFedFDA(Method):
    """A shared body and a Gaussian head between the target's feature statistics and everyone's.

    Options:
        beta: weight of the target's own statistics in its head, 0 for everyone's alone; None
            chooses it by cross-validation, as in what is averaged (None).
    """

    options: ClassVar[tuple[str, ...]] = ("beta",)
    needs: ClassVar[tuple[Need, ...]] = (Need.CLASSES, Need.LINEAR_HEAD)
    bound_by: ClassVar[str] = (
        "class means and covariances of features would have to leave the sites, and are not on "
        "the list of what may"
    )
    remembers: ClassVar[tuple[str, ...]] = ("shared", "means", "covariance")

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        beta = options.get("beta")
        self.beta = None if beta is None else check_number("beta", beta, least=0, most=1)
        self.place = HeadPlace.of(federation.bench.model)
        self.body = complement(self.place.slices, federation.blocks.total)
        self.shared = federation.initial
        chooser = torch.Generator().manual_seed(seed_of(federation.seed, 0, TARGET, DRAWING))
        self.means = torch.rand(self.place.shape, generator=chooser, dtype=torch.float64)
        self.covariance = torch.eye(self.place.shape[1], dtype=torch.float64)

    def room(self) -> tuple[int, int]:
        """Every client starts with its own class shares in its head."""
        return self.federation.n_sources + 1, self.federation.n_sources + 1

    def begin(self, state: State) -> None:
        """Heads follow from statistics from now on."""
        super().begin(state)
        self.federation.stays = self.place.slices

    def run_round(self, round: int) -> Record:
        """Bodies, statistics, their means, and the target's own head."""
        federation, begun = self.federation, time.perf_counter()
        present, failures = federation.present(round)
        record = Record(failures=failures)
        starts = [self._headed(client, self._known) for client in present]
        models, outcomes = self._train(round, present, starts)
        record.failures |= federation.failures(round, present, outcomes)
        self._count_bytes(present, outcomes)
        there = [k for k, c in enumerate(present) if federation.name_of(c) not in record.failures]
        trained_at = time.perf_counter()
        record.seconds_train = trained_at - begun
        if there:
            self._average(round, [present[k] for k in there], [models[k] for k in there])
        if TARGET not in present:
            record.notes.append("the target is missing: its head stays as it was")
        else:
            self.state, record.extra["own_share"] = self._personal(round)
        record.seconds_aggregate = time.perf_counter() - trained_at
        return record

    @property
    def _known(self) -> Statistics:
        return self.means, self.covariance

    def _train(
        self, round: int, clients: list[int], states: list[State]
    ) -> tuple[list[State], list[Outcome]]:
        """All clients train the body under a fixed head; a linear model has none to train."""
        federation = self.federation
        if not self.body:
            counts = [len(self._labels(client)) for client in clients]
            return states, [Outcome(count, buffers=self.shared.buffers) for count in counts]
        jobs = [
            federation.job(round, client, state, slot=slot, moves=self.body)
            for slot, (client, state) in enumerate(zip(clients, states, strict=True))
        ]
        return train_each(federation, jobs, states)

    def _average(self, round: int, clients: list[int], models: list[State]) -> None:
        """Body and statistics become the means over these clients, by samples."""
        federation, counts = self.federation, [len(self._labels(client)) for client in clients]
        changes = torch.stack([model.parameters - self.shared.parameters for model in models])
        told = [
            Outcome(count, buffers=model.buffers)
            for count, model in zip(counts, models, strict=True)
        ]
        gathered = federation.sort(clients, told, changes, {})
        with one_thread():
            adapted = [
                self._adapted(round, client, model)[0]
                for client, model in zip(clients, models, strict=True)
            ]
            weights = torch.tensor(counts, dtype=torch.float64) / sum(counts)
            means, covariances = (torch.stack(each) for each in zip(*adapted, strict=True))
            self.means = torch.einsum("c,cij->ij", weights, means)
            self.covariance = torch.einsum("c,cij->ij", weights, covariances)
        self.shared = federation.averaged(self.shared, gathered)

    def _personal(self, round: int) -> tuple[State, float]:
        """The target's model: the shared body and the head of its interpolated statistics."""
        with one_thread():
            statistics, beta = self._adapted(round, TARGET, self.shared, self.beta)
        return self._headed(TARGET, statistics), beta

    def _adapted(
        self, round: int, client: int, model: State, beta: float | None = None
    ) -> tuple[Statistics, float]:
        """A client's interpolated statistics on the features of a model, and its ``β``."""
        labels = self._labels(client)
        features = self._features(client, model)
        if beta is None:
            seed = seed_of(self.federation.seed, round, client, DEALING)
            beta = best_beta(features, labels, self._known, _halves(labels, seed))
        return interpolate(estimate(features, labels, self._known), self._known, beta), beta

    def _headed(self, client: int, statistics: Statistics) -> State:
        """The shared body under the head of some statistics and a client's class shares."""
        shares = class_shares(self._labels(client), self.place.shape[0])
        with one_thread():
            head = gaussian_head(statistics, shares)
        return replace(self.shared, parameters=self.place.put(self.shared.parameters, *head))

    def _rows(self, client: int) -> Tensor:
        if client == TARGET:
            return labelled_rows(self.federation)
        return torch.arange(len(self.federation.bench.sites[client]))

    def _labels(self, client: int) -> Tensor:
        return self.federation.bench.sites[client].y[self._rows(client)]

    def _features(self, client: int, model: State) -> Tensor:
        site, rows = self.federation.bench.sites[client], self._rows(client)
        return self.federation.predict(model, site, head_inputs)[rows].double()

    def _count_bytes(self, clients: list[int], outcomes: list[Outcome]) -> None:
        """Bodies, means and covariances go both ways."""
        federation = self.federation
        federation.count_bytes(clients, outcomes)
        statistics = 4 * len(clients) * (self.means.numel() + self.covariance.numel())
        federation.bytes_up += statistics
        federation.bytes_down += statistics


def _halves(labels: Tensor, seed: int) -> Tensor:
    """Which of two folds a row is in; each class is dealt out over both."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]
    halves = torch.zeros_like(labels)
    halves[order[1::2]] = 1
    return halves
