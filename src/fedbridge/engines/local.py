"""The clients take turns in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.base.errors import FedbridgeError
from fedbridge.engines.base import Answer, Finished
from fedbridge.training.trainer import Workbench, one_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fedbridge.evaluation.metrics import Evaluation
    from fedbridge.training.job import Job, Outcome
    from fedbridge.training.state import Model, State
    from fedbridge.training.target_side import Decision, News, TargetSide


class LocalEngine:
    """Runs jobs one after the other; the target's side lives here too."""

    probes = True

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._side: TargetSide | None = None
        self._starts = self._vectors = torch.zeros(0, bench.blocks.total)

    def open(self, *, slots: int, rows: int) -> None:
        """Make room."""
        self._starts, self._vectors = self._memory(slots), self._memory(rows)

    def close(self) -> None:
        """Nothing to end."""

    def host(self, make: Callable[[], TargetSide]) -> TargetSide:
        """The target is here, and so is its side."""
        self._side = make()
        return self._side

    def run(self, jobs: Sequence[Job], starts: Sequence[State], *, round: int) -> Answer[Finished]:
        """Run all jobs."""
        if len(jobs) > len(self._vectors):
            raise FedbridgeError(
                f"Expected at most {len(self._vectors)} jobs, but got {len(jobs)}."
            )
        for slot, state in enumerate(starts):
            self._starts[slot].copy_(state.parameters)
        return Answer(Finished(self._do(jobs), self._vectors[: len(jobs)]))

    def decide(self, round: int, news: News) -> Answer[Decision | None]:
        """Ask the target's side."""
        assert self._side is not None
        return Answer(self._side.decide(news))

    def evaluate(self, round: int, state: Model) -> Answer[Evaluation]:
        """Measure a model here."""
        with one_thread():
            return Answer(self._bench.evaluate(round, state))

    def _memory(self, rows: int) -> Tensor:
        return torch.zeros(rows, self._bench.blocks.total)

    def _do(self, jobs: Sequence[Job]) -> list[Outcome]:
        with one_thread():
            return [
                self._bench.run(job, self._starts, self._vectors[row])
                for row, job in enumerate(jobs)
            ]
