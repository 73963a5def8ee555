"""What a person sees in the terminal: progress on stderr, results on stdout."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedbridge.evaluation.metrics import SCORED_ROUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

WIDTH_IN_FILES = 120
"""Width of tables where there is no terminal to ask."""

NOT_MEASURED = "not measured"
"""The target was not there, or keeps its measures to itself."""


def results() -> Console:
    """Where results go; nothing in them is taken for markup, since names come from data."""
    width = None if sys.stdout.isatty() else WIDTH_IN_FILES
    return Console(width=width, markup=False, highlight=False, emoji=False)


def progress_bar(*, quiet: bool) -> Progress:
    """A bar on stderr with the time that is left; silent where nobody looks at it."""
    console = Console(stderr=True)
    return Progress(
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


@contextmanager
def run_progress(rounds: int, *, quiet: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A callback for every round that keeps a bar up to date."""
    with progress_bar(quiet=quiet) as bar:
        shown = bar.add_task("starting", total=rounds)

        def update(line: Mapping[str, Any]) -> None:
            bar.update(shown, completed=max(0, line["round"]), description=_round_text(line))

        yield update


@contextmanager
def compare_progress(*, quiet: bool) -> Iterator[Callable[[float, int, str], None]]:
    """A callback of a comparison that keeps a bar up to date."""
    with progress_bar(quiet=quiet) as bar:
        shown = bar.add_task("starting", total=None)

        def update(done: float, cells: int, name: str) -> None:
            text = f"{int(done)} of {cells} runs, {name}"
            bar.update(shown, completed=done, total=cells, description=text)

        yield update


@contextmanager
def share_progress(*, quiet: bool) -> Iterator[Callable[[float, str], None]]:
    """A callback with the share that is done and what is under way."""
    with progress_bar(quiet=quiet) as bar:
        shown = bar.add_task("starting", total=1.0)

        def update(share: float, text: str) -> None:
            bar.update(shown, completed=share, description=text)

        yield update


def summary_table(summary: Mapping[str, Any]) -> Table:
    """A finished run in a few lines."""
    title = f"{summary['task']}: {summary['target']} by {summary['method']}"
    table = Table(title=Text(title), title_justify="left", show_header=False)
    for name, value in summary_lines(summary):
        table.add_row(Text(name), Text(value))
    return table


def summary_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is worth saying of a run, with how sure one can be of it."""
    if summary["accuracy"] is None:
        score = summary["score"]
        lines = [
            ("the target's test rows", NOT_MEASURED)
            if score is None
            else ("score (negative test loss)", f"{score:.4f}")
        ]
    else:
        low, high = summary["accuracy_interval"]
        scored = min(SCORED_ROUNDS, summary["rounds"])
        sure = f"95% interval {low:.1f} to {high:.1f} ({summary['n_test']} test rows)"
        over = f"mean of the last {scored} rounds" if scored > 1 else "one round"
        lines = [
            (f"accuracy ({over})", f"{summary['accuracy']:.1f}%, {sure}"),
            ("accuracy after the last round", _percent(summary["accuracy_last"])),
            ("balanced accuracy", _percent(summary["balanced_accuracy"])),
        ]
    if summary["auc"] is not None:
        lines.append(("area under the ROC curve", f"{summary['auc']:.3f}"))
    stopped = " (stopped early)" if summary["stopped_early"] else ""
    lines.append(("rounds", f"{summary['rounds']}{stopped}"))
    return lines


def name_table(entries: Sequence[tuple[str, str]]) -> Table:
    """Names and what they mean."""
    table = Table(show_header=False, box=None)
    for name, meaning in entries:
        table.add_row(Text(name), Text(meaning))
    return table


def _round_text(line: Mapping[str, Any]) -> str:
    parts = [f"round {line['round']}"]
    if line["accuracy"] is not None:
        parts.append(f"accuracy {_percent(line['accuracy'])}")
    else:
        parts.append(NOT_MEASURED if line["loss"] is None else f"loss {line['loss']:.4f}")
    betas = [beta for beta in line["beta"] or [] if beta is not None]
    if betas:
        parts.append(f"mean beta {sum(betas) / len(betas):.2f}")
    return ", ".join(parts)


def _percent(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1f}%"
