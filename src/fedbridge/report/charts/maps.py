"""The map of who wins: over the sources' distance and the target's noise.

The ground is theory: which of the rules has the smallest Delta error at a point, for one source
and, where a rule has one, ``β = 1/2`` as in the paper's figure. On it lie the sources of a run, or
the settings of a comparison coloured by the method that won there.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from fedbridge.core.theory import fedda_delta, fedgp_delta_approximation
from fedbridge.report import charts
from fedbridge.report.text import number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STEPS, FINE = 40, 400
BETA = 0.5
DESCRIBED = 8
AIR = 4.0
"""The map reaches so many times farther than its points, on both sides."""

GROUND_TITLE = "smallest Delta error"
MARKS = {**charts.SHAPES, charts.INK: "diamond"}
GROUND = {"source-only": "c5", "target-only": "c4", "fedda": "c3", "fedgp": "c2"}
HERE = {
    "x": {"field": "d2", "type": "quantitative"},
    "y": {"field": "sigma2", "type": "quantitative"},
}
DISTANCE, NOISE = "squared distance d² of the sources", "noise σ² of the target"


@dataclass(frozen=True)
class Place:
    """Something on the map.

    Attributes:
        name: A source, or a setting.
        d2: Its squared distance from the target.
        sigma2: The target's noise.
        won: The method with the best result there; None for a place without a result.
    """

    name: str
    d2: float
    sigma2: float
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
    key: str, title: str, places: Sequence[Place], angles: Angles, *, mine: str, note: str = ""
) -> charts.Chart | None:
    """The map with its places, called ``mine``; None when none of them can be shown.

    That needs a positive distance and noise.
    """
    shown = [place for place in places if place.d2 > 0 and place.sigma2 > 0]
    if not shown:
        return None
    x_edges = _edges([place.d2 for place in shown])
    y_edges = _edges([place.sigma2 for place in shown])
    ground = _ground(x_edges, y_edges, angles)
    rules = [name for name in GROUND if name in ground["rule"]]
    data: dict[str, charts.Columns] = {
        "values": ground,
        "places": {
            "name": [place.name for place in shown],
            "d2": [charts.short(place.d2) for place in shown],
            "sigma2": [charts.short(place.sigma2) for place in shown],
            "won": [place.won or mine for place in shown],
            "predicted": [_winner(place.d2, place.sigma2, angles) for place in shown],
        },
    }
    names = charts.layer(
        charts.mark("text", align="left", dx=9, dy=-7, limit=110, tooltip=None),
        "places",
        **HERE,
        text={"field": "name", "type": "nominal"},
    )
    spec = charts.drawing(
        _ground_layer(x_edges, y_edges, rules),
        _places_layer(shown, mine),
        names if len(shown) <= len(charts.PALETTE) else None,
        height=300,
        resolve={"scale": {"color": "independent", "shape": "independent"}},
    )
    told = "; ".join(
        f"{place.name} at distance {number(place.d2)} and noise {number(place.sigma2)}, "
        f"smallest Delta error {predicted}"
        + ("" if place.won is None else f", best result {place.won}")
        for place, predicted in zip(shown[:DESCRIBED], data["places"]["predicted"], strict=False)
    )
    more = len(shown) - DESCRIBED
    told += f"; {more} more" if more > 0 else ""
    hidden = len(places) - len(shown)
    if hidden:
        note = f"{note} {hidden} with an estimate of zero or below cannot be shown.".strip()
    return charts.Chart(key, title, spec, data, told=f"{told}.", note=note)


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
    return charts.layer(
        charts.mark("area", opacity=0.28, line=False),
        x=_logarithmic("x", DISTANCE, x_edges),
        y=_logarithmic("y", NOISE, y_edges),
        y2={"field": "y2"},
        color=charts.by_name(
            "rule",
            {rule: charts.colour(GROUND[rule]) for rule in rules},
            legend={"title": GROUND_TITLE, "symbolType": "square", "symbolOpacity": 0.6},
        ),
        tooltip=charts.told_fields(("rule", GROUND_TITLE)),
    )


def _places_layer(places: Sequence[Place], mine: str) -> charts.Spec:
    looks = _looks(list(dict.fromkeys(place.won or mine for place in places)), mine)
    title = None if mine in looks else "best test result"
    legend: charts.Spec = {"title": title, "orient": "top"}
    return charts.layer(
        charts.mark(
            "point", filled=True, size=130, opacity=1, stroke=charts.colour("card"), strokeWidth=1.5
        ),
        "places",
        **HERE,
        color=charts.by_name(
            "won", {name: charts.colour(look) for name, look in looks.items()}, legend=legend
        ),
        shape=charts.by_name(
            "won", {name: MARKS[look] for name, look in looks.items()}, legend=legend
        ),
        tooltip=charts.told_fields(
            ("name", "here"),
            ("d2", "d²"),
            ("sigma2", "σ²"),
            ("predicted", GROUND_TITLE),
            *((("won", "best result"),) if title else ()),
        ),
    )


def _looks(winners: Sequence[str], mine: str) -> dict[str, str]:
    """Styles of the marks: a rule that is on the ground has the ground's colour."""
    free = iter([style for style in charts.PALETTE if style not in GROUND.values()])
    known = {**GROUND, mine: charts.INK}
    return {winner: known.get(winner) or next(free, charts.REST) for winner in winners}


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
