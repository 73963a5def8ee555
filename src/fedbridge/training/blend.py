"""A blend of models as one module, and any finished model as a module."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbridge.core.blocks import load_buffers, load_parameter_vector
from fedbridge.training.neighbours import Memorising
from fedbridge.training.state import Model, Recalled, State

if TYPE_CHECKING:
    from collections.abc import Mapping

LINEAR, SCALES = "linear.weight", "scales"


class LinearMap(nn.Module):
    """A linear layer of zeros: that of torch would draw values from the user's random numbers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """``U x + c``."""
        return functional.linear(x, self.weight, self.bias)


class Blended(nn.Module):
    """Models of one architecture whose outputs are added, with a linear function of the inputs."""

    scales: Tensor

    def __init__(self, members: list[nn.Module], linear: tuple[int, int] | None) -> None:
        """``linear``: sizes of the inputs, all in one row, and of the outputs; None for nothing."""
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer(SCALES, torch.ones(len(members)))
        self.linear = None if linear is None else LinearMap(*linear)

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        parts = [s * member(x) for s, member in zip(self.scales, self.members, strict=True)]
        if self.linear is not None:
            parts.append(self.linear(x.flatten(1)))
        return torch.stack(parts).sum(0)


def module_of(model: nn.Module, state: Model) -> nn.Module:
    """A state as a module: ``model`` itself with other values, with a store, or copies of it."""
    if isinstance(state, State):
        load_parameter_vector(model, state.parameters)
        if state.buffers:
            load_buffers(model, state.buffers)
        return model
    if isinstance(state, Recalled):
        return Memorising(module_of(model, state.state), state.store)
    sizes = None
    if state.linear is not None:
        sizes = (state.linear.shape[1] - 1, state.linear.shape[0])
    module = Blended([module_of(deepcopy(model), member) for member in state.members], sizes)
    with torch.no_grad():
        module.scales.copy_(state.scales)
        if module.linear is not None and state.linear is not None:
            module.linear.weight.copy_(state.linear[:, :-1])
            module.linear.bias.copy_(state.linear[:, -1])
    return module


def blend_for(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """What saved tensors are of, without values: ``model``, or a blend of copies of it."""
    if SCALES not in tensors:
        return model
    sizes = None
    if LINEAR in tensors:
        outputs, inputs = tensors[LINEAR].shape
        sizes = (inputs, outputs)
    return Blended([deepcopy(model) for _ in range(len(tensors[SCALES]))], sizes)
