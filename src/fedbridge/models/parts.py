"""What the networks are put together from, and how to take them apart again."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from fedbridge.blocks import trainable_parameters
from fedbridge.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.stretches import Stretches


class SplitModel(nn.Module):
    """A feature extractor and a head, for the methods that treat the two differently."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """The head's answer on the features of ``x``."""
        return cast("Tensor", self.head(self.features(x)))


class LinearModel(nn.Module):
    """A head on the raw inputs: logistic or linear regression."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """A linear function of the flattened ``x``."""
        return cast("Tensor", self.head(x.flatten(1)))


class AsImages(nn.Module):
    """Gives grey images ``(n, H, W)`` the channel that convolutions expect."""

    def forward(self, x: Tensor) -> Tensor:
        """The batch as ``(n, 1, H, W)``."""
        return x.unsqueeze(1)


class Normalise(nn.Module):
    """Shifts and scales every channel of images in [0, 1], as a pretrained network expects them.

    The numbers are constants of the network, not state: they are no buffers, so they are neither
    saved nor sent nor averaged.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean = tuple(mean)
        self.std = tuple(std)

    def forward(self, x: Tensor) -> Tensor:
        """``(x - mean) / std``, channel by channel."""
        mean, std = (x.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (x - mean) / std


def split_model(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The model's ``features`` and ``head``, or an error when it has no such parts."""
    features, head = getattr(model, "features", None), getattr(model, "head", None)
    if not isinstance(features, nn.Module) or not isinstance(head, nn.Module):
        raise ModelError(
            f"Expected a model with submodules `features` and `head`, so that its output is "
            f"head(features(x)), but {type(model).__name__} has not both: use mlp or cnn, or name "
            f"the two parts of your own model so."
        )
    return features, head


def head_stretches(model: nn.Module) -> Stretches:
    """Where the model's head lies in its flat parameter vector."""
    _, head = split_model(model)
    own = {id(parameter) for parameter in head.parameters()}
    found: list[tuple[int, int]] = []
    start = 0
    for parameter in trainable_parameters(model):
        end = start + parameter.numel()
        if id(parameter) in own:
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
        start = end
    return tuple(found)
