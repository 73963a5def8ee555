"""What came out of a table or figure when it was run here, beside what the paper prints."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedbridge.base.errors import OptionError
from fedbridge.base.values import for_file
from fedbridge.report.text import counted
from fedbridge.runs.cell import CellSpec
from fedbridge.runs.comparison import NO_ENTRY, mean_and_spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbridge.experiments.catalogue import Experiment, Panel, PaperColumn, PaperRow

RESULTS = "results.jsonl"
DELTA_ERROR = "delta-error"
ACCURACIES = "accuracies"
"""Of every round: a run of 50 rounds also says what 20 would have come to."""
KEPT = (
    *("accuracy", "score", "accuracy_last", "n_test", "n_target", "parameters", "rounds"),
    *("seconds", "seconds_train", "seconds_aggregate", "bytes_up", "bytes_down"),
    *("sources", "beta", ACCURACIES, "sigma2", "d2", "tau2_d2", "along", "version"),
)
"""What a line of ``results.jsonl`` has of a summary: all that tables and figures are made of."""
SCORES, COUNTS = ("accuracy", "score"), ("rounds", "seconds_aggregate", "bytes_up", "bytes_down")
OF_RUNS = (*SCORES, *COUNTS, "version")
OF_SETTINGS = ("sigma2", "d2", "tau2_d2", "along")
"""What every line has of a run, or of what Delta errors are made of."""
DIGITS = {"accuracy": 1, "beta": 3}
"""Shown after the point; of other scores, four."""
UNITS = {
    "accuracy": "Test accuracy in percent, mean of the last rounds",
    "score": "Negative test loss, mean of the last rounds",
    "beta": "Weight β, mean over rounds and sources",
    "seconds": "Seconds of aggregation in a round",
    DELTA_ERROR: "Delta error at the initial parameters",
}


@dataclass(frozen=True)
class Pair:
    """Ours and the paper's in one setting.

    Attributes:
        ours: Mean over seeds; None where no run is finished.
        spread: Standard deviation over seeds (n - 1); None for fewer than two.
        count: Finished runs.
        paper: The printed number; None where there is none.
        paper_spread: Its printed deviation.
        also: Other printed numbers, and where they stand.
    """

    ours: float | None
    spread: float | None
    count: int
    paper: float | None
    paper_spread: float | None = None
    also: tuple[tuple[str, float], ...] = ()

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours - self.paper

    def text(self, digits: int) -> str:
        """``ours (spread) / paper / difference``; what is missing is a dash or left out."""
        shown = mean_and_spread(self.ours, self.spread, digits)
        if self.paper is None:
            return shown
        apart = self.difference
        said = NO_ENTRY if apart is None else f"{apart:+.{digits}f}"
        paper = mean_and_spread(self.paper, self.paper_spread, digits)
        return f"{shown} / {paper} / {said}"


@dataclass(frozen=True)
class CellOutcome:
    """One run of a reproduction: what it is, whose it is, and what came out.

    Attributes:
        row, column: Label of the method and key of the setting that it belongs to.
        seed: Its seed.
        spec: All that decides its result.
        summary: Of the run; None where it failed or is open.
        error: Why it failed.
        unmet: Whether the method does not apply there, which is no failure.
    """

    row: str
    column: str
    seed: int
    spec: CellSpec
    summary: Mapping[str, Any] | None = None
    error: str | None = None
    unmet: bool = False

    def to_json(self) -> dict[str, Any]:
        """A line of ``results.jsonl``: the result with seed, settings and version."""
        summary = self.summary or {}
        return {
            "row": self.row,
            "column": self.column,
            "seed": self.seed,
            **{name: _short(summary[name]) for name in KEPT if name in summary},
            "key": self.spec.key,
            "settings": for_file(self.spec.record),
        }


def _short(value: Any) -> Any:
    """A weight with the digits that a figure can show; anything else as it is."""
    if isinstance(value, list):
        return [
            [None if w is None else float(f"{w:.4g}") for w in part]
            if isinstance(part, list)
            else part
            for part in value
        ]
    return value


def summary_of(line: object) -> tuple[str, dict[str, Any]] | None:
    """The key of the run that a line of ``results.jsonl`` is of, and what came out; or None.

    Lines of an earlier generation of the code are none: their results may be others now.
    """
    if not isinstance(line, dict):
        return None
    try:
        given = {k: v for k, v in line["settings"].items() if k != "generation"}
        spec = CellSpec(**given)
        same = bool(spec.key == line["key"])
    except (KeyError, TypeError, ValueError, AttributeError, OptionError):
        return None
    found = {name: line[name] for name in KEPT if name in line}
    return (spec.key, found) if same and is_summary(found) else None


def is_summary(found: Mapping[str, Any]) -> bool:
    """Whether these are the numbers of a run, or of a setting's Delta errors, each of its type."""
    whole = found.keys() >= {*OF_RUNS} or found.keys() >= {*OF_SETTINGS}
    numbers = [found[name] for name in (*COUNTS, "sigma2") if name in found]
    numbers += [found[name] for name in SCORES if found.get(name) is not None]
    fits = all(isinstance(value, int | float) for value in numbers)
    lists = all(isinstance(found.get(name, []), list) for name in ("sources", "beta", ACCURACIES))
    return whole and fits and lists


@dataclass(frozen=True)
class Reproduction:
    """A table or figure as it was run here.

    Attributes:
        experiment: What was run, in the form in which it was run; controls are among its rows.
        protocol: ``paper`` or ``fair``.
        seeds: The seeds.
        outcomes: All runs, those of a cell that several rows share in each of them.
        controls: Of a row, the row that takes the same steps without sources, by labels.
        quick: Whether it is the small form.
        rounds: What somebody asked for instead of the experiment's own.
        asked: The name and the part of it that somebody asked for, as on the command line.
        kept: How many runs were found finished.
        left_out: Lines of given results that could not be taken.
        deltas: Delta errors of the panels that show them: by row and column, one per seed.
        moments: What these are made of, in the place of a run.
    """

    experiment: Experiment
    protocol: str
    seeds: tuple[int, ...]
    outcomes: tuple[CellOutcome, ...]
    controls: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False
    rounds: int | None = None
    asked: tuple[str, ...] = ()
    kept: int = 0
    left_out: int = 0
    deltas: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    moments: tuple[CellOutcome, ...] = ()

    @property
    def failures(self) -> list[CellOutcome]:
        """The runs that ended with an error, other than an unmet need."""
        return [one for one in self.outcomes if one.error is not None and not one.unmet]

    @property
    def finished(self) -> list[CellOutcome]:
        """The runs that have a result."""
        return [one for one in self.outcomes if one.summary is not None]

    @property
    def open(self) -> int:
        """How many runs have neither a result nor an error."""
        return sum(one.summary is None and one.error is None for one in self.outcomes)

    @property
    def digits(self) -> int:
        """Shown after the point."""
        return DIGITS.get(self.experiment.score, 4)

    @cached_property
    def _by_cell(self) -> dict[tuple[str, str], list[CellOutcome]]:
        found: dict[tuple[str, str], list[CellOutcome]] = {}
        for one in self.outcomes:
            found.setdefault((one.row, one.column), []).append(one)
        return found

    def of(self, row: str, column: str) -> list[CellOutcome]:
        """The finished runs of a row in a column, a seed each."""
        return [one for one in self._by_cell.get((row, column), []) if one.summary is not None]

    def scores(self, row: str, column: str, score: str | None = None) -> dict[int, float]:
        """The scores of a row in a column, by seed."""
        found = {
            one.seed: score_of(one.summary, score or self.experiment.score)
            for one in self.of(row, column)
            if one.summary is not None
        }
        return {seed: value for seed, value in found.items() if value is not None}

    def by_seed(self, row: str, index: int) -> dict[int, float]:
        """The scores of a row in the column of this index; a mean's where all its columns are."""
        columns = self.experiment.columns
        if not columns[index].mean:
            return self.scores(row, columns[index].key)
        under = [c for c in columns if c.group == columns[index].group and not c.mean]
        every = [self.scores(row, column.key) for column in under]
        complete = [s for s in self.seeds if every and all(s in scores for scores in every)]
        return {seed: fmean(scores[seed] for scores in every) for seed in complete}

    def pair(self, row: PaperRow, index: int) -> Pair:
        """Ours and the paper's of a row in the column of this index."""
        scores = list(self.by_seed(row.label, index).values())
        also = [(other.where, other.paper[index]) for other in row.also]
        return Pair(
            fmean(scores) if scores else None,
            stdev(scores) if len(scores) > 1 else None,
            len(scores),
            _there(row.paper, index),
            _there(row.spread, index),
            tuple((where, value) for where, value in also if not math.isnan(value)),
        )

    def gain(self, row: str, index: int) -> Pair | None:
        """What a row has over its control, seed by seed; None where there is no control."""
        control = self.controls.get(row)
        if control is None:
            return None
        own, other = self.by_seed(row, index), self.by_seed(control, index)
        apart = [own[seed] - other[seed] for seed in own if seed in other]
        if not apart:
            return None
        return Pair(fmean(apart), stdev(apart) if len(apart) > 1 else None, len(apart), None)

    def winner(self, panel: Panel, column: PaperColumn) -> str | None:
        """Who has the best mean over seeds in a cell of a map; None where somebody has none."""
        if panel.score == DELTA_ERROR:
            errors = {row: self.deltas.get((row, column.key), ()) for row in panel.rows}
            means = {row: -fmean(values) for row, values in errors.items() if values}
        else:
            found = {row: self.scores(row, column.key, panel.score) for row in panel.rows}
            means = {row: fmean(values.values()) for row, values in found.items() if values}
        whole = len(means) == len(panel.rows)
        return max(means, key=means.__getitem__) if whole else None

    def notes(self) -> list[str]:
        """What a reader must know to read the table."""
        experiment = self.experiment
        rounds = experiment.rounds
        theirs = " / the paper's / ours minus the paper's" if experiment.prints_numbers else ""
        how = (
            f"{experiment.where}; protocol {self.protocol}, {counted(rounds, 'round')}, "
            f"{counted(len(self.seeds), 'seed')}. {UNITS[experiment.score]}: ours, in brackets the "
            f"standard deviation over seeds{theirs}."
        )
        notes = [how, *([_small_form(experiment)] if self.quick else [])]
        notes += [
            f"{row.label}: {row.rounds} rounds."
            for row in experiment.rows
            if row.rounds not in (None, rounds)
        ]
        notes += [f"{row.label}: {row.cited}" for row in experiment.rows if row.cited]
        for row in experiment.rows:
            for other in row.also:
                said = [
                    f"{column.key} {value:g}"
                    for column, value in zip(experiment.columns, other.paper, strict=True)
                    if not math.isnan(value)
                ]
                if said:  # of the columns that were asked for
                    told = f"{row.label} has other numbers in {other.where}"
                    notes.append(f"{told}: {', '.join(said)}.")
        unmet = dict.fromkeys(str(one.error) for one in self.outcomes if one.unmet)
        if self.left_out:
            notes.append(
                f"{counted(self.left_out, 'line')} of the results given are of no run of this "
                f"version, or damaged, and were left out."
            )
        total = len(self.outcomes)
        missing = [f"{len(self.failures)} of {total} runs failed."] if self.failures else []
        missing += [f"{self.open} of {total} runs are not done."] if self.open else []
        return [*notes, *experiment.notes, *unmet, *missing]

    def to_json(self) -> dict[str, Any]:
        """All of it for a program."""
        experiment = self.experiment
        columns = range(len(experiment.columns))
        return {
            "name": experiment.name,
            "title": experiment.title,
            "where": experiment.where,
            "form": experiment.form,
            "score": experiment.score,
            "protocol": self.protocol,
            "rounds": experiment.rounds,
            "seeds": list(self.seeds),
            "columns": [column.key for column in experiment.columns],
            "rows": [
                {
                    "row": row.label,
                    "method": row.method,
                    "control": self.controls.get(row.label),
                    "cells": [self._record(row, index) for index in columns],
                }
                for row in experiment.rows
            ],
            "runs": len(self.outcomes),
            "kept": self.kept,
            "failed": [f"{o.column}, {o.row}, seed {o.seed}: {o.error}" for o in self.failures],
            "winners": {
                panel.label: {c.key: self.winner(panel, c) for c in experiment.columns}
                for panel in experiment.panels
            },
            "notes": self.notes(),
        }

    def _record(self, row: PaperRow, index: int) -> dict[str, Any]:
        pair, gain = self.pair(row, index), self.gain(row.label, index)
        more = {"difference": pair.difference, "gain": None if gain is None else gain.ours}
        return {**vars(pair), "also": dict(pair.also), **more}


def _small_form(experiment: Experiment) -> str:
    """What the quick form has in the place of the paper's."""
    quick = experiment.quick
    found = [f"{small} for {usual}" for usual, small in quick.tasks.items()]
    for name, value in {**quick.options, **quick.run}.items():
        found.append(f"{name} {', '.join(value) if isinstance(value, list) else value}")
    told = f" ({'; '.join(found)})" if found else ""
    rounds = counted(experiment.rounds, "round")
    return f"The quick form, {rounds}{told}: its rows compare with each other, not with the paper."


def _there(values: Sequence[float], index: int) -> float | None:
    """A printed number; NaN stands for none."""
    return None if not values or math.isnan(values[index]) else values[index]


def weights_of(summary: Mapping[str, Any]) -> list[list[float | None]]:
    """The weights of the sources in every round of a run; those that stay are kept once."""
    kept = [line or [] for line in summary["beta"]]
    return kept * summary["rounds"] if len(kept) == 1 else kept


def score_of(summary: Mapping[str, Any], score: str) -> float | None:
    """A run's number of this kind."""
    if score == "beta":
        weights = [w for line in weights_of(summary) for w in line if w is not None]
        return fmean(weights) if weights else None
    if score == "seconds":
        score = "seconds_aggregate"
    value: float | None = summary.get(score)
    return value
