"""Persistent worker processes with shared memory.

Parameters and updates live in memory that all processes share: what travels through the pipes
is a job's few settings and an outcome's few numbers. Every worker uses one torch thread, and a
job's result depends on nothing but the job, so any number of workers gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.multiprocessing  # registers how shared tensors reach a spawned worker

from fedbridge.base.options import check_whole
from fedbridge.base.processes import START_METHOD, Crew, Tell, core_count
from fedbridge.engines.base import Answer
from fedbridge.engines.local import LocalEngine
from fedbridge.training.job import Job, Outcome
from fedbridge.training.state import Buffers, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fedbridge.engines.base import Engine
    from fedbridge.evaluation.metrics import Evaluation
    from fedbridge.training.state import Model
    from fedbridge.training.trainer import Workbench

WORTH_IT = 1000
"""Test rows from which an evaluation is put off until workers have time for it."""
TRAINING_COSTS = 3
"""Times that it takes to train on a row instead of asking about it."""


@dataclass(frozen=True)
class Postponed:
    """A model, in a slot that jobs do not use, whose evaluation is put off."""

    round: int
    slot: int
    buffers: Buffers


def make_engine(bench: Workbench, *, workers: int | None) -> Engine:
    """The engine for so many workers; None takes one per core.

    On another device than the CPU the clients take turns in this process.
    """
    if workers is not None:
        check_whole("workers", workers, least=1)
    count = workers or core_count()
    if count == 1 or bench.device.type != "cpu":
        return LocalEngine(bench)
    return WorkerEngine(bench, count)


class WorkerEngine(LocalEngine):
    """Runs jobs on worker processes, the longest first; room for one job needs none."""

    def __init__(self, bench: Workbench, workers: int, *, start_method: str = START_METHOD) -> None:
        super().__init__(bench)
        self._workers, self._start_method = workers, start_method
        self._crew: Crew | None = None
        self._postponed: Postponed | None = None
        self._known: dict[int, Evaluation] = {}

    def open(self, *, slots: int, rows: int) -> None:
        """Make room in shared memory, and start as many workers as there may be jobs for."""
        self.close()
        super().open(slots=slots + 1, rows=rows)
        if len(self._vectors) > 1:
            work = partial(_do_job, self._bench, self._starts, self._vectors)
            count = min(self._workers, len(self._vectors))
            self._crew = Crew(work, count, self._start_method)

    def close(self) -> None:
        """End all workers."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def postpone(self, round: int, state: Model) -> bool:
        """Let a worker evaluate it that has nothing else to do before the next jobs are done."""
        many = len(self._bench.test.x) >= WORTH_IT
        if self._crew is None or not many or not isinstance(state, State):
            return False
        slot = len(self._starts) - 1
        self._starts[slot].copy_(state.parameters)
        self._postponed = Postponed(round, slot, state.buffers)
        return True

    def evaluate(self, round: int, state: Model) -> Answer[Evaluation]:
        """What a worker has found, or measured here."""
        self._postponed = None
        found = self._known.pop(round, None)
        return super().evaluate(round, state) if found is None else Answer(found)

    def _memory(self, rows: int) -> Tensor:
        """Room that the system hands out page by page, as clients write into it.

        Of a thousand sources of which a tenth takes part, only a tenth of the rows is ever taken.
        """
        vector = torch.empty(0)
        size = vector.element_size() * rows * self._bench.blocks.total
        vector.set_(torch.UntypedStorage._new_shared(size))
        return vector.view(rows, -1)

    def _do(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Do all jobs; one whose worker dies says so, and the worker is replaced."""
        if self._crew is None:
            return super()._do(jobs)
        outcomes: dict[int, Outcome] = {}
        items: list[tuple[Job, int] | Postponed] = [(job, row) for row, job in enumerate(jobs)]
        beside, self._postponed = self._postponed, None
        if beside is not None:
            items.append(beside)
        for event in self._crew.do(items, self._length):
            if event.item == len(jobs):
                if beside is not None and event.kind == "done":
                    self._known = {beside.round: event.value}
            elif event.kind == "done":
                outcomes[event.item] = event.value
            else:
                samples = len(self._bench.sites[jobs[event.item].client])
                failure = f"its process ended with code {event.value}"
                outcomes[event.item] = Outcome(samples, failure=failure, lost=True)
        return [outcomes[row] for row in range(len(jobs))]

    def _length(self, item: tuple[Job, int] | Postponed) -> float:
        """How long it takes, in rows that are trained on."""
        if isinstance(item, Postponed):
            return len(self._bench.test.x) / TRAINING_COSTS
        job, _ = item
        samples = self._bench.samples(job)
        return job.steps(samples) * min(job.plan.batch_size, samples)


def _do_job(
    bench: Workbench,
    starts: Tensor,
    results: Tensor,
    item: tuple[Job, int] | Postponed,
    tell: Tell,
) -> Outcome | Evaluation:
    """One job, or an evaluation, on shared memory."""
    if isinstance(item, Postponed):
        return bench.evaluate(item.round, State(starts[item.slot], item.buffers))
    job, row = item
    return bench.run(job, starts, results[row])
