"""A run or comparison that is being watched, as a terminal shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from fedbridge.report.tables import Cell, Column, Table, to_terminal
from fedbridge.report.text import MISSING, duration, one_line
from fedbridge.runs.comparison import mean_and_spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from fedbridge.report.tables import Line
    from fedbridge.workflows.watch import CellState, Watched

MOST_LINES = 8
"""Runs or settings listed at a time: the view must fit a terminal."""
BAR_WIDTH = 40
ORDER = ("done", "running", "interrupted", "waiting", "failed", "does not apply")


def view(watched: Watched) -> Group:
    """Everything worth seeing, from the whole to the parts."""
    parts: list[RenderableType] = [Text(headline(watched), "bold")]
    if watched.cells:
        parts += [_bar(watched), Text(state_line(watched))]
    parts += [to_terminal(table, titled=True) for table in tables(watched)]
    failed = [cell for cell in watched.cells if cell.state == "failed"]
    parts += [
        Text(f"failed: {one_line(cell.name)}: {one_line(cell.error or '')}")
        for cell in failed[:MOST_LINES]
    ]
    if len(failed) > MOST_LINES:
        parts.append(Text(f"and {len(failed) - MOST_LINES} more that failed"))
    if watched.state == "stopped":
        again = "run the same command again" + (", with --resume" * (watched.kind == "run"))
        parts.append(Text(f"Nobody is at work in this folder: to go on, {again}."))
    if watched.state == "unknown":
        parts.append(Text("Whether anybody is at work cannot be seen without writing rights."))
    return Group(*parts)


def headline(watched: Watched) -> str:
    """What it is and where it stands."""
    return f"{watched.kind} {one_line(str(watched.folder))}: {watched.state}"


def state_line(watched: Watched) -> str:
    """How many runs are in which state, or the round of a single one, and the time left."""
    if watched.kind == "run":
        (cell,) = watched.cells
        parts = [one_line(cell.name), _round_text(cell), _score_text(cell)]
    else:
        counts = watched.counts
        parts = [f"{counts[state]} {state}" for state in ORDER if state in counts]
    if watched.seconds_left is not None:
        parts.append(f"about {duration(round(watched.seconds_left))} left")
    return ", ".join(part for part in parts if part)


def _bar(watched: Watched) -> Grid:
    total = len(watched.cells)
    line = Grid.grid(padding=(0, 1))
    bar = ProgressBar(total=total, completed=watched.progress, width=BAR_WIDTH)
    line.add_row(bar, f"{watched.progress / total:.0%}")
    return line


def tables(watched: Watched) -> list[Table]:
    """The runs of a comparison that are under way, or were, and who leads each setting."""
    shown = [cell for cell in watched.cells if cell.state in ("running", "interrupted")]
    shown.sort(key=lambda cell: cell.state != "running")
    under_way: list[Line] = [
        (cell.name, cell.state, _round_text(cell), _score_text(cell) or MISSING) for cell in shown
    ]
    best: list[Line] = [
        (
            best.setting,
            best.method,
            Cell(best.score, mean_and_spread(best.score, best.spread, _digits(best.score))),
            best.count,
        )
        for best in watched.best
    ]
    of_runs = (
        Column("run"),
        Column("state"),
        Column("round", "number"),
        Column("score now", "number"),
    )
    of_settings = (
        Column("setting"),
        Column("method"),
        Column("score", "number"),
        Column("finished runs", "number", digits=0),
    )
    return [
        Table(name, caption, columns, _first(lines))
        for name, caption, columns, lines in (
            ("runs", "under way", of_runs, [] if watched.kind == "run" else under_way),
            ("best", "best so far", of_settings, best),
        )
        if lines
    ]


def _first(lines: Sequence[Line]) -> tuple[Line, ...]:
    """As many lines as fit, and how many there are more."""
    more = len(lines) - MOST_LINES
    rest = [(f"and {more} more", "", "", "")] if more > 0 else []
    return (*lines[:MOST_LINES], *rest)


def _round_text(cell: CellState) -> str:
    return f"round {cell.round} of {cell.rounds}"


def _score_text(cell: CellState) -> str:
    return "" if cell.score is None else f"{cell.score:.{_digits(cell.score)}f}"


def _digits(score: float) -> int:
    """One digit for percentages; scores of regressions, which are negative losses, need more."""
    return 1 if score > 0 else 4
