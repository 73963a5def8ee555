"""FADA: features that do not tell a source from the target, sources weighed by what they bring.

Every source trains from the global model on its own labelled rows and on the target's unlabelled
ones. A gate ``g`` per feature shares the features ``f`` of the model out between two parts, the
invariant ``f_di = σ(g) ⊙ f`` and the domain-specific ``f_ds = f − f_di``. These are learnt:

- *Classes*: the cross-entropy of ``head(f_di)`` on the source's labels.
- *Adversarial alignment*: a domain identifier tells the source's ``f_di`` from the target's;
  features and gate learn the opposite, by a reversed gradient of strength ``alignment``, which
  rises to its full value over the first 10 rounds.
- *Disentangling*, weight ``disentangling``, which trains the gate but not the features: a class
  identifier learns the classes from ``f_ds``, and the gate learns to leave it in doubt (highest
  entropy), so that what tells classes stays in ``f_di``; and the two parts share little, as the
  squared covariance between them over that of ``f`` with itself says.
- *Dynamic attention*: with ``W`` the share of the variation of the target's features that is left
  within clusters (k-means, as many as classes), source ``k`` gains ``W(θ) − W(θ + Δ_k)``, and the
  model moves by ``Σ_k softmax_k(attention · gain) Δ_k``.

Different from the paper:

- One model for all sites instead of one per site, so the target's features are those of the
  source's current model; the small networks travel with the model and are averaged like it.
- A gate makes the two parts. They add up to ``f``, so nothing has to be rebuilt from them. A full
  layer, as in the paper, deepens the model, which alone cost a small one 2 to 3 points on noisy
  digits.
- Covariances stand for mutual information, in place of one more network that estimates it; they
  see linear dependence only.
- Gains are shares and not sums of squares: shrinking all features is no gain, and ``attention``
  does not depend on their scale.

On digits the alignment does the work: with and without disentangling the accuracy is the same.

What leaves a site: models, and features. In every step the target sends features of a batch of
unlabelled rows and gets back their gradient (both are counted in the bytes); a network would also
have to keep the target's copy of the source's feature extractor up to date, which is not counted.
Features can tell much about rows: this is weaker protection than sending models alone. The method
is unsupervised: the target's labels are not used. Alignment takes for granted that the classes are
as frequent at the target as at the sources, and can do harm where the shift is already small.

Peng, Huang, Zhu, Saenko: Federated Adversarial Domain Adaptation, ICLR 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbridge.base.options import check_number
from fedbridge.core.blocks import load_parameter_vector, parameter_vector
from fedbridge.federation.needs import Need
from fedbridge.methods.rule import listed
from fedbridge.methods.unsupervised import UnsupervisedMethod, entropy, reverse_gradient
from fedbridge.models import SplitModel, split_model, try_out
from fedbridge.training.objective import Objective, StepContext
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.evidence import Gathered
    from fedbridge.federation.federation import Federation
    from fedbridge.federation.method import Record
    from fedbridge.training.state import State

ALIGNMENT = 1.0
DISENTANGLING = 0.1
ATTENTION = 20.0
RAMP = 10
HIDDEN = 64
OPEN = 3.0
TINY = 1e-12
CLUSTERING_STEPS = 20


class Gate(nn.Module):
    """Lets through a share of every feature, nearly all of it in the beginning."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.openness = nn.Parameter(torch.full(shape, OPEN))

    def forward(self, features: Tensor) -> Tensor:
        """``σ(g) ⊙ f``."""
        return features * self.openness.sigmoid()


class Adversary(nn.Module):
    """A model, the gate behind its features, and the identifiers of classes and domains."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        width = prod(shape)
        self.model = model
        self.invariant = Gate(shape)
        self.classes = nn.Linear(width, classes)
        self.domain = nn.Sequential(
            nn.Flatten(), nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)
        )

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


@dataclass(frozen=True)
class Alignment(Objective):
    """All losses of a source, with a batch of the target's unlabelled rows beside its own.

    Attributes:
        alignment: strength of the reversed gradient.
        disentangling: weight of the losses of the two parts.
    """

    alignment: float
    disentangling: float

    def __call__(self, context: StepContext) -> Tensor:
        """Classes, domains and the two parts."""
        net = cast("Adversary", context.module)
        own, theirs = net.features(context.own.x), net.features(context.beside[0].x)
        invariant = net.invariant(own)
        learnt = context.loss_of(net.answer(invariant), context.own.y)
        told_apart = domain_loss(
            net, *(reverse_gradient(f, self.alignment) for f in (invariant, net.invariant(theirs)))
        )
        apart = parts_loss(net, own.detach(), theirs.detach(), context.own.y)
        return learnt + told_apart + self.disentangling * apart


def domain_loss(net: Adversary, source: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of the domain identifier, both domains counting the same."""
    ours, theirs = net.domain(source), net.domain(target)
    return (functional.softplus(-ours).mean() + functional.softplus(theirs).mean()) / 2


def parts_loss(net: Adversary, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
    """What keeps the classes out of the specific part, and the two parts apart."""
    features = torch.cat((source, target))
    invariant = net.invariant(features)
    specific = (features - invariant).flatten(1)
    known = functional.cross_entropy(net.classes(specific[: len(source)].detach()), labels)
    weight, bias = net.classes.weight.detach(), net.classes.bias.detach()
    certainty = -entropy(functional.linear(specific, weight, bias))
    return known + certainty + in_common(invariant.flatten(1), specific)


def in_common(first: Tensor, second: Tensor) -> Tensor:
    """Squared covariance between two parts over that of their sum with itself; 0 for constants."""

    def covariance(left: Tensor, right: Tensor) -> Tensor:
        return ((left - left.mean(dim=0)).T @ (right - right.mean(dim=0))).square().sum()

    whole = (first + second).detach()
    return covariance(first, second) / covariance(whole, whole).clamp(min=TINY)


def spread_partition(features: Tensor, clusters: int) -> Tensor:
    """(n,) a first partition: rows far from each other, and to each the rows next to it.

    It begins with the row next to the mean and goes on with the row farthest from those chosen.
    """
    centres = features[[int((features - features.mean(dim=0)).norm(dim=1).argmin())]]
    for _ in range(min(clusters, len(features)) - 1):
        farthest = int(torch.cdist(features, centres).amin(dim=1).argmax())
        centres = torch.cat((centres, features[[farthest]]))
    return torch.cdist(features, centres).argmin(dim=1)


def tighten(features: Tensor, partition: Tensor) -> tuple[float, Tensor]:
    """K-means from a partition: the share of the variation left within clusters, and the clusters.

    Features that do not vary have all of nothing left: 1.
    """
    for _ in range(CLUSTERING_STEPS):
        centres = cluster_means(features, partition)
        partition = torch.cdist(features, centres).argmin(dim=1)
    own = cluster_means(features, partition)[partition.unique(return_inverse=True)[1]]
    total = float((features - features.mean(dim=0)).square().sum())
    return float((features - own).square().sum()) / total if total else 1.0, partition


def cluster_means(features: Tensor, partition: Tensor) -> Tensor:
    """The mean of every cluster that has rows."""
    member = functional.one_hot(partition.unique(return_inverse=True)[1]).to(features.dtype)
    return member.T @ features / member.sum(dim=0)[:, None]


class FADA(UnsupervisedMethod):
    """Adversarial alignment with the target's unlabelled rows; sources that tighten it count.

    Options:
        alignment: weight of the adversarial alignment (1).
        disentangling: weight of keeping domain and class features apart (0.1).
        attention: how sharply sources are told apart (20).
    """

    options: ClassVar[tuple[str, ...]] = ("alignment", "disentangling", "attention")
    needs: ClassVar[tuple[Need, ...]] = (Need.CLASSES, Need.FEATURES, Need.UNLABELLED)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.alignment = check_number("alignment", options.get("alignment", ALIGNMENT), least=0)
        self.disentangling = check_number(
            "disentangling", options.get("disentangling", DISENTANGLING), least=0
        )
        self.attention = check_number("attention", options.get("attention", ATTENTION), least=0)

    @classmethod
    def compose(cls, model: nn.Module, task: FederatedTask) -> nn.Module:
        """The model, and after it the gate and the identifiers."""
        features, _ = split_model(model)
        found = cast("Tensor", try_out(features, task))
        assert task.n_classes is not None
        return Adversary(model, tuple(found.shape[1:]), task.n_classes)

    @classmethod
    def restore(cls, model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The model with the gate in front of its head."""
        features, head = split_model(model)
        shape = tuple(tensors["head.0.openness"].shape)
        return SplitModel(features, nn.Sequential(Gate(shape), head))

    def deliver(self, model: nn.Module, state: State) -> nn.Module:
        """The same, with the parameters of a state."""
        size = parameter_vector(model).numel()
        features, head = split_model(super().deliver(model, state))
        gate = Gate(tuple(self._gate.openness.shape))
        load_parameter_vector(gate, state.parameters[size : size + gate.openness.numel()])
        return SplitModel(features, nn.Sequential(gate, head))

    def objective(self, round: int) -> tuple[Objective, tuple[int, ...]]:
        """Alignment with the unlabelled rows, gentle in the first rounds."""
        strength = self.alignment * min(1.0, round / RAMP)
        beside = (self.federation.site_for(Need.UNLABELLED),)
        return Alignment(strength, self.disentangling), beside

    def learn(self, round: int, trained: Gathered, models: list[State], record: Record) -> None:
        """See what each source brings and move by that."""
        federation, present = self.federation, trained.source_indices
        self._count_features(round, trained)
        gains = self._gains(models)
        shares = (self.attention * gains).softmax(dim=0)
        record.extra["gain"] = listed(gains, present, federation.n_sources)
        record.beta = listed(shares, present, federation.n_sources)
        self.mix(models, shares.tolist())

    @property
    def _gate(self) -> Gate:
        return cast("Adversary", self.federation.bench.model).invariant

    def _count_features(self, round: int, trained: Gathered) -> None:
        """The target's features of every step go out, their gradients come back."""
        federation, width = self.federation, self._gate.openness.numel()
        for index, outcome in trained.sources:
            rows = min(federation.plan(index + 1, round).batch_size, len(self.unlabelled))
            federation.bytes_up += 4 * width * rows * outcome.steps
            federation.bytes_down += 4 * width * rows * outcome.steps

    def _gains(self, models: list[State]) -> Tensor:
        """(K,) how much tighter every source's model makes the clusters of the target's rows.

        All start from the clusters of the present model, so that none gains by a lucky start.
        """
        classes = self.federation.task.n_classes
        assert classes is not None
        before, *after = (
            self.federation.predict(model, self.unlabelled, _invariant).double()
            for model in (self.state, *models)
        )
        with one_thread():
            share, clusters = tighten(before, spread_partition(before, classes))
            shares = [tighten(features, clusters)[0] for features in after]
        return share - torch.tensor(shares, dtype=torch.float64)


def _invariant(module: nn.Module, x: Tensor) -> Tensor:
    net = cast("Adversary", module)
    return cast("Tensor", net.invariant(net.features(x))).flatten(1)
