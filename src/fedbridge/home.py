"""The part of a method that lives with the target: models and choices that never leave it.

A method that weighs its trust by the target's labels trains more models than it mixes. Those live
where the labels are. In one process the method and its home are neighbours; over a network the
home is in the target's client, and what passes between them is what the methods below take and
give back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedbridge.jobs import Job, Outcome
    from fedbridge.metrics import Evaluation
    from fedbridge.state import State


@dataclass(frozen=True)
class News:
    """What a round's mixture means for the models at home; nothing, if no source was there."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Settled:
    """How the target has decided.

    Attributes:
        state: its model; None if that stays with the target.
        facts: its choice and what it stands on, plain values.
        evaluation: what the model is worth, if it was measured at once.
    """

    state: State | None
    facts: Mapping[str, Any]
    evaluation: Evaluation | None = None


@dataclass(frozen=True)
class Work:
    """A finished piece of work and the vector that came of it."""

    outcome: Outcome
    vector: Tensor


class Home(ABC):
    """Trains in every round beside the jobs that the coordinator gives the target, then decides."""

    @abstractmethod
    def begin(self, state: State) -> None:
        """Start all models from one."""

    @abstractmethod
    def follow(self, shared: Sequence[State]) -> None:
        """Take the models that the coordinator shares as they are there, after a gap."""

    @abstractmethod
    def trainings(self, round: int) -> list[tuple[Job, State]]:
        """What to train at home in a round, and from where; slots are filled in by the caller.

        The first of them tells whether the target can train at all.
        """

    @abstractmethod
    def trained(self, shared: Sequence[Work], own: Sequence[Work]) -> None:
        """Keep what came of the target's jobs and of the trainings until the round is settled."""

    @abstractmethod
    def settle(self, news: News) -> Settled:
        """Move the models by what was trained and by the news, and choose."""

    @abstractmethod
    def memory(self) -> dict[str, Tensor]:
        """Tensors to remember between rounds, and between training and settling."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Plain values to remember."""

    @abstractmethod
    def remember(self, memory: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from what ``memory`` and ``facts`` held."""
