"""The tables of a reproduction: ours beside the paper's, gains over controls, costs, winners."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from fedbridge.report.tables import Cell, Column, Table
from fedbridge.runs.comparison import NO_ENTRY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.experiments.reproduction import Pair, Reproduction
    from fedbridge.report.tables import Line

NUMBERS = ("ours", "spread", "runs", "paper", "paper spread", "difference")
COSTS = {
    "seconds_train": ("training, s a round", 1.0, 3),
    "seconds_aggregate": ("aggregation, s a round", 1.0, 5),
    "bytes_up": ("sent by the sites, MB a round", 1e-6, 2),
    "bytes_down": ("sent to them, MB a round", 1e-6, 2),
}
"""What a run's summary says of its cost: what to call it, in which unit, with how many digits."""
WHOLE_RUN = ("bytes_up", "bytes_down")
COST = "cost"
FORMULAS = ("time", "memory", "messages")


def result_tables(found: Reproduction) -> list[Table]:
    """The table in the paper's form: one per group of columns, of a map one per panel.

    Of costs, what was measured beside the formulas too.
    """
    if found.experiment.form == "map":
        return [_winners(found, number) for number in range(len(found.experiment.panels))]
    tables = [_by_method(found, group) for group in groups(found)]
    return [*tables, cost_table(found)] if found.experiment.form == COST else tables


def groups(found: Reproduction) -> list[str]:
    """The headings that columns stand under, in their order; one without words if there is none."""
    return list(dict.fromkeys(column.group for column in found.experiment.columns))


def _places(found: Reproduction, group: str) -> list[int]:
    columns = found.experiment.columns
    return [index for index, column in enumerate(columns) if column.group == group]


def _by_method(found: Reproduction, group: str) -> Table:
    """Ours, the paper's and the difference, a row per method."""
    experiment = found.experiment
    places = _places(found, group)
    headings = [Column(experiment.columns[k].label, "number", found.digits) for k in places]
    rows: list[Line] = [
        (row.label, *(_cell(found.pair(row, k), found.digits) for k in places))
        for row in experiment.rows
    ]
    of = f", {group}" if group else ""
    theirs = " / the paper's / difference" if experiment.prints_numbers else ""
    return Table(
        _name("table", groups(found), group),
        f"{experiment.title}{of}: ours (spread){theirs}",
        (Column("method"), *headings),
        tuple(rows),
    )


def _name(name: str, several: Sequence[str], one: str) -> str:
    return name if len(several) == 1 else f"{name}-{several.index(one)}"


def _cell(pair: Pair, digits: int) -> Cell:
    return Cell(pair.ours, pair.text(digits))


def _winners(found: Reproduction, number: int) -> Table:
    """Who wins where: a row per value of y, from the largest down, a column per value of x."""
    experiment, panel = found.experiment, found.experiment.panels[number]
    places = {(c.x, c.y): c for c in experiment.columns}
    across, up = (sorted({v for v in axis if v is not None}) for axis in zip(*places, strict=True))
    rows: list[Line] = []
    for y in reversed(up):
        cells = [places.get((x, y)) for x in across]
        rows.append(
            (f"{y:g}", *(None if cell is None else found.winner(panel, cell) for cell in cells))
        )
    return Table(
        f"winners-{number}",
        f"{panel.label} {panel.title}; down: {experiment.y}, across: {experiment.x}",
        (Column(experiment.y), *(Column(f"{x:g}") for x in across)),
        tuple(rows),
    )


def long_table(found: Reproduction) -> Table:
    """Every cell on a line of its own, for other programs."""
    rows: list[Line] = []
    for row in found.experiment.rows:
        for index, column in enumerate(found.experiment.columns):
            pair, gain = found.pair(row, index), found.gain(row.label, index)
            rows.append(
                (
                    *(row.label, row.method, column.group, column.label),
                    *(pair.ours, pair.spread, pair.count),
                    *(pair.paper, pair.paper_spread, pair.difference),
                    *(found.controls.get(row.label), None if gain is None else gain.ours),
                )
            )
    words = ("row", "method", "group", "column")
    return Table(
        "cells",
        "Every cell",
        (
            *map(Column, words),
            *(Column(name, "number", found.digits) for name in NUMBERS),
            Column("control"),
            Column("gain", "number", found.digits),
        ),
        tuple(rows),
    )


def gain_tables(found: Reproduction) -> list[Table]:
    """What every row has over its control, a table per group; none without controls."""
    tables = []
    for group in groups(found):
        places = _places(found, group)
        rows: list[Line] = []
        for row in found.experiment.rows:
            gains = [found.gain(row.label, index) for index in places]
            if any(gains):
                cells = [_gain(gain, found.digits) for gain in gains]
                rows.append((row.label, found.controls[row.label], *cells))
        if rows:
            of = f", {group}" if group else ""
            headings = [found.experiment.columns[k].label for k in places]
            tables.append(
                Table(
                    _name("gains", groups(found), group),
                    f"Over the same steps without sources, seed by seed{of}",
                    (
                        *(Column("method"), Column("control")),
                        *(Column(label, "number", found.digits) for label in headings),
                    ),
                    tuple(rows),
                )
            )
    return tables


def _gain(gain: Pair | None, digits: int) -> Cell:
    if gain is None or gain.ours is None:
        return Cell(None, NO_ENTRY)
    spread = "" if gain.spread is None else f" ({gain.spread:.{digits}f})"
    return Cell(gain.ours, f"{gain.ours:+.{digits}f}{spread}")


def cost_table(found: Reproduction) -> Table:
    """Time and communication of every method, measured, and what the paper says of them."""
    said = [name for name in FORMULAS if any(name in r.formulas for r in found.experiment.rows)]
    rows: list[Line] = []
    for row in found.experiment.rows:
        runs = [one.summary for one in found.finished if one.row == row.label and one.summary]
        cells: list[Cell] = []
        for name, (_, unit, digits) in COSTS.items():
            share = [unit * run[name] / (run["rounds"] if name in WHOLE_RUN else 1) for run in runs]
            mean = fmean(share) if share else None
            cells.append(Cell(mean, None if mean is None else f"{mean:.{digits}f}"))
        rows.append((row.label, *cells, *(str(row.formulas.get(name, "")) for name in said)))
    return Table(
        "costs",
        "Time and communication of every method, the mean over its runs",
        (
            Column("method"),
            *(Column(words, "number") for words, _, _ in COSTS.values()),
            *(Column(f"{name}, the paper's formula") for name in said),
        ),
        tuple(rows),
    )
