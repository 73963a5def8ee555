"""A federation in one process whose vectors pass through what they would meet on a wire."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import fedbridge as fb
from fedbridge.engines.local import LocalEngine
from fedbridge.training.job import TARGET, ClientResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from fedbridge.training.job import Job, Outcome
    from fedbridge.training.trainer import Workbench

    Transmit = Callable[
        [int, Sequence[Job], Sequence[ClientResult], Tensor], Sequence[ClientResult]
    ]
    """What arrives of the work that a client sends in a round; the models it started from, last."""

STAYS_HOME = ("auto",)
"""Methods whose trainings of the target stay with the target; only its probe leaves."""


class Scores(NamedTuple):
    """Accuracy in percent and test loss, means of the last rounds."""

    accuracy: float
    loss: float


class WireEngine(LocalEngine):
    """Runs jobs in this process and passes what leaves a site through ``transmit``."""

    def __init__(self, bench: Workbench, *, method: str, transmit: Transmit) -> None:
        super().__init__(bench)
        self._home = method in STAYS_HOME
        self._transmit = transmit

    def _do(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Do all jobs; vectors and outcomes are those that arrive."""
        outcomes = super()._do(jobs)
        sent: dict[int, list[int]] = {}
        for row, job in enumerate(jobs):
            if job.client != TARGET or job.kind == "probe" or not self._home:
                sent.setdefault(job.client, []).append(row)
        for client, rows in sent.items():
            works = [ClientResult(outcomes[row], self._vectors[row].clone()) for row in rows]
            mine = [jobs[row] for row in rows]
            arrived = self._transmit(client, mine, works, self._starts)
            for row, work in zip(rows, arrived, strict=True):
                outcomes[row] = work.outcome
                self._vectors[row].copy_(work.vector)
        return outcomes


def run_over_wire(
    task: fb.FederatedTask,
    method: str,
    rounds: int,
    seed: int,
    make_transmit: Callable[[Workbench], Transmit],
    **options: Any,
) -> Scores:
    """A run whose vectors pass through a wire of its own."""

    def make_engine(bench: Workbench, *, workers: int | None) -> WireEngine:
        return WireEngine(bench, method=method, transmit=make_transmit(bench))

    with patch("fedbridge.federation.federation.make_engine", make_engine):
        result = fb.run(task, method, rounds=rounds, seed=seed, workers=1, **options)
    assert result.accuracy is not None
    return Scores(result.accuracy, float(result.summary["loss"]))


def mean_and_spread(values: Sequence[float]) -> str:
    """``81.3 (0.4)``; of a single value that value."""
    spread = f" ({statistics.stdev(values):.1f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"
