"""A model as the federation sees it, and what came back from the clients in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.evidence import Vectors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.jobs import Outcome

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


@dataclass(frozen=True)
class Gathered:
    """What came back in a round.

    Attributes:
        rows: (clients, m) the vectors that came back: the target's first, if it is there.
        target: the target's outcome; None if it dropped out.
        sources: index (from 0) and outcome of every source that came back.
        failures: name of every client that did not, and why.
    """

    rows: Tensor
    target: Outcome | None
    sources: tuple[tuple[int, Outcome], ...]
    failures: Mapping[str, str]

    @property
    def source_indices(self) -> list[int]:
        """Indices of the sources that came back."""
        return [index for index, _ in self.sources]

    def vectors(self, *, align: bool) -> Vectors:
        """The vectors in one unit: the only place where updates are rescaled.

        A source's update over (its steps x its learning rate), times the target's.
        """
        assert self.target is not None
        reports = [outcome for _, outcome in self.sources]
        unit = self.target.time
        scale = [unit / report.time if align else 1.0 for report in reports]
        factors = torch.tensor(scale, dtype=torch.float64)
        theirs = self.rows[1:]
        if align:
            theirs.mul_(factors.to(theirs.dtype)[:, None])
        return Vectors(self.rows[0], theirs, self.target, reports, factors)
