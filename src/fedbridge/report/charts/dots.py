"""A row of dots per name: values with their mean and spread, or mean ranks of methods."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbridge.report.charts.chart import (
    Chart,
    Columns,
    Spec,
    axis_of,
    colour,
    drawing,
    from_least,
    mark,
    short,
    told_fields,
)
from fedbridge.report.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.evaluation.ranking import Ranking

ROW = 20
LONGEST_NAME = 150


@dataclass(frozen=True)
class DotRow:
    """One row of a dot chart: some values, their mean, and how far they spread."""

    name: str
    values: tuple[float, ...]
    mean: float | None
    spread: float | None = None
    best: bool = False


def dot_chart(
    key: str,
    title: str,
    rows: Sequence[DotRow],
    *,
    x_label: str,
    note: str = "",
    least: float = -math.inf,
) -> Chart | None:
    """Dots row by row, the best in another colour and shape; None when there is no value.

    Args:
        key: Unique on the page.
        title: Above the chart.
        rows: From top to bottom.
        x_label: What is to the right.
        note: A sentence below.
        least: What no value can be below: no bar reaches there, and the axis begins there.
    """
    there = [row for row in rows if row.mean is not None]
    if not there:
        return None
    y = {
        "field": "name",
        "type": "nominal",
        "title": None,
        "sort": [row.name for row in there],
        "axis": {"labelColor": colour("ink"), "labelLimit": LONGEST_NAME, "grid": True},
    }
    scale = from_least(least)
    spread = {
        "mark": mark("rule", strokeWidth=2, opacity=0.5),
        "encoding": {
            "y": y,
            "x": axis_of("low", x_label, scale=scale),
            "x2": {"field": "high"},
            "color": _best("color"),
        },
    }
    single = {
        "data": {"name": "singles"},
        "mark": mark("point", filled=True, size=16, opacity=0.45, color=colour("c0")),
        "encoding": {"y": y, "x": axis_of("value", x_label, scale=scale)},
    }
    means = {
        "mark": mark("point", filled=True, size=85, opacity=1),
        "encoding": {
            "y": y,
            "x": axis_of("mean", x_label, scale=scale),
            "color": _best("color"),
            "shape": _best("shape"),
            "tooltip": told_fields(("name", "name"), ("mean", "mean"), ("spread", "spread")),
        },
    }
    several = any(len(row.values) > 1 for row in rows)
    spec = drawing(spread, single if several else None, means, height=ROW * len(there))
    data: dict[str, Columns] = {
        "values": {
            "name": [row.name for row in there],
            "mean": [short(row.mean) for row in there],
            "spread": [short(row.spread) for row in there],
            "low": [short(max(least, (row.mean or 0) - (row.spread or 0))) for row in there],
            "high": [short((row.mean or 0) + (row.spread or 0)) for row in there],
            "best": [int(row.best) for row in there],
        },
        "singles": {
            "name": [row.name for row in rows for _ in row.values],
            "value": [short(value) for row in rows for value in row.values],
        },
    }
    told = "; ".join(f"{row.name} {number(row.mean)}" for row in rows)
    return Chart(key, title, spec, data, told=f"{x_label}: {told}.", note=note)


def _best(channel: str) -> dict[str, object]:
    strong, plain = {
        "color": (colour("c1"), colour("c0")),
        "shape": ("diamond", "circle"),
    }[channel]
    return {"condition": {"test": "datum.best", "value": strong}, "value": plain}


def rank_chart(ranking: Ranking) -> Chart:
    """A bar of one critical difference around every mean rank.

    Two bars overlap just when the ranks are closer than the critical difference: then the methods
    cannot be told apart. The shaded stretch is the best method's bar.
    """
    half = ranking.critical_difference / 2
    best = ranking.entries[0].rank
    data: dict[str, Columns] = {
        "values": {
            "method": [entry.method for entry in ranking.entries],
            "rank": [short(entry.rank) for entry in ranking.entries],
            "low": [short(entry.rank - half) for entry in ranking.entries],
            "high": [short(entry.rank + half) for entry in ranking.entries],
            "equal": [
                int(entry.rank - best <= ranking.critical_difference) for entry in ranking.entries
            ],
        },
        "best": {"low": [short(best - half)], "high": [short(best + half)]},
    }
    title = "mean rank (1 is best)"
    axis = {"values": list(range(1, len(ranking.entries) + 1)), "format": "d"}
    y: Spec = {
        "field": "method",
        "type": "nominal",
        "title": None,
        "sort": [entry.method for entry in ranking.entries],
        "axis": {"labelColor": colour("ink"), "labelLimit": LONGEST_NAME, "grid": False},
    }
    shown = {
        "color": {
            "condition": {"test": "datum.equal", "value": colour("c0")},
            "value": colour("c1"),
        },
        "shape": {"condition": {"test": "datum.equal", "value": "circle"}, "value": "square"},
    }
    stretch: Spec = {
        "data": {"name": "best"},
        "mark": mark("rect", color=colour("c0"), opacity=0.1),
        "encoding": {"x": axis_of("low", title, axis=axis), "x2": {"field": "high"}},
    }
    bars: Spec = {
        "mark": mark("rule", strokeWidth=2, opacity=0.5),
        "encoding": {
            "y": y,
            "x": axis_of("low", title, axis=axis),
            "x2": {"field": "high"},
            "color": shown["color"],
        },
    }
    dots: Spec = {
        "mark": mark("point", filled=True, size=85, opacity=1),
        "encoding": {
            "y": y,
            "x": axis_of("rank", title, axis=axis),
            **shown,
            "tooltip": told_fields(("method", "method"), ("rank", "mean rank")),
        },
    }
    told = "; ".join(f"{entry.method} {number(entry.rank)}" for entry in ranking.entries)
    return Chart(
        "ranks",
        "Mean ranks with critical differences",
        drawing(stretch, bars, dots, height=ROW * len(ranking.entries)),
        data,
        told=f"Mean ranks: {told}. Critical difference {number(ranking.critical_difference)}.",
        note=f"Bars are as long as the critical difference, {ranking.critical_difference:.2f}: "
        f"methods whose bars overlap cannot be told apart. Blue circles overlap with the best.",
        wide=True,
    )
