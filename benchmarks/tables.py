"""How long does a wide table take to load, as a multiple of ``pandas.read_csv`` on the same file?

500 rows of four sites and 2,000 columns, all of them numbers or every other one a category, with
gaps. Processor time of this process, the best of some tries, both in one run:

    python benchmarks/tables.py [--columns 2000] [--rows 500]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

import fedbridge as fb

if TYPE_CHECKING:
    from collections.abc import Callable

TRIES = 5


def table(rows: int, columns: int, *, mixed: bool) -> pd.DataFrame:
    """Columns of numbers, or numbers and categories in turn, with gaps."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        rng.normal(size=(rows, columns)).round(4), columns=[f"c{k}" for k in range(columns)]
    ).astype(object)
    if mixed:
        for name in frame.columns[::2]:
            frame[name] = rng.choice(["a", "b", "c", "d"], rows)
    frame = frame.mask(rng.random(frame.shape) < 0.02)
    ends = {
        "site": np.array(list("ABCD"))[np.arange(rows) % 4],
        "label": rng.choice(["n", "y"], rows),
    }
    return pd.concat([frame, pd.DataFrame(ends)], axis=1)


def best(action: Callable[[], object]) -> float:
    """The least processor time of some tries."""
    times = []
    for _ in range(TRIES):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--columns", type=int, default=2000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "wide.csv"
        for mixed in (False, True):
            table(asked.rows, asked.columns, mixed=mixed).to_csv(file, index=False)
            plain = best(lambda: pd.read_csv(file))
            loaded = best(lambda: fb.load_task(file, target="A"))
            kind = "numbers and categories" if mixed else "numbers"
            print(f"{asked.rows} x {asked.columns} {kind}: {loaded / plain:.1f} times read_csv")


if __name__ == "__main__":
    main()
