"""What ``auto`` would be with other weights beforehand: the same candidates, weighed anew.

    python benchmarks/candidate_weights.py [--seeds 100-102] [--settings 'tables*;heart*;digits*']

Settings are those of ``regret.py`` on seeds for design, and of its tables with natural sites every
site after the four largest as target (up to eight), with 15, 25 and 50 labels. Each is run once for
20 rounds, and the candidates of the last choice are kept with their outputs for held-out rows and
for the test rows (``runs/weights``). What other weights make of them is then a matter of seconds.
It prints the accuracy by group of settings, in %, for the weights in ``TRIED``.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from regret import MORE, NATURAL, natural, settings
from torch.nn import functional

import fedbridge as fb
from fedbridge.methods.auto import AutoTargetSide
from fedbridge.methods.candidates import (
    EARLIER,
    LAST,
    LEAST_ROWS,
    LED,
    RECALIBRATED,
    SHARPNESS,
    TUNED,
    Bench,
)
from fedbridge.methods.ridge import secant
from fedbridge.models import head_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from regret import Maker
    from torch import Tensor

    from fedbridge.methods.candidates import Body, Candidate

KEPT = Path("runs/weights")
ROUNDS = 20
TRIED: dict[str, tuple[float, float]] = {
    "¼, 1": (0.25, 1.0),
    "1, 1": (1.0, 1.0),
    "4, 1": (4.0, 1.0),
    "16, 1": (16.0, 1.0),
    "¼, ¼": (0.25, 0.25),
    "1, ¼": (1.0, 0.25),
    "4, ¼": (4.0, 0.25),
    "16, ¼": (16.0, 0.25),
}
"""Of the sources' model as it is and recalibrated, and of refits of an earlier one."""


def chosen() -> Iterator[tuple[str, str, Maker]]:
    """Group, name and maker of every setting."""
    for name, make in settings().items():
        if name.startswith(("digits", "heart")):
            yield name, name, make
    for table in (*NATURAL, *MORE):
        for labels in (15, 25, 50):
            for place in range(4, 12):
                group = f"tables {table}, {labels} labels"
                yield group, f"{group}, site {place}", natural(table, labels, place)


def noted(make: Maker, seed: int) -> dict[str, Any]:
    """What the last choice of a run was made of."""
    found: dict[str, Any] = {}
    choose, weigh = AutoTargetSide._choose, Bench.weigh

    def choosing(side: AutoTargetSide, body: Body) -> list[Candidate]:
        found["bodies"] = {LAST: body.state, EARLIER: side.best}
        return choose(side, body)

    def weighing(bench: Bench, candidates: Sequence[Candidate], discord: float = 0.0) -> Tensor:
        held_out = [bench.losses(c.held_out) for c in candidates if c.held_out is not None]
        found["losses"] = torch.stack(held_out).mean(1)
        found["rows"] = len(held_out[0]) / bench.draws
        found["recipes"] = [(c.recipe.family, c.recipe.body) for c in candidates]
        found["outputs"] = torch.stack([_said(bench, c, found["bodies"]) for c in candidates])
        found["labels"] = bench.federation.task.test.y
        return weigh(bench, candidates, discord)

    AutoTargetSide._choose, Bench.weigh = choosing, weighing  # type: ignore[method-assign,assignment]
    try:
        fb.run(make(seed), "auto", ROUNDS, seed, workers=1)
    finally:
        AutoTargetSide._choose, Bench.weigh = choose, weigh  # type: ignore[method-assign]
    found.pop("bodies")
    return found


def _said(bench: Bench, candidate: Candidate, bodies: dict[str, Any]) -> Tensor:
    """A candidate's outputs for the test rows."""
    ask, test = bench.federation.bench, bench.federation.task.test
    if candidate.network is not None:
        return ask.predict(candidate.network, test).double()
    outputs = torch.zeros(len(test), len(bench.rows.truth[0]), dtype=torch.float64)
    state = bodies.get(candidate.recipe.body)
    if state is not None:
        outputs += candidate.recipe.slope * ask.predict(state, test)
        if candidate.head is not None:
            outputs += functional.linear(
                ask.predict(state, test, head_inputs).double(),
                *(candidate.head[:, :-1], candidate.head[:, -1]),
            )
    if candidate.change is not None and state is not None:
        for moved, factor in secant(state, candidate.change):
            outputs += factor * ask.predict(moved, test)
    if candidate.inputs is not None:
        inputs = ask.inputs(test).double()
        outputs += functional.linear(inputs, candidate.inputs[:, :-1], candidate.inputs[:, -1])
    return outputs if candidate.bias is None else outputs + candidate.bias


def accuracy(found: dict[str, Any], of_led: float, of_earlier: float) -> float:
    """Of the sum with these weights beforehand."""
    recipes = found["recipes"]
    prior = [
        (of_led if family in (LED, RECALIBRATED) else 1.0)
        * (of_earlier if body == EARLIER and family != TUNED else 1.0)
        / recipes.count((family, body))
        for family, body in recipes
    ]
    number = max(found["rows"], LEAST_ROWS)
    logs = torch.tensor(np.log(prior)) - SHARPNESS * number * found["losses"].nan_to_num(torch.inf)
    summed = torch.einsum("c,cik->ik", torch.softmax(logs, 0), found["outputs"].nan_to_num())
    return 100 * float((summed.argmax(1) == found["labels"]).double().mean())


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="100-102")
    parser.add_argument("--settings", default="*")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    KEPT.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[list[float]]] = defaultdict(list)
    for group, name, make in chosen():
        if not any(fnmatch(name, part) for part in asked.settings.split(";")):
            continue
        for seed in range(int(first), int(last or first) + 1):
            file = KEPT / f"{name}-{seed}.pt".replace(" ", "_")
            try:
                if not file.exists():
                    torch.save(noted(make, seed), file)
            except IndexError:
                continue  # the table has no such site
            found = torch.load(file, weights_only=True)
            rows[group].append([accuracy(found, *weights) for weights in TRIED.values()])
    print(f"| setting | runs | {' | '.join(TRIED)} |\n|---|---:|{'---:|' * len(TRIED)}")
    means = {
        group: [fmean(column) for column in zip(*of, strict=True)] for group, of in rows.items()
    }
    for group, mean in means.items():
        print(f"| {group} | {len(rows[group])} | {' | '.join(f'{m:.1f}' for m in mean)} |")
    overall = [fmean(column) for column in zip(*means.values(), strict=True)]
    print(f"| mean | | {' | '.join(f'{m:.2f}' for m in overall)} |")


if __name__ == "__main__":
    main()
