"""Who took part in a run: weights, noise, distances, and what every site contributed."""

from __future__ import annotations

import math
from statistics import stdev
from typing import TYPE_CHECKING

from fedbridge.report.charts import INK, REST, Series, line_chart, styles
from fedbridge.report.charts.dots import DotRow, dot_chart
from fedbridge.report.charts.maps import NO_MAP, Angles, Place, win_map
from fedbridge.report.markup import markup, tag
from fedbridge.report.page import Section, note
from fedbridge.report.record import mean
from fedbridge.report.tables import Cell, Table
from fedbridge.theory import share_off_line

if TYPE_CHECKING:
    from fedbridge.report.charts import Chart
    from fedbridge.report.markup import Html
    from fedbridge.report.record import RunRecord
    from fedbridge.report.tables import Entry

SHOWN_SITES = 25
"""The chart of contributions shows at most so many sources; the table has them all."""


def sites(record: RunRecord) -> Section:
    """Whom the target trusted, and why."""
    return Section(
        "Whom it trusted",
        (
            _source_chart(
                record,
                "beta",
                "Weight of every source",
                "weight β",
                note="How far a source was trusted: 0 is not at all, 1 is all the way.",
                least=0.0,
            ),
            _source_chart(
                record,
                "d2",
                "Noise and distances",
                "squared length",
                Series("noise σ² of the target", record.curve("sigma2"), INK),
                note="Estimated squared distances d² of the sources from the target, beside the "
                "target's noise σ². Unbiased estimates may be below zero: no distance was seen.",
            ),
            _contributions(record),
            _map(record),
            _table(record),
            note(
                "Cosine: the angle between the source's and the target's update; 1 is the same "
                "direction, 0 a right angle, below 0 against each other."
            ),
        ),
    )


def _source_chart(
    record: RunRecord,
    name: str,
    title: str,
    y_label: str,
    *more: Series,
    note: str,
    least: float = -math.inf,
) -> Chart | None:
    """A line per source, those with most weight in colour; every chart has the same colours."""
    lines = [
        Series(record.sources[index], tuple(record.source_values(name, index)), style)
        for index, style in ranked(record)
    ]
    if not any(line.present() for line in lines):
        return None
    return line_chart(
        name, title, [*more, *lines], x_label="round", y_label=y_label, note=note, least=least
    )


def ranked(record: RunRecord) -> list[tuple[int, str]]:
    """Sources and their colours; with more sources than colours, the weighty ones get them."""
    indices = range(len(record.sources))
    colours = styles(len(record.sources))
    if REST in colours:
        weights = [record.source_mean("beta", index) or 0.0 for index in indices]
        return list(zip(sorted(indices, key=lambda k: -weights[k]), colours, strict=True))
    return list(zip(indices, colours, strict=True))


def _contributions(record: RunRecord) -> Chart | None:
    rows = []
    for index, name in enumerate(record.sources):
        weights = [w for _, w in record.source_values("beta", index) if w is not None]
        spread = stdev(weights) if len(weights) > 1 else None
        rows.append(DotRow(name, (), mean(list(weights)), spread))
    rows.sort(key=lambda row: -(row.mean or 0.0))
    more = len(rows) - SHOWN_SITES
    hidden = f" The {more} lightest are in the table only." if more > 0 else ""
    return dot_chart(
        "contributions",
        "What every source contributed",
        rows[:SHOWN_SITES],
        x_label="mean weight β over the rounds",
        note=f"Bars: standard deviation over the rounds.{hidden}",
        least=0.0,
    )


def _map(record: RunRecord) -> Chart | Html | None:
    """Where the sources lie on the map of who wins; None where nothing was measured."""
    sigma2 = mean([value for _, value in record.curve("sigma2")])
    places, shares = [], []
    for index, name in enumerate(record.sources):
        d2 = record.source_mean("d2", index)
        if d2 is None or sigma2 is None:
            continue
        places.append(Place(name, d2, sigma2))
        shares.append(share_off_line(d2, record.source_mean("tau2_d2", index)))
    entries = (record.summary or {}).get("parameters")
    drawn = win_map(
        "map",
        "Where the sources lie",
        places,
        Angles(mean(shares) if entries else None, entries or 1),
        mine="you are here",
        note="The ground says which rule has the smallest expected error of its update (Delta "
        "error) with one source at this distance, β = ½ where a rule has one; your sources lie "
        "where the mean of their estimates is.",
    )
    return note(NO_MAP) if drawn is None and places else drawn


def _table(record: RunRecord) -> Table:
    target = record.config["target"]
    own = "target"
    rows: list[tuple[Entry, ...]] = [
        (target, own, record.rows_of(target), None, None, None, None, record.missed(target))
    ]
    for index, style in ranked(record):
        name = record.sources[index]
        last = [value for _, value in record.source_values("beta", index)][-1:]
        rows.append(
            (
                Cell(markup(_swatch(style), name), name),
                "source",
                record.rows_of(name),
                record.source_mean("beta", index),
                mean(last),
                record.source_mean("cosine", index),
                record.source_mean("d2", index),
                record.missed(name),
            )
        )
    columns = (
        "Site",
        "Role",
        "Training rows",
        "Mean weight",
        "Last weight",
        "Mean cosine",
        "Mean d²",
        "Rounds missed",
    )
    return Table("sites", "What every site brought", columns, tuple(rows))


def _swatch(style: str) -> Html:
    """A spot of a line's colour."""
    return tag("span", class_=f"swatch {style}", aria_hidden="true")
