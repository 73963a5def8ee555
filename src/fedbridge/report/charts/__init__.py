"""Charts as Vega-Lite: one description for the page, and for a paper's SVG, PNG and PDF.

A chart is plain data: a description, its data, and the same in words. Names from users' data occur
only as values of a column, never as the name of a field or inside an expression, so nothing that a
site is called can become code.

Colours are variables of the page's style sheet (``var(--c0)``), so that one drawing is right in
light, in dark and in print. They are the palette of Okabe and Ito, which people with any kind of
colour vision tell apart; lines differ in their dashes too, and points in their shapes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Spec: TypeAlias = dict[str, Any]
Columns: TypeAlias = dict[str, list[Any]]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
DATA = "values"
HEIGHT = 220
DIGITS = 5
TICKS, WHOLE_TICKS, FEW_TICKS = 5, 10, 4
TICK, DIGIT = 10, 7
"""Pixels that a label on an axis takes, and each of its digits."""
SLACK = 1e-9
ANYWHERE = (-math.inf, math.inf)

COLOURS = {
    "c0": "#0072b2",
    "c1": "#d55e00",
    "c2": "#009e73",
    "c3": "#cc79a7",
    "c4": "#56b4e9",
    "c5": "#e69f00",
    "c6": "#7b4fa3",
    "c7": "#8c5a2b",
}
PALETTE = tuple(COLOURS)
INK, CHANCE, REST = "ink", "soft", "rest"
"""The target alone; what knows nothing; what has no colour of its own."""

ON_PAPER = COLOURS | {
    INK: "#1d2126",
    CHANCE: "#4a525c",
    REST: "#9aa0a6",
    "ground": "#ffffff",
    "card": "#ffffff",
    "hair": "#e3e3de",
}
"""The page's variables in the light, for files outside of the page."""

FORMS: tuple[tuple[tuple[int, ...], str], ...] = (
    ((1, 0), "circle"),
    ((7, 3), "square"),
    ((2, 2), "triangle-up"),
    ((9, 3, 2, 3), "diamond"),
    ((4, 2), "cross"),
    ((12, 3), "triangle-down"),
    ((6, 2, 2, 2, 2, 2), "triangle-right"),
    ((10, 2, 4, 2), "triangle-left"),
)
"""Dashes of a line and shapes of a point. A style is a colour in the form of its own number, or in
another: ``c0/3``."""

OWN_FORMS = {INK: ((5, 4), "circle"), CHANCE: ((1, 4), "circle"), REST: FORMS[0]}

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
PAPER_FONT = "Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        key: Unique on the page; the name of its file when it is saved.
        title: Above the chart.
        spec: Vega-Lite without data, title and width.
        data: Columns by name, for every data set that the description names.
        told: The chart in words, for a screen reader.
        note: A sentence below.
        wide: Whether it takes the page's whole width.
    """

    key: str
    title: str
    spec: Spec
    data: Mapping[str, Columns]
    told: str
    note: str = ""
    wide: bool = False

    def to_json(self) -> dict[str, Any]:
        """For the page: columns, with repeated text said once."""
        data = {
            name: {field: _packed(values) for field, values in columns.items()}
            for name, columns in self.data.items()
        }
        return {"spec": self.spec, "data": data}

    def alone(self) -> Spec:
        """For a file of its own: the whole Vega-Lite description with its rows."""
        datasets = {name: rows(columns) for name, columns in self.data.items()}
        return {"$schema": SCHEMA, **self.spec, "title": self.title, "datasets": datasets}


def drawing(*layers: Spec | None, height: int = HEIGHT, **more: Any) -> Spec:
    """A description of layers over the chart's data; a layer that is None is left out."""
    return {
        "data": {"name": DATA},
        "width": "container",
        "height": height,
        "layer": [layer for layer in layers if layer is not None],
        **more,
    }


def layer(
    drawn: Spec, data: str | None = None, also: Spec | None = None, /, **encoding: Any
) -> Spec:
    """A mark, and the fields that its places and looks follow from, channel by channel.

    ``data`` is its data set, if that is not the chart's first.
    """
    named = {} if data is None else {"data": {"name": data}}
    return {**named, **(also or {}), "mark": drawn, "encoding": encoding}


def rows(columns: Columns) -> list[dict[str, Any]]:
    """The rows of a table of columns."""
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def short(value: float | None) -> float | None:
    """A number with the digits that a chart can show; None where there is no finite one."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


def mark(type: str, **properties: Any) -> Spec:
    """A mark that leaves the talking to the chart's own words."""
    return {"type": type, "aria": False, **properties}


def axis_of(field: str, title: str | None, **more: Any) -> Spec:
    """A quantitative position that need not begin at zero."""
    scale = more.pop("scale", {})
    if scale.get("type") != "log":
        scale = {"zero": False, **scale}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, **more}


def between(ends: tuple[float, float]) -> Spec:
    """A scale from one end to the other."""
    return {"domain": [short(end) for end in ends], "nice": False}


def by_name(field: str, looks: Mapping[str, Any], *, legend: Spec | None) -> Spec:
    """A look for every name in a field, in their order."""
    scale = {"type": "ordinal", "domain": list(looks), "range": list(looks.values())}
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend}


def either(test: str, strong: object, plain: object) -> Spec:
    """One look where a test holds, another elsewhere."""
    return {"condition": {"test": test, "value": strong}, "value": plain}


def told_fields(*fields: tuple[str, str]) -> list[Spec]:
    """What the pointer shows: fields of the data, and what to call them."""
    return [{"field": field, "type": "nominal", "title": title} for field, title in fields]


def _packed(values: list[Any]) -> Any:
    """A column; one of text as its different entries and the place of every row's."""
    if values and all(isinstance(value, str) for value in values):
        different = list(dict.fromkeys(values))
        places = {value: place for place, value in enumerate(different)}
        return {"of": different, "at": [places[value] for value in values]}
    return values


def colour(style: str) -> str:
    """A colour of the style sheet."""
    return f"var(--{style.partition('/')[0]})"


def form(style: str) -> tuple[tuple[int, ...], str]:
    """The dashes and the shape of a style."""
    name, _, other = style.partition("/")
    if other:
        return FORMS[int(other)]
    return OWN_FORMS[name] if name in OWN_FORMS else FORMS[PALETTE.index(name)]


def styles(count: int, colours: Sequence[str] = PALETTE) -> list[str]:
    """Styles for so many lines: those after the colours' end are all pale."""
    return [colours[k] if k < len(colours) else REST for k in range(count)]


def more_styles(count: int) -> list[str]:
    """Styles for so many lines of which none is pale: colours come again in another form."""
    size = len(PALETTE)
    return [
        PALETTE[k % size] + (f"/{(k + k // size) % size}" if k >= size else "")
        for k in range(count)
    ]


def span(
    values: Iterable[float | None], limits: tuple[float, float] = ANYWHERE
) -> tuple[float, float]:
    """The ends of an axis: round numbers around all values, never beyond what a value can be."""
    least, most = limits
    there = [value for value in values if value is not None and math.isfinite(value)]
    low, high = max(least, min(there)), min(most, max(there))
    if low == high:
        low, high = low - abs(low or 1) / 10, high + abs(high or 1) / 10
    step = round_step((high - low) / TICKS)
    ends = math.floor(low / step + SLACK) * step, math.ceil(high / step - SLACK) * step
    return max(least, ends[0]), min(most, ends[1])


def round_step(width: float) -> float:
    """The smallest of 1, 2, 5, 10, 20 ... that is not below the width."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= width * (1 - SLACK))


def whole_ticks(first: int, last: int, most: int = WHOLE_TICKS) -> list[int]:
    """Whole numbers at equal distances, of larger steps round ones; the first and the last."""
    step = max(1, round(round_step(max(1, last - first) / most)))
    start = first if step <= 2 else math.ceil(first / step) * step
    between = range(start, last, step)
    inner = [tick for tick in between if tick - first > step / 2 and last - tick > step / 2]
    return list(dict.fromkeys([first, *inner, last]))


def whole_axis(first: int, last: int) -> Spec:
    """Ticks at whole numbers, fewer where the chart is too narrow for all: the last has a label."""
    ticks, few = whole_ticks(first, last), whole_ticks(first, last, FEW_TICKS)
    needed = len(ticks) * (TICK + DIGIT * len(str(last)))
    narrow = {"expr": f"width < {needed} ? {few} : {ticks}"}
    return {"format": "d", "values": ticks if ticks == few else narrow}


def config() -> dict[str, Any]:
    """What all charts have in common."""
    soft, hair = colour("soft"), colour("hair")
    text = {"labelColor": soft, "titleColor": soft, "labelFontSize": 11, "titleFontSize": 11}
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            **text,
            "titleFontWeight": "normal",
            "gridColor": hair,
            "domain": False,
            "ticks": False,
            "labelPadding": 6,
            "labelOverlap": "greedy",
            "labelSeparation": 4,
            "labelFlush": False,
            "titlePadding": 8,
        },
        "legend": {
            **text,
            "labelColor": colour(INK),
            "titleFontWeight": "normal",
            "orient": "bottom",
            "labelLimit": 150,
            "symbolSize": 70,
            "symbolStrokeWidth": 2,
            "columnPadding": 14,
            "rowPadding": 3,
            "offset": 8,
        },
        "text": {"color": colour(INK), "fontSize": 11},
    }


def on_paper(value: Any) -> Any:
    """A chart with its variables replaced by colours, for a file of its own."""
    if isinstance(value, dict):
        return {key: on_paper(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [on_paper(item) for item in value]
    if isinstance(value, str):
        if value == FONT:
            return PAPER_FONT
        found = re.fullmatch(r"var\(--(\w+)\)", value)
        if found and found[1] in ON_PAPER:
            return ON_PAPER[found[1]]
    return value
