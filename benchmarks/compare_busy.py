"""Does a comparison keep all cores busy from its first to its last cell?

    python benchmarks/compare_busy.py [--task digits-noise] [--seeds 3] [--rounds 30] [--workers 2]

Runs a comparison of some thirty cells of very different lengths, in memory, and prints two shares
of cores times the time on the wall, from the call to its return, with the start of the processes
and the tables in the end: **busy**, the processor time of the children, for which the machine must
be quiet; and **occupied**, the time in which a process had a cell, whatever else the machine did.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedbridge as fb
from fedbridge.base.processes import core_count
from fedbridge.workflows import cells

if TYPE_CHECKING:
    from collections.abc import Callable

METHODS = ("auto", "fedgp-auto", "fedda", "ditto", "finetune-offline", "recalibrate")
"""Beside the controls: from a fifth of a round of ``fedavg`` to five times as long."""


def timed(run_alone: Callable[..., Any], journal: Path) -> Callable[..., Any]:
    """The same, with its seconds in a line of a file that all processes write to."""

    def run(*given: Any) -> Any:
        begun = time.perf_counter()
        try:
            return run_alone(*given)
        finally:
            with journal.open("a") as lines:
                lines.write(f"{time.perf_counter() - begun}\n")

    return run


def main() -> int:
    """Compare, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--task", default="digits-noise")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--workers", type=int, default=core_count())
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "seconds"
        cells._run_alone = timed(cells._run_alone, journal)
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        found = fb.compare(
            asked.task, METHODS, seeds=asked.seeds, rounds=asked.rounds, workers=asked.workers
        )
        wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        at_work = sum(map(float, journal.read_text().splitlines()))
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    shares = [100 * seconds / (asked.workers * wall) for seconds in (spent, at_work)]
    print("| cells | cores | wall, s | children, s | busy, % | occupied, % |")
    print("|---:|---:|---:|---:|---:|---:|")
    told = f"{wall:.1f} | {spent:.1f} | {shares[0]:.0f} | {shares[1]:.0f}"
    print(f"| {len(found.cells)} | {asked.workers} | {told} |")
    failed = [cell.error for cell in found.cells if cell.error is not None]
    for error in failed:
        print(f"failed: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
