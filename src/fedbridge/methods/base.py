"""What a method is: it plays rounds of a federation and always has a model for the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.federation import Federation, State


@dataclass
class Record:
    """What a round leaves in the history, besides the measures of the model.

    Attributes:
        beta: trust in every source, in the task's order; None for one that was not there.
        sigma2: the target's noise; None when undefined.
        d2: estimated squared distance of every source (raw, may be negative).
        cosine: cosine between the target's update and every source's.
        failures: clients that were left out, and why.
        notes: what a reader should know about this round.
        extra: what only this method has to tell.
        seconds_train: time of the clients' work.
        seconds_aggregate: time of measuring and mixing.
    """

    beta: list[float | None] | None = None
    sigma2: float | None = None
    d2: list[float | None] | None = None
    cosine: list[float | None] | None = None
    failures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    seconds_train: float = 0.0
    seconds_aggregate: float = 0.0


class Method(ABC):
    """Plays one round at a time; everything it must remember is in ``memory`` and ``facts``.

    Subclasses keep state nowhere else, so that a run can be stopped after any round and go on
    elsewhere to the same bits.
    """

    options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        self.federation = federation
        self.given = dict(options)
        self.state = federation.initial

    def room(self) -> tuple[int, int]:
        """Starting points and jobs at a time that the engine must have room for."""
        return 1, self.federation.n_sources + 1

    def begin(self, state: State) -> None:
        """Start from a model: the initial one, or the one after the warm-up."""
        self.state = state

    @abstractmethod
    def play(self, round: int) -> Record:
        """One round; ``self.state`` is the target's model afterwards."""

    def memory(self) -> dict[str, Tensor]:
        """Tensors to remember between rounds, besides the model."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Plain values to remember between rounds."""
        return {}

    def remember(
        self, state: State, memory: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Go on from what ``state``, ``memory`` and ``facts`` held after some round."""
        self.state = state
