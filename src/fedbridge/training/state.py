"""A model as the federation sees it: one flat vector of parameters, buffers apart; slices of it.

What a target ends up with may be several such models whose outputs are added, a ``Blend``, or one
beside a store of its rows, ``Recalled``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

Buffers = dict[str, Tensor]
Slices: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open intervals, in order and apart from each other."""


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
class Blend:
    """Models whose outputs are added, with a linear function of the inputs.

        Σ_k s_k f_k(x) + U x + c

    Attributes:
        members: the models ``f_k``, all of one architecture.
        scales: (members,) the factors ``s_k``.
        linear: (outputs, inputs + 1) ``U`` and, as the last column, ``c``; None for nothing.
    """

    members: tuple[State, ...]
    scales: Tensor
    linear: Tensor | None = None

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """The blend as named tensors; ``model_of_tensors`` is the way back."""
        named = {f"{prefix}scales": self.scales}
        if self.linear is not None:
            named[f"{prefix}linear"] = self.linear
        for number, member in enumerate(self.members):
            named |= member.tensors(f"{prefix}member-{number}.")
        return named


@dataclass(frozen=True)
class Recalled:
    """A model beside a store of rows that vote (``neighbours``).

    Attributes:
        state: the model.
        store: the store's tensors.
    """

    state: State
    store: Mapping[str, Tensor]

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """Both as named tensors; ``model_of_tensors`` is the way back."""
        stored = {f"{prefix}store.{name}": value for name, value in self.store.items()}
        return {**self.state.tensors(prefix), **stored}


Model: TypeAlias = State | Blend | Recalled


def model_of_tensors(tensors: Mapping[str, Tensor], prefix: str = "") -> Model:
    """The model, the blend or the model with its store among named tensors."""
    if f"{prefix}scales" not in tensors:
        state, start = State.of_tensors(tensors, prefix), f"{prefix}store."
        store = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        return Recalled(state, store) if store else state
    scales = tensors[f"{prefix}scales"]
    members = (State.of_tensors(tensors, f"{prefix}member-{k}.") for k in range(len(scales)))
    return Blend(tuple(members), scales, tensors.get(f"{prefix}linear"))


def complement(slices: Slices, size: int) -> Slices:
    """All entries that are not in the slices."""
    ends = [0, *(end for _, end in slices)]
    starts = [*(start for start, _ in slices), size]
    return tuple((end, start) for end, start in zip(ends, starts, strict=True) if end < start)


def overwrite(vector: Tensor, source: Tensor, slices: Slices) -> None:
    """Put the entries of another vector in place of the vector's own, in the slices."""
    for start, end in slices:
        vector[..., start:end] = source[..., start:end]


def entries(vector: Tensor, slices: Slices) -> Tensor:
    """What the vector holds in the slices, one after the other."""
    return torch.cat([vector[start:end] for start, end in slices])


def clear(vector: Tensor, slices: Slices) -> None:
    """Put zeros into the slices."""
    for start, end in slices:
        vector[start:end] = 0


def put(vector: Tensor, values: Tensor, slices: Slices) -> None:
    """Put values where ``entries`` would read them."""
    parts = values.split([end - start for start, end in slices])
    for (start, end), part in zip(slices, parts, strict=True):
        vector[start:end] = part
