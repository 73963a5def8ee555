"""Lines over rounds (or anything that goes on), and rows of dots (values, or mean ranks)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbridge.report.charts import (
    DASHES,
    REST,
    SHAPES,
    Chart,
    Columns,
    Spec,
    axis_of,
    by_name,
    colour,
    drawing,
    either,
    from_least,
    layer,
    mark,
    short,
    told_fields,
)
from fedbridge.report.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.evaluation.ranking import Ranking

SHOWN_POINTS = 30
"""Lines of at most so many points show each of them; longer ones only under the pointer."""

DRAWN, HOVERED = 4_000, 400
"""At most so many points per chart in lines, and with a value to hover: pages open fast."""

DESCRIBED = 8
COLUMNS = {3: 13, 2: 22}
"""Columns of a legend, and the longest name with which there are so many."""

LONGEST_LABEL = 240
"""Pixels of a name in a legend: with the piece of a line beside it, it fits a phone."""

TIP = "datum.tip || datum.datum.tip"
"""A point's own words; the area that answers for it has the point as its datum."""

ROW = 20
LONGEST_NAME = 150


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: In the legend and under the pointer.
        points: ``(x, y)`` in the order of x; None or NaN is a gap.
        style: A name of the palette.
        band: ``(low, high)`` around every point, such as a confidence interval; empty for none.
    """

    name: str
    points: tuple[tuple[float, float | None], ...]
    style: str = "c0"
    band: tuple[tuple[float, float] | None, ...] = ()

    def present(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if y is not None and math.isfinite(y)]

    def every(self, stride: int) -> Series:
        """The line with one in so many points."""
        return Series(self.name, self.points[::stride], self.style, self.band[::stride])


def line_chart(
    key: str,
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    whole: bool = True,
    note: str = "",
    least: float = -math.inf,
) -> Chart | None:
    """Lines; None when no series has a value, for an empty frame says nothing.

    ``whole`` says that x counts something, such as rounds; the axis of y begins at ``least``, which
    no value can be below.
    """
    there = [line for line in series if line.present()]
    if not there:
        return None
    stride = math.ceil(sum(len(line.points) for line in there) / DRAWN)
    if stride > 1:
        note = f"{note} One in {stride} rounds is drawn.".strip()
    lines = [line.every(stride) for line in there]
    pale = sum(line.style == REST for line in lines)
    if pale:
        note = f"{note} In grey: {pale} more.".strip()
    return Chart(
        key,
        title,
        _spec(lines, x_label, axis_of("y", y_label, scale=from_least(least)), whole=whole),
        _data(lines, x_label),
        told=f"{y_label} over {x_label}. {_told(there)}",
        note=note,
    )


def _spec(lines: Sequence[Series], x_label: str, y: Spec, *, whole: bool) -> Spec:
    named = [line for line in lines if line.style != REST]
    legend = _legend([line.name for line in named])
    look = {
        "color": by_name("s", {line.name: colour(line.style) for line in named}, legend=legend),
        "strokeDash": by_name(
            "s", {line.name: DASHES[line.style] for line in named}, legend=legend
        ),
    }
    shapes = by_name("style", SHAPES, legend=None)
    few = max(len(line.points) for line in lines) <= SHOWN_POINTS
    whole_axis = {"axis": {"format": "d", "tickMinStep": 1}} if whole else {}
    x = axis_of("x", x_label, **whole_axis, scale={"nice": False, "padding": 6})
    low, each = {**y, "field": "low"}, {"field": "s", "type": "nominal"}
    nearest = {"type": "point", "on": "pointerover", "clear": "pointerout", "nearest": True}
    shown = [{"param": "hover", "empty": False, "value": 1}, {"test": "datum.alone", "value": 1}]
    band = layer(mark("area", opacity=0.14), x=x, y=low, y2={"field": "high"}, color=look["color"])
    pale = layer(mark("line", strokeWidth=1, color=colour(REST)), "pale", x=x, y=y, detail=each)
    named_lines = layer(
        mark("line", strokeWidth=2, strokeCap="round", strokeJoin="round"), x=x, y=y, **look
    )
    hovered = layer(
        mark("point", filled=True, size=34, opacity=1),
        "points",
        {"params": [{"name": "hover", "select": nearest}]},
        x=x,
        y=y,
        color=look["color"],
        shape=shapes,
        opacity={"condition": shown, "value": 1 if few else 0},
        tooltip={"value": {"expr": TIP}},
    )
    return drawing(
        band if any(line.band for line in lines) else None,
        pale if len(named) < len(lines) else None,
        named_lines,
        hovered,
    )


def _legend(names: Sequence[str]) -> Spec | None:
    """Short pieces of the lines with their dashes; nothing for one line, which the title names."""
    if len(names) < 2:
        return None
    longest = max(map(len, names))
    columns = next((count for count, most in COLUMNS.items() if longest <= most), 1)
    return {
        "title": None,
        "columns": columns,
        "labelLimit": 150 if columns > 1 else LONGEST_LABEL,
        "symbolType": "stroke",
        "symbolSize": 420,
        "symbolOpacity": 1,
    }


def _data(lines: Sequence[Series], x_label: str) -> dict[str, Columns]:
    """Named lines, pale lines, and the points that answer the pointer: those of named lines."""
    every = math.ceil(sum(len(line.points) for line in lines if line.style != REST) / HOVERED)
    banded = any(line.band for line in lines)
    fields = {
        "values": ("s", "x", "y", *(("low", "high") if banded else ())),
        "pale": ("s", "x", "y"),
        "points": ("s", "x", "y", "style", "alone", "tip"),
    }
    data: dict[str, Columns] = {key: {name: [] for name in fields[key]} for key in fields}
    for line in lines:
        values = [short(y) for _, y in line.points]
        drawn = data["pale" if line.style == REST else "values"]
        for index, ((x, _), y) in enumerate(zip(line.points, values, strict=True)):
            row = {"s": line.name, "x": short(x), "y": y}
            if "low" in drawn:
                low, high = (line.band[index] if line.band else None) or (None, None)
                row |= {"low": short(low), "high": short(high)}
            _add(drawn, row)
            beside = [*values[max(0, index - 1) : index], *values[index + 1 : index + 2]]
            alone = y is not None and all(value is None for value in beside)
            tip = f"{line.name}, {x_label} {number(x, 4)}: {number(y, 4)}"
            if y is not None and (alone or (line.style != REST and index % every == 0)):
                _add(data["points"], {**row, "style": line.style, "alone": int(alone), "tip": tip})
    return data


def _add(columns: Columns, row: dict[str, Any]) -> None:
    for name, values in columns.items():
        values.append(row[name])


def _told(series: Sequence[Series]) -> str:
    parts = []
    for line in series[:DESCRIBED]:
        (first, start), (last, end) = line.present()[0], line.present()[-1]
        parts.append(f"{line.name}: {number(start)} at {first:g}, {number(end)} at {last:g}.")
    more = len(series) - DESCRIBED
    return " ".join([*parts, f"{more} more lines."] if more > 0 else parts)


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

    No value can be below ``least``: no bar reaches there, and the axis begins there.
    """
    there = [row for row in rows if row.mean is not None]
    if not there:
        return None
    y = _names("name", [row.name for row in there], grid=True)
    scale = from_least(least)
    single = layer(
        mark("point", filled=True, size=16, opacity=0.45, color=colour("c0")),
        "singles",
        y=y,
        x=axis_of("value", x_label, scale=scale),
    )
    bars, means = _means(
        y,
        axis_of("mean", x_label, scale=scale),
        color=either("datum.best", colour("c1"), colour("c0")),
        shape=either("datum.best", "diamond", "circle"),
        tooltip=told_fields(("name", "name"), ("mean", "mean"), ("spread", "spread")),
    )
    several = any(len(row.values) > 1 for row in rows)
    spec = drawing(bars, single if several else None, means, height=ROW * len(there))
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


def _names(field: str, names: Sequence[str], *, grid: bool) -> Spec:
    """Names one below the other, in their order."""
    axis = {"labelColor": colour("ink"), "labelLimit": LONGEST_NAME, "grid": grid}
    return {"field": field, "type": "nominal", "title": None, "sort": list(names), "axis": axis}


def _means(y: Spec, x: Spec, *, color: Spec, **looks: Any) -> tuple[Spec, Spec]:
    """Bars from ``low`` to ``high``, and on each the dot that it is about."""
    low = {**x, "field": "low"}
    bars = mark("rule", strokeWidth=2, opacity=0.5)
    dots = mark("point", filled=True, size=85, opacity=1)
    return (
        layer(bars, y=y, x=low, x2={"field": "high"}, color=color),
        layer(dots, y=y, x=x, color=color, **looks),
    )


def rank_chart(ranking: Ranking) -> Chart:
    """A bar of one critical difference around every mean rank.

    Two bars overlap just when the ranks are closer than the critical difference: then the methods
    cannot be told apart. The shaded stretch is the best method's bar.
    """
    entries, difference = ranking.entries, ranking.critical_difference
    half, best = difference / 2, ranking.entries[0].rank
    data: dict[str, Columns] = {
        "values": {
            "method": [entry.method for entry in entries],
            "rank": [short(entry.rank) for entry in entries],
            "low": [short(entry.rank - half) for entry in entries],
            "high": [short(entry.rank + half) for entry in entries],
            "equal": [int(entry.rank - best <= difference) for entry in entries],
        },
        "best": {"low": [short(best - half)], "high": [short(best + half)]},
    }
    axis = {"values": list(range(1, len(entries) + 1)), "format": "d"}
    x = axis_of("rank", "mean rank (1 is best)", axis=axis)
    stretch = layer(
        mark("rect", color=colour("c0"), opacity=0.1),
        "best",
        x={**x, "field": "low"},
        x2={"field": "high"},
    )
    bars, dots = _means(
        _names("method", [entry.method for entry in entries], grid=False),
        x,
        color=either("datum.equal", colour("c0"), colour("c1")),
        shape=either("datum.equal", "circle", "square"),
        tooltip=told_fields(("method", "method"), ("rank", "mean rank")),
    )
    told = "; ".join(f"{entry.method} {number(entry.rank)}" for entry in entries)
    return Chart(
        "ranks",
        "Mean ranks with critical differences",
        drawing(stretch, bars, dots, height=ROW * len(entries)),
        data,
        told=f"Mean ranks: {told}. Critical difference {number(difference)}.",
        note=f"Bars are as long as the critical difference, {difference:.2f}: "
        f"methods whose bars overlap cannot be told apart. Blue circles overlap with the best.",
        wide=True,
    )
