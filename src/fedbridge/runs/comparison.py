"""A comparison on disk: the score of every run, the table made of them, and its folder.

``comparison.json`` is written while runs finish, so that a comparison that was stopped can be gone
on with, looked at and reported on at any time. What has finished since it was last written, the
folders of the runs tell.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedbridge.base.files import to_json, write_atomically
from fedbridge.base.text import block
from fedbridge.core.theory import share_off_line
from fedbridge.evaluation.metrics import SCORED_ROUNDS
from fedbridge.evaluation.ranking import ALPHA, rank_methods
from fedbridge.runs.folder import RunFolder, RunFolderError, read_record
from fedbridge.runs.lock import FILE as SIGN_OF_LIFE
from fedbridge.runs.record import mean
from fedbridge.runs.shapes import COMPARISON
from fedbridge.runs.variant import ROUNDS, Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pandas import DataFrame

    from fedbridge.evaluation.ranking import Ranking

FORMAT = 1
COMPARISON_FILE = "comparison.json"
SHOWN_DIGITS = 1
NO_ENTRY = "–"
NEEDS = " needs "
"""In the error of a method that does not apply: before it the method, after it what is lacking."""
ENOUGH_SETTINGS = 5
"""From so many settings on, a setting is a block of the ranking; with fewer, every seed of one."""

FRAME = (
    *("setting", "task", "target", "method", "base", "seed", "rounds"),
    *("accuracy", "score", "accuracy_last", "accuracy_low", "accuracy_high"),
    *("balanced_accuracy", "auc", "loss", "n_target", "n_test", "seconds", "folder"),
)
"""Columns of the data frame of a comparison, before those of the variants' options."""


def mean_and_spread(mean: float | None, spread: float | None, digits: int) -> str:
    """A score as tables show it."""
    if mean is None:
        return NO_ENTRY
    return f"{mean:.{digits}f}" + ("" if spread is None else f" ({spread:.{digits}f})")


@dataclass(frozen=True)
class CellResult:
    """What became of one run: its summary, or why it failed, or neither if it is still open.

    A method that needs what a setting does not have (``unmet``) has an error that is no failure.
    """

    setting: str
    method: str
    seed: int
    folder: str | None = None
    summary: Mapping[str, Any] | None = None
    error: str | None = None
    unmet: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it is still to run, or to go on."""
        return self.summary is None and self.error is None

    @property
    def score(self) -> float | None:
        """Accuracy in percent, or the negative test loss where there are no classes."""
        if self.summary is None:
            return None
        accuracy: float | None = self.summary["accuracy"]
        score: float | None = self.summary["score"]
        return score if accuracy is None else accuracy

    @property
    def half_width(self) -> float | None:
        """Half of the confidence interval that the size of the test set leaves."""
        interval = None if self.summary is None else self.summary["accuracy_interval"]
        return None if interval is None else (interval[1] - interval[0]) / 2


@dataclass(frozen=True)
class MeanScore:
    """A method in a setting: one entry of the table.

    Attributes:
        mean: mean score over seeds; None when no run is finished.
        spread: standard deviation over seeds (n - 1), or for one seed half the confidence
            interval of its test set; None when neither is known.
        count: finished runs behind the mean.
        best: whether no method has a larger mean, as shown, in this column.
    """

    mean: float | None
    spread: float | None
    count: int
    best: bool = False

    def text(self, digits: int = SHOWN_DIGITS) -> str:
        """``mean (spread)``."""
        return mean_and_spread(self.mean, self.spread, digits)


@dataclass(frozen=True)
class Row:
    """A method in every setting, and on average over the settings."""

    method: str
    entries: tuple[MeanScore, ...]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Settings x methods x seeds with a score each.

    Attributes:
        settings: labels of the settings, the columns of the table.
        methods: names of the methods, the rows of the table.
        seeds: the seeds.
        rounds: rounds of every run.
        cells: one result per run.
        control_note: what the matched control is matched to.
        bounds: methods that have what no federation has; they are shown, but do not compete.
        kept: how many cells were found finished in the folder.
        variants: what the methods are, where they are more than a name.
    """

    settings: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: int
    cells: tuple[CellResult, ...]
    control_note: str
    bounds: tuple[str, ...] = ()
    kept: int = 0
    variants: tuple[Variant, ...] = ()

    def __repr__(self) -> str:
        """Five lines."""
        rows = [row for row in self.rows() if any(entry.best for entry in row.entries)]
        best = ", ".join(row.method for row in rows)
        return block(
            f"comparison: {len(self.settings)} settings x {len(self.methods)} methods x "
            f"{len(self.seeds)} seeds, {self.rounds} rounds",
            f"settings: {', '.join(self.settings)}",
            f"methods: {', '.join(self.methods)}",
            f"{len(self.finished)} of {len(self.cells)} runs finished, {len(self.failures)} "
            f"failed; .frame() has a row for each",
            f"best, or as good: {best or 'nothing yet'}",
        )

    def variant(self, method: str) -> Variant:
        """What is run in a row: the method of its name, unless the comparison says more."""
        return next((v for v in self.variants if v.name == method), Variant(method))

    def rounds_of(self, method: str) -> int:
        """Rounds of the runs of a row."""
        own = self.variant(method).options.get(ROUNDS)
        return own if isinstance(own, int) else self.rounds

    @property
    def failures(self) -> list[CellResult]:
        """The cells that ended with an error, other than an unmet need."""
        return [cell for cell in self.cells if cell.error is not None and not cell.unmet]

    @property
    def finished(self) -> list[CellResult]:
        """The cells that have a summary."""
        return [cell for cell in self.cells if cell.summary is not None]

    @property
    def open(self) -> list[CellResult]:
        """The cells that have neither a summary nor an error yet."""
        return [cell for cell in self.cells if cell.is_open]

    @property
    def complete(self) -> tuple[str, ...]:
        """The settings in which no run is open: only there methods can be held against each other.

        A run that failed has ended; it is not waited for.
        """
        waiting = {cell.setting for cell in self.open}
        return tuple(setting for setting in self.settings if setting not in waiting)

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings beside the methods: the settings, and their average if there are several."""
        return (*self.settings, "average") if len(self.settings) > 1 else self.settings

    @property
    def measure(self) -> str:
        """What the scores are; larger is better in both."""
        return "test accuracy in %" if self.has_classes else "negative test loss"

    @property
    def digits(self) -> int:
        """Digits shown after the point: one for percentages, four for losses."""
        return SHOWN_DIGITS if self.has_classes else 4

    def score(self, setting: str, method: str) -> float | None:
        """The mean over seeds of a method in a setting."""
        return self._entry(setting, method).mean

    def whole_score(self, setting: str, method: str) -> float | None:
        """The same where all seeds are there: a mean over fewer is another quantity."""
        entry = self._entry(setting, method)
        return entry.mean if entry.count == len(self.seeds) else None

    def scores(self, setting: str, method: str) -> tuple[float, ...]:
        """The scores of a method in a setting, a seed each."""
        found = [cell.score for cell in self._cells_of(setting, method)]
        return tuple(score for score in found if score is not None)

    def rows(self, *, so_far: bool = False) -> list[Row]:
        """The table, method by method, with the best of every column marked.

        Settings that are not complete have no best, and do not count for the average; with
        ``so_far`` who leads there is marked too.
        """
        complete = self.complete
        columns = [
            [self._entry(setting, method) for method in self.methods] for setting in self.settings
        ]
        ended = [setting in complete for setting in self.settings]
        if len(columns) > 1:
            counted = [column for column, over in zip(columns, ended, strict=True) if over]
            columns.append([_average([c[k] for c in counted]) for k in range(len(self.methods))])
            ended.append(True)
        contends = [method not in self.bounds for method in self.methods]
        marked = [
            _with_best(column, self.digits, contends) if over or so_far else column
            for column, over in zip(columns, ended, strict=True)
        ]
        return [
            Row(method, entries)
            for method, entries in zip(self.methods, zip(*marked, strict=True), strict=True)
        ]

    def notes(self) -> list[str]:
        """What a reader must know to read the table."""
        measure = "Accuracy in percent" if self.has_classes else "Negative test loss"
        spread = (
            f"the standard deviation over {len(self.seeds)} seeds"
            if len(self.seeds) > 1
            else "half the 95% confidence interval of the test set, for there is one seed"
        )
        what = (
            f"{measure} on the target's test set after {self.rounds} rounds, mean of the last "
            f"{min(SCORED_ROUNDS, self.rounds)}; "
            f"in brackets {spread}; the best of a column in bold."
        )
        own = [name for name in self.methods if self.rounds_of(name) != self.rounds]
        notes = [what, *(f"{name}: {self.rounds_of(name)} rounds." for name in own)]
        notes += [self.control_note] * bool(self.control_note)
        if self.bounds:
            notes.append(
                f"{', '.join(self.bounds)}: bounds, never in bold; no federation has all labels or "
                f"all rows in one place."
            )
        notes += _folded([str(cell.error) for cell in self.cells if cell.unmet])
        if self.failures:
            notes.append(f"{len(self.failures)} of {len(self.cells)} runs failed.")
        if self.open:
            notes.append(
                f"{len(self.open)} of {len(self.cells)} runs are not finished. Only settings in "
                f"which all methods have finished have a best and count for averages and ranks: "
                f"{len(self.complete)} of {len(self.settings)}."
            )
        return notes

    def ranking(self, alpha: float = ALPHA) -> Ranking | None:
        """The methods ranked, finished or not; None when there is too little to rank.

        Bounds do not compete. A method that does not apply somewhere is left out; a setting that
        is not complete does not count, nor does a block in which a method has no score.
        """
        contenders = [method for method in self.methods if method not in self.bounds]
        unmet = {cell.method for cell in self.cells if cell.unmet}
        ranked = [method for method in contenders if method not in unmet]
        found = {(c.setting, c.seed, c.method): c.score for c in self.cells}
        by_setting = len(self.settings) >= ENOUGH_SETTINGS
        lines = []
        for setting in self.complete:
            seeds = [[found.get((setting, seed, m)) for m in ranked] for seed in self.seeds]
            whole = [[s for s in line if s is not None] for line in seeds if None not in line]
            if by_setting and whole:
                lines.append([fmean(column) for column in zip(*whole, strict=True)])
            elif not by_setting:
                lines += whole
        if len(ranked) < 2 or len(lines) < 2:
            return None
        return rank_methods(
            ranked,
            lines,
            of="setting" if by_setting else "setting and seed",
            alpha=alpha,
            left_out=[method for method in contenders if method in unmet],
        )

    def frame(self) -> DataFrame:
        """A row per finished run: task, method, seed, measures, and the options of its variant.

        ``method`` is the name of the row in tables, ``base`` the method that it is a variant of.
        """
        import pandas as pd

        rows = [self._line(cell, cell.summary) for cell in self.finished if cell.summary]
        own = dict.fromkeys(name for v in self.variants for name in v.of_run)
        return pd.DataFrame(rows, columns=[*FRAME, *(name for name in own if name not in FRAME)])

    def _line(self, cell: CellResult, summary: Mapping[str, Any]) -> dict[str, Any]:
        variant = self.variant(cell.method)
        low, high = summary["accuracy_interval"] or (None, None)
        return {
            **variant.of_run,
            **{name: summary.get(name) for name in FRAME},
            "setting": cell.setting,
            "method": cell.method,
            "base": variant.method,
            "seed": cell.seed,
            "accuracy_low": low,
            "accuracy_high": high,
            "folder": cell.folder,
        }

    def to_json(self) -> dict[str, Any]:
        """The results for a file or a program."""
        variants = variant_records(self.variants)
        return {
            "settings": list(self.settings),
            "methods": list(self.methods),
            **({"variants": variants} if variants else {}),
            "seeds": list(self.seeds),
            "rounds": self.rounds,
            "cells": [dict(vars(cell)) for cell in self.cells],
            "columns": list(self.columns),
            "control_note": self.control_note,
            "table": [asdict(row) for row in self.rows()],
            "notes": self.notes(),
        }

    @property
    def has_classes(self) -> bool:
        """Whether scores are accuracies; taken for granted while no run is finished."""
        scored = [cell.summary["accuracy"] for cell in self.cells if cell.summary is not None]
        return not scored or any(accuracy is not None for accuracy in scored)

    def _cells_of(self, setting: str, method: str) -> list[CellResult]:
        return [cell for cell in self.cells if (cell.setting, cell.method) == (setting, method)]

    def _entry(self, setting: str, method: str) -> MeanScore:
        scores = self.scores(setting, method)
        if not scores:
            return MeanScore(None, None, 0)
        if len(self.seeds) == 1:
            return MeanScore(scores[0], self._cells_of(setting, method)[0].half_width, 1)
        return MeanScore(fmean(scores), stdev(scores) if len(scores) > 1 else None, len(scores))


def _folded(unmet: Sequence[str]) -> list[str]:
    """Why methods do not apply: one note for all that need the same and lack it in the same way."""
    alike: dict[str, list[str]] = {}
    for error in dict.fromkeys(unmet):
        alike.setdefault(error.partition(NEEDS)[2] or error, []).append(error)
    notes = []
    for lack, errors in alike.items():
        *others, last = (error.partition(NEEDS)[0] for error in errors)
        notes.append(f"{', '.join(others)} and {last} need {lack}" if others else errors[0])
    return notes


def variant_records(variants: Sequence[Variant]) -> dict[str, Any]:
    """What the rows are that are more than the name of a method."""
    return {v.name: v.to_json() for v in variants if v != Variant(v.name)}


def _average(entries: Sequence[MeanScore]) -> MeanScore:
    """The mean over settings, when every setting has one."""
    means = [entry.mean for entry in entries if entry.mean is not None]
    count = sum(entry.count for entry in entries)
    whole = bool(means) and len(means) == len(entries)
    return MeanScore(fmean(means) if whole else None, None, count)


def _with_best(
    column: Sequence[MeanScore], digits: int, contends: Sequence[bool]
) -> list[MeanScore]:
    """Mark the contenders that show the largest mean: what looks equal is equally good."""
    shown = [
        round(entry.mean, digits) if entry.mean is not None and in_it else None
        for entry, in_it in zip(column, contends, strict=True)
    ]
    top = max((mean for mean in shown if mean is not None), default=None)
    return [
        replace(entry, best=mean is not None and mean == top)
        for entry, mean in zip(column, shown, strict=True)
    ]


@dataclass(frozen=True)
class CellHistory:
    """A run of a comparison over its rounds.

    Attributes:
        setting: Its column.
        method: Its row.
        seed: Its seed.
        curve: ``(round, accuracy)``, or the negative loss where there are no classes.
        sigma2: The target's noise in the first round, before methods went different ways.
        d2: Mean squared distance of the sources in the first round.
        tau2: The share of it that is off the sources' lines.
        entries: Entries of the model's vector; None while the run is not finished.
    """

    setting: str
    method: str
    seed: int
    curve: tuple[tuple[int, float | None], ...]
    sigma2: float | None = None
    d2: float | None = None
    tau2: float | None = None
    entries: int | None = None


@dataclass(frozen=True)
class ComparisonRecord:
    """A comparison as its folder tells it.

    Attributes:
        folder: Where it is.
        comparison: The results so far.
        tasks: How every setting was loaded.
        options: Of the runs.
    """

    folder: Path
    comparison: Comparison
    tasks: tuple[dict[str, Any], ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the folder, for the title."""
        return self.folder.resolve().name

    @cached_property
    def histories(self) -> tuple[CellHistory, ...]:
        """What the runs' own folders tell of them, as far as they are there."""
        found = (_read_history(self.folder, cell) for cell in self.comparison.cells)
        return tuple(history for history in found if history is not None)


@dataclass(frozen=True)
class ComparisonFolder:
    """Reads and writes the files of one comparison."""

    path: Path

    def claim(self, plan: Mapping[str, Any]) -> None:
        """Take the folder for this comparison, or refuse if it holds something else."""
        there = self.read()
        if there is None:
            others = (file for file in self._files() if file.name != SIGN_OF_LIFE)
            if any(others):
                raise RunFolderError(
                    f"Expected an empty or new folder for the comparison, but {self.path} holds "
                    f"other files: choose another with --out."
                )
            return
        different = _differences(there, plan)
        if different and any((self.path / "cells").glob("*/summary.json")):
            raise RunFolderError(
                f"Expected a folder for this comparison, but {self.path} holds a different one "
                f"(other {', '.join(different)}): choose another folder with --out."
            )

    def _files(self) -> list[Path]:
        return list(self.path.iterdir()) if self.path.exists() else []

    def read(self) -> dict[str, Any] | None:
        """The file of the comparison; None if there is none."""
        file = self.path / COMPARISON_FILE
        return read_record(file, COMPARISON, kind="comparison", format=FORMAT)

    def write(self, plan: Mapping[str, Any], comparison: Comparison) -> None:
        """What is known so far."""
        content = {"format": FORMAT, **plan, **comparison.to_json()}
        write_atomically(self.path / COMPARISON_FILE, to_json(content, indent=1))


def _differences(there: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    """In what a comparison is another one; settings, methods and seeds may be added."""
    changed = [key for key in ("rounds", "options") if there.get(key) != plan[key]]
    then, now = there.get("variants", {}), plan.get("variants", {})
    changed += ["methods"] * any(now.get(name, then[name]) != then[name] for name in then)
    missing = [
        key
        for key in ("tasks", "methods", "seeds")
        if any(entry not in plan[key] for entry in there.get(key, []))
    ]
    return list(dict.fromkeys(changed + missing))


def read_comparison(folder: Path, is_bound: Callable[[str], bool]) -> ComparisonRecord:
    """Read a comparison's folder, finished or not, with the runs that its file does not know yet.

    Which methods are bounds, no file says.
    """
    found = ComparisonFolder(folder).read()
    if found is None:
        raise RunFolderError(f"Expected a comparison in {folder}, but it has no {COMPARISON_FILE}.")
    empty = [name for name in ("settings", "methods", "seeds") if not found[name]]
    if empty:
        raise RunFolderError(
            f"Expected a comparison of something in {folder / COMPARISON_FILE}, but it has no "
            f"{empty[0]}: restore the file."
        )
    known = [field.name for field in fields(CellResult)]
    more = found.get("variants", {})
    variants = tuple(
        Variant(more[name]["method"], more[name]["options"], name)
        if name in more
        else Variant(name)
        for name in found["methods"]
    )
    comparison = Comparison(
        settings=tuple(found["settings"]),
        methods=tuple(found["methods"]),
        seeds=tuple(found["seeds"]),
        rounds=found["rounds"],
        cells=tuple(
            CellResult(**{k: v for k, v in cell.items() if k in known}) for cell in found["cells"]
        ),
        control_note=_control_note(found),
        bounds=tuple(v.name for v in variants if is_bound(v.method)),
        variants=variants,
    )
    return ComparisonRecord(
        folder,
        _with_unnoted(comparison, folder),
        tasks=tuple(found.get("tasks", ())),
        options=found.get("options", {}),
    )


def _control_note(found: Mapping[str, Any]) -> str:
    """What the matched control is matched to; older files have it among the notes only."""
    told = (note for note in found.get("notes", ()) if note.startswith("target-only-matched "))
    note: str = found.get("control_note", next(told, ""))
    return note


def _with_unnoted(comparison: Comparison, folder: Path) -> Comparison:
    """The comparison with the runs that have finished since its file was written."""
    cells = []
    for cell in comparison.cells:
        path = _place(folder, cell) if cell.is_open else None
        if path is None:
            cells.append(cell)
        else:
            summary = finished_summary(path, comparison.rounds_of(cell.method))
            cells.append(replace(cell, summary=summary))
    return replace(comparison, cells=tuple(cells))


def finished_summary(folder: Path, rounds: int) -> dict[str, Any] | None:
    """The summary of a run that has finished all its rounds, or stopped early; None for others."""
    summary = RunFolder(folder).summary(whole=True)
    if summary is None or not (summary["rounds"] == rounds or summary["stopped_early"]):
        return None
    return summary


def _place(folder: Path, cell: CellResult) -> Path | None:
    """Where a run is; None when that is nowhere, or outside of the comparison's folder."""
    if cell.folder is None:
        return None
    path = (folder / cell.folder).resolve()
    return path if path.is_relative_to(folder.resolve()) else None


def _read_history(folder: Path, cell: CellResult) -> CellHistory | None:
    """Read a run's history; None when the run has not begun or lies outside of the folder."""
    path = _place(folder, cell)
    if path is None:
        return None
    history = RunFolder(path).history()
    trained = [line for line in history if line["round"] >= 1]
    if not trained:
        return None
    first = trained[0]
    d2 = mean(first.get("d2") or [])
    return CellHistory(
        cell.setting,
        cell.method,
        cell.seed,
        tuple((line["round"], score_of_round(line)) for line in history),
        first.get("sigma2"),
        d2,
        share_off_line(d2, mean(first.get("tau2_d2") or [])),
        None if cell.summary is None else cell.summary.get("parameters"),
    )


def score_of_round(line: Mapping[str, Any]) -> float | None:
    """Accuracy in percent, or the negative loss where there are no classes."""
    accuracy: float | None = line.get("accuracy")
    loss: float | None = line.get("loss")
    if accuracy is not None or loss is None:
        return accuracy
    return -loss
