"""Is the oracle a bound? Strong methods without its labels on digits: a table in docs/methods.md.

Seed 100 had no part in how the oracle trains. Chance is two standard errors of a difference.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import fedbridge as fb

TASKS = ("digits-none", "digits-noise", "digits-rotation", "digits-contrast")
RIVALS = ("auto", "fedavg", "fedda", "finetune-cv", "offset", "recalibrate", "kd3a", "mme", "erm")
ROUNDS, SEEDS = 20, [100]


def main() -> None:
    """Print the table in Markdown."""
    found = fb.compare(
        TASKS, ["oracle", *RIVALS], SEEDS, ROUNDS, Path("runs/oracle-bound"), workers=1
    )
    cells = found.frame().to_dict("records")
    print("| task | oracle | best other | which | chance |\n|---|---|---|---|---|")
    for task in TASKS:
        scores: dict[str, list[float]] = {}
        for cell in cells:
            if cell["task"] == task:
                scores.setdefault(cell["method"], []).append(cell["accuracy"])
                tested = cell["n_test"] * len(SEEDS)
        means = {method: fmean(values) for method, values in scores.items()}
        bound = means.pop("oracle")
        best = max(means, key=means.__getitem__)
        chance = 200 * math.sqrt(2 * bound / 100 * (1 - bound / 100) / tested)
        print(f"| `{task}` | {bound:.1f} | {means[best]:.1f} | `{best}` | {chance:.1f} |")


if __name__ == "__main__":
    main()
