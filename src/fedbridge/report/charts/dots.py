"""A row of dots per name: every value pale, their mean strong, a bar as long as the spread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbridge.report.charts.chart import (
    Chart,
    Columns,
    axis_of,
    drawing,
    from_least,
    mark,
    short,
    told_fields,
)
from fedbridge.report.charts.style import colour
from fedbridge.report.numbers import number

if TYPE_CHECKING:
    from collections.abc import Sequence

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
