"""A model's vector as Flower's named arrays, and back.

A Flower user expects a model to travel as its state dict, under ``arrays``. The federation works
with one flat vector and buffers apart. The layout is the dictionary between the two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedbridge.base.errors import ShapeError
from fedbridge.training.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping

BUFFER_NAME = re.compile(r"(^|\.)(running_mean|running_var|num_batches_tracked)$")


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's trainable parameters and of its buffers, in order."""

    parameters: Mapping[str, tuple[int, ...]]
    buffers: Mapping[str, tuple[int, ...]]

    @classmethod
    def of_model(cls, model: nn.Module) -> Layout:
        """The layout of a module."""
        return cls(
            {n: tuple(p.shape) for n, p in model.named_parameters() if p.requires_grad},
            {name: tuple(buffer.shape) for name, buffer in model.named_buffers()},
        )

    def arrays(self, state: State) -> dict[str, Tensor]:
        """A state as a state dict."""
        sizes = [prod(shape) for shape in self.parameters.values()]
        parts = state.parameters.split(sizes)
        named = zip(self.parameters.items(), parts, strict=True)
        return {name: part.reshape(shape) for (name, shape), part in named} | dict(state.buffers)

    def state(self, arrays: Mapping[str, Tensor]) -> State:
        """A state dict as a state; names and shapes must be the model's own."""
        expected = {**self.parameters, **self.buffers}
        for name, shape in expected.items():
            if name not in arrays or tuple(arrays[name].shape) != shape:
                got = tuple(arrays[name].shape) if name in arrays else "nothing"
                raise ShapeError(f"Expected {name!r} of shape {shape} in the model, but got {got}.")
        return State(
            torch.cat([arrays[name].reshape(-1).float() for name in self.parameters]),
            {name: arrays[name] for name in self.buffers},
        )


class Skeleton(nn.Module):
    """Parameters and buffers without a network: all that a coordinator needs of a model."""

    def __init__(self, arrays: Mapping[str, Tensor]) -> None:
        """A module with these entries; which of them are buffers is told by type and name."""
        super().__init__()
        for path, value in arrays.items():
            *folders, name = path.split(".")
            owner: nn.Module = self
            for folder in folders:
                if folder not in owner._modules:
                    owner.add_module(folder, nn.Module())
                owner = owner.get_submodule(folder)
            if value.is_floating_point() and not BUFFER_NAME.search(path):
                owner.register_parameter(name, nn.Parameter(value.clone().float()))
            else:
                owner.register_buffer(name, value.clone())
