"""kNN-Per: FedAvg's model, corrected by the target's own rows that look alike.

The target keeps the features ``φ(x_j)`` of its labelled rows under the FedAvg model. For a new
``x`` the ``k`` nearest of them vote, near ones more,

    p_knn(y | x) ∝ Σ_j 1[y_j = y] exp(−‖φ(x) − φ(x_j)‖² / (d s)) ,
    p(y | x) = λ p_knn(y | x) + (1 − λ) p_model(y | x) ,

with ``d`` the number of features and ``s`` the kernel's ``scale``, 1. The features are what the
head gets; on a linear model they are the inputs. ``λ`` is taken from a grid by the loss of the
target's labelled rows, each judged without itself in the store (leave-one-out); test rows have no
say. The FedAvg model has trained on these rows, so ``λ`` errs on the small side. ``λ = 0`` is
FedAvg.

Read beside the authors' code (omarfoq/knn-per): kernel, 10 neighbours and a store of all labelled
rows are theirs. Different: they tabulate all ``λ`` on the test rows, ours is chosen as above; their
script mixes the votes with raw outputs unless an argument is emptied, ours with probabilities as in
the paper; theirs makes the store once, after the last round, ours in every round.

Marfoq, Neglia, Vidal, Kameni: Personalized Federated Learning through Local Memorization,
ICML 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbridge.base.options import check_number, check_whole
from fedbridge.core import rules
from fedbridge.federation.needs import Need
from fedbridge.methods.rule import RuleMethod
from fedbridge.models import split_model, try_out
from fedbridge.training.state import State
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.federation import Federation
    from fedbridge.federation.method import Record

NEIGHBOURS = 10
GRID = tuple(step / 10 for step in range(11))
STORE = ("keys", "votes", "share", "scale", "neighbours")
TINY = 1e-12
FAR = 1e3
"""Where rows that are set aside for validation lie in the store: too far to vote."""


class Memorising(nn.Module):
    """A model and the store of the target's rows; in training the model alone."""

    keys: Tensor
    votes: Tensor
    share: Tensor
    scale: Tensor
    neighbours: Tensor

    def __init__(self, model: nn.Module, keys: Tensor, votes: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("keys", torch.zeros_like(keys))
        self.register_buffer("votes", torch.zeros_like(votes))
        self.register_buffer("share", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("neighbours", torch.ones((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities of the mixture."""
        features, head = split_model(self.model)
        seen = features(x)
        outputs = cast("Tensor", head(seen))
        if self.training:
            return outputs
        distances = squared_distances(seen.flatten(1).double(), self.keys.double())
        near = vote(distances, self.votes, int(self.neighbours), float(self.scale))
        return blend(outputs, near, float(self.share))


def squared_distances(rows: Tensor, others: Tensor) -> Tensor:
    """Of every row to each of the others, by ``‖a‖² + ‖b‖² − 2 a·b``, which any runtime can do."""
    lengths = rows.square().sum(1, keepdim=True) + others.square().sum(1)
    return (lengths - 2 * rows @ others.T).clamp(min=0)


def vote(distances: Tensor, votes: Tensor, neighbours: int, scale: float) -> Tensor:
    """Probabilities of the classes by the nearest stored rows.

    Args:
        distances: (n, stored) squared distances.
        votes: (stored, classes) one-hot labels.
        neighbours: how many vote.
        scale: squared distance at which a vote counts a factor e less.
    """
    nearest, which = distances.topk(min(neighbours, distances.shape[1]), largest=False, sorted=True)
    weights = functional.softmax(-nearest / scale, dim=1)
    chosen = votes.to(weights.dtype)[which]
    return (weights[:, :, None] * chosen).sum(1)


def blend(outputs: Tensor, near: Tensor, share: float) -> Tensor:
    """Logarithm of ``share · near + (1 − share) · softmax(outputs)``."""
    own = functional.softmax(outputs.double(), dim=1)
    return torch.log((1 - share) * own + share * near + TINY).to(outputs.dtype)


class KnnPer(RuleMethod):
    """FedAvg and a vote of the ``neighbours`` (10) nearest labelled rows of the target.

    Options:
        neighbours: rows that vote (10).
        share: weight of the vote; None chooses it by leave-one-out (None).
        scale: squared distance per feature at which a vote counts a factor e less (1).
    """

    options: ClassVar[tuple[str, ...]] = ("neighbours", "share", "scale")
    travels: ClassVar[bool] = False
    needs: ClassVar[tuple[Need, ...]] = (Need.CLASSES, Need.HEAD)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, {}, rules.get("fedavg"))
        count = check_whole("neighbours", options.get("neighbours", NEIGHBOURS), least=1)
        self.neighbours = count
        share = options.get("share")
        self.share = None if share is None else check_number("share", share, least=0, most=1)
        self.scale = check_number("scale", options.get("scale", 1.0), above=0)
        federation.buffers_stay = frozenset(STORE)

    @classmethod
    def compose(cls, model: nn.Module, task: FederatedTask) -> nn.Module:
        """The model with room for the features of the target's labelled rows."""
        assert task.n_classes is not None
        features, _ = split_model(model)
        width = cast("Tensor", try_out(features, task)).flatten(1).shape[1]
        rows = len(task.target)
        return Memorising(model, torch.zeros(rows, width), torch.zeros(rows, task.n_classes))

    @classmethod
    def restore(cls, model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The same from a saved run."""
        return Memorising(model, tensors["keys"], tensors["votes"])

    def deliver(self, model: nn.Module, state: State) -> nn.Module:
        """The model with its store."""
        module = Memorising(model, state.buffers["keys"], state.buffers["votes"])
        super().deliver(model, state)
        for name in STORE:
            getattr(module, name).copy_(state.buffers[name])
        return module

    def run_round(self, round: int) -> Record:
        """A round of FedAvg, then the store and the mixing weight anew."""
        record = super().run_round(round)
        with one_thread():
            store = self._remember_rows()
        self.state = State(self.state.parameters, {**self.state.buffers, **store})
        record.extra["share"] = float(store["share"])
        return record

    def _remember_rows(self) -> dict[str, Tensor]:
        """Features and labels of the target's rows, the kernel's scale, the weight of the vote."""
        federation, site = self.federation, self.federation.task.target
        assert federation.task.n_classes is not None
        rows = federation.target_rows
        labels = site.y if rows is None else site.y[rows]
        keys = federation.predict(self.state, site, _features, rows)
        outputs = federation.predict(self.state, site, _outputs, rows)
        votes = functional.one_hot(labels, federation.task.n_classes).float()
        distances = squared_distances(keys.double(), keys.double())
        distances.fill_diagonal_(torch.inf)
        scale = keys.shape[1] * self.scale
        share = self.share
        if share is None:
            share = self._best(distances, votes, outputs, scale)
        spare = len(site) - len(labels)
        return {
            "keys": functional.pad(
                keys, (0, 0, 0, spare), value=FAR * (1 + float(keys.abs().max()))
            ),
            "votes": functional.pad(votes, (0, 0, 0, spare)),
            "share": torch.tensor(share, dtype=torch.float32),
            "scale": torch.tensor(scale, dtype=torch.float32),
            "neighbours": torch.tensor(min(self.neighbours, len(labels))),
        }

    def _best(self, distances: Tensor, votes: Tensor, outputs: Tensor, scale: float) -> float:
        """The weight with the smallest leave-one-out loss; one row alone cannot be left out."""
        if len(votes) < 2:
            return 0.0
        count = min(self.neighbours, len(votes) - 1)
        near = vote(distances, votes, count, scale)
        labels = votes.argmax(1)
        losses = [float(functional.nll_loss(blend(outputs, near, share), labels)) for share in GRID]
        return GRID[losses.index(min(losses))]


def _features(module: nn.Module, x: Tensor) -> Tensor:
    features, _ = split_model(cast("Memorising", module).model)
    return cast("Tensor", features(x)).flatten(1)


def _outputs(module: nn.Module, x: Tensor) -> Tensor:
    return cast("Tensor", cast("Memorising", module).model(x))
