"""Persistent worker processes with shared memory.

Parameters and updates live in memory that all processes share: what travels through the pipes
is a job's few settings and an outcome's few numbers. Every worker uses one torch thread, and a
job's result depends on nothing but the job, so any number of workers gives the same bits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.multiprocessing  # registers how shared tensors reach a spawned worker
from torch import Tensor

from fedbridge.engines.local import check_room
from fedbridge.jobs import Outcome
from fedbridge.processes import START_METHOD, Crew, Tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.jobs import Job
    from fedbridge.training import Workbench


class WorkerEngine:
    """Runs jobs on worker processes, the longest first.

    Attributes:
        starts: (slots, m) shared parameter vectors that jobs may start from.
        results: (rows, m) shared, one row per job of the last ``run``.
    """

    def __init__(
        self,
        bench: Workbench,
        *,
        slots: int,
        rows: int,
        workers: int,
        start_method: str = START_METHOD,
    ) -> None:
        self._bench = bench
        self.starts = torch.zeros(slots, bench.blocks.total).share_memory_()
        self.results = torch.zeros(rows, bench.blocks.total).share_memory_()
        work = partial(_do_job, bench, self.starts, self.results)
        self._crew = Crew(work, workers, start_method)

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Do all jobs; one whose worker dies says so, and the worker is replaced."""
        check_room(jobs, self.results)
        outcomes: dict[int, Outcome] = {}
        rows = [(job, row) for row, job in enumerate(jobs)]
        for event in self._crew.do(rows, lambda item: self._length(item[0])):
            if event.kind == "done":
                outcomes[event.item] = event.value
            else:
                samples = len(self._bench.sites[jobs[event.item].client])
                failure = f"its process ended with code {event.value}"
                outcomes[event.item] = Outcome(samples, failure=failure, lost=True)
        return [outcomes[row] for row in range(len(jobs))]

    def close(self) -> None:
        """End all workers."""
        self._crew.close()

    def _length(self, job: Job) -> int:
        samples = len(self._bench.sites[job.client]) if job.rows is None else len(job.rows)
        steps = job.plan.total_steps(samples)
        if job.kind == "probe":
            steps = min(job.max_batches or steps, steps)
        return steps * min(job.plan.batch_size, samples)


def _do_job(
    bench: Workbench, starts: Tensor, results: Tensor, item: tuple[Job, int], tell: Tell
) -> Outcome:
    """One job, on shared memory."""
    job, row = item
    return bench.run(job, starts, results[row])
