"""An own model: any function that takes the task and returns a ``torch.nn.Module``.

Use it as ``my_model:build`` from the folder that holds this file.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from fedbridge.data.task import FederatedTask


class TwoLayers(nn.Module):
    """Two hidden layers; with parts named so, methods that personalise the head can use it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh()
        )
        self.head = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """One output per class."""
        output: Tensor = self.head(self.features(x))
        return output


def build(task: FederatedTask) -> nn.Module:
    """The model, sized from the task."""
    return TwoLayers(prod(task.input_shape), task.outputs)
