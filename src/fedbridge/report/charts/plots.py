"""Lines over rounds (or anything that goes on), and rows of dots (values, or mean ranks)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedbridge.base.text import shortened
from fedbridge.report import charts
from fedbridge.report.text import number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbridge.evaluation.ranking import Ranking

SHOWN_POINTS = 30
"""Lines of at most so many points show each of them; longer ones only under the pointer."""

DRAWN, HOVERED = 4_000, 400
"""At most so many points per chart in lines, and with a value to hover: pages open fast."""

DESCRIBED = 8
LABEL = 13
"""Pixels from one line's name to the next."""

REACH = {8: 14, 1_000: 40}
"""Pixels from the chart's edge to the names, by how many there are at most: more stand farther from
the ends of their lines."""

LONGEST, LONGEST_LABEL = 20, 150
"""Letters of a line's name, and its pixels at most: on a phone half of the chart is left."""

TIP = "datum.tip || datum.datum.tip"
"""A point's own words; the area that answers for it has the point as its datum."""

WIDTH, BOLD = "datum.pale ? 1 : 2", "datum.best ? 'bold' : 'normal'"
QUIET = (charts.REST, charts.CHANCE)
"""Lines of these styles show points only under the pointer."""

ROW = 20
LONGEST_NAME = 150


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: At the end of the line and under the pointer.
        points: ``(x, y)`` in the order of x; None or NaN is a gap.
        style: A colour of the palette, or one in another's form.
        band: ``(low, high)`` around every point, such as a confidence interval; empty for none.
        best: Whether its name is in bold.
    """

    name: str
    points: tuple[tuple[float, float | None], ...]
    style: str = "c0"
    band: tuple[tuple[float, float] | None, ...] = ()
    best: bool = False

    def present(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if y is not None and math.isfinite(y)]

    def every(self, stride: int) -> Series:
        """The line with one in so many points."""
        return replace(self, points=self.points[::stride], band=self.band[::stride])


def line_chart(
    key: str,
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    whole: bool = True,
    note: str = "",
    limits: tuple[float, float] = charts.ANYWHERE,
    from_zero: bool = False,
    name_pale: bool = False,
    wide: bool = False,
) -> charts.Chart | None:
    """Lines with their names at the end; None when no series has a value.

    ``whole`` says that x counts something, such as rounds. No value can be outside of ``limits``,
    and no axis goes there. Pale lines have names only if ``name_pale``; otherwise the note says how
    many they are.
    """
    there = [line for line in series if line.present()]
    if not there:
        return None
    stride = math.ceil(sum(len(line.points) for line in there) / DRAWN)
    if stride > 1:
        note = f"{note} One in {stride} rounds is drawn.".strip()
    pale = [line for line in there if line.style == charts.REST]
    if pale and not name_pale:
        note = f"{note} In grey: {len(pale)} more.".strip()
    lines = [line.every(stride) for line in [*pale, *(line for line in there if line not in pale)]]
    values = [y for line in lines for _, y in line.points]
    edges = [edge for line in lines for pair in line.band if pair for edge in pair]
    ends = charts.span([*values, *edges, *([0.0] * from_zero)], limits)
    named = [line for line in lines if name_pale or line.style != charts.REST]
    height = max(charts.HEIGHT, LABEL * len(named))
    data = _data(lines, x_label) | {"names": _names_of_lines(named, ends, height)}
    return charts.Chart(
        key,
        title,
        charts.drawing(
            *_line_layers(
                lines,
                len(named) if len(lines) > 1 else 0,
                _x_axis(lines, x_label, whole=whole),
                _y_axis(y_label, ends),
            ),
            height=height,
        ),
        data,
        told=f"{y_label} over {x_label}. {_told(there)}",
        note=note,
        wide=wide,
    )


def _x_axis(lines: Sequence[Series], title: str, *, whole: bool) -> charts.Spec:
    """A position; ticks are at whole numbers, or at the few values that there are."""
    places = sorted({x for line in lines for x, _ in line.points})
    axis: charts.Spec = {}
    if whole:
        axis = charts.whole_axis(math.floor(places[0]), math.ceil(places[-1]))
    elif len(places) <= charts.WHOLE_TICKS:
        axis = {"values": [charts.short(x) for x in places], "format": ".6~g"}
    return charts.axis_of("x", title, axis=axis, scale={"nice": False, "padding": 6})


def _y_axis(title: str, ends: tuple[float, float]) -> charts.Spec:
    return charts.axis_of("y", title, axis={"tickCount": charts.TICKS}, scale=charts.between(ends))


def _line_layers(
    lines: Sequence[Series], named: int, x: charts.Spec, y: charts.Spec
) -> list[charts.Spec | None]:
    """Bands, lines, points, and the names at the right with a stroke that leads to each."""
    colours = {line.name: charts.colour(line.style) for line in lines}
    color = charts.by_name("s", colours, legend=None)
    dashes = {line.name: charts.form(line.style)[0] for line in lines}
    shapes = {line.style: charts.form(line.style)[1] for line in lines}
    reach = next(pixels for most, pixels in REACH.items() if named <= most)
    few = max(len(line.points) for line in lines) <= SHOWN_POINTS
    nearest = {"type": "point", "on": "pointerover", "clear": "pointerout", "nearest": True}
    shown = [
        {"param": "hover", "empty": False, "value": 1},
        {"test": "datum.alone", "value": 1},
        {"test": "datum.quiet", "value": 0},
    ]
    band = charts.layer(
        charts.mark("area", opacity=0.14, clip=True),
        x=x,
        y={**y, "field": "low"},
        y2={"field": "high"},
        color=color,
    )
    drawn = charts.layer(
        charts.mark("line", strokeWidth={"expr": WIDTH}, strokeCap="round", strokeJoin="round"),
        x=x,
        y=y,
        color=color,
        strokeDash=charts.by_name("s", dashes, legend=None),
    )
    hovered = charts.layer(
        charts.mark("point", filled=True, size=34, opacity=1),
        "points",
        {"params": [{"name": "hover", "select": nearest}]},
        x=x,
        y=y,
        color=color,
        shape=charts.by_name("style", shapes, legend=None),
        opacity={"condition": shown, "value": 1 if few else 0},
        tooltip={"value": {"expr": TIP}},
    )
    leading = charts.layer(
        charts.mark("rule", strokeWidth=1, opacity=0.7),
        "names",
        x=x,
        x2={"value": {"expr": f"width + {reach - 3}"}},
        y=y,
        y2={"field": "at"},
        color=color,
        strokeDash=charts.either("datum.early", [1, 4], [1, 0]),
    )
    names = charts.layer(
        charts.mark(
            "text",
            align="left",
            dx=reach,
            limit=LONGEST_LABEL,
            fontWeight={"expr": BOLD},
            tooltip=None,
        ),
        "names",
        x={"value": "width"},
        y={**y, "field": "at"},
        text={"field": "name", "type": "nominal"},
        color=charts.either("datum.pale", charts.colour("soft"), charts.colour("ink")),
    )
    return [
        band if any(line.band for line in lines) else None,
        leading if named else None,
        drawn,
        hovered,
        names if named else None,
    ]


def _names_of_lines(
    lines: Sequence[Series], ends: tuple[float, float], height: int
) -> charts.Columns:
    """Where lines end, and beside it where their names have room.

    The stroke from a line that ends early is dotted: it is no part of the line.
    """
    low, high = ends
    last = [line.present()[-1] for line in lines]
    end = max((x for line in lines for x, _ in line.points), default=0.0)
    unit = (high - low) / height
    places = spread_out([(high - y) / unit for _, y in last], LABEL, height)
    return {
        "s": [line.name for line in lines],
        "name": [shortened(line.name, LONGEST) for line in lines],
        "x": [charts.short(x) for x, _ in last],
        "y": [charts.short(y) for _, y in last],
        "at": [charts.short(high - place * unit) for place in places],
        "early": [int(x < end) for x, _ in last],
        "best": [int(line.best) for line in lines],
        "pale": [int(line.style in QUIET) for line in lines],
    }


def spread_out(wanted: Sequence[float], gap: float, room: float) -> list[float]:
    """Places from 0 to ``room`` that are ``gap`` apart, as near to the wanted ones as can be.

    Without the gaps that is the nearest rising sequence: neighbours that would fall share their
    mean. Where the room is too small for all, the gaps shrink.
    """
    count = len(wanted)
    gap = min(gap, room / max(1, count - 1))
    order = sorted(range(count), key=wanted.__getitem__)
    groups: list[tuple[float, int]] = []
    for place, index in enumerate(order):
        groups.append((wanted[index] - place * gap, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (mean, size), (other, more) = groups.pop(-2), groups.pop()
            groups.append(((mean * size + other * more) / (size + more), size + more))
    rising = [mean for mean, size in groups for _ in range(size)]
    most = room - (count - 1) * gap
    found = [0.0] * count
    for place, index in enumerate(order):
        found[index] = min(max(rising[place], 0.0), max(most, 0.0)) + place * gap
    return found


def _data(lines: Sequence[Series], x_label: str) -> dict[str, charts.Columns]:
    """The lines, and the points that answer the pointer."""
    every = math.ceil(sum(len(line.points) for line in lines) / HOVERED)
    banded = any(line.band for line in lines)
    pale = any(line.style == charts.REST for line in lines)
    more = (*(("low", "high") if banded else ()), *(("pale",) if pale else ()))
    fields = {
        "values": ("s", "x", "y", *more),
        "points": ("s", "x", "y", "style", "alone", "quiet", "tip"),
    }
    data: dict[str, charts.Columns] = {key: {name: [] for name in fields[key]} for key in fields}
    for line in lines:
        values = [charts.short(y) for _, y in line.points]
        for index, ((x, _), y) in enumerate(zip(line.points, values, strict=True)):
            row: dict[str, Any] = {"s": line.name, "x": charts.short(x), "y": y}
            row["pale"] = int(line.style == charts.REST)
            low, high = (line.band[index] if line.band else None) or (None, None)
            _add(data["values"], {**row, "low": charts.short(low), "high": charts.short(high)})
            beside = [*values[max(0, index - 1) : index], *values[index + 1 : index + 2]]
            alone = y is not None and all(value is None for value in beside)
            tip = f"{line.name}, {x_label} {number(x, 4)}: {number(y, 4)}"
            row |= {"style": line.style, "tip": tip}
            row |= {"alone": int(alone), "quiet": int(line.style in QUIET)}
            if y is not None and (alone or index % every == 0):
                _add(data["points"], row)
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
    style: str = "c0"


def dot_chart(
    key: str,
    title: str,
    rows: Sequence[DotRow],
    *,
    x_label: str,
    note: str = "",
    limits: tuple[float, float] = charts.ANYWHERE,
    from_zero: bool = False,
) -> charts.Chart | None:
    """Dots row by row, the best in another shape; None when there is no value.

    No value can be outside of ``limits``: no bar reaches there, nor does the axis.
    """
    there = [row for row in rows if row.mean is not None or row.values]
    if not there:
        return None
    means = [(row, row.mean, row.spread or 0.0) for row in there if row.mean is not None]
    least, most = limits
    bars = [(max(least, mean - spread), min(most, mean + spread)) for _, mean, spread in means]
    singles = [(row, value) for row in there for value in row.values]
    reached = [*(value for _, value in singles), *(end for bar in bars for end in bar)]
    ends = charts.span([*reached, *([0.0] * from_zero)], limits)
    y = _rows("name", [row.name for row in there], grid=True)
    colours = {row.style: charts.colour(row.style) for row in there}
    color = charts.by_name("style", colours, legend=None)
    x = charts.axis_of("mean", x_label, scale=charts.between(ends))
    single = charts.layer(
        charts.mark("point", filled=True, size=16, opacity=0.6),
        "singles",
        y=y,
        x={**x, "field": "value"},
        color=color,
    )
    drawn, dots = _means(
        y,
        x,
        color=color,
        shape=charts.either("datum.best", "diamond", "circle"),
        size=charts.either("datum.best", 150, 85),
        tooltip=charts.told_fields(("name", "name"), ("mean", "mean"), ("spread", "spread")),
    )
    several = any(len(row.values) > 1 or row.mean is None for row in there)
    spec = charts.drawing(drawn, single if several else None, dots, height=ROW * len(there))
    data: dict[str, charts.Columns] = {
        "values": {
            "name": [row.name for row, *_ in means],
            "mean": [charts.short(mean) for _, mean, _ in means],
            "spread": [charts.short(row.spread) for row, *_ in means],
            "low": [charts.short(low) for low, _ in bars],
            "high": [charts.short(high) for _, high in bars],
            "best": [int(row.best) for row, *_ in means],
            "style": [row.style for row, *_ in means],
        },
        "singles": {
            "name": [row.name for row, _ in singles],
            "value": [charts.short(value) for _, value in singles],
            "style": [row.style for row, _ in singles],
        },
    }
    told = "; ".join(f"{row.name} {number(row.mean)}" for row in rows)
    return charts.Chart(key, title, spec, data, told=f"{x_label}: {told}.", note=note)


def _rows(field: str, names: Sequence[str], *, grid: bool) -> charts.Spec:
    """Names one below the other, in their order."""
    axis = {
        "labelColor": charts.colour("ink"),
        "labelLimit": LONGEST_NAME,
        "labelOverlap": False,
        "labelPadding": 10,
        "grid": grid,
    }
    return {
        "field": field,
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(names)},
        "axis": axis,
    }


def _means(
    y: charts.Spec, x: charts.Spec, *, color: charts.Spec, **looks: Any
) -> tuple[charts.Spec, charts.Spec]:
    """Bars from ``low`` to ``high``, as far as the axis goes, and on each its dot."""
    low = {**x, "field": "low"}
    bars = charts.mark("rule", strokeWidth=2, opacity=0.5, clip=True)
    dots = charts.mark("point", filled=True, opacity=1, **({} if "size" in looks else {"size": 85}))
    return (
        charts.layer(bars, y=y, x=low, x2={"field": "high"}, color=color),
        charts.layer(dots, y=y, x=x, color=color, **looks),
    )


def rank_chart(ranking: Ranking, looks: Mapping[str, str]) -> charts.Chart:
    """A bar of one critical difference around every mean rank, in the colour of its method.

    Two bars overlap just when the ranks are closer than the critical difference: then the methods
    cannot be told apart. The shaded stretch is the best method's bar. No rank is better than 1 or
    worse than the number of methods, and there the axis ends.
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
    axis = {"values": charts.whole_ticks(1, len(entries)), "format": "d"}
    scale = charts.between((1, len(entries)))
    x = charts.axis_of("rank", "mean rank (1 is best)", axis=axis, scale=scale)
    stretch = charts.layer(
        charts.mark("rect", color=charts.colour("ink"), opacity=0.07, clip=True),
        "best",
        x={**x, "field": "low"},
        x2={"field": "high"},
    )
    names = [entry.method for entry in entries]
    bars, dots = _means(
        _rows("method", names, grid=False),
        x,
        color=charts.by_name(
            "method", {name: charts.colour(looks[name]) for name in names}, legend=None
        ),
        shape=charts.either("datum.equal", "circle", "square"),
        tooltip=charts.told_fields(("method", "method"), ("rank", "mean rank")),
    )
    told = "; ".join(f"{entry.method} {number(entry.rank)}" for entry in entries)
    return charts.Chart(
        "mean-ranks",
        "Mean ranks with critical differences",
        charts.drawing(stretch, bars, dots, height=ROW * len(entries)),
        data,
        told=f"Mean ranks: {told}. Critical difference {number(difference)}.",
        note=f"Bars are as long as the critical difference, {difference:.2f}, as far as there are "
        f"ranks: methods whose bars overlap cannot be told apart. Circles overlap with the best, "
        f"whose bar is shaded; squares do not.",
        wide=True,
    )
