"""Mean ranks of methods and which of them can be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.report.charts.chart import (
    Chart,
    Columns,
    Spec,
    axis_of,
    drawing,
    mark,
    short,
    told_fields,
)
from fedbridge.report.charts.dots import LONGEST_NAME, ROW
from fedbridge.report.charts.style import colour
from fedbridge.report.numbers import number

if TYPE_CHECKING:
    from fedbridge.ranking import Ranking


def rank_chart(ranking: Ranking) -> Chart:
    """A bar of one critical difference around every mean rank.

    Two bars overlap just when the ranks are closer than the critical difference: then the methods
    cannot be told apart. The shaded stretch is the best method's bar.
    """
    half = ranking.critical_difference / 2
    best = ranking.entries[0].rank
    data: dict[str, Columns] = {
        "values": {
            "method": [entry.method for entry in ranking.entries],
            "rank": [short(entry.rank) for entry in ranking.entries],
            "low": [short(entry.rank - half) for entry in ranking.entries],
            "high": [short(entry.rank + half) for entry in ranking.entries],
            "equal": [
                int(entry.rank - best <= ranking.critical_difference) for entry in ranking.entries
            ],
        },
        "best": {"low": [short(best - half)], "high": [short(best + half)]},
    }
    title = "mean rank (1 is best)"
    axis = {"values": list(range(1, len(ranking.entries) + 1)), "format": "d"}
    y: Spec = {
        "field": "method",
        "type": "nominal",
        "title": None,
        "sort": [entry.method for entry in ranking.entries],
        "axis": {"labelColor": colour("ink"), "labelLimit": LONGEST_NAME, "grid": False},
    }
    shown = {
        "color": {
            "condition": {"test": "datum.equal", "value": colour("c0")},
            "value": colour("c1"),
        },
        "shape": {"condition": {"test": "datum.equal", "value": "circle"}, "value": "square"},
    }
    stretch: Spec = {
        "data": {"name": "best"},
        "mark": mark("rect", color=colour("c0"), opacity=0.1),
        "encoding": {"x": axis_of("low", title, axis=axis), "x2": {"field": "high"}},
    }
    bars: Spec = {
        "mark": mark("rule", strokeWidth=2, opacity=0.5),
        "encoding": {
            "y": y,
            "x": axis_of("low", title, axis=axis),
            "x2": {"field": "high"},
            "color": shown["color"],
        },
    }
    dots: Spec = {
        "mark": mark("point", filled=True, size=85, opacity=1),
        "encoding": {
            "y": y,
            "x": axis_of("rank", title, axis=axis),
            **shown,
            "tooltip": told_fields(("method", "method"), ("rank", "mean rank")),
        },
    }
    told = "; ".join(f"{entry.method} {number(entry.rank)}" for entry in ranking.entries)
    return Chart(
        "ranks",
        "Mean ranks with critical differences",
        drawing(stretch, bars, dots, height=ROW * len(ranking.entries)),
        data,
        told=f"Mean ranks: {told}. Critical difference {number(ranking.critical_difference)}.",
        note=f"Bars are as long as the critical difference, {ranking.critical_difference:.2f}: "
        f"methods whose bars overlap cannot be told apart. Blue circles overlap with the best.",
        wide=True,
    )
