"""What does the target's own work in `auto` come to, over a run, in units of one source's?

    python benchmarks/target_work.py [--rounds 50] [--seeds 100-101]

Digits without a shift and turned by 30 and 90 degrees, 15, 30 and 100 labels, each run in a process
of its own, so that whatever is done once in a process counts. Processor time: that of the target's
decisions over that of all jobs (trainings and probes) divided by the number of sources. Ratios of
one run hardly change beside other work, seconds do.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import torch

import fedbridge as fb
from fedbridge.engines.local import LocalEngine

if TYPE_CHECKING:
    from collections.abc import Callable

SHIFTS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("digits-none", {}),
    "turned 30": ("digits-rotation", {"angle": 30}),
    "turned 90": ("digits-rotation", {"angle": 90}),
}
LABELS = (15, 30, 100)


def counted(work: Callable[..., Any], spent: dict[str, float]) -> Callable[..., Any]:
    """The same, with its processor time added up by its name."""

    def run(*given: Any, **named: Any) -> Any:
        begun = time.process_time()
        try:
            return work(*given, **named)
        finally:
            spent[work.__name__] = spent.get(work.__name__, 0.0) + time.process_time() - begun

    return run


def measure(shift: str, labels: int, seed: int, rounds: int) -> float:
    """The ratio in one run."""
    torch.set_num_threads(1)
    spent: dict[str, float] = {}
    for name in ("run", "decide"):
        setattr(LocalEngine, name, counted(getattr(LocalEngine, name), spent))
    name, options = SHIFTS[shift]
    task = fb.load_task(name, seed=seed, n_target=labels, **options)
    fb.run(task, "auto", rounds, seed, workers=1)
    return spent["decide"] / (spent["run"] / len(task.sources))


def main() -> None:
    """Print a row for every shift and number of labels."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", default="100-101")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    titles = " | ".join(f"seed {seed}" for seed in seeds)
    sys.stdout.write(f"| shift | labels | {titles} |\n|---|---:|{'---:|' * len(seeds)}\n")
    for shift in SHIFTS:
        for labels in LABELS:
            found = []
            for seed in seeds:
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
                    found.append(alone.submit(measure, shift, labels, seed, asked.rounds).result())
            shown = " | ".join(f"{ratio:.1f}" for ratio in found)
            sys.stdout.write(f"| {shift} | {labels} | {shown} |\n")


if __name__ == "__main__":
    main()
