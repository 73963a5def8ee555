"""Tables of docs/results.md: the rows of comparisons beside the paper's figures.

    python benchmarks/results.py heart runs/heart runs/heart-cv
    python benchmarks/results.py heart runs/heart-mlp
    python benchmarks/results.py fashion runs/fashion

Every folder is one of ``fedbridge compare``; a method that several of them have is shown once, from
the first. Prints Markdown.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedbridge.methods import is_bound, names
from fedbridge.runs.comparison import read_comparison

if TYPE_CHECKING:
    from fedbridge.runs.comparison import MeanScore

PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "heart": {
        "fedda": (79.81, 78.65, 67.50, 62.22, 72.05),
        "fedgp": (78.85, 80.45, 68.75, 65.33, 73.35),
        "fedda-auto": (80.77, 80.90, 68.75, 71.11, 75.38),
        "fedgp-auto": (80.77, 79.78, 68.75, 69.78, 74.77),
        "source-only": (76.92, 75.96, 62.50, 55.56, 67.74),
        "fedavg": (75.96, 76.40, 62.50, 55.56, 67.61),
        "ditto": (76.92, 73.03, 62.50, 55.56, 67.00),
        "fedrep": (78.84, 65.17, 75.00, 60.00, 69.75),
        "apfl": (51.92, 57.30, 31.25, 42.22, 45.67),
        "knn-per": (56.00, 56.00, 56.00, 56.00, 56.00),
    },
    "fashion": {
        "source-only": (18.55,),
        "finetune-offline": (40.15,),
        "fedda": (58.6,),
        "fedgp": (71.09,),
        "fedda-auto": (72.68,),
        "fedgp-auto": (71.46,),
        "target-only": (66.03,),
        "oracle": (81.20,),
    },
}
"""From the appendix of the paper: Fed-Heart, and Fashion-MNIST with target noise 0.4."""


def main() -> None:
    """Print the table of the folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paper", choices=PAPER)
    parser.add_argument("folders", nargs="+", type=Path)
    arguments = parser.parse_args()
    found = [read_comparison(folder, is_bound).comparison for folder in arguments.folders]
    columns = found[0].columns
    rows: dict[str, tuple[MeanScore, ...]] = {}
    base: dict[str, str] = {}
    for comparison in found:
        if comparison.columns != columns:
            raise SystemExit(f"Expected columns {columns}, but got {comparison.columns}.")
        for row in comparison.rows():
            rows.setdefault(row.method, row.entries)
            base.setdefault(row.method, comparison.variant(row.method).method)
    best = [
        max(
            (
                round(entries[k].mean or 0.0, 1)
                for method, entries in rows.items()
                if not is_bound(base[method])
            )
        )
        for k in range(len(columns))
    ]
    paper = PAPER[arguments.paper]
    print(f"| method | {' | '.join(columns)} | paper |")
    print(f"|---|{'---:|' * (len(columns) + 1)}")
    for method in sorted(rows, key=lambda row: (names().index(base[row]), row)):
        cells = [
            _shown(entry, top, contends=not is_bound(base[method]))
            for entry, top in zip(rows[method], best, strict=True)
        ]
        theirs = " / ".join(f"{figure:.1f}" for figure in paper.get(method, ())) or "–"
        shown = f"_{method}_" if is_bound(base[method]) else method
        print(f"| {shown} | {' | '.join(cells)} | {theirs} |")


def _shown(entry: MeanScore, top: float, *, contends: bool) -> str:
    if entry.mean is None:
        return "–"
    text = entry.text()
    return f"**{text}**" if contends and round(entry.mean, 1) == top else text


if __name__ == "__main__":
    main()
