"""The files of a reproduction: the page with the table and the figure, and both on their own."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from shlex import quote
from statistics import fmean
from typing import TYPE_CHECKING

from fedbridge.base.files import to_json, write_atomically
from fedbridge.experiments.reproduction import DELTA_ERROR, RESULTS, score_of, weights_of
from fedbridge.experiments.tables import (
    COST,
    cost_table,
    gain_tables,
    groups,
    long_table,
    result_tables,
)
from fedbridge.report import figure_sheet
from fedbridge.report.charts import ANYWHERE, INK, PALETTE, REST, Chart, styles
from fedbridge.report.charts.maps import winner_grid
from fedbridge.report.charts.plots import DotRow, Series, dot_chart, line_chart
from fedbridge.report.page import REPORT_FILE, Page, Section, code, note, paragraph
from fedbridge.report.tables import Column, Table, to_csv, to_latex, to_markdown
from fedbridge.report.text import counted, markdown_text, markup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedbridge.experiments.reproduction import Reproduction

FIGURE = "figure.svg"
AXES = {
    "accuracy": "test accuracy in %",
    "score": "negative test loss",
    "beta": "β",
    "seconds": "seconds",
    DELTA_ERROR: "Delta error",
}
"""What the numbers are, at the side of a chart."""
TARGET_ONLY = "target-only"
GROUND = {"source-only": "c5", TARGET_ONLY: "c4", "fedda": "c3", "fedgp": "c2"}
GROUND |= {"fedda-auto": "c3", "fedgp-auto": "c2"}
"""Colours of a map's rules, the automatic ones as those with a fixed weight."""


def write_results(found: Reproduction, out: Path) -> Path:
    """Write everything that a reproduction leaves in its folder; returns the page.

    ``results.jsonl`` has a line per run, ``table.csv`` a line per cell, ``table.md`` and
    ``table.tex`` the table, ``figure.svg`` the figure and ``report.html`` all of it.
    """
    every = (*found.finished, *found.moments)
    lines = [to_json(one.to_json()) + "\n" for one in every]
    write_atomically(out / RESULTS, "".join(lines))
    write_atomically(out / "table.csv", to_csv(long_table(found)))
    tables = [
        replace(table, name=f"{found.experiment.name}-{table.name}", notes=())
        for table in (*result_tables(found), *gain_tables(found))
    ]
    parts = [f"{markdown_text(table.caption)}:\n\n{to_markdown(table)}" for table in tables]
    parts.append("".join(f"- {markdown_text(text)}\n" for text in found.notes()))
    write_atomically(out / "table.md", "\n".join(parts))
    captioned = [replace(table, notes=(table.caption,)) for table in tables]
    write_atomically(out / "table.tex", "\n".join(map(to_latex, captioned)))
    charts = figure(found)
    if charts:
        write_atomically(out / FIGURE, figure_sheet(charts))
    write_atomically(out / REPORT_FILE, reproduction_page(found).html())
    return out / REPORT_FILE


def reproduction_page(found: Reproduction) -> Page:
    """The page of a table or figure."""
    first, *others = found.notes()
    return Page(
        found.experiment.title,
        markup(paragraph(_verdict(found), class_="verdict"), note(first)),
        (
            Section("Ours beside the paper's", (*result_tables(found), *map(note, others))),
            Section("The figure", tuple(figure(found))),
            Section("What the sources give", tuple(gain_tables(found))),
            Section("Failed", (_failures(found),)),
            Section("Run it again", (code(command(found)),)),
            None
            if found.experiment.form == COST
            else Section("Time and communication", (cost_table(found),), folded=True),
            Section("Every run", (_runs(found),), folded=True),
        ),
    )


def command(found: Reproduction) -> str:
    """What runs the same again."""
    asked = map(quote, found.asked or (found.experiment.name,))
    words = ["fedbridge reproduce", *asked, "--protocol", found.protocol]
    words += ["--seeds", ",".join(map(str, found.seeds)) + ("," if len(found.seeds) == 1 else "")]
    words += ["--quick"] if found.quick else []
    words += [] if found.rounds is None else ["--rounds", str(found.rounds)]
    return " ".join(words)


def _verdict(found: Reproduction) -> str:
    """How far ours is from the paper's."""
    apart = differences(found)
    every = [abs(value) for values in apart.values() for value in values]
    if not every:
        runs = counted(len(found.finished), "run")
        if not all(math.isnan(value) for row in found.experiment.rows for value in row.paper):
            return f"{runs}; none of them has a number of the paper beside it."
        return f"{runs}; the paper prints no numbers to compare."
    mean = f"{fmean(every):.{found.digits}f}"
    return f"Mean distance from the paper's {counted(len(every), 'number')}: {mean}."


def differences(found: Reproduction) -> dict[str, list[float]]:
    """Ours minus the paper's by row, over the settings."""
    columns = [k for k, column in enumerate(found.experiment.columns) if not column.mean]
    apart = {
        row.label: [found.pair(row, index).difference for index in columns]
        for row in found.experiment.rows
    }
    return {row: [v for v in values if v is not None] for row, values in apart.items()}


def _failures(found: Reproduction) -> Table | None:
    if not found.failures:
        return None
    rows = tuple((one.row, one.column, one.seed, one.error) for one in found.failures)
    columns = (Column("method"), Column("setting"), Column("seed", "number"), Column("error"))
    return Table("failures", "Runs that failed, and why", columns, rows)


def _runs(found: Reproduction) -> Table:
    score = found.experiment.score
    rows = tuple(
        (one.row, one.column, one.seed, score_of(one.summary, score), one.spec.key[:12])
        for one in found.finished
        if one.summary is not None
    )
    number = Column(score, "number", found.digits)
    heads = (Column("method"), Column("setting"), Column("seed", "number"), number, Column("key"))
    return Table("runs", "All finished runs", heads, rows)


def figure(found: Reproduction) -> list[Chart]:
    """The figure in the paper's form; of a table, how far each row is from it."""
    form = found.experiment.form
    if form == "map":
        drawn = [_map(found, number) for number in range(len(found.experiment.panels))]
    elif form == "betas":
        drawn = _betas(found)
    else:
        drawn = [chart for group in groups(found) for chart in _curves(found, group)]
        drawn += [_distances(found)] if form == "table" else []
    return [chart for chart in drawn if chart is not None]


def _curves(found: Reproduction, group: str) -> list[Chart | None]:
    """Ours over x and beside it the paper's, a line per method; nothing where there is no x."""
    experiment, looks = found.experiment, _looks(found)
    places = [
        (column.x, index)
        for index, column in enumerate(experiment.columns)
        if column.group == group and column.x is not None and not column.mean
    ]
    if len(places) < 2:
        return []
    places.sort()
    ours, paper = [], []
    for row in experiment.rows:
        pairs = [(x, found.pair(row, index)) for x, index in places]
        band = tuple(
            None if p.ours is None or p.spread is None else (p.ours - p.spread, p.ours + p.spread)
            for _, p in pairs
        )
        style = looks[row.label]
        ours.append(Series(row.label, tuple((x, p.ours) for x, p in pairs), style, band))
        paper.append(Series(row.label, tuple((x, p.paper) for x, p in pairs), style))
    key, of = f"curves-{groups(found).index(group)}", f"{group}: " if group else ""
    draw = partial(
        line_chart,
        x_label=experiment.x,
        y_label=AXES[experiment.score],
        whole=False,
        limits=(0.0, 100.0) if experiment.score == "accuracy" else ANYWHERE,
        name_pale=True,
    )
    return [
        draw(f"{key}-ours", f"{of}ours", ours),
        draw(f"{key}-paper", f"{of}the paper's", paper),
    ]


def _looks(found: Reproduction) -> dict[str, str]:
    """A style for every row: ink for the target alone, the palette in the order of the paper."""
    rows = found.experiment.rows
    looks = {row.label: REST for row in rows}
    named = [r.label for r in rows if r.method not in (None, TARGET_ONLY)]
    federated = [label for label in named if label not in found.controls.values()]
    looks |= dict(zip(federated, PALETTE, strict=False))
    return looks | {row.label: INK for row in rows if row.method == TARGET_ONLY}


def _distances(found: Reproduction) -> Chart | None:
    """Ours minus the paper's, a dot per setting."""
    rows = [
        DotRow(label, tuple(values), fmean(values) if values else None)
        for label, values in differences(found).items()
    ]
    words = f"ours minus the paper's, {AXES[found.experiment.score]}"
    return dot_chart("distances", "Ours minus the paper's, setting by setting", rows, x_label=words)


def _map(found: Reproduction, number: int) -> Chart | None:
    experiment, panel = found.experiment, found.experiment.panels[number]
    methods = {row.label: str(row.method) for row in experiment.rows}
    looks = {label: GROUND.get(methods[label], REST) for label in panel.rows}
    won = {
        (column.x, column.y): found.winner(panel, column)
        for column in experiment.columns
        if column.x is not None and column.y is not None
    }
    title = f"{panel.label} {panel.title}"
    return winner_grid(f"map-{number}", title, won, looks, labels=(experiment.x, experiment.y))


def _betas(found: Reproduction) -> list[Chart | None]:
    """The weights over the rounds: a panel per target and method, a line per source."""
    rows = [row for row in found.experiment.rows if row.label not in found.controls.values()]
    panels = []
    for place, column in enumerate(found.experiment.columns):
        for number, row in enumerate(rows):
            runs = [one.summary for one in found.of(row.label, column.key) if one.summary]
            if not runs:
                continue
            names = runs[0]["sources"]
            lines = [
                Series(str(name), _mean_weights([weights_of(run) for run in runs], index), style)
                for index, (name, style) in enumerate(zip(names, styles(len(names)), strict=True))
            ]
            title = column.key if len(rows) == 1 else f"{column.key}, {row.label}"
            words = f"betas-{place}-{number}", f"target {title}"
            panels.append(line_chart(*words, lines, x_label="round", y_label="β"))
    return panels


def _mean_weights(
    runs: Sequence[Sequence[Sequence[float | None]]], index: int
) -> tuple[tuple[float, float | None], ...]:
    """The weight of one source in every round, the mean over seeds."""
    points: list[tuple[float, float | None]] = []
    for number, lines in enumerate(zip(*runs, strict=False), start=1):
        values = [line[index] for line in lines if line]
        there = [value for value in values if value is not None and math.isfinite(value)]
        points.append((number, fmean(there) if there else None))
    return tuple(points)
