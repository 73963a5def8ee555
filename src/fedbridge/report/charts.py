"""Charts as inline SVG: small, printable, readable by a screen reader, with no library.

Colours are classes (``c0`` ... ``c5``, ``ink``, ``rest``) that the page's style sheet turns into
the palette of Okabe and Ito, for light and for dark. Drawings are 380 units wide, so that their
text is as large as the page's on a phone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbridge.report.markup import Html, markup, tag
from fedbridge.report.scale import Scale, number, tick_label

if TYPE_CHECKING:
    from collections.abc import Sequence

PALETTE = tuple(f"c{index}" for index in range(6))
INK = "ink"
REST = "rest"

WIDTH, HEIGHT = 380, 236
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 40
ROW = 21
NAMES = 122
LONGEST_NAME = 19

SHOWN_POINTS = 30
"""Lines of at most so many points show each of them; longer ones only under the pointer."""

DRAWN, HOVERED = 13_000, 1_000
"""At most so many points per chart in lines, and with a value to hover: pages stay small."""

DESCRIBED = 8

Point = tuple[float, float | None]


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: In the legend and under the pointer.
        points: ``(x, y)`` in the order of x; None or NaN is a gap.
        style: A colour class.
        band: ``(low, high)`` around every point, such as a confidence interval; empty for none.
    """

    name: str
    points: tuple[Point, ...]
    style: str = PALETTE[0]
    band: tuple[tuple[float, float] | None, ...] = ()

    def parts(self) -> list[list[tuple[float, float]]]:
        """The runs of points between gaps."""
        parts: list[list[tuple[float, float]]] = [[]]
        for x, y in self.points:
            if y is None or not math.isfinite(y):
                parts.append([])
            else:
                parts[-1].append((x, y))
        return [part for part in parts if part]

    def present(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [point for part in self.parts() for point in part]


@dataclass(frozen=True)
class DotRow:
    """One row of a dot chart: some values, their mean, and how far they spread."""

    name: str
    values: tuple[float, ...]
    mean: float | None
    spread: float | None = None
    best: bool = False


def styles(count: int) -> list[str]:
    """Colours for so many lines: those after the palette's end are all pale."""
    return [PALETTE[k] if k < len(PALETTE) else REST for k in range(count)]


def line_chart(
    key: str,
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    bounds: tuple[float, float] | None = None,
    note: str = "",
) -> Html:
    """Lines over rounds (or anything whole), with gaps where there is no value.

    Args:
        key: Unique on the page.
        title: Above the chart.
        series: The lines; later ones lie on top, pale ones at the bottom.
        x_label: What is to the right.
        y_label: What is upwards.
        bounds: Values that cannot be exceeded, such as 0 and 100 for percentages.
        note: A sentence below.
    """
    drawn = [line for line in series if line.present()]
    if not drawn:
        return _figure(title, tag("p", "No values yet.", class_="empty"), note)
    xs = [x for line in drawn for x, _ in line.present()]
    ys = [y for line in drawn for _, y in line.present()]
    ys += [edge for line in drawn for band in line.band if band is not None for edge in band]
    across = Scale(*_apart(min(xs), max(xs)), LEFT, WIDTH - RIGHT)
    upwards = Scale.around(ys, HEIGHT - BOTTOM, TOP, bounds)
    stride = math.ceil(sum(len(line.points) for line in drawn) / DRAWN)
    if stride > 1:
        note = f"{note} One in {stride} rounds is drawn.".strip()
    thinned = [_thinned(line, stride) for line in drawn]
    thinned.sort(key=lambda line: line.style != REST)
    every = math.ceil(sum(len(line.points) for line in thinned) / HOVERED)
    body = markup(
        _grid(across, upwards, x_label, y_label),
        *(_band(line, across, upwards) for line in thinned if line.band),
        *(_line(line, across, upwards) for line in thinned),
        *(_points(line, across, upwards, every) for line in thinned),
    )
    told = f"{y_label} over {x_label}. {_told(drawn)}"
    return _figure(title, _svg(key, HEIGHT, title, told, body), note, _legend(drawn))


def dot_chart(key: str, title: str, rows: Sequence[DotRow], *, x_label: str) -> Html:
    """A row of dots per name: every value pale, their mean strong, a bar as long as the spread."""
    values = [value for row in rows for value in _reach(row)]
    if not values:
        return _figure(title, tag("p", "No values yet.", class_="empty"), "")
    height = TOP + ROW * len(rows) + BOTTOM
    across = Scale.around(values, NAMES + 6, WIDTH - RIGHT)
    body = markup(
        _verticals(across, across.ticks(6), height - BOTTOM, x_label),
        *(_dots(row, across, TOP + ROW * (k + 0.5)) for k, row in enumerate(rows)),
    )
    told = "; ".join(f"{row.name} {number(row.mean)}" for row in rows)
    return _figure(title, _svg(key, height, title, f"{x_label}: {told}.", body), "")


def _figure(title: str, drawing: Html, note: str, legend: Html | None = None) -> Html:
    below = tag("p", note, class_="note") if note else None
    return tag("figure", tag("figcaption", title), drawing, legend, below, class_="chart")


def _svg(key: str, height: int, title: str, told: str, body: Html) -> Html:
    return tag(
        "svg",
        tag("title", title, id=f"{key}-title"),
        tag("desc", told, id=f"{key}-desc"),
        body,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
    )


def _legend(series: Sequence[Series]) -> Html | None:
    if len(series) < 2:
        return None
    named = [line for line in series if line.style != REST]
    entries = [_entry(line.style, line.name) for line in named]
    if len(named) < len(series):
        entries.append(_entry(REST, f"{len(series) - len(named)} more"))
    return tag("ul", *entries, class_="legend")


def _entry(style: str, name: str) -> Html:
    return tag("li", swatch(style), name)


def swatch(style: str) -> Html:
    """A spot of a line's colour, for legends and tables."""
    return tag("span", class_=f"swatch {style}", aria_hidden="true")


def _told(series: Sequence[Series]) -> str:
    parts = []
    for line in series[:DESCRIBED]:
        first, last = line.present()[0], line.present()[-1]
        parts.append(
            f"{line.name}: {number(first[1])} at {first[0]:g}, {number(last[1])} at {last[0]:g}."
        )
    more = len(series) - DESCRIBED
    return " ".join([*parts, f"{more} more lines."] if more > 0 else parts)


def _grid(across: Scale, upwards: Scale, x_label: str, y_label: str) -> Html:
    right, middle = WIDTH - RIGHT, (TOP + HEIGHT - BOTTOM) / 2
    pieces = []
    for value in upwards.ticks():
        y = upwards(value)
        zero = "zero" if abs(value) < 1e-12 else None
        pieces += [
            tag("line", x1=LEFT, x2=right, y1=y, y2=y, class_=zero),
            tag("text", tick_label(value), x=LEFT - 6, y=y + 4, text_anchor="end"),
        ]
    turned = f"translate(10 {middle}) rotate(-90)"
    pieces.append(tag("text", y_label, transform=turned, text_anchor="middle"))
    horizontals = tag("g", *pieces, class_="grid", aria_hidden="true")
    ticks = across.ticks(6, whole=True)
    return markup(horizontals, _verticals(across, ticks, HEIGHT - BOTTOM, x_label))


def _verticals(across: Scale, ticks: Sequence[float], bottom: float, label: str) -> Html:
    pieces = []
    for value in ticks:
        x = across(value)
        pieces += [
            tag("line", x1=x, x2=x, y1=TOP, y2=bottom),
            tag("text", tick_label(value), x=x, y=bottom + 15, text_anchor="middle"),
        ]
    centre = (across.start + across.end) / 2
    pieces.append(tag("text", label, x=centre, y=bottom + 33, text_anchor="middle"))
    return tag("g", *pieces, class_="grid", aria_hidden="true")


def _line(line: Series, across: Scale, upwards: Scale) -> Html:
    path = " ".join(
        "M" + " ".join(f"{across(x):g},{upwards(y):g}" for x, y in part)
        for part in line.parts()
        if len(part) > 1
    )
    return tag("path", tag("title", line.name), d=path, class_=f"line {line.style}")


def _band(line: Series, across: Scale, upwards: Scale) -> Html:
    """The band is drawn as one area; where it has gaps the area is bridged by nothing."""
    areas: list[list[tuple[float, float, float]]] = [[]]
    for (x, _), edges in zip(line.points, line.band, strict=True):
        if edges is None:
            areas.append([])
        else:
            areas[-1].append((x, *edges))
    path = " ".join(
        "M"
        + " ".join(
            [f"{across(x):g},{upwards(high):g}" for x, _, high in area]
            + [f"{across(x):g},{upwards(low):g}" for x, low, _ in reversed(area)]
        )
        + "Z"
        for area in areas
        if len(area) > 1
    )
    return tag("path", d=path, class_=f"band {line.style}")


def _points(line: Series, across: Scale, upwards: Scale, every: int) -> Html:
    """A circle with its value per point; lonely points are always drawn, or nobody saw them."""
    quiet = len(line.points) > SHOWN_POINTS
    circles = []
    for part in line.parts():
        lonely = len(part) == 1
        for x, y in part if lonely else part[::every]:
            circles.append(
                tag(
                    "circle",
                    tag("title", f"{line.name}, {x:g}: {number(y, 4)}"),
                    cx=across(x),
                    cy=upwards(y),
                    r=4 if quiet and not lonely else 2.6,
                    class_="quiet" if quiet and not lonely else None,
                )
            )
    return tag("g", *circles, class_=f"points {line.style}")


def _thinned(line: Series, stride: int) -> Series:
    return Series(line.name, line.points[::stride], line.style, line.band[::stride])


def _dots(row: DotRow, across: Scale, y: float) -> Html:
    name = row.name
    if len(name) > LONGEST_NAME:
        name = name[: LONGEST_NAME - 1] + "…"
    pieces = [tag("text", tag("title", row.name), name, x=NAMES, y=y + 4, text_anchor="end")]
    if row.mean is not None and row.spread is not None:
        ends = across(row.mean - row.spread), across(row.mean + row.spread)
        pieces.append(tag("line", x1=ends[0], x2=ends[1], y1=y, y2=y))
    for value in row.values:
        told = tag("title", f"{row.name}: {number(value, 4)}")
        pieces.append(tag("circle", told, cx=across(value), cy=y, r=2.2, class_="one"))
    if row.mean is not None:
        spread = "" if row.spread is None else f" ± {number(row.spread)}"
        told = tag("title", f"{row.name}, mean: {number(row.mean, 4)}{spread}")
        pieces.append(tag("circle", told, cx=across(row.mean), cy=y, r=4.4))
    return tag("g", *pieces, class_=f"row {'best ' if row.best else ''}c0")


def _reach(row: DotRow) -> list[float]:
    reach = list(row.values)
    if row.mean is not None:
        reach += [row.mean - (row.spread or 0), row.mean + (row.spread or 0)]
    return reach


def _apart(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 1, high + 1)
