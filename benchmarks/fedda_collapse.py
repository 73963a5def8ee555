"""Why FedDA is below the paper's on noisy images: the paper's settings, but for one at a time.

    python benchmarks/fedda_collapse.py [--noise 0.8] [--seeds 0-1] [--changes 'printed,epochs']

FedDA under the paper's protocol follows the sources' whole updates, which unlearn noisy images
round by round, and what comes out is a tug-of-war between these and half of the target's steps.
Each change lets one side pull differently. A line has the mean of the last five of 50 rounds, the
deviation from round to round over the last 25, and the mean of these.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import fedbridge as fb

ROUNDS, LAST, SECOND_HALF = 50, 5, 25
CHANGES: dict[str, dict[str, Any]] = {
    "as printed": {},
    "the target's learning rate as the sources'": {"lr_target": 0.01},
    "sources' learning rate as the target's": {"lr": 0.005},
    "sources' learning rate 0.009": {"lr": 0.009},
    "sources' learning rate 0.0085": {"lr": 0.0085},
    "sources' learning rate 0.0075": {"lr": 0.0075},
    "batches of 8 at the target": {"batch_size_target": 8},
    "two epochs at the target": {"epochs_target": 2},
}


def main() -> None:
    """Run every change and print a line of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--noise", type=float, default=0.8)
    parser.add_argument("--seeds", default="0-1")
    parser.add_argument("--changes", help="parts of their names, with commas between")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    parts = (asked.changes or "").split(",")
    print("| change | seed | last 5 rounds | last 25 rounds | from round to round |")
    print("|---|---:|---:|---:|---:|")
    for change, options in CHANGES.items():
        if not any(part in change for part in parts):
            continue
        for seed in range(int(first), int(last or first) + 1):
            found = accuracies(asked.noise, seed, options)
            half = found[-SECOND_HALF:]
            told = f"{statistics.fmean(found[-LAST:]):.1f} | {statistics.fmean(half):.1f}"
            print(f"| {change} | {seed} | {told} | {statistics.stdev(half):.1f} |", flush=True)


def accuracies(noise: float, seed: int, options: dict[str, Any]) -> list[float]:
    """Of every round of FedDA with β = ½."""
    task = fb.load_task("fashion-noise", seed=seed, noise=noise, protocol="paper")
    options = {"beta": 0.5, "protocol": "paper", "workers": 1, **options}
    result = fb.run(task, "fedda", ROUNDS, seed, **options)
    return [line["accuracy"] for line in result.history if line["round"] >= 1]


if __name__ == "__main__":
    main()
