"""What came out of a table or figure when it was run here, beside what the paper prints."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedbridge.base.values import for_file
from fedbridge.report.tables import Cell, Table
from fedbridge.report.tables import Column as Heading
from fedbridge.runs.comparison import NO_ENTRY, mean_and_spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbridge.experiments.catalogue import Column, Experiment, Row
    from fedbridge.report.tables import Line
    from fedbridge.runs.cell import CellSpec

DIGITS = {"accuracy": 1, "beta": 3}
"""Shown after the point; of other scores, four."""
UNITS = {
    "accuracy": "Test accuracy in percent, mean of the last rounds",
    "score": "Negative test loss, mean of the last rounds",
    "beta": "Weight β, mean over rounds and sources",
    "seconds": "Seconds a round",
    "delta-error": "Delta error at the initial parameters",
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
        """``ours (spread) | paper | difference``; what is missing is a dash or left out."""
        shown = mean_and_spread(self.ours, self.spread, digits)
        if self.paper is None:
            return shown
        apart = self.difference
        said = NO_ENTRY if apart is None else f"{apart:+.{digits}f}"
        paper = mean_and_spread(self.paper, self.paper_spread, digits)
        return f"{shown} | {paper} | {said}"


@dataclass(frozen=True)
class Outcome:
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
        summary = dict(self.summary or {})
        kept = ("accuracy", "score", "accuracy_last", "n_test", "n_target", "parameters")
        costs = ("seconds", "seconds_train", "seconds_aggregate", "bytes_up", "bytes_down")
        plain = {name: summary.get(name) for name in (*kept, *costs, "version")}
        return {
            "row": self.row,
            "column": self.column,
            "seed": self.seed,
            **plain,
            **({} if self.error is None else {"error": self.error}),
            "key": self.spec.key,
            "settings": for_file(self.spec.record),
        }


@dataclass(frozen=True)
class Reproduction:
    """A table or figure as it was run here.

    Attributes:
        experiment: What was run, in the form in which it was run; controls are among its rows.
        protocol: ``paper`` or ``fair``.
        seeds: The seeds.
        outcomes: All runs, those of a cell that several rows share in each of them.
        controls: Of a row, the row that takes the same steps without sources, by labels.
        kept: How many runs were found finished.
        deltas: Delta errors of the panels that show them: by row and column, one per seed.
    """

    experiment: Experiment
    protocol: str
    seeds: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    controls: Mapping[str, str]
    kept: int = 0
    deltas: Mapping[tuple[str, str], tuple[float, ...]] | None = None

    @property
    def failures(self) -> list[Outcome]:
        """The runs that ended with an error, other than an unmet need."""
        return [one for one in self.outcomes if one.error is not None and not one.unmet]

    @property
    def finished(self) -> list[Outcome]:
        """The runs that have a result."""
        return [one for one in self.outcomes if one.summary is not None]

    @property
    def digits(self) -> int:
        """Shown after the point."""
        return DIGITS.get(self.experiment.score, 4)

    @cached_property
    def _by_cell(self) -> dict[tuple[str, str], list[Outcome]]:
        found: dict[tuple[str, str], list[Outcome]] = {}
        for one in self.outcomes:
            found.setdefault((one.row, one.column), []).append(one)
        return found

    def of(self, row: str, column: str) -> list[Outcome]:
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

    def pair(self, row: Row, index: int) -> Pair:
        """Ours and the paper's of a row in the column of this index.

        A mean over columns is taken seed by seed, over those seeds that have all its columns.
        """
        column = self.experiment.columns[index]
        if column.mean:
            every = [self.scores(row.label, key) for key in self._under(index)]
            complete = [s for s in self.seeds if all(s in scores for scores in every)]
            scores = [fmean(one[seed] for one in every) for seed in complete if every]
        else:
            scores = list(self.scores(row.label, column.key).values())
        also = [(other.where, other.paper[index]) for other in row.also]
        return Pair(
            fmean(scores) if scores else None,
            stdev(scores) if len(scores) > 1 else None,
            len(scores),
            _there(row.paper, index),
            _there(row.spread, index),
            tuple((where, value) for where, value in also if not math.isnan(value)),
        )

    def _under(self, index: int) -> list[str]:
        """The columns that a mean is of: those before it in its group."""
        columns = self.experiment.columns
        own = [c for c in columns[:index] if c.group == columns[index].group and not c.mean]
        return [column.key for column in own]

    def gain(self, row: str, column: Column) -> tuple[float, float | None] | None:
        """What a row has over its control, seed by seed: mean and spread; None without one."""
        control = self.controls.get(row)
        if control is None or column.mean:
            return None
        own, other = self.scores(row, column.key), self.scores(control, column.key)
        apart = [own[seed] - other[seed] for seed in own if seed in other]
        if not apart:
            return None
        return fmean(apart), stdev(apart) if len(apart) > 1 else None

    def table(self) -> Table:
        """Ours, the paper's and the difference, a row per method."""
        columns = self.experiment.columns
        beside = ("spread", "runs", "paper", "paper spread", "difference")
        headings = [
            Heading(c.key, "number", self.digits, beside=tuple(f"{c.key}: {b}" for b in beside))
            for c in columns
        ]
        rows: list[Line] = []
        for row in self.experiment.rows:
            pairs = [self.pair(row, index) for index in range(len(columns))]
            cells = [
                Cell(
                    pair.ours,
                    pair.text(self.digits),
                    beside=(
                        pair.spread,
                        pair.count,
                        pair.paper,
                        pair.paper_spread,
                        pair.difference,
                    ),
                )
                for pair in pairs
            ]
            rows.append((row.label, *cells))
        return Table(
            self.experiment.name,
            f"{self.experiment.title}: ours (spread) | the paper's | difference",
            (Heading("method"), *headings),
            tuple(rows),
            tuple(self.notes()),
        )

    def gains(self) -> Table | None:
        """What every row has over its control; None where there are no controls."""
        columns = [column for column in self.experiment.columns if not column.mean]
        rows: list[Line] = []
        for row in self.experiment.rows:
            found = [self.gain(row.label, column) for column in columns]
            if any(found):
                cells = [
                    Cell(None, NO_ENTRY)
                    if gain is None
                    else Cell(gain[0], _signed(*gain, self.digits), beside=(gain[1],))
                    for gain in found
                ]
                rows.append((row.label, self.controls[row.label], *cells))
        if not rows:
            return None
        headings = [
            Heading(c.key, "number", self.digits, beside=(f"{c.key}: spread",)) for c in columns
        ]
        return Table(
            f"{self.experiment.name}-gains",
            "What each method has over the same steps without sources, seed by seed",
            (Heading("method"), Heading("control"), *headings),
            tuple(rows),
            ("In brackets the standard deviation over seeds of the difference.",),
        )

    def notes(self) -> list[str]:
        """What a reader must know to read the table."""
        experiment = self.experiment
        seeds, rounds = len(self.seeds), experiment.rounds
        notes = [
            (
                f"{experiment.where}. Protocol {self.protocol}, {rounds} rounds, {seeds} seed"
                f"{'' if seeds == 1 else 's'}: ours with the standard deviation over seeds in "
                f"brackets | the paper's | ours minus the paper's. {UNITS[experiment.score]}."
            )
        ]
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
                notes.append(f"{row.label} has other numbers in {other.where}: {', '.join(said)}.")
        unmet = dict.fromkeys(str(one.error) for one in self.outcomes if one.unmet)
        open_ = len(self.outcomes) - len(self.finished) - sum(o.unmet for o in self.outcomes)
        missing = [f"{open_} of {len(self.outcomes)} runs failed or are not finished."]
        return [*notes, *experiment.notes, *unmet, *(missing if open_ else [])]

    def to_json(self) -> dict[str, Any]:
        """All of it for a program."""
        experiment = self.experiment
        gains = self.gains()
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
                    "cells": [_record(self.pair(row, k)) for k in range(len(experiment.columns))],
                }
                for row in experiment.rows
            ],
            "gains": None
            if gains is None
            else {
                str(row[0]): [cell.value for cell in row[2:] if isinstance(cell, Cell)]
                for row in gains.rows
            },
            "runs": len(self.outcomes),
            "kept": self.kept,
            "failed": [f"{o.column}, {o.row}, seed {o.seed}: {o.error}" for o in self.failures],
            "notes": self.notes(),
        }


def _record(pair: Pair) -> dict[str, Any]:
    return {**vars(pair), "difference": pair.difference, "also": dict(pair.also)}


def _signed(mean: float, spread: float | None, digits: int) -> str:
    return f"{mean:+.{digits}f}" + ("" if spread is None else f" ({spread:.{digits}f})")


def _there(values: Sequence[float], index: int) -> float | None:
    """A printed number; NaN stands for none."""
    return None if not values or math.isnan(values[index]) else values[index]


def score_of(summary: Mapping[str, Any] | None, score: str) -> float | None:
    """A run's number of this kind."""
    if summary is None:
        return None
    if score == "beta":
        weights = [w for line in summary["beta"] or [] for w in line if w is not None]
        return fmean(weights) if weights else None
    if score == "seconds":
        found: float = summary["seconds_train"] + summary["seconds_aggregate"]
        return found
    value: float | None = summary.get(score)
    return value
