"""What a chart is: a Vega-Lite description, its data as columns, and the same in words."""

from __future__ import annotations

import math
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


def one_per_name(names: Sequence[str], values: Iterable[Any]) -> Spec:
    """A scale from names to looks, in their order."""
    return {"domain": list(names), "range": list(values)}


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
