"""What the test rows show of the delivered model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fedbridge.diagnostics import at_threshold
from fedbridge.report.charts.tested import calibration_chart, confusion_chart, roc_chart
from fedbridge.report.markup import markup, tag
from fedbridge.report.numbers import number, percent
from fedbridge.report.page import Section, note
from fedbridge.report.tables import Cell, Table

if TYPE_CHECKING:
    from fedbridge.diagnostics import Diagnosis, OperatingPoint
    from fedbridge.intervals import Estimate
    from fedbridge.report.markup import Html
    from fedbridge.report.page import Part
    from fedbridge.report.record import RunRecord
    from fedbridge.report.tables import Entry

STEPS = 100
"""Thresholds that a reader can choose from, from 0 to 1."""

NAMES = {
    "accuracy": "Accuracy, %",
    "balanced_accuracy": "Balanced accuracy, %",
    "auc": "Area under ROC",
    "squared_error": "Squared error",
    "absolute_error": "Absolute error",
}


def tested(record: RunRecord) -> Section | None:
    """Measures with intervals, confusion, and for two classes ROC, threshold and calibration."""
    diagnosis, rows = record.diagnosis, record.tested
    if diagnosis is None or rows is None:
        return None
    parts: list[Part] = [
        _measures(diagnosis),
        note(
            "Of the model as it was delivered, so the values may differ from the means of the last "
            "rounds above. Intervals hold in 95 of 100 such test sets."
        ),
    ]
    names = record.class_names
    if diagnosis.confusion is not None:
        parts.append(confusion_chart(diagnosis.confusion, names))
    panel: Html | None = None
    if diagnosis.roc is not None:
        points = [
            at_threshold(rows.outputs, rows.labels, step / STEPS) for step in range(STEPS + 1)
        ]
        parts.append(roc_chart(diagnosis.roc, points))
        panel = _panel(points, names[1])
    if diagnosis.calibration is not None:
        parts.append(calibration_chart(diagnosis.calibration, names[1]))
    parts += [panel, _classes(diagnosis, names)]
    return Section("On the test set", tuple(parts))


def _measures(diagnosis: Diagnosis) -> Table:
    rows = tuple(
        (NAMES.get(name, name), found.value, found.low, found.high, found.count)
        for name, found in diagnosis.measures.items()
    )
    columns = ("Measure", "Value", "From", "To", "Test rows")
    return Table(
        "measures", "Measures on the test set with 95 % confidence intervals", columns, rows
    )


def _classes(diagnosis: Diagnosis, names: list[str]) -> Table | None:
    if diagnosis.classes is None:
        return None
    rows: tuple[tuple[Entry, ...], ...] = tuple(
        (names[found.label], found.rows, _share(found.recall), _share(found.precision))
        for found in diagnosis.classes
    )
    columns = ("Class", "Test rows", "Recall, %", "Precision, %")
    caption = "Of the rows of a class, how many were found; of those named so, how many are it"
    return Table("classes", caption, columns, rows)


def _share(found: Estimate | None) -> Cell:
    if found is None:
        return Cell("–", None)
    return Cell(_interval(found), found.value)


def _interval(found: Estimate) -> str:
    return f"{found.value:.1f} ({found.low:.0f} to {found.high:.0f})"


def _panel(points: list[OperatingPoint], positive: str) -> Html:
    """A slider over thresholds with what follows from each; the script keeps them together."""
    said = [_said(point) for point in points]
    middle = said[STEPS // 2]

    def field(name: str, title: str) -> Html:
        return tag("div", tag("dt", title), tag("dd", middle[name], data_field=name))

    label = tag(
        "label",
        markup("Call it ", tag("b", positive), " from a probability of "),
        tag("output", middle["threshold"], data_field="threshold", for_="threshold"),
        for_="threshold",
    )
    slider = tag("input", type="range", id="threshold", min=0, max=STEPS, step=1, value=STEPS // 2)
    shown = tag(
        "dl",
        field("sensitivity", f"Sensitivity: {positive} found"),
        field("specificity", "Specificity: the others left alone"),
        class_="tiles",
    )
    return tag(
        "div",
        label,
        slider,
        shown,
        class_="panel",
        data_points=json.dumps(said, separators=(",", ":")),
        data_moves="roc",
    )


def _said(point: OperatingPoint) -> dict[str, str]:
    def told(found: Estimate | None) -> str:
        if found is None:
            return "–"
        return f"{percent(found.value)} ({found.low:.0f} to {found.high:.0f})"

    sensitivity, specificity = told(point.sensitivity), told(point.specificity)
    threshold = number(point.threshold, 2) if point.threshold else "0"
    return {
        "threshold": threshold,
        "sensitivity": sensitivity,
        "specificity": specificity,
        "told": f"{threshold}: sensitivity {sensitivity}, specificity {specificity}",
    }
