"""Where the head of a model lies in its flat parameter vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.blocks import trainable_parameters
from fedbridge.models import split_model

if TYPE_CHECKING:
    from torch import nn

    from fedbridge.stretches import Stretches


def head_stretches(model: nn.Module) -> Stretches:
    """The entries of the model's head."""
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
