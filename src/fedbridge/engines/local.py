"""The clients take turns in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.base.errors import FedbridgeError
from fedbridge.engines.base import Answer, Finished
from fedbridge.training.state import clear, entries
from fedbridge.training.trainer import Workbench, one_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fedbridge.evaluation.metrics import Evaluation
    from fedbridge.training.job import Job, Outcome
    from fedbridge.training.state import Model, State
    from fedbridge.training.target_side import Decision, News, TargetSide


class LocalEngine:
    """Runs jobs one after the other; the target's side lives here too."""

    probes = in_turns = True

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._side: TargetSide | None = None
        self.kept: dict[int, Tensor] = {}
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
        mine = [replace(job, own=self.kept.get(job.client)) if job.keeps else job for job in jobs]
        outcomes = self._do(mine)
        for job, outcome, vector in zip(mine, outcomes, self._vectors, strict=False):
            if job.keeps and outcome.failure is None:
                self._keep(job, vector)
        return Answer(Finished(outcomes, self._vectors[: len(jobs)]))

    def decide(self, round: int, news: News) -> Answer[Decision | None]:
        """Ask the target's side."""
        assert self._side is not None
        return Answer(self._side.decide(news))

    def postpone(self, round: int, state: Model) -> bool:
        """There is nobody beside."""
        return False

    def evaluate(self, round: int, state: Model) -> Answer[Evaluation]:
        """Measure a model here."""
        with one_thread():
            return Answer(self._bench.evaluate(round, state))

    def _keep(self, job: Job, vector: Tensor) -> None:
        """Let a client keep what is its own: nobody is told how that has changed."""
        start = entries(self._starts[job.slot], job.keeps) if job.own is None else job.own
        self.kept[job.client] = start + entries(vector, job.keeps)
        clear(vector, job.keeps)

    def _memory(self, rows: int) -> Tensor:
        return torch.zeros(rows, self._bench.blocks.total)

    def _do(self, jobs: Sequence[Job]) -> list[Outcome]:
        with one_thread():
            return [
                self._bench.run(job, self._starts, self._vectors[row])
                for row, job in enumerate(jobs)
            ]
