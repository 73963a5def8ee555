"""The last layer of a model: where it is, what goes into it, and how to put another in its place.

A model that ends in a linear layer named ``head`` is that layer on features: ``W φ(x) + b``. Of a
linear model the features are the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedbridge.base.errors import ModelError
from fedbridge.core.blocks import placed_parameters
from fedbridge.models.networks import slices_of

if TYPE_CHECKING:
    from typing import Self


def linear_head(model: nn.Module) -> nn.Linear:
    """The linear layer with a bias that a model ends in, or an error when it has none."""
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Linear) or head.bias is None:
        raise ModelError(
            f"Expected a model whose last layer is named `head` and is linear with a bias, but "
            f"{type(model).__name__} has none: use linear, mlp or cnn, or name the layer so."
        )
    return head


def head_inputs(model: nn.Module, x: Tensor) -> Tensor:
    """What goes into the last layer: the features of ``x``."""
    return _asked(model, x)[1]


def outputs_and_head_inputs(model: nn.Module, x: Tensor) -> Tensor:
    """A model's outputs for ``x`` and, beside them, what goes into the last layer."""
    return torch.cat([found.reshape(len(x), -1) for found in _asked(model, x)], 1)


def _asked(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    seen: list[Tensor] = []
    hook = linear_head(model).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        outputs = model(x)
    finally:
        hook.remove()
    return outputs, seen[-1]


@dataclass(frozen=True)
class HeadPlace:
    """Where the last layer lies in a flat parameter vector.

    Attributes:
        weight: entries of ``W``, row by row, and
        bias: those of ``b``.
        shape: of ``W``: outputs, features.
        slices: both parts as half-open intervals, in order and apart from each other.
    """

    weight: slice
    bias: slice
    shape: tuple[int, int]
    slices: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """The place in a model."""
        head = linear_head(model)
        found = {id(parameter): columns for parameter, columns in placed_parameters(model)}
        return cls(
            found[id(head.weight)],
            found[id(head.bias)],
            (head.out_features, head.in_features),
            slices_of(model, head),
        )

    def read(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """``W`` and ``b`` in float64."""
        return vector[self.weight].double().reshape(self.shape), vector[self.bias].double()

    def put(self, vector: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The vector with another last layer."""
        changed = vector.clone()
        changed[self.weight] = weight.reshape(-1).to(vector.dtype)
        changed[self.bias] = bias.to(vector.dtype)
        return changed


def with_ones(features: Tensor) -> Tensor:
    """Features and a column of ones, so that a head is one matrix ``(W, b)``."""
    return torch.cat((features, torch.ones_like(features[:, :1])), 1)
