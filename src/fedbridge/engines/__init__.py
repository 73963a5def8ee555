"""Who runs the clients: this process, worker processes, or sites on a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.engines.local import LocalEngine
from fedbridge.engines.workers import WorkerEngine
from fedbridge.errors import OptionError
from fedbridge.processes import core_count

if TYPE_CHECKING:
    from fedbridge.training import Workbench

__all__ = ["Engine", "LocalEngine", "WorkerEngine", "make_engine"]

Engine = LocalEngine | WorkerEngine


def make_engine(bench: Workbench, *, slots: int, rows: int, workers: int | None) -> Engine:
    """The engine for so many workers; None takes one per core, for at most ``rows`` jobs.

    On another device than the CPU the clients take turns in this process.
    """
    if workers is not None and workers < 1:
        raise OptionError(f"Expected `workers` of at least 1, but got {workers}.")
    count = min(workers or core_count(), rows)
    if count == 1 or bench.device.type != "cpu":
        return LocalEngine(bench, slots=slots, rows=rows)
    return WorkerEngine(bench, slots=slots, rows=rows, workers=count)
