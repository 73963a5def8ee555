"""The page of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.report.charts import INK, Series, line_chart
from fedbridge.report.markup import Html, markup
from fedbridge.report.numbers import counted, duration, number, percent, size
from fedbridge.report.page import Page, Section, note, paragraph, small_test_note
from fedbridge.report.run_details import configuration, events, reproduction, rounds, split
from fedbridge.report.run_sites import sites
from fedbridge.report.run_tested import tested
from fedbridge.report.tables import facts

if TYPE_CHECKING:
    from fedbridge.report.charts import Chart
    from fedbridge.report.record import RunRecord

NAMED_CLASSES = 10
"""Classes without test rows that are named one by one."""


def run_page(record: RunRecord) -> Page:
    """The whole page of a run, finished or not."""
    config = record.config
    return Page(
        f"{config['task']}: {config['method']} for {config['target']}",
        markup(_verdict(record), _tiles(record)),
        (
            Section("Over the rounds", tuple(_curves(record))),
            sites(record),
            tested(record),
            events(record),
            reproduction(record),
            rounds(record),
            configuration(record),
            split(record),
        ),
    )


def _verdict(record: RunRecord) -> Html:
    config, result = record.config, record.result
    who = f"{config['method']} for {config['target']}"
    if not result:
        return paragraph(f"{who}: no round is finished yet.", class_="verdict")
    interval = record.interval(result.get("accuracy"))
    if record.regression:
        reached, explained = f"squared error {number(result.get('loss'))}", "; smaller is better"
    elif interval is None:
        reached, explained = f"accuracy {percent(result.get('accuracy'))}", ""
    else:
        low, high = interval
        reached = f"accuracy {percent(result['accuracy'])} ({low:.1f} to {percent(high)})"
        explained = "; in brackets the 95\N{NO-BREAK SPACE}% confidence interval"
    samples = record.n_test
    on = "" if samples is None else f" on {counted(samples, 'test sample')}"
    return markup(
        paragraph(f"{who}: {reached}", class_="verdict"),
        note(_standing(record), on, explained, "."),
        _evidence(record),
        _untested(record),
    )


def _evidence(record: RunRecord) -> Html | None:
    """How much the test set can say: a sentence, loud when it is little."""
    found = record.evidence
    if found is not None:
        return paragraph(found.sentence, class_="caution" if found.level == "little" else "note")
    if record.n_test is None:
        return None
    return small_test_note(record.n_test, "another test set may give quite another one.")


def _untested(record: RunRecord) -> Html | None:
    """A warning where the test set is silent about a class, which no accuracy shows."""
    classes = record.untested
    if not classes:
        return None
    named = ", ".join(classes[:NAMED_CLASSES])
    more = len(classes) - NAMED_CLASSES
    others = f" and {more} more" if more > 0 else ""
    return paragraph(
        f"No test row is of {named}{others}: how well the model finds "
        f"{'it' if len(classes) == 1 else 'them'} is not known.",
        class_="caution",
    )


def _standing(record: RunRecord) -> str:
    """How far the run is, and so what its numbers are."""
    done, planned = len(record.played), record.config["rounds"]
    if record.summary is None:
        return f"Unfinished, {done} of {planned} rounds so far: the last round's value"
    early = f"Stopped early after {done} of {planned} rounds. " if done < planned else ""
    return f"{early}Mean of the last rounds"


def _tiles(record: RunRecord) -> Html:
    result, summary = record.result, record.summary or {}
    auc = result.get("auc")
    sent = sum(line.get("bytes_up", 0) + line.get("bytes_down", 0) for line in record.history)
    balanced = result.get("balanced_accuracy")
    last = summary.get("accuracy_last")
    return facts(
        [
            ("Last round", None if last is None else percent(last)),
            ("Balanced accuracy", None if balanced is None else percent(balanced)),
            ("Area under ROC", None if auc is None else number(auc)),
            ("Test loss", None if result.get("loss") is None else number(result["loss"])),
            ("Rounds", f"{len(record.played)} of {record.config['rounds']}"),
            ("Sources", str(len(record.sources))),
            ("Target's labels", _labels(record)),
            ("Seed", str(record.config["seed"])),
            ("Over the wire", size(sent) if sent else None),
            ("Time", duration(summary["seconds"]) if "seconds" in summary else None),
        ],
        class_="tiles",
    )


def _labels(record: RunRecord) -> str | None:
    rows = record.rows_of(record.config["target"])
    return None if rows is None else f"{rows:,}"


def _curves(record: RunRecord) -> list[Chart | Html | None]:
    warm = "Rounds up to 0 are the warm-up." if len(record.history) > len(record.played) else ""
    return [
        _accuracy_chart(record, warm),
        line_chart(
            "loss",
            "Loss",
            [
                Series("test", record.curve("loss")),
                Series("validation", record.curve("validation_loss"), "c1"),
            ],
            x_label="round",
            y_label="squared error" if record.regression else "cross-entropy",
            note=warm,
        ),
    ]


def _accuracy_chart(record: RunRecord, warm: str) -> Chart | None:
    if record.regression:
        return None
    points = record.curve("accuracy")
    band = tuple(record.interval(value) for _, value in points)
    shaded = "Shaded: 95 % confidence interval of the accuracy." if any(band) else ""
    return line_chart(
        "accuracy",
        "Accuracy",
        [
            Series("accuracy", points, "c0", band),
            Series("balanced accuracy", record.curve("balanced_accuracy"), INK),
        ],
        x_label="round",
        y_label="test accuracy in %",
        note=f"{shaded} {warm}".strip(),
    )
