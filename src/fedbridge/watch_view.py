"""A run or comparison that is being watched, as a terminal shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedbridge.comparison import mean_and_spread
from fedbridge.escaping import one_line
from fedbridge.report.numbers import duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedbridge.watch import CellState, Watched

MOST_LINES = 8
"""Runs or settings listed at a time: the view must fit a terminal."""
BAR_WIDTH = 40
ORDER = ("done", "running", "interrupted", "waiting", "failed", "does not apply")


def view(watched: Watched) -> Group:
    """Everything worth seeing, from the whole to the parts."""
    parts: list[RenderableType] = [Text(headline(watched), "bold")]
    if watched.cells:
        parts += [_bar(watched), Text(state_line(watched))]
    parts += [_cells_table(watched), _best_table(watched)]
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


def _bar(watched: Watched) -> Table:
    total = len(watched.cells)
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=total, completed=watched.progress, width=BAR_WIDTH)
    line.add_row(bar, f"{watched.progress / total:.0%}")
    return line


def _cells_table(watched: Watched) -> RenderableType:
    """The runs of a comparison that are under way, or were."""
    shown = [cell for cell in watched.cells if cell.state in ("running", "interrupted")]
    shown.sort(key=lambda cell: cell.state != "running")
    if watched.kind == "run" or not shown:
        return Text("", end="")
    table = Table(title="under way", title_justify="left")
    for name in ("run", "state", "round", "score now"):
        table.add_column(name, justify="left" if name in ("run", "state") else "right")
    for cell in shown[:MOST_LINES]:
        table.add_row(
            Text(one_line(cell.name)), cell.state, _round_text(cell), _score_text(cell) or "–"
        )
    if len(shown) > MOST_LINES:
        table.add_row(f"and {len(shown) - MOST_LINES} more", "", "", "")
    return table


def _best_table(watched: Watched) -> RenderableType:
    if not watched.best:
        return Text("", end="")
    table = Table(title="best so far", title_justify="left")
    for name in ("setting", "method", "score", "finished runs"):
        table.add_column(name, justify="left" if name in ("setting", "method") else "right")
    for best in watched.best[:MOST_LINES]:
        score = mean_and_spread(best.score, best.spread, _digits(best.score))
        table.add_row(Text(one_line(best.setting)), best.method, score, str(best.count))
    if len(watched.best) > MOST_LINES:
        table.add_row(f"and {len(watched.best) - MOST_LINES} more", "", "", "")
    return table


def _round_text(cell: CellState) -> str:
    return f"round {cell.round} of {cell.rounds}"


def _score_text(cell: CellState) -> str:
    return "" if cell.score is None else f"{cell.score:.{_digits(cell.score)}f}"


def _digits(score: float) -> int:
    """One digit for percentages; scores of regressions, which are negative losses, need more."""
    return 1 if score > 0 else 4
