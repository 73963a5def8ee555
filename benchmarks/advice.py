"""Is the advice any good? What it says against what came out, over the settings of ``regret.py``.

    python benchmarks/advice.py --seeds 200-204 [--settings 'digits*;heart*']

For every setting and seed: ``fedbridge.advise`` (8 rounds), then ``auto`` and ``alone-auto``, 20
rounds each, mean of the last five. *Join* is right where ``auto`` is better than ``alone-auto``,
*stay* where it is at most one point better (of regression: one % of the loss). Where ``regret.py``
has run the rules, their order by predicted error is compared with that by score (Kendall's tau).
Results are kept in docs/advise.json, so it can be stopped and run again; what it prints is the
table of docs/advise.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regret import ROUNDS, do, found, settings
from scipy.stats import kendalltau  # type: ignore[import-untyped]

import fedbridge as fb
from fedbridge.base.files import to_json, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RESULTS = Path(__file__).parents[1] / "docs/advise.json"
SMALL = "digits*;heart*;flipped*;hostile*;one near;rbf*;Chem97;Hsb82;Contraception"
NOT_WORTH = 1.0
"""Points by which ``auto`` may be better where the advice was to stay."""


def main() -> None:
    """Fill what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--settings", default=SMALL)
    parser.add_argument("--seeds", default="200-204")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    known = settings()
    names = [n for n in known if any(fnmatch(n, part) for part in asked.settings.split(";"))]
    told: dict[str, Any] = {}
    if asked.results.exists():
        told = json.loads(asked.results.read_text(encoding="utf-8"))
    seeds = range(int(first), int(last or first) + 1)
    for seed in seeds:
        for name in names:
            cell = told.setdefault(name, {}).setdefault(str(seed), {})
            if "realised" not in cell:
                for method in ("auto", "alone-auto"):
                    do(name, known[name], method, seed)
                cell |= advised(known[name](seed), seed) | {"realised": realised(name, seed)}
                write_atomically(asked.results, to_json(told, indent=1) + "\n")
            elif (now := realised(name, seed)).keys() > cell["realised"].keys():
                cell["realised"] = now
                write_atomically(asked.results, to_json(told, indent=1) + "\n")
    print(table(told, seeds))


def advised(task: fb.FederatedTask, seed: int) -> dict[str, Any]:
    """What is said before joining."""
    advice = fb.advise(task, seed=seed, workers=1)
    return {
        "decision": advice.decision,
        "worth": None if advice.worth is None else asdict(advice.worth),
        "predicted": {rule.rule: rule.relative.value for rule in advice.rules},
    }


def realised(setting: str, seed: int) -> dict[str, float]:
    """Scores of the methods that have been run, after 20 rounds."""
    names = ("auto", "alone-auto", *fb.rules.names())
    cells = {name: found(setting, name, seed) for name in names}
    return {name: told[str(ROUNDS[0])] for name, told in cells.items() if str(ROUNDS[0]) in told}


def is_right(cell: dict[str, Any]) -> bool | None:
    """Whether a decision turned out well; None if there was none."""
    gain = cell["realised"]["auto"] - cell["realised"]["alone-auto"]
    if cell["decision"] == "unclear":
        return None
    return bool(gain > 0 if cell["decision"] == "join" else gain <= NOT_WORTH)


def order(cell: dict[str, Any]) -> float | None:
    """Kendall's tau of predicted errors and scores; None if not all rules were run."""
    predicted, scores = cell["predicted"], cell["realised"]
    if not predicted or not predicted.keys() <= scores.keys():
        return None
    return float(kendalltau([-predicted[n] for n in predicted], [scores[n] for n in predicted])[0])


def table(told: dict[str, Any], seeds: Iterable[int]) -> str:
    """The Markdown table of docs/advise.md, and what it comes to."""
    lines = [
        "| setting | decisions | right | said, points | came out, points |",
        "|---|---|---:|---:|---:|",
    ]
    every: list[dict[str, Any]] = []
    for name, cells in told.items():
        mine = [cells[str(seed)] for seed in seeds if str(seed) in cells]
        if not mine:
            continue
        every += mine
        judged = [right for cell in mine if (right := is_right(cell)) is not None]
        counted = Counter(cell["decision"] for cell in mine)
        said = _mean([cell["worth"]["points"] for cell in mine if cell["worth"]])
        gained = _mean([c["realised"]["auto"] - c["realised"]["alone-auto"] for c in mine])
        decisions = ", ".join(f"{what} {count}" for what, count in counted.most_common())
        shown = f"{sum(judged)} of {len(judged)}" if judged else "–"
        lines.append(f"| {name} | {decisions} | {shown} | {said:+.1f} | {gained:+.1f} |")
    rights = {
        what: [is_right(cell) for cell in every if cell["decision"] == what]
        for what in ("join", "alone")
    }
    taus = [tau for cell in every if (tau := order(cell)) is not None]
    joins, stays = ([bool(right) for right in rights[what]] for what in ("join", "alone"))
    decided = (
        f"Decided in {len(joins) + len(stays)} of {len(every)}: join {sum(joins)} right of "
        f"{len(joins)}, stay {sum(stays)} of {len(stays)}."
    )
    lines += ["", decided, f"Kendall's tau of the rules, {len(taus)} cells: {_mean(taus):.2f}."]
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else float("nan")


if __name__ == "__main__":
    main()
