"""Does a federation of very many nodes run in Flower's simulation, to the same numbers as here?

scikit-learn's digits at 28 x 28 pixels dealt out to so many sources of two images each, the
44,426-parameter CNN, two rounds: here with two workers, then as nodes of Flower's simulation (Ray,
as many clients at a time as there are cores). Seconds are of the whole run over Flower, its start
included; memory is the peak of what all its processes have together, shared pages once (Linux):

    python benchmarks/simulated_nodes.py [--nodes 200] [--method fedgp-auto]
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import fedbridge as fb
from fedbridge.workflows.bench import finely_split

ROUNDS = 2
PAUSE = 2.0


class Memory(threading.Thread):
    """Watches what this process and all that come of it have in memory."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.ended = 0, threading.Event()

    def run(self) -> None:
        """Look every other second."""
        while not self.ended.wait(PAUSE):
            self.peak = max(self.peak, sum(map(_kilobytes, _descendants())))


def _descendants() -> set[str]:
    """This process and all that come of it, by the files of the system."""
    parents = {}
    for about in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[about.parent.name] = about.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
    found = {Path("/proc/self").resolve().name}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _kilobytes(process: str) -> int:
    """Memory of a process, with its share of what it shares; 0 of one that has ended."""
    try:
        lines = Path("/proc", process, "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def main() -> None:
    """Run here and there, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--method", default="fedgp-auto")
    args = parser.parse_args()
    task = finely_split(args.nodes)
    here = fb.run(task, args.method, ROUNDS, model="cnn", workers=2)
    memory, begun = Memory(), time.perf_counter()
    memory.start()
    with tempfile.TemporaryDirectory() as folder:
        there = fb.run(
            task, args.method, ROUNDS, engine="flower-sim", model="cnn", out=Path(folder, "run")
        )
    memory.ended.set()
    pairs = zip(here.model.parameters(), there.model.parameters(), strict=True)
    apart = max(float((one - other).detach().abs().max()) for one, other in pairs)
    rounds = " and ".join(f"{line['seconds_train']:.0f} s" for line in there.history)
    failures = sum(len(line["failures"]) for line in there.history)
    print(f"{args.nodes} nodes by {args.method}: {time.perf_counter() - begun:.0f} s in all,")
    print(f"rounds of {rounds}, {memory.peak / 1000:.0f} MB, {failures} failures,")
    print(f"parameters at most {apart:.1g} from those of a run here.")


if __name__ == "__main__":
    main()
