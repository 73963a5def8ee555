"""What of the label-shift table is a matter of who tests, and of the target's learning rate.

    python benchmarks/label_shift_tests.py [--seeds 0-4] [--etas 0.1] [--methods target-only]
        [--rates 0.005,0.001]

The paper's scripts test on the target's own rows that have no label (85% of its share of the
training images), ``fashion-labels`` on official test images with the same shares of the classes.
Testing has no part in training: here the same one is scored on both, by the mean of its last 5
rounds. All else is as the paper has it, but for the target's learning rate where one is given (the
scripts have 0.005).
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import torch

import fedbridge as fb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.data.task import FederatedTask, Site

ROUNDS = 50


def main() -> None:
    """Run every seed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--etas", default="0.1")
    parser.add_argument("--methods", default="target-only")
    parser.add_argument("--rates", default="0.005")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    print(
        "| method | eta | rate | seeds | official images | the target's other rows | difference |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    etas, rates = (map(float, given.split(",")) for given in (asked.etas, asked.rates))
    for method, eta, rate in product(asked.methods.split(","), etas, rates):
        scores = [scored(method, eta, seed, rate) for seed in seeds]
        official, own = zip(*scores, strict=True)
        told = [official, own, [theirs - ours for ours, theirs in scores]]
        line = [method, f"{eta:g}", f"{rate:g}", str(len(seeds)), *map(_told, told)]
        print(f"| {' | '.join(line)} |", flush=True)


def scored(method: str, eta: float, seed: int, rate: float) -> tuple[float, float]:
    """Accuracy on official test images, and on the target's rows without a label."""
    task = fb.load_task("fashion-labels", seed=seed, eta=eta, protocol="paper")
    tests = (task.test, without_label(task))
    found = [
        fb.run(replace(task, test=t), method, ROUNDS, seed, workers=1, lr_target=rate)
        for t in tests
    ]
    official, own = (result.summary["accuracy"] for result in found)
    return official, own


def without_label(task: FederatedTask) -> Site:
    """The target's other rows, with the labels that no training has seen."""
    known, pool = task.manifest, task.target_pool
    assert pool is not None
    labelled = set(known["target"])  # type: ignore[call-overload]
    every = sorted((*labelled, *known["unlabelled"]))  # type: ignore[misc]
    return pool.select(torch.tensor([k for k, row in enumerate(every) if row not in labelled]))


def _told(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
