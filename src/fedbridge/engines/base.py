"""The one door to the clients: run their jobs, let the target decide, evaluate a model.

This process, worker processes and a network of sites all implement ``Engine``. Whoever asks does
not know where a site lives; what an answer has to tell besides itself (notes for the history,
facts, bytes that crossed a wire) comes with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from fedbridge.evaluation.metrics import Evaluation
    from fedbridge.training.job import Job, Outcome
    from fedbridge.training.state import Model, State
    from fedbridge.training.target_side import Decision, News, TargetSide

T = TypeVar("T")


class Traffic(NamedTuple):
    """Bytes on a wire: from the sites to the coordinator, and from there to the sites."""

    up: int
    down: int


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What an engine answers, and what is to be told about how it came.

    Attributes:
        value: the answer itself.
        notes: what a reader of the history should know.
        facts: more entries for the round's line of the history.
        traffic: what crossed a wire since the last answer; None where nothing did.
    """

    value: T
    notes: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    traffic: Traffic | None = None


@dataclass(frozen=True)
class Finished:
    """Jobs that were run.

    Attributes:
        outcomes: one per job, in their order; one that failed says why.
        vectors: (jobs, m) what they computed, in memory that the next jobs will write over.
    """

    outcomes: list[Outcome]
    vectors: Tensor


class Engine(Protocol):
    """Who runs the clients.

    Attributes:
        probes: whether clients can be asked for gradients; training loops of their own cannot.
        kept: what clients keep of their own between jobs (``Job.keeps``), by their number, where
            they are here; what others keep is with them.
        in_turns: whether clients wait for each other, so that some jobs may as well be run after
            others; sites on a network all work at the same time.
    """

    probes: bool
    in_turns: bool
    kept: dict[int, Tensor]

    def open(self, *, slots: int, rows: int) -> None:
        """Make room for so many starting points and jobs at a time; start what must be started."""

    def close(self) -> None:
        """End what was started."""

    def host(self, make: Callable[[], TargetSide]) -> TargetSide:
        """Give the target's part of a method a place to live: with the target.

        What is returned stands for it here; where the target is elsewhere, that is an empty shell.
        """

    def run(self, jobs: Sequence[Job], starts: Sequence[State], *, round: int) -> Answer[Finished]:
        """Run a round's jobs, from ``starts`` (by slot); one that fails says so in its outcome."""

    def decide(self, round: int, news: News) -> Answer[Decision | None]:
        """Let the target decide after a round; None if it does not answer."""

    def postpone(self, round: int, state: Model) -> bool:
        """Evaluate a model beside the next jobs, if that saves time: ``evaluate`` then knows."""

    def evaluate(self, round: int, state: Model) -> Answer[Evaluation]:
        """What a model is worth to the target, by its test split and the rows set aside."""
