"""Charts of what a test set shows: confusion, ROC, calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.report import charts
from fedbridge.report.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.evaluation.diagnostics import Calibration, OperatingPoint, Roc

WRITTEN = 12
"""Matrices of at most so many classes have their counts written in."""

LABELLED = 40
"""Matrices of more classes have no names at their axes; nobody could read them."""

ONE_LINE = 40
"""Letters that class names may have together to stand below the matrix side by side."""

SHADES = (0.05, 0.5)
"""Opacity of an empty and of a full cell: counts in ink can be read on all, in light and dark."""

SQUARE = 280
UNIT = {"domain": [0, 1], "nice": False}


def confusion_chart(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> charts.Chart:
    """How rows of every true class were named; darker is a larger share of the true class."""
    totals = [sum(line) for line in confusion]
    pairs = [(true, named) for true in range(len(names)) for named in range(len(names))]
    shares = [
        confusion[true][named] / totals[true] if totals[true] else 0.0 for true, named in pairs
    ]
    data: dict[str, charts.Columns] = {
        "values": {
            "true": [names[true] for true, _ in pairs],
            "named": [names[named] for _, named in pairs],
            "count": [confusion[true][named] for true, named in pairs],
            "share": [charts.short(share) for share in shares],
            "percent": [charts.short(100 * share) for share in shares],
            "right": [int(true == named) for true, named in pairs],
        }
    }
    x = _class_axis("named", "predicted class", names)
    y = _class_axis("true", "true class", names)
    told = charts.told_fields(
        ("true", "true"),
        ("named", "predicted"),
        ("count", "rows"),
        ("percent", "% of the true class"),
    )
    shade = charts.layer(
        charts.mark(
            "rect", stroke=charts.colour("card"), strokeWidth=1 if len(names) <= LABELLED else 0
        ),
        x=x,
        y=y,
        opacity=_sized("share", {"domain": [0, 1], "range": SHADES}),
        color=charts.either("datum.right", charts.colour("c0"), charts.colour("soft")),
        tooltip=told,
    )
    counts = charts.layer(
        charts.mark("text", tooltip=None),
        x=x,
        y=y,
        text={"field": "count", "type": "quantitative"},
        color={"value": charts.colour("ink")},
        tooltip=told,
    )
    right = sum(confusion[k][k] for k in range(len(names)))
    return charts.Chart(
        "confusion-matrix",
        "Confusion matrix",
        charts.drawing(shade, counts if len(names) <= WRITTEN else None, height=SQUARE),
        data,
        told=f"{right} of {sum(totals)} test rows were named rightly; the table of classes has "
        f"the shares of every class.",
        note="A line per true class; the stronger the colour, the larger the share of that class. "
        "Blue is right, grey is wrong.",
    )


def _sized(field: str, scale: charts.Spec) -> charts.Spec:
    """A look that follows a number and needs no legend."""
    return {"field": field, "type": "quantitative", "scale": scale, "legend": None}


def _class_axis(field: str, title: str, names: Sequence[str]) -> charts.Spec:
    axis: charts.Spec = {"labelLimit": 90, "domain": False, "grid": False}
    if sum(map(len, names)) <= ONE_LINE:
        axis["labelAngle"] = 0
    if len(names) > LABELLED:
        axis["labels"] = False
    return {"field": field, "type": "nominal", "title": title, "sort": list(names), "axis": axis}


def roc_chart(roc: Roc, points: Sequence[OperatingPoint]) -> charts.Chart:
    """The ROC curve; the point at the chosen threshold moves with the page's slider."""
    data: dict[str, charts.Columns] = {
        "values": {
            "alarms": [charts.short(value) for value in roc.false_positive_rate],
            "hits": [charts.short(value) for value in roc.sensitivity],
            "order": list(range(len(roc.sensitivity))),
            "threshold": [charts.short(value) for value in roc.thresholds],
        },
        "chance": {"alarms": [0, 1], "hits": [0, 1]},
        "points": {
            "index": list(range(len(points))),
            "alarms": [
                charts.short(1 - p.specificity.value / 100) for p in points if p.specificity
            ],
            "hits": [charts.short(p.sensitivity.value / 100) for p in points if p.sensitivity],
        },
    }
    x = charts.axis_of("alarms", "false alarms (1 − specificity)", scale=UNIT)
    y = charts.axis_of("hits", "found (sensitivity)", scale=UNIT)
    line = charts.layer(
        charts.mark("line", interpolate="linear", strokeWidth=2, color=charts.colour("c0")),
        x=x,
        y=y,
        order={"field": "order", "type": "quantitative"},
    )
    corners = charts.layer(
        charts.mark("point", filled=True, size=60, opacity=0, color=charts.colour("c0")),
        x=x,
        y=y,
        tooltip=charts.told_fields(
            ("hits", "sensitivity"), ("alarms", "1 − specificity"), ("threshold", "threshold")
        ),
    )
    chosen = charts.layer(
        charts.mark("point", filled=True, size=140, shape="diamond", opacity=1),
        "points",
        {"transform": [{"filter": "datum.index === threshold"}]},
        x=x,
        y=y,
        color={"value": charts.colour("ink")},
    )
    return charts.Chart(
        "roc-curve",
        "ROC curve",
        charts.drawing(
            _diagonal(x, y),
            line,
            corners,
            chosen,
            height=SQUARE,
            params=[{"name": "threshold", "value": len(points) // 2}],
        ),
        data,
        told=f"Sensitivity over false alarms; the area under the curve is {number(roc.auc)}.",
        note=f"Area under the curve {number(roc.auc)}; the dashed line is chance, the diamond the "
        f"threshold chosen below.",
    )


def calibration_chart(calibration: Calibration, positive: str) -> charts.Chart:
    """Predicted against observed shares, with intervals; on the diagonal they are honest."""
    bins = calibration.bins
    data: dict[str, charts.Columns] = {
        "values": {
            "predicted": [charts.short(b.predicted) for b in bins],
            "observed": [charts.short(b.observed.value) for b in bins],
            "low": [charts.short(b.observed.low) for b in bins],
            "high": [charts.short(b.observed.high) for b in bins],
            "count": [b.count for b in bins],
        },
        "chance": {"predicted": [0, 100], "observed": [0, 100]},
    }
    whole = {"domain": [0, 100], "nice": False}
    of = f"probability of {positive}" if calibration.of == "positive" else "confidence"
    x = charts.axis_of("predicted", f"predicted {of} in %", scale=whole)
    y = charts.axis_of("observed", "how often it was so in %", scale=whole)
    bars = charts.mark("rule", strokeWidth=2, opacity=0.5, color=charts.colour("c0"))
    interval = charts.layer(bars, x=x, y={**y, "field": "low"}, y2={"field": "high"})
    dots = charts.layer(
        charts.mark("point", filled=True, opacity=1, color=charts.colour("c0")),
        x=x,
        y=y,
        size=_sized("count", {"range": [30, 220]}),
        tooltip=charts.told_fields(
            ("predicted", "predicted, %"),
            ("observed", "observed, %"),
            ("low", "from"),
            ("high", "to"),
            ("count", "rows"),
        ),
    )
    error = number(calibration.expected_error)
    return charts.Chart(
        "calibration",
        "Calibration",
        charts.drawing(_diagonal(x, y), interval, dots, height=SQUARE),
        data,
        told=f"Observed share over predicted {of}; expected calibration error {error} points.",
        note=f"On the dashed line probabilities mean what they say. Expected calibration error "
        f"{error} points; bars are 95 % confidence intervals, larger dots stand for more rows.",
    )


def _diagonal(x: charts.Spec, y: charts.Spec) -> charts.Spec:
    line = charts.mark("line", strokeDash=[4, 4], strokeWidth=1, color=charts.colour("soft"))
    return charts.layer(line, "chance", x=x, y=y)
