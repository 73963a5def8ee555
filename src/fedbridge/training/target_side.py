"""The target's side of a method: models and choices that never leave the target.

A method that weighs its trust by the target's labels trains more models than it mixes. Those live
where the labels are: in one process beside the method, over a network in the target's client. What
passes between the two is what the methods below take and give back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedbridge.evaluation.metrics import Evaluation
    from fedbridge.training.job import ClientResult, Job
    from fedbridge.training.state import State


@dataclass(frozen=True)
class News:
    """What a round's mixture means for the target's models; nothing, if no source was there."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """How the target has decided.

    Attributes:
        state: its model; None if that stays with the target.
        facts: its choice and what it stands on, plain values.
        evaluation: what the model is worth, if it was measured at once.
    """

    state: State | None
    facts: Mapping[str, Any]
    evaluation: Evaluation | None = None


class TargetSide:
    """Trains in every round beside the jobs that the coordinator gives the target, then decides.

    As it stands it is the empty shell that a coordinator has of a target that is elsewhere: nothing
    is trained or remembered here, and the engine asks the target to decide.

    Attributes:
        lasts: whether it trains and remembers from one message to the next; one that does not
            decides from the news alone.
    """

    lasts: ClassVar[bool] = True

    @property
    def size(self) -> int:
        """How many models it trains in a round."""
        return 0

    def begin(self, state: State) -> None:
        """Start all models from one."""

    def follow(self, shared: Sequence[State]) -> None:
        """Take the models that the coordinator shares as they are there, after a gap."""

    def trainings(self, round: int) -> list[tuple[Job, State]]:
        """What to train in a round, and from where; slots are filled in by the caller.

        The first of them tells whether the target can train at all.
        """
        return []

    def trained(self, shared: Sequence[ClientResult], own: Sequence[ClientResult]) -> None:
        """Keep what came of the target's jobs and of the trainings until the target decides."""

    def decide(self, news: News) -> Decision:
        """Move the models by what was trained and by the news, and choose."""
        raise NotImplementedError

    def memory(self) -> dict[str, Tensor]:
        """Tensors to remember between rounds, and between training and deciding."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Plain values to remember."""
        return {}

    def remember(self, memory: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from what ``memory`` and ``facts`` held."""
