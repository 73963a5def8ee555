"""Persistent worker processes with shared memory.

Parameters and updates live in memory that all processes share: what travels through the pipes
is a job's few settings and an outcome's few numbers. Every worker uses one torch thread, and a
job's result depends on nothing but the job, so any number of workers gives the same bits.
"""

from __future__ import annotations

import contextlib
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

import torch
import torch.multiprocessing  # registers how shared tensors reach a spawned worker
from torch import Tensor

from fedbridge.engines.local import check_room
from fedbridge.jobs import Outcome
from fedbridge.processes import START_METHOD, Child, Crew

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
        self._crew = Crew(start_method)
        self._serve = partial(_do_job, bench, self.starts, self.results)
        for _ in range(workers):
            self._crew.start(self._serve)

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Do all jobs; one whose worker dies says so, and the worker is replaced."""
        check_room(jobs, self.results)
        waiting = sorted(range(len(jobs)), key=lambda row: self._length(jobs[row]))
        outcomes: dict[int, Outcome] = {}
        busy: dict[Child, int] = {}
        while waiting or busy:
            for worker in self._crew.children:
                if worker not in busy and waiting:
                    busy[worker] = waiting.pop()
                    self._send(worker, jobs[busy[worker]], busy[worker])
            by_pipe = {worker.pipe: worker for worker in busy}
            for pipe in wait(list(by_pipe)):
                worker = by_pipe[pipe]  # type: ignore[index]
                row = busy.pop(worker)
                outcomes[row] = self._receive(worker, len(self._bench.sites[jobs[row].client]))
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

    def _send(self, worker: Child, job: Job, row: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionError):  # noticed when receiving
            worker.pipe.send((job, row))

    def _receive(self, worker: Child, samples: int) -> Outcome:
        try:
            outcome: Outcome = worker.pipe.recv()
        except (EOFError, ConnectionError):
            code = self._crew.dismiss(worker)
            self._crew.start(self._serve)
            return Outcome(samples, failure=f"its process ended with code {code}", lost=True)
        return outcome


def _do_job(bench: Workbench, starts: Tensor, results: Tensor, pipe: Connection) -> None:
    """One job: take it from the pipe, do it on shared memory, report."""
    job, row = pipe.recv()
    pipe.send(bench.run(job, starts, results[row]))
