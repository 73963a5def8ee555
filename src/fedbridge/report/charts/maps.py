"""The map of who wins: over the sources' distance and the target's noise.

The ground is theory: which of the rules has the smallest Delta error at a point, for one source
and, where a rule has one, ``β = 1/2`` as in the paper's figure. It is grey, with a legend that goes
wherever the map goes: colours belong to what lies there, the sources of a run, or the settings of a
comparison in the colour of the method that won.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from fedbridge.core.theory import fedda_delta, fedgp_delta_approximation
from fedbridge.report import charts
from fedbridge.report.text import number, some

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STEPS, FINE = 40, 400
BETA = 0.5
DESCRIBED = 8
AIR = 4.0
"""The map reaches so many times farther than its points, on both sides."""

GROUND_TITLE = "smallest Delta error"
GROUND = {"source-only": 0.05, "fedgp": 0.15, "fedda": 0.25, "target-only": 0.36}
"""Rules of the ground, and how dark each is."""

HEIGHT, WIDTHS = 300, (230, 300, 380, 480, 620)
"""Of the map in pixels, from a phone's to that of a page with one map."""

NAMED, LONGEST_NAME = 8, 96
"""The map names so many places, the weightiest, in at most so many pixels each."""

LETTER, LINE, SIDE = 6.2, 13, 9
"""Pixels of a letter, of a line, and from a place to its name."""

HERE = {
    "x": {"field": "d2", "type": "quantitative"},
    "y": {"field": "sigma2", "type": "quantitative"},
}
_Box: TypeAlias = tuple[float, float, float, float]
"""Left, right, top and bottom, in pixels."""

DISTANCE, NOISE = "squared distance d² of the sources", "noise σ² of the target"


@dataclass(frozen=True)
class Place:
    """Something on the map.

    Attributes:
        name: A source, or a setting.
        d2: Its squared distance from the target.
        sigma2: The target's noise.
        style: Of its mark.
        weight: How much it matters: the weightiest places are named.
        won: The method with the best result there; None for a place without a result.
    """

    name: str
    d2: float
    sigma2: float
    style: str = charts.INK
    weight: float = 0.0
    won: str | None = None


@dataclass(frozen=True)
class Angles:
    """What the ground needs to know for FedGP.

    Attributes:
        tau2: ``τ²``, the share of ``d²`` that is off the source's line; None where not measured.
        entries: Entries of the model's vector.
    """

    tau2: float | None
    entries: int


def delta_errors(d2: float, sigma2: float, angles: Angles) -> dict[str, float]:
    """Predicted Delta error of the four rules of the paper's figure, with one source."""
    errors = {
        "source-only": d2,
        "target-only": sigma2,
        "fedda": fedda_delta(BETA, sigma2, d2),
    }
    if angles.tau2 is not None:
        errors["fedgp"] = fedgp_delta_approximation(
            BETA, sigma2, angles.tau2 * d2, m=angles.entries
        )
    return errors


def win_map(
    key: str, title: str, places: Sequence[Place], angles: Angles, *, note: str = ""
) -> charts.Chart | None:
    """The map with its places; None when none of them can be shown.

    That needs a positive distance and noise.
    """
    shown = sorted(
        (place for place in places if place.d2 > 0 and place.sigma2 > 0),
        key=lambda place: place.weight,
    )
    if not shown:
        return None
    x_edges = _edges([place.d2 for place in shown])
    y_edges = _edges([place.sigma2 for place in shown])
    frame = _Frame(x_edges[0], x_edges[-1], y_edges[0], y_edges[-1])
    named, ground = _named(shown, frame), _ground(x_edges, y_edges, angles)
    data: dict[str, charts.Columns] = {
        "values": ground,
        "places": {
            "name": [place.name for place in shown],
            "d2": [charts.short(place.d2) for place in shown],
            "sigma2": [charts.short(place.sigma2) for place in shown],
            "style": [place.style for place in shown],
            "won": [place.won or "" for place in shown],
            "predicted": [_winner(place.d2, place.sigma2, angles) for place in shown],
        },
        "names": named,
    }
    layers = [
        _ground_layer(x_edges, y_edges, [rule for rule in GROUND if rule in ground["rule"]]),
        *(each for side in sorted(set(named["side"])) for each in _names_layers(side)),
        _places_layer(shown),
    ]
    told = "; ".join(
        f"{place.name} at distance {number(place.d2)} and noise {number(place.sigma2)}, "
        f"smallest Delta error {predicted}"
        + ("" if place.won is None else f", best result {place.won}")
        for place, predicted in list(zip(shown, data["places"]["predicted"], strict=True))[
            : -DESCRIBED - 1 : -1
        ]
    )
    more = len(shown) - DESCRIBED
    told += f"; {more} more" if more > 0 else ""
    unnamed = len(shown) - len(named["name"])
    if unnamed:
        note = f"{note} {unnamed} have their name under the pointer.".strip()
    hidden = sorted((p for p in places if p not in shown), key=lambda place: -place.weight)
    if hidden:
        names = some([place.name for place in hidden], DESCRIBED)
        note = f"{note} Not on the map, with an estimate of zero or below: {names}.".strip()
    spec = charts.drawing(*layers, height=HEIGHT)
    return charts.Chart(key, title, spec, data, told=f"{told}.", note=note)


@dataclass(frozen=True)
class _Frame:
    """The ends of the map's axes, for places on it in pixels."""

    left: float
    right: float
    bottom: float
    top: float

    def pixels(self, d2: float, sigma2: float, width: float) -> tuple[float, float]:
        """From the left and from the top of a map of this width."""
        x = math.log(d2 / self.left) / math.log(self.right / self.left)
        y = math.log(sigma2 / self.top) / math.log(self.bottom / self.top)
        return x * width, y * HEIGHT

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The place at a share of the width and of the height."""
        return (
            self.left * (self.right / self.left) ** x,
            self.bottom * (self.top / self.bottom) ** y,
        )


SIDES = tuple(
    (right, lines)
    for lines in (0, -1, 1, -2, 2, -3, 3, -4, 4, -5, 5, -6, 6)
    for right in (True, False)
)
"""Where a name may stand: right or left of its place, and how many lines below."""

STROKE = tuple(k / 10 for k in range(1, 10))
"""Points of the stroke from a place to its name, at which nothing else may stand."""


class _Map:
    """Where names have room on a map of some width."""

    def __init__(self, places: Sequence[Place], frame: _Frame, width: float) -> None:
        self.width = width
        self.spots = {place: frame.pixels(place.d2, place.sigma2, width) for place in places}
        self.marks = [_box(x, y, SIDE, SIDE) for x, y in self.spots.values()]
        self.names: list[_Box] = []
        self.strokes: list[_Box] = []

    def free(self, place: Place, side: int) -> bool:
        """Whether the place's name can stand there, and a stroke lead to it."""
        name, stroke = self._boxes(place, side)
        left, right, top, bottom = name
        inside = left >= 0 and right <= self.width and top >= 0 and bottom <= HEIGHT
        taken = [*self.marks, *self.names, *self.strokes]
        return inside and not _overlap([name], taken) and not _overlap(stroke, self.names)

    def take(self, place: Place, side: int) -> None:
        """Let the name stand there."""
        name, stroke = self._boxes(place, side)
        self.names.append(name)
        self.strokes += stroke

    def _boxes(self, place: Place, side: int) -> tuple[_Box, list[_Box]]:
        (x, y), (right, lines) = self.spots[place], SIDES[side]
        wide = min(LONGEST_NAME, LETTER * len(place.name))
        away, down = SIDE if right else -SIDE, lines * LINE
        name = _box(x + away + (wide if right else -wide) / 2, y + down, wide, LINE)
        return name, [_box(x + away * t, y + down * t, 1, 1) for t in STROKE if lines]


def _box(x: float, y: float, wide: float, high: float) -> _Box:
    return x - wide / 2, x + wide / 2, y - high / 2, y + high / 2


def _overlap(boxes: Sequence[_Box], others: Sequence[_Box]) -> bool:
    return any(
        one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]
        for one in boxes
        for other in others
    )


def _named(places: Sequence[Place], frame: _Frame) -> charts.Columns:
    """Names for the weightiest places; one that has no room beside weightier ones is left out."""
    named: list[Place] = []
    sides: dict[Place, int] = {}
    for place in reversed(places[-NAMED:]):
        found = _sides([*named, place], [_Map(places, frame, width) for width in WIDTHS])
        if found is not None:
            named.append(place)
            sides = found
    return {
        "name": [place.name for place in sides],
        "d2": [charts.short(place.d2) for place in sides],
        "sigma2": [charts.short(place.sigma2) for place in sides],
        "side": list(sides.values()),
    }


def _sides(named: Sequence[Place], maps: Sequence[_Map]) -> dict[Place, int] | None:
    """The first side of each that is free at every width; None if one of them has none.

    They are set from right to left: strokes to names on the right then pass none of them.
    """
    sides = {}
    for place in sorted(named, key=lambda place: -place.d2):
        free = (k for k in range(len(SIDES)) if all(drawn.free(place, k) for drawn in maps))
        side = next(free, None)
        if side is None:
            return None
        for drawn in maps:
            drawn.take(place, side)
        sides[place] = side
    return sides


def _names_layers(side: int) -> list[charts.Spec]:
    """The names on a side of their places, and strokes that lead to those farther off."""
    right, lines = SIDES[side]
    away, down = SIDE if right else -SIDE, lines * LINE
    here = {"transform": [{"filter": f"datum.side === {side}"}]}
    look = {"align": "left" if right else "right", "dx": away, "dy": down}
    names = charts.layer(
        charts.mark("text", **look, limit=LONGEST_NAME, tooltip=None),
        "names",
        here,
        **HERE,
        text={"field": "name", "type": "nominal"},
    )
    ends = {"x2Offset": away * 0.8, "y2Offset": down}
    stroke = charts.layer(
        charts.mark("rule", **ends, color=charts.colour("soft"), strokeWidth=1, tooltip=None),
        "names",
        here,
        **HERE,
        x2={"field": "d2"},
        y2={"field": "sigma2"},
    )
    return [stroke, names] if lines else [names]


def _winner(d2: float, sigma2: float, angles: Angles) -> str:
    """The rule with the smallest Delta error."""
    errors = delta_errors(d2, sigma2, angles)
    return min(errors, key=errors.__getitem__)


def _edges(values: Sequence[float]) -> list[float]:
    return _spaced(min(values) / AIR, max(values) * AIR, STEPS)


def _ground(x_edges: Sequence[float], y_edges: Sequence[float], angles: Angles) -> charts.Columns:
    """The part of the map where each rule wins, as the lowest and highest noise at a distance.

    All Delta errors are proportional to (d², σ²), so that the winner depends on σ²/d² alone: every
    rule has a wedge between two straight lines.
    """
    bottom, top = y_edges[0], y_edges[-1]
    columns: charts.Columns = {name: [] for name in ("rule", "x", "y", "y2")}
    for rule, low, high in _wedges(bottom / x_edges[-1], top / x_edges[0], angles):
        for x in x_edges:
            columns["rule"].append(rule)
            columns["x"].append(charts.short(x))
            columns["y"].append(charts.short(min(top, max(bottom, low * x))))
            columns["y2"].append(charts.short(min(top, max(bottom, high * x))))
    return columns


def _wedges(least: float, most: float, angles: Angles) -> list[tuple[str, float, float]]:
    """Who wins from which ``σ²/d²`` to which."""
    ratios = _spaced(least, most, FINE)
    winners = [_winner(1.0, ratio, angles) for ratio in ratios]
    wedges: list[tuple[str, float, float]] = []
    for rule, run in groupby(zip(winners, ratios, strict=True), key=itemgetter(0)):
        reach = [ratio for _, ratio in run]
        wedges.append((rule, wedges[-1][2] if wedges else least, reach[-1]))
    return wedges


def _spaced(low: float, high: float, count: int) -> list[float]:
    """Values from low to high in equal ratios."""
    step = math.log(high / low) / count
    return [low * math.exp(step * k) for k in range(count + 1)]


def _logarithmic(field: str, title: str, edges: Sequence[float]) -> charts.Spec:
    axis = {"format": "~g", "grid": False, "tickCount": 5}
    scale = {
        "type": "log",
        "domain": [charts.short(edges[0]), charts.short(edges[-1])],
        "nice": False,
    }
    return charts.axis_of(field, title, axis=axis, scale=scale)


def _ground_layer(
    x_edges: Sequence[float], y_edges: Sequence[float], rules: Sequence[str]
) -> charts.Spec:
    """Shades of grey, with a legend: a ground may be too small for a name, or under others'."""
    soft, shades = charts.colour("soft"), {rule: GROUND[rule] for rule in rules}
    legend = {
        "title": GROUND_TITLE,
        "columns": 2,
        "symbolType": "square",
        "symbolFillColor": soft,
        "symbolStrokeColor": soft,
        "symbolStrokeWidth": 0,
        "symbolSize": 160,
    }
    return charts.layer(
        charts.mark("area", line=False, color=soft),
        x=_logarithmic("x", DISTANCE, x_edges),
        y=_logarithmic("y", NOISE, y_edges),
        y2={"field": "y2"},
        opacity={**charts.by_name("rule", shades, legend=legend), "type": "ordinal"},
        tooltip=charts.told_fields(("rule", GROUND_TITLE)),
    )


def _places_layer(places: Sequence[Place]) -> charts.Spec:
    """The marks; with a legend of who won, where somebody did."""
    won = {place.won: place.style for place in places if place.won is not None}
    looks = won or {place.style: place.style for place in places}
    field, legend = (
        ("won", {"title": "best test result", "orient": "top"}) if won else ("style", None)
    )
    return charts.layer(
        charts.mark(
            "point", filled=True, size=130, opacity=1, stroke=charts.colour("card"), strokeWidth=1.5
        ),
        "places",
        **HERE,
        color=charts.by_name(
            field, {name: charts.colour(look) for name, look in looks.items()}, legend=legend
        ),
        shape=charts.by_name(
            field, {name: charts.form(look)[1] for name, look in looks.items()}, legend=legend
        ),
        tooltip=charts.told_fields(
            ("name", "here"),
            ("d2", "d²"),
            ("sigma2", "σ²"),
            ("predicted", GROUND_TITLE),
            *((("won", "best result"),) if won else ()),
        ),
    )


def winner_grid(
    key: str,
    title: str,
    won: Mapping[tuple[float, float], str | None],
    looks: Mapping[str, str],
    *,
    labels: tuple[str, str],
) -> charts.Chart | None:
    """A square for every ``(x, y)`` in the colour of who won there; None when nobody did.

    Values stand at equal distances, as in the paper's figure. ``looks`` has the styles of all who
    compete, ``labels`` says what x and y are.
    """
    there = {place: name for place, name in won.items() if name is not None}
    if not there:
        return None
    across, up = (sorted({place[axis] for place in won}) for axis in (0, 1))
    data: dict[str, charts.Columns] = {
        "values": {
            "x": [charts.short(x) for x, _ in there],
            "y": [charts.short(y) for _, y in there],
            "won": list(there.values()),
        }
    }
    squares = charts.layer(
        charts.mark("rect", stroke=charts.colour("card"), strokeWidth=1),
        x=_steps("x", labels[0], across),
        y=_steps("y", labels[1], list(reversed(up))),
        color=charts.by_name(
            "won",
            {name: charts.colour(look) for name, look in looks.items()},
            legend={"title": None, "symbolType": "square", "columns": 2},
        ),
        tooltip=charts.told_fields(("won", "best"), ("x", labels[0]), ("y", labels[1])),
    )
    counts = Counter(there.values()).most_common()
    told = ", ".join(f"{name} in {count}" for name, count in counts)
    return charts.Chart(
        key, title, charts.drawing(squares, height=260), data, told=f"Best of {len(there)}: {told}."
    )


def _steps(field: str, title: str, values: Sequence[float]) -> charts.Spec:
    """An axis of single values in their order."""
    axis = {"grid": False, "labelAngle": 0}
    sort = [charts.short(value) for value in values]
    return {"field": field, "type": "ordinal", "title": title, "sort": sort, "axis": axis}
