"""Lines over rounds (or anything that goes on), and rows of dots (values, or mean ranks)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbridge.report import charts
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
) -> charts.Chart | None:
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
    pale = sum(line.style == charts.REST for line in lines)
    if pale:
        note = f"{note} In grey: {pale} more.".strip()
    return charts.Chart(
        key,
        title,
        _spec(
            lines,
            x_label,
            charts.axis_of("y", y_label, scale=charts.from_least(least)),
            whole=whole,
        ),
        _data(lines, x_label),
        told=f"{y_label} over {x_label}. {_told(there)}",
        note=note,
    )


def _spec(lines: Sequence[Series], x_label: str, y: charts.Spec, *, whole: bool) -> charts.Spec:
    named = [line for line in lines if line.style != charts.REST]
    legend = _legend([line.name for line in named])
    look = {
        "color": charts.by_name(
            "s", {line.name: charts.colour(line.style) for line in named}, legend=legend
        ),
        "strokeDash": charts.by_name(
            "s", {line.name: charts.DASHES[line.style] for line in named}, legend=legend
        ),
    }
    shapes = charts.by_name("style", charts.SHAPES, legend=None)
    few = max(len(line.points) for line in lines) <= SHOWN_POINTS
    whole_axis = {"axis": {"format": "d", "tickMinStep": 1}} if whole else {}
    x = charts.axis_of("x", x_label, **whole_axis, scale={"nice": False, "padding": 6})
    low, each = {**y, "field": "low"}, {"field": "s", "type": "nominal"}
    nearest = {"type": "point", "on": "pointerover", "clear": "pointerout", "nearest": True}
    shown = [{"param": "hover", "empty": False, "value": 1}, {"test": "datum.alone", "value": 1}]
    band = charts.layer(
        charts.mark("area", opacity=0.14), x=x, y=low, y2={"field": "high"}, color=look["color"]
    )
    pale = charts.layer(
        charts.mark("line", strokeWidth=1, color=charts.colour(charts.REST)),
        "pale",
        x=x,
        y=y,
        detail=each,
    )
    named_lines = charts.layer(
        charts.mark("line", strokeWidth=2, strokeCap="round", strokeJoin="round"), x=x, y=y, **look
    )
    hovered = charts.layer(
        charts.mark("point", filled=True, size=34, opacity=1),
        "points",
        {"params": [{"name": "hover", "select": nearest}]},
        x=x,
        y=y,
        color=look["color"],
        shape=shapes,
        opacity={"condition": shown, "value": 1 if few else 0},
        tooltip={"value": {"expr": TIP}},
    )
    return charts.drawing(
        band if any(line.band for line in lines) else None,
        pale if len(named) < len(lines) else None,
        named_lines,
        hovered,
    )


def _legend(names: Sequence[str]) -> charts.Spec | None:
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


def _data(lines: Sequence[Series], x_label: str) -> dict[str, charts.Columns]:
    """Named lines, pale lines, and the points that answer the pointer: those of named lines."""
    every = math.ceil(
        sum(len(line.points) for line in lines if line.style != charts.REST) / HOVERED
    )
    banded = any(line.band for line in lines)
    fields = {
        "values": ("s", "x", "y", *(("low", "high") if banded else ())),
        "pale": ("s", "x", "y"),
        "points": ("s", "x", "y", "style", "alone", "tip"),
    }
    data: dict[str, charts.Columns] = {key: {name: [] for name in fields[key]} for key in fields}
    for line in lines:
        values = [charts.short(y) for _, y in line.points]
        drawn = data["pale" if line.style == charts.REST else "values"]
        for index, ((x, _), y) in enumerate(zip(line.points, values, strict=True)):
            row = {"s": line.name, "x": charts.short(x), "y": y}
            if "low" in drawn:
                low, high = (line.band[index] if line.band else None) or (None, None)
                row |= {"low": charts.short(low), "high": charts.short(high)}
            _add(drawn, row)
            beside = [*values[max(0, index - 1) : index], *values[index + 1 : index + 2]]
            alone = y is not None and all(value is None for value in beside)
            tip = f"{line.name}, {x_label} {number(x, 4)}: {number(y, 4)}"
            if y is not None and (alone or (line.style != charts.REST and index % every == 0)):
                _add(data["points"], {**row, "style": line.style, "alone": int(alone), "tip": tip})
    return data


def _add(columns: charts.Columns, row: dict[str, Any]) -> None:
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
) -> charts.Chart | None:
    """Dots row by row, the best in another colour and shape; None when there is no value.

    No value can be below ``least``: no bar reaches there, and the axis begins there.
    """
    there = [row for row in rows if row.mean is not None]
    if not there:
        return None
    y = _names("name", [row.name for row in there], grid=True)
    scale = charts.from_least(least)
    single = charts.layer(
        charts.mark("point", filled=True, size=16, opacity=0.45, color=charts.colour("c0")),
        "singles",
        y=y,
        x=charts.axis_of("value", x_label, scale=scale),
    )
    bars, means = _means(
        y,
        charts.axis_of("mean", x_label, scale=scale),
        color=charts.either("datum.best", charts.colour("c1"), charts.colour("c0")),
        shape=charts.either("datum.best", "diamond", "circle"),
        tooltip=charts.told_fields(("name", "name"), ("mean", "mean"), ("spread", "spread")),
    )
    several = any(len(row.values) > 1 for row in rows)
    spec = charts.drawing(bars, single if several else None, means, height=ROW * len(there))
    data: dict[str, charts.Columns] = {
        "values": {
            "name": [row.name for row in there],
            "mean": [charts.short(row.mean) for row in there],
            "spread": [charts.short(row.spread) for row in there],
            "low": [charts.short(max(least, (row.mean or 0) - (row.spread or 0))) for row in there],
            "high": [charts.short((row.mean or 0) + (row.spread or 0)) for row in there],
            "best": [int(row.best) for row in there],
        },
        "singles": {
            "name": [row.name for row in rows for _ in row.values],
            "value": [charts.short(value) for row in rows for value in row.values],
        },
    }
    told = "; ".join(f"{row.name} {number(row.mean)}" for row in rows)
    return charts.Chart(key, title, spec, data, told=f"{x_label}: {told}.", note=note)


def _names(field: str, names: Sequence[str], *, grid: bool) -> charts.Spec:
    """Names one below the other, in their order."""
    axis = {"labelColor": charts.colour("ink"), "labelLimit": LONGEST_NAME, "grid": grid}
    return {"field": field, "type": "nominal", "title": None, "sort": list(names), "axis": axis}


def _means(
    y: charts.Spec, x: charts.Spec, *, color: charts.Spec, **looks: Any
) -> tuple[charts.Spec, charts.Spec]:
    """Bars from ``low`` to ``high``, and on each the dot that it is about."""
    low = {**x, "field": "low"}
    bars = charts.mark("rule", strokeWidth=2, opacity=0.5)
    dots = charts.mark("point", filled=True, size=85, opacity=1)
    return (
        charts.layer(bars, y=y, x=low, x2={"field": "high"}, color=color),
        charts.layer(dots, y=y, x=x, color=color, **looks),
    )


def rank_chart(ranking: Ranking) -> charts.Chart:
    """A bar of one critical difference around every mean rank.

    Two bars overlap just when the ranks are closer than the critical difference: then the methods
    cannot be told apart. The shaded stretch is the best method's bar.
    """
    entries, difference = ranking.entries, ranking.critical_difference
    half, best = difference / 2, ranking.entries[0].rank
    data: dict[str, charts.Columns] = {
        "values": {
            "method": [entry.method for entry in entries],
            "rank": [charts.short(entry.rank) for entry in entries],
            "low": [charts.short(entry.rank - half) for entry in entries],
            "high": [charts.short(entry.rank + half) for entry in entries],
            "equal": [int(entry.rank - best <= difference) for entry in entries],
        },
        "best": {"low": [charts.short(best - half)], "high": [charts.short(best + half)]},
    }
    axis = {"values": list(range(1, len(entries) + 1)), "format": "d"}
    x = charts.axis_of("rank", "mean rank (1 is best)", axis=axis)
    stretch = charts.layer(
        charts.mark("rect", color=charts.colour("c0"), opacity=0.1),
        "best",
        x={**x, "field": "low"},
        x2={"field": "high"},
    )
    bars, dots = _means(
        _names("method", [entry.method for entry in entries], grid=False),
        x,
        color=charts.either("datum.equal", charts.colour("c0"), charts.colour("c1")),
        shape=charts.either("datum.equal", "circle", "square"),
        tooltip=charts.told_fields(("method", "method"), ("rank", "mean rank")),
    )
    told = "; ".join(f"{entry.method} {number(entry.rank)}" for entry in entries)
    return charts.Chart(
        "ranks",
        "Mean ranks with critical differences",
        charts.drawing(stretch, bars, dots, height=ROW * len(entries)),
        data,
        told=f"Mean ranks: {told}. Critical difference {number(difference)}.",
        note=f"Bars are as long as the critical difference, {difference:.2f}: "
        f"methods whose bars overlap cannot be told apart. Blue circles overlap with the best.",
        wide=True,
    )
