"""The tables of a run for its model card, for other programs and for papers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from fedbridge.diagnostics import at_threshold
from fedbridge.metrics import SCORED_ROUNDS
from fedbridge.report.exports import Entry, ExportTable, Number
from fedbridge.report.numbers import counted

if TYPE_CHECKING:
    from fedbridge.diagnostics import Diagnosis
    from fedbridge.intervals import Estimate
    from fedbridge.report.record import RunRecord

Line: TypeAlias = tuple[Entry, ...]

THRESHOLD = 0.5
MEASURES = {
    "accuracy": ("accuracy of the delivered model, %", 1),
    "balanced_accuracy": ("balanced accuracy, %", 1),
    "auc": ("area under the ROC curve", 3),
    "squared_error": ("mean squared error", 4),
    "absolute_error": ("mean absolute error", 4),
}
"""What a diagnosis measures, in words, and the digits worth showing."""
ROUND_MEASURES = {"accuracy": 1, "balanced_accuracy": 1, "auc": 3, "loss": 4, "sigma2": 6}


def run_tables(record: RunRecord) -> list[ExportTable]:
    """All tables of a run, finished or not."""
    tables = [measures_table(record), sites_table(record), rounds_table(record)]
    found = record.diagnosis
    if found is not None and found.confusion is not None:
        tables += [classes_table(record, found), confusion_table(record, found.confusion)]
    return tables


def measures_table(record: RunRecord) -> ExportTable:
    """Every measure on the test set, with its interval where the outputs were kept."""
    found = record.diagnosis
    rows = _scored(record)
    if found is None:
        rows += _without_intervals(record.result)
    else:
        rows += [_estimate(*MEASURES[name], estimate) for name, estimate in found.measures.items()]
        rows += _at_threshold(record)
        if found.calibration is not None:
            error = found.calibration.expected_error
            rows.append(_measure("expected calibration error, points", error))
    return ExportTable("measures", ("measure", "value", "95% from", "95% to"), tuple(rows))


def sites_table(record: RunRecord) -> ExportTable:
    """Who took part, with how many rows and how often."""
    target = str(record.config["target"])
    rows = [
        (target, "target", _whole(_rows_of(record, target)), Number(None), _missed(record, target))
    ]
    rows += [
        (
            site,
            "source",
            _whole(_rows_of(record, site)),
            Number(record.source_mean("beta", index), digits=3),
            _missed(record, site),
        )
        for index, site in enumerate(record.sources)
    ]
    headers = ("site", "role", "labelled training rows", "mean weight", "rounds missed")
    return ExportTable("sites", headers, tuple(rows))


def rounds_table(record: RunRecord) -> ExportTable:
    """The history: measures, noise, and the weight of every source."""
    rows: list[Line] = [
        (
            _whole(line["round"]),
            *(Number(line.get(name), digits=digits) for name, digits in ROUND_MEASURES.items()),
            *(Number(weight, digits=3) for weight in _weights(record, line)),
        )
        for line in record.history
    ]
    headers = ("round", *ROUND_MEASURES, *(f"weight of {site}" for site in record.sources))
    return ExportTable("rounds", headers, tuple(rows))


def classes_table(record: RunRecord, found: Diagnosis) -> ExportTable:
    """How every class fares, in percent, with intervals."""
    rows: list[Line] = [
        (
            record.class_names[of.label],
            _whole(of.rows),
            *_interval(of.recall),
            *_interval(of.precision),
        )
        for of in found.classes or ()
    ]
    measures = [
        header
        for name in ("recall", "precision")
        for header in (f"{name}, %", f"{name} from", f"{name} to")
    ]
    notes = ("From and to: the 95% interval.",)
    return ExportTable("classes", ("class", "test rows", *measures), tuple(rows), notes)


def confusion_table(record: RunRecord, confusion: list[list[int]]) -> ExportTable:
    """Test rows by true class (lines) and predicted class (columns)."""
    names = record.class_names
    rows: list[Line] = [
        (name, *(_whole(count) for count in line))
        for name, line in zip(names, confusion, strict=True)
    ]
    return ExportTable("confusion", (r"true \ predicted", *names), tuple(rows))


def _scored(record: RunRecord) -> list[Line]:
    """The score of the run, which is not that of its last round alone."""
    summary = record.summary
    if summary is None or summary["accuracy"] is None:
        return []
    last = min(SCORED_ROUNDS, summary["rounds"])
    low, high = summary["accuracy_interval"]
    name = f"accuracy, mean of the last {counted(last, 'round')}, %"
    return [_measure(name, summary["accuracy"], low, high)]


def _at_threshold(record: RunRecord) -> list[Line]:
    """Sensitivity and specificity, for two classes that both occur."""
    tested, found = record.tested, record.diagnosis
    if tested is None or found is None or found.roc is None:
        return []
    point = at_threshold(tested.outputs, tested.labels, THRESHOLD)
    positive = record.class_names[1]
    both = {"sensitivity": point.sensitivity, "specificity": point.specificity}
    return [
        _estimate(f"{name} for {positive} at a threshold of {THRESHOLD}, %", 1, estimate)
        for name, estimate in both.items()
        if estimate is not None
    ]


def _without_intervals(result: dict[str, Any]) -> list[Line]:
    """Measures of a run whose outputs on the test rows were not kept."""
    named = {
        "balanced_accuracy": MEASURES["balanced_accuracy"],
        "auc": MEASURES["auc"],
        "loss": ("test loss", 4),
    }
    return [
        _measure(text, result[name], digits=digits)
        for name, (text, digits) in named.items()
        if result.get(name) is not None
    ]


def _measure(
    name: str,
    value: float,
    low: float | None = None,
    high: float | None = None,
    digits: int = 1,
) -> Line:
    return (name, *(Number(number, digits=digits) for number in (value, low, high)))


def _estimate(name: str, digits: int, estimate: Estimate) -> Line:
    return _measure(name, estimate.value, estimate.low, estimate.high, digits)


def _interval(estimate: Estimate | None) -> tuple[Number, ...]:
    if estimate is None:
        return (Number(None),) * 3
    return tuple(Number(value) for value in (estimate.value, estimate.low, estimate.high))


def _rows_of(record: RunRecord, site: str) -> int | None:
    summary = record.summary
    if summary is None:
        return record.rows_of(site)
    own = site == record.config["target"]
    return summary.get("n_target") if own else summary.get("n_sources", {}).get(site)


def _missed(record: RunRecord, site: str) -> Number:
    return _whole(record.missed(site))


def _weights(record: RunRecord, line: dict[str, Any]) -> list[float | None]:
    return line.get("beta") or [None] * len(record.sources)


def _whole(count: int | None) -> Number:
    return Number(count, digits=0)
