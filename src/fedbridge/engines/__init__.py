"""Who runs the clients: this process, worker processes, or sites on a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fedbridge.engines.local import LocalEngine
from fedbridge.engines.workers import WorkerEngine
from fedbridge.options import check_whole
from fedbridge.processes import core_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fedbridge.federation import Federation
    from fedbridge.home import News, Settled
    from fedbridge.jobs import Job, Outcome
    from fedbridge.metrics import Evaluation
    from fedbridge.state import State
    from fedbridge.training import Workbench

__all__ = ["Engine", "LocalEngine", "Remote", "WorkerEngine", "make_engine"]


class Engine(Protocol):
    """Does jobs.

    Attributes:
        starts: (slots, m) parameter vectors that jobs may start from.
        results: (rows, m) one row per job of the last ``run``, in the order of the jobs.
    """

    starts: Tensor
    results: Tensor

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Do all jobs; one that fails says so in its outcome."""

    def close(self) -> None:
        """End what was started."""


class Remote(Protocol):
    """Sites that are elsewhere: their engine, and the questions that only the target can answer.

    Attributes:
        round: the round that is being played.
        at_home: outcome of the first thing that the target trained at home in it.
        notes: what the sites and the network had to say about it.
        facts: more entries for its line of the history.
        settled: the last round that the target has settled, if its method has a part there.
    """

    round: int
    at_home: Outcome
    notes: list[str]
    facts: dict[str, Any]
    settled: int | None

    def open(self, federation: Federation, *, slots: int, rows: int) -> Engine:
        """The engine that reaches them."""

    def settle(self, round: int, news: News) -> Settled | None:
        """Let the target decide on a round's mixture; None if it does not answer."""

    def judge(self, round: int, state: State) -> Evaluation:
        """What a model is worth to the target."""

    def traffic(self) -> tuple[int, int]:
        """Bytes that went up and down since the last call."""


def make_engine(bench: Workbench, *, slots: int, rows: int, workers: int | None) -> Engine:
    """The engine for so many workers; None takes one per core, for at most ``rows`` jobs.

    On another device than the CPU the clients take turns in this process.
    """
    if workers is not None:
        check_whole("workers", workers, least=1)
    count = min(workers or core_count(), rows)
    if count == 1 or bench.device.type != "cpu":
        return LocalEngine(bench, slots=slots, rows=rows)
    return WorkerEngine(bench, slots=slots, rows=rows, workers=count)
