"""What a comparison found: the score of every cell, and the table made of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedbridge.methods import is_bound
from fedbridge.metrics import SCORED_ROUNDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHOWN_DIGITS = 1
NO_ENTRY = "–"


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
class Entry:
    """One entry of the table.

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
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Comparison:
    """Settings x methods x seeds with a score each.

    Attributes:
        settings: labels of the settings, the columns of the table.
        methods: names of the methods, the rows of the table.
        seeds: the seeds.
        rounds: rounds of every run.
        cells: one result per run.
        control_note: what the matched control is matched to.
        kept: how many cells were found finished in the folder.
    """

    settings: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: int
    cells: tuple[CellResult, ...]
    control_note: str
    kept: int = 0

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
        return [cell for cell in self.cells if cell.summary is None and cell.error is None]

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings beside the methods: the settings, and their average if there are several."""
        return (*self.settings, "average") if len(self.settings) > 1 else self.settings

    @property
    def digits(self) -> int:
        """Digits shown after the point: one for percentages, four for losses."""
        return SHOWN_DIGITS if self._has_classes() else 4

    def score(self, setting: str, method: str) -> float | None:
        """The mean over seeds of a method in a setting."""
        return self._entry(setting, method).mean

    def rows(self) -> list[Row]:
        """The table, method by method, with the best of every column marked."""
        columns = [
            [self._entry(setting, method) for method in self.methods] for setting in self.settings
        ]
        if len(columns) > 1:
            columns.append([_average(entries) for entries in zip(*columns, strict=True)])
        contends = [not is_bound(method) for method in self.methods]
        marked = [_with_best(column, self.digits, contends) for column in columns]
        return [
            Row(method, entries)
            for method, entries in zip(self.methods, zip(*marked, strict=True), strict=True)
        ]

    def notes(self) -> list[str]:
        """What a reader must know to read the table."""
        measure = "Accuracy in percent" if self._has_classes() else "Negative test loss"
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
        notes = [what, self.control_note]
        bounds = [method for method in self.methods if is_bound(method)]
        if bounds:
            notes.append(
                f"{', '.join(bounds)}: bounds, never in bold; no federation has all labels or all "
                f"rows in one place."
            )
        unmet = [cell for cell in self.cells if cell.unmet]
        notes += dict.fromkeys(str(cell.error) for cell in unmet)
        missing = len(self.cells) - len(self.finished) - len(unmet)
        if missing:
            notes.append(f"{missing} of {len(self.cells)} runs failed or are not finished.")
        return notes

    def to_markdown(self) -> str:
        """The table for a document."""
        from fedbridge.report.comparison_tables import comparison_table
        from fedbridge.report.exports import to_markdown

        return to_markdown(comparison_table(self))

    def to_json(self) -> dict[str, Any]:
        """The results for a file or a program."""
        return {
            "settings": list(self.settings),
            "methods": list(self.methods),
            "seeds": list(self.seeds),
            "rounds": self.rounds,
            "cells": [asdict(cell) for cell in self.cells],
            "columns": list(self.columns),
            "table": [asdict(row) for row in self.rows()],
            "notes": self.notes(),
        }

    def _has_classes(self) -> bool:
        scored = [cell.summary["accuracy"] for cell in self.cells if cell.summary is not None]
        return not scored or any(accuracy is not None for accuracy in scored)

    def _entry(self, setting: str, method: str) -> Entry:
        cells = [cell for cell in self.cells if (cell.setting, cell.method) == (setting, method)]
        scores = [cell.score for cell in cells if cell.score is not None]
        if not scores:
            return Entry(None, None, 0)
        if len(self.seeds) == 1:
            return Entry(scores[0], cells[0].half_width, 1)
        return Entry(fmean(scores), stdev(scores) if len(scores) > 1 else None, len(scores))


def _average(entries: Sequence[Entry]) -> Entry:
    """The mean over settings, when every setting has one."""
    means = [entry.mean for entry in entries if entry.mean is not None]
    count = sum(entry.count for entry in entries)
    return Entry(fmean(means) if len(means) == len(entries) else None, None, count)


def _with_best(column: Sequence[Entry], digits: int, contends: Sequence[bool]) -> list[Entry]:
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
