"""``fedbridge watch``."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from fedbridge.base.text import one_line
from fedbridge.cli.shared import Commands, add_command, add_unchecked, place, results, write_json

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console, Group, RenderableType

    from fedbridge.report.tables import Line, Table
    from fedbridge.workflows.watch import CellState, Watched

EVERY = 1.0
MOST_LINES = 8
"""Runs or settings listed at a time: the view must fit a terminal."""
BAR_WIDTH = 40
ORDER = ("done", "running", "interrupted", "waiting", "failed", "does not apply")


def add(commands: Commands) -> None:
    """The command and its arguments."""
    parser = add_command(commands, "watch", watch_command)
    parser.add_argument("folder", metavar="DIR", type=place)
    parser.add_argument("--once", action="store_true", help="look once")
    add_unchecked(parser)


def watch_command(args: Namespace) -> int:
    """Look, once or until it is over."""
    from fedbridge.workflows.watch import look

    if args.json:
        write_json(look(args.folder, unchecked=args.unchecked).to_json())
        return 0
    console = results()
    if args.once or not console.is_terminal:
        console.print(view(look(args.folder, unchecked=args.unchecked)))
    else:
        with suppress(KeyboardInterrupt):
            keep_looking(args.folder, console, unchecked=args.unchecked)
    return 0


def keep_looking(
    folder: Path, console: Console, every: float = EVERY, *, unchecked: bool = False
) -> None:
    """Show the state, up to date, until there is nothing more to wait for."""
    from rich.live import Live

    from fedbridge.workflows.watch import look

    watched = look(folder, unchecked=unchecked)
    with Live(view(watched), console=console, auto_refresh=False) as live:
        while not watched.is_over:
            time.sleep(every)
            watched = look(folder, unchecked=unchecked)
            live.update(view(watched), refresh=True)


def view(watched: Watched) -> Group:
    """Everything worth seeing, from the whole to the parts."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table as Grid
    from rich.text import Text

    from fedbridge.report.tables import to_terminal

    where = f"{watched.kind} {one_line(str(watched.folder))}: {watched.state}"
    parts: list[RenderableType] = [Text(where, "bold")]
    if watched.cells:
        total, done = len(watched.cells), watched.progress
        line = Grid.grid(padding=(0, 1))
        line.add_row(ProgressBar(total, done, width=BAR_WIDTH), f"{done / total:.0%}")
        parts += [line, Text(state_line(watched))]
    parts += [to_terminal(table, titled=True) for table in tables(watched)]
    failed = [cell for cell in watched.cells if cell.state == "failed"]
    parts += [Text(f"failed: {one_line(f'{c.name}: {c.error}')}") for c in failed[:MOST_LINES]]
    if len(failed) > MOST_LINES:
        parts.append(Text(f"and {len(failed) - MOST_LINES} more that failed"))
    if watched.state == "stopped":
        again = "run the same command again" + (", with --resume" * (watched.kind == "run"))
        parts.append(Text(f"Nobody is at work in this folder: to go on, {again}."))
    if watched.state == "unknown":
        parts.append(Text("Whether anybody is at work cannot be seen without writing rights."))
    return Group(*parts)


def state_line(watched: Watched) -> str:
    """How many runs are in which state, or the round of a single one, and the time left."""
    from fedbridge.workflows.watch import time_left_text

    if watched.kind == "run":
        (cell,) = watched.cells
        parts = [one_line(cell.name), _round_text(cell), _score_text(cell)]
    else:
        counts = watched.counts
        parts = [f"{counts[state]} {state}" for state in ORDER if state in counts]
    return ", ".join(part for part in parts if part) + time_left_text(watched)


def tables(watched: Watched) -> list[Table]:
    """The runs of a comparison that are under way, or were, and who leads each setting."""
    from fedbridge.report.tables import Cell, Column, Table
    from fedbridge.report.text import MISSING
    from fedbridge.runs.comparison import mean_and_spread

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
