"""What a round of every method costs: seconds, bytes on the wire, memory.

    python benchmarks/methods.py [--task digits-noise] [--rounds 4] [--methods a,b,c]

Every method runs in a process of its own with one worker, so that seconds are those of one core
and the peak of memory is its own. Seconds are the median over the rounds after the first; the
ratio is to FedAvg in the same run of this script. Memory is the peak above that of a process that
has only loaded the task. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys

BASELINE = "fedavg"


def measure(task: str, method: str, rounds: int) -> dict[str, float]:
    """Run a method here and now."""
    import fedbridge as fb

    loaded = fb.load_task(task)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = fb.run(loaded, method, rounds=rounds, workers=1, warmup=0)
    lines = result.history[1:]
    return {
        "seconds": statistics.median(
            line["seconds_train"] + line["seconds_aggregate"] for line in lines
        ),
        "up": statistics.mean(line["bytes_up"] for line in lines),
        "down": statistics.mean(line["bytes_down"] for line in lines),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
    }


def measure_apart(task: str, method: str, rounds: int) -> dict[str, float] | str:
    """Run a method in a process of its own; its complaint if it cannot run."""
    command = [sys.executable, __file__, "--task", task, "--rounds", str(rounds), "--only", method]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1].partition(": ")[2]
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> None:
    """Measure all methods and print the table."""
    from fedbridge import methods

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits-noise")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--methods", default=",".join(methods.names()))
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.task, arguments.only, arguments.rounds)))
        return
    baseline = measure_apart(arguments.task, BASELINE, arguments.rounds)
    assert not isinstance(baseline, str), baseline
    print("| method | ms per round | against fedavg | KB up | KB down | MB of memory | needs |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for name in arguments.methods.split(","):
        needs = "; ".join(need.value for need in methods.needs_of(name)) or "–"
        cost = measure_apart(arguments.task, name, arguments.rounds)
        if isinstance(cost, str):
            print(f"| `{name}` | – | – | – | – | – | {cost} |")
            continue
        ratio = cost["seconds"] / baseline["seconds"]
        print(
            f"| `{name}` | {1e3 * cost['seconds']:.0f} | {ratio:.1f} "
            f"| {cost['up'] / 1e3:.0f} | {cost['down'] / 1e3:.0f} | {cost['memory'] / 1e3:.0f} "
            f"| {needs} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
