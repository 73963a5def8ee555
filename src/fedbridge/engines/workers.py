"""Persistent worker processes with shared memory.

Parameters and updates live in memory that all processes share: what travels through the pipes
is a job's few settings and an outcome's few numbers. Every worker uses one torch thread, and a
job's result depends on nothing but the job, so any number of workers gives the same bits.

Workers are forked where that is possible: they inherit model and data as they are, and a script
without an ``if __name__ == "__main__"`` guard works. Elsewhere they are spawned without running
the main script again. They end with their parent, however it ends: each holds the reading end of
a pipe that nobody writes to, and leaves when its last writing end, the parent's, is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

import torch
import torch.multiprocessing  # registers how shared tensors reach a spawned worker
from torch import Tensor

from fedbridge.errors import FedbridgeError
from fedbridge.processes import START_METHOD, leave_with_parent, main_script_left_alone
from fedbridge.training import Job, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.process import BaseProcess

    from fedbridge.training import Workbench


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection


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
        self._context = multiprocessing.get_context(start_method)
        self.starts = torch.zeros(slots, bench.blocks.total).share_memory_()
        self.results = torch.zeros(rows, bench.blocks.total).share_memory_()
        self._lifeline, self._held_open = self._context.Pipe(duplex=False)
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(self._start_worker())

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Do all jobs; one whose worker dies says so, and the worker is replaced."""
        if len(jobs) > len(self.results):
            raise FedbridgeError(f"Expected at most {len(self.results)} jobs, got {len(jobs)}.")
        waiting = sorted(range(len(jobs)), key=lambda row: self._length(jobs[row]))
        outcomes: dict[int, Outcome] = {}
        busy: dict[int, int] = {}
        while waiting or busy:
            for index in range(len(self._workers)):
                if index not in busy and waiting:
                    busy[index] = waiting.pop()
                    self._send(index, jobs[busy[index]], busy[index])
            pipes = {self._workers[index].pipe: index for index in busy}
            for pipe in wait(list(pipes)):
                index = pipes[pipe]  # type: ignore[index]
                row = busy.pop(index)
                outcomes[row] = self._receive(index, len(self._bench.sites[jobs[row].client]))
        return [outcomes[row] for row in range(len(jobs))]

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            _stop(worker)
        self._workers.clear()
        self._held_open.close()
        self._lifeline.close()

    def _length(self, job: Job) -> int:
        samples = len(self._bench.sites[job.client]) if job.rows is None else len(job.rows)
        steps = job.plan.total_steps(samples)
        if job.kind == "probe":
            steps = min(job.max_batches or steps, steps)
        return steps * min(job.plan.batch_size, samples)

    def _send(self, index: int, job: Job, row: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionError):  # noticed when receiving
            self._workers[index].pipe.send((job, row))

    def _receive(self, index: int, samples: int) -> Outcome:
        try:
            outcome: Outcome = self._workers[index].pipe.recv()
        except (EOFError, ConnectionError):
            _stop(self._workers[index])
            code = self._workers[index].process.exitcode
            self._workers[index] = self._start_worker()
            return Outcome(samples, failure=f"its process ended with code {code}", lost=True)
        return outcome

    def _start_worker(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        inherited = [worker.pipe for worker in self._workers] + [ours, self._held_open]
        forked = self._context.get_start_method() == "fork"
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_work,
            args=(
                self._bench,
                self.starts,
                self.results,
                theirs,
                self._lifeline,
                inherited if forked else [],
            ),
            daemon=True,
        )
        with warnings.catch_warnings(), main_script_left_alone():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of torch, idle here
            process.start()
        theirs.close()
        return _Worker(process, ours)


def _stop(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.join(timeout=1.0)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()


def _work(
    bench: Workbench,
    starts: Tensor,
    results: Tensor,
    pipe: Connection,
    lifeline: Connection,
    inherited: list[Connection],
) -> None:
    """A worker's life: one thread, jobs from the pipe until it closes."""
    for connection in inherited:
        connection.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=leave_with_parent, args=(lifeline,), daemon=True).start()
    while True:
        try:
            job, row = pipe.recv()
        except (EOFError, ConnectionError):
            return
        outcome = bench.run(job, starts[job.slot], results[row])
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            pipe.send(outcome)
