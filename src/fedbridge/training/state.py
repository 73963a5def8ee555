"""A model as the federation sees it: one flat vector of parameters, and buffers apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

Buffers = dict[str, Tensor]


@dataclass(frozen=True)
class State:
    """A model as the federation sees it: parameters and buffers."""

    parameters: Tensor
    buffers: Buffers

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """The model as named tensors, for a checkpoint; ``of_tensors`` is the way back."""
        buffers = {f"{prefix}buffers.{name}": value for name, value in self.buffers.items()}
        return {f"{prefix}parameters": self.parameters, **buffers}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], prefix: str = "") -> State:
        """The model among named tensors."""
        start = f"{prefix}buffers."
        buffers = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        return cls(tensors[f"{prefix}parameters"], buffers)

    def moved(self, update: Tensor, buffers: Buffers | None = None) -> State:
        """The model after an update, with new buffers if there are any."""
        return State(self.parameters + update, self.buffers if buffers is None else buffers)
