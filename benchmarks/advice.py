"""Is the advice any good? Predicted against realised rank of the rules, over the built-in tasks.

    python benchmarks/advice.py             fills what is missing, prints docs/advise.md's tables
    python benchmarks/advice.py --case rbf  only the cases whose names begin so

Realised: every rule and ``auto`` are run, and their score is the mean over the last five rounds.
Predicted: ``fedbridge.advise`` before any of that. Results are kept in docs/advise.json, so it can
be stopped and run again; delete the part that should be measured anew. Seeds 0 to 2 (0 where runs
are long); docs/advise.md says which choices in the code were made on which seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy.stats import kendalltau  # type: ignore[import-untyped]

import fedbridge as fb
from fedbridge.base.files import to_json, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RESULTS = Path(__file__).parents[1] / "docs/advise.json"
Scores = dict[str, float]


@dataclass(frozen=True)
class Case:
    """A task, and how long its runs are."""

    task: str
    target: str | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 20
    run_options: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)

    def load(self, seed: int) -> fb.FederatedTask:
        """The task for a seed."""
        return fb.load_task(self.task, self.target, seed, **self.task_options)

    def options(self) -> dict[str, Any]:
        """Options of runs and of the measuring round."""
        return {"workers": 1, **self.run_options}


CASES: dict[str, Case] = {
    **{f"digits-noise {x:g}": Case("digits-noise", None, {"noise": x}) for x in (0.0, 0.2, 0.4)},
    **{f"digits-rotation {x:g}": Case("digits-rotation", None, {"angle": x}) for x in (30.0, 90.0)},
    "digits-contrast": Case("digits-contrast"),
    **{
        f"heart {name}": Case("heart", name)
        for name in ("cleveland", "hungarian", "switzerland", "va")
    },
    **{
        f"rbf {x:g}": Case("rbf", None, {"diff": x, "n_sources": 2}, seeds=(0,)) for x in (0.1, 0.5)
    },
    "rbf 0.1, 0.9": Case("rbf", None, {"diff": [0.1, 0.9]}, seeds=(0,)),
    **{
        f"colored-mnist-14 {name}": Case(
            "colored-mnist-14", name, rounds=6, run_options={"steps": 50}, seeds=(0,)
        )
        for name in ("plus90", "plus80", "minus90")
    },
    "fashion-noise 0.4": Case("fashion-noise", None, {"noise": 0.4}, 6, {"steps": 10}, seeds=(0,)),
    "fashion-labels": Case("fashion-labels", None, {"n_target": 200}, 6, {"steps": 10}, seeds=(0,)),
}


def main() -> None:
    """Fill what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", default="", help="how the names of the cases begin")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, nargs="*", help="other seeds, for development")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"realised": {}, "advice": {}}
    if arguments.results.exists():
        results = json.loads(arguments.results.read_text(encoding="utf-8"))
    for name, case in CASES.items():
        if name.startswith(arguments.case):
            for seed in arguments.seeds or case.seeds:
                if measure(name, case, seed, results):
                    write_atomically(arguments.results, to_json(results, indent=1) + "\n")
    print(table(results))


def measure(name: str, case: Case, seed: int, results: dict[str, Any]) -> bool:
    """Fill in one cell; whether anything was missing."""
    advice = results["advice"].setdefault(name, {})
    realised = results["realised"].setdefault(name, {}).setdefault(str(seed), {})
    missing = [method for method in (*fb.rules.names(), "auto") if method not in realised]
    if str(seed) in advice and not missing:
        return False
    task = case.load(seed)
    if str(seed) not in advice:
        given = fb.advise(task, seed=seed, **case.options())
        advice[str(seed)] = {
            "decision": given.decision,
            "recommended": given.recommended,
            "rule": given.best_rule if given.decision == "join" else None,
            "predicted": {rule.rule: rule.relative.value for rule in given.rules},
        }
    for method in missing:
        summary = fb.run(task, method, case.rounds, seed, **case.options()).summary
        regression = summary["accuracy"] is None
        realised[method] = summary["score"] if regression else summary["accuracy"]
    return True


@dataclass(frozen=True)
class Judged:
    """How one piece of advice turned out; regrets in points, for regression in % of the loss.

    ``rule`` is the single rule that was named beside the recommendation, or the recommendation.
    ``naive`` is the regret of the rule with the smallest predicted error, whatever the losses say.
    """

    tau: float
    hit: bool
    decision: str
    recommended: str
    rule: str
    best: str
    regret: float
    regret_of_rule: float
    naive: float
    regret_of: Scores


def judge(advice: Mapping[str, Any], realised: Scores) -> Judged:
    """Compare what was predicted with what came out."""
    predicted: Scores = advice["predicted"]
    rules = [name for name in predicted if name in realised]
    tau = kendalltau([-predicted[n] for n in rules], [realised[n] for n in rules]).statistic
    smallest = min(rules, key=predicted.__getitem__)
    best = max(realised, key=realised.__getitem__)
    top = realised[best]
    unit = 1.0 if top > 0 else 100.0 / -top
    regret_of = {name: (top - score) * unit for name, score in realised.items()}
    top_rule = max(realised[name] for name in rules)
    rule = advice["rule"] or advice["recommended"]
    return Judged(
        float(tau),
        realised[smallest] >= top_rule,
        advice["decision"],
        advice["recommended"],
        rule,
        best,
        regret_of[advice["recommended"]],
        regret_of[rule],
        regret_of[smallest],
        regret_of,
    )


def cells(results: Mapping[str, Any]) -> Iterator[tuple[str, Judged]]:
    """Every cell that is complete."""
    for name, seeds in results["advice"].items():
        for seed, advice in seeds.items():
            realised = results["realised"].get(name, {}).get(seed, {})
            if {*advice["predicted"], advice["recommended"], "auto"} <= {*realised}:
                yield name, judge(advice, realised)


def table(results: Mapping[str, Any]) -> str:
    """The Markdown tables of docs/advise.md."""
    found = list(cells(results))
    headings = ("case", "seeds", "Kendall tau", "top-1", "decisions", "single rule", "best")
    lines = [
        f"| {' | '.join((*headings, 'regret', 'its', 'naive'))} |",
        "|---|---:|---:|---:|---|---|---|---:|---:|---:|",
    ]
    for name in dict.fromkeys(name for name, _ in found):
        judged = [cell for other, cell in found if other == name]
        lines.append(
            f"| {name} | {len(judged)} | {_mean(cell.tau for cell in judged):.2f} | "
            f"{sum(cell.hit for cell in judged)} | {_counted(c.decision for c in judged)} | "
            f"{_counted(c.rule for c in judged)} | {_counted(c.best for c in judged)} | "
            f"{_mean(cell.regret for cell in judged):.1f} | "
            f"{_mean(cell.regret_of_rule for cell in judged):.1f} | "
            f"{_mean(cell.naive for cell in judged):.1f} |"
        )
    every = [cell for name, cell in found]
    points = [cell for name, cell in found if not name.startswith("rbf")]
    tau, hits = _mean(cell.tau for cell in every), _mean(float(cell.hit) for cell in every)
    lines += [
        "",
        f"Over all {len(every)}: Kendall tau {tau:.2f}, top-1 hit rate {hits:.0%}.",
        _decisions(every),
        "",
        "| always | mean regret in points | largest |",
        "|---|---:|---:|",
        _policy("as recommended", [cell.regret for cell in points]),
        _policy("the single rule that is named", [cell.regret_of_rule for cell in points]),
        _policy("smallest predicted error", [cell.naive for cell in points]),
    ]
    methods = points[0].regret_of if points else {}
    by_mean = sorted(methods, key=lambda m: _mean(cell.regret_of[m] for cell in points))
    lines += [_policy(m, [cell.regret_of[m] for cell in points]) for m in by_mean]
    return "\n".join(lines)


def _decisions(every: list[Judged]) -> str:
    """Whether joining was right where it was advised, and staying alone where that was."""
    joined = [cell for cell in every if cell.decision == "join"]
    alone = [cell for cell in every if cell.decision == "alone"]
    better = sum(cell.regret < cell.regret_of["target-only"] for cell in joined)
    better_rule = sum(cell.regret_of_rule < cell.regret_of["target-only"] for cell in joined)
    rules = [[cell.regret_of[name] for name in fb.rules.names()] for cell in alone]
    right = sum(cell.regret <= min(of) for cell, of in zip(alone, rules, strict=True))
    return (
        f"Advised to join {len(joined)} times: `auto` beat training alone in {better}, the single "
        f"rule in {better_rule}. Advised to stay alone {len(alone)} times: no rule beat it in "
        f"{right}. Evidence too thin {len(every) - len(joined) - len(alone)} times."
    )


def _policy(name: str, regrets: list[float]) -> str:
    return f"| {name} | {_mean(iter(regrets)):.1f} | {max(regrets, default=0.0):.1f} |"


def _mean(values: Iterator[float]) -> float:
    return statistics.fmean(values)


def _counted(names: Iterator[str]) -> str:
    every = list(names)
    distinct = dict.fromkeys(every)
    return ", ".join(
        name if len(distinct) == 1 else f"{name} ({every.count(name)})" for name in distinct
    )


if __name__ == "__main__":
    main()
