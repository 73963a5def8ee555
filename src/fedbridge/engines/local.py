"""The clients take turns in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedbridge.errors import FedbridgeError
from fedbridge.training import one_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fedbridge.jobs import Job, Outcome
    from fedbridge.training import Workbench


def check_room(jobs: Sequence[Job], results: Tensor) -> None:
    """Refuse more jobs than the engine was opened for."""
    if len(jobs) > len(results):
        raise FedbridgeError(f"Expected at most {len(results)} jobs, but got {len(jobs)}.")


class LocalEngine:
    """Runs jobs one after the other.

    Attributes:
        starts: (slots, m) parameter vectors that jobs may start from.
        results: (rows, m) one row per job of the last ``run``, in the order of the jobs.
    """

    def __init__(self, bench: Workbench, *, slots: int, rows: int) -> None:
        self._bench = bench
        self.starts = torch.zeros(slots, bench.blocks.total)
        self.results = torch.zeros(rows, bench.blocks.total)

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Do all jobs; a job that fails says so in its outcome."""
        check_room(jobs, self.results)
        with one_thread():
            return [
                self._bench.run(job, self.starts, self.results[row]) for row, job in enumerate(jobs)
            ]

    def close(self) -> None:
        """Nothing to end."""
