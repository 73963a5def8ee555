"""A model whose answers are mixed with a vote of stored rows that look alike.

    p(y | x) = λ p_near(y | x) + (1 − λ) p_model(y | x)

The stored rows are known by the features that go into the model's head (see ``methods.knn_per``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbridge.models import split_model

if TYPE_CHECKING:
    from collections.abc import Mapping

STORE = ("keys", "votes", "share", "scale", "neighbours")
TINY = 1e-12


class Memorising(nn.Module):
    """A model and a store of rows.

    Attributes:
        keys: (stored, f) features of the rows.
        votes: (stored, classes) their one-hot labels.
        share: λ.
        scale: squared distance at which a vote counts a factor e less.
        neighbours: how many of the nearest vote.
    """

    keys: Tensor
    votes: Tensor
    share: Tensor
    scale: Tensor
    neighbours: Tensor

    def __init__(self, model: nn.Module, store: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model = model
        for name in STORE:
            self.register_buffer(name, store[name].clone())

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities of the mixture."""
        return recalled(self.model, x, {name: getattr(self, name) for name in STORE})


def recalled(model: nn.Module, x: Tensor, store: Mapping[str, Tensor]) -> Tensor:
    """Log-probabilities of the mixture of a model and a store."""
    features, head = split_model(model)
    seen = features(x)
    outputs = cast("Tensor", head(seen))
    keys, votes = (store[name].to(outputs.device) for name in ("keys", "votes"))
    distances = squared_distances(seen.flatten(1).double(), keys.double())
    near = vote(distances, votes, int(store["neighbours"]), float(store["scale"]))
    return blend(outputs, near, float(store["share"]))


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
