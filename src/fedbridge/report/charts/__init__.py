"""Charts as Vega-Lite: one description for the page, for a paper's SVG and for its PNG.

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
    from collections.abc import Mapping

Spec: TypeAlias = dict[str, Any]
Columns: TypeAlias = dict[str, list[Any]]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
DATA = "values"
HEIGHT = 220
DIGITS = 5

PALETTE = tuple(f"c{index}" for index in range(6))
INK = "ink"
REST = "rest"

LOOKS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "c0": ("#0072b2", (1, 0), "circle"),
    "c1": ("#d55e00", (7, 3), "square"),
    "c2": ("#009e73", (2, 2), "triangle-up"),
    "c3": ("#cc79a7", (9, 3, 2, 3), "diamond"),
    "c4": ("#56b4e9", (4, 2), "cross"),
    "c5": ("#e69f00", (12, 3), "triangle-down"),
    INK: ("#1d2126", (5, 4), "stroke"),
    REST: ("#b9bdc2", (1, 0), "circle"),
}
"""Styles: the colour on paper, the dashes of a line, the shape of a point."""

DASHES = {style: dashes for style, (_, dashes, _) in LOOKS.items()}
SHAPES = {style: shape for style, (_, _, shape) in LOOKS.items()}
ON_PAPER = {style: colour for style, (colour, _, _) in LOOKS.items()}
ON_PAPER |= {"ground": "#ffffff", "card": "#ffffff", "soft": "#4a525c", "hair": "#e3e3de"}
"""The page's variables in the light, for files outside of the page."""

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


def from_least(least: float) -> Spec:
    """A scale that begins at what no value can be below; minus infinity leaves it open."""
    return {"domainMin": least, "nice": True} if math.isfinite(least) else {}


def by_name(field: str, looks: Mapping[str, Any], *, legend: Spec | None) -> Spec:
    """A look for every name in a field, in their order."""
    scale = {"domain": list(looks), "range": list(looks.values())}
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend}


def either(test: str, strong: str, plain: str) -> Spec:
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
    return f"var(--{style})"


def styles(count: int) -> list[str]:
    """Styles for so many lines: those after the palette's end are all pale."""
    return [PALETTE[k] if k < len(PALETTE) else REST for k in range(count)]


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
