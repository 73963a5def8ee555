"""The page of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.report.charts import INK, Series, line_chart, styles, swatch
from fedbridge.report.markup import Html, markup, tag
from fedbridge.report.page import folded, page, paragraph, section, small_test_note
from fedbridge.report.record import RunRecord, mean
from fedbridge.report.reproduce import command
from fedbridge.report.scale import duration, number, percent, size
from fedbridge.report.tables import Cell, Entry, facts, said, table

if TYPE_CHECKING:
    from fedbridge.report.markup import Child

PERCENT = (0.0, 100.0)
LISTED = 500
"""Tables of rounds show at most so many rows; ``history.jsonl`` has them all."""


def run_page(record: RunRecord) -> str:
    """The whole page of a run, finished or not."""
    config = record.config
    return page(
        f"{config['task']}: {config['method']} for {config['target']}",
        markup(_verdict(record), _tiles(record)),
        _curves(record),
        _sites(record),
        _events(record),
        _rounds(record),
        _configuration(record),
        _split(record),
        _reproduction(record),
    )


def _verdict(record: RunRecord) -> Html:
    config, result = record.config, record.result
    who = f"{config['method']} for {config['target']}"
    if not result:
        return paragraph(f"{who}: no round is finished yet.", class_="verdict")
    interval = record.interval(result.get("accuracy"))
    if record.regression:
        reached, explained = f"squared error {number(result.get('loss'))}", "; smaller is better"
        so = "another test set may give quite another one."
    elif interval is None:
        reached, explained, so = f"accuracy {percent(result.get('accuracy'))}", "", ""
    else:
        low, high = interval
        reached = f"accuracy {percent(result['accuracy'])} ({low:.1f} to {percent(high)})"
        explained = "; in brackets the 95\N{NO-BREAK SPACE}% confidence interval"
        so = f"the true accuracy may well be anywhere from {low:.0f} to {high:.0f} %."
    samples = record.n_test
    tested = "" if samples is None else f" on {samples} test samples"
    return markup(
        paragraph(f"{who}: {reached}", class_="verdict"),
        paragraph(_standing(record), tested, explained, ".", class_="note"),
        None if samples is None else small_test_note(samples, so),
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
            ("Over the wire", size(sent) if sent else None),
            ("Time", duration(summary["seconds"]) if "seconds" in summary else None),
        ],
        class_="tiles",
    )


def _curves(record: RunRecord) -> Html:
    warm = "Rounds up to 0 are the warm-up." if len(record.history) > len(record.played) else ""
    charts = [
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
        _source_chart(record, "beta", "Weight of every source", "weight β"),
        _source_chart(
            record,
            "d2",
            "Noise and distances",
            "squared length",
            Series("noise σ² of the target", record.curve("sigma2"), INK),
            note="Estimated squared distances d² of the sources from the target, beside the "
            "target's noise σ². Unbiased estimates may be below zero: no distance was seen.",
        ),
    ]
    return section("Over the rounds", tag("div", *charts, class_="charts"))


def _accuracy_chart(record: RunRecord, note: str) -> Html | None:
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
        bounds=PERCENT,
        note=f"{shaded} {note}".strip(),
    )


def _source_chart(
    record: RunRecord, name: str, title: str, y_label: str, *more: Series, note: str = ""
) -> Html:
    """A line per source, those with most weight in colour; every chart has the same colours."""
    lines = [
        Series(record.sources[index], tuple(record.source_values(name, index)), style)
        for index, style in _ranked(record)
    ]
    return line_chart(name, title, [*more, *lines], x_label="round", y_label=y_label, note=note)


def _ranked(record: RunRecord) -> list[tuple[int, str]]:
    """Sources and their colours; with more sources than colours, the weighty ones get them."""
    indices = range(len(record.sources))
    colours = styles(len(record.sources))
    if "rest" in colours:
        weights = [record.source_mean("beta", index) or 0.0 for index in indices]
        return list(zip(sorted(indices, key=lambda k: -weights[k]), colours, strict=True))
    return list(zip(indices, colours, strict=True))


def _sites(record: RunRecord) -> Html:
    target = record.config["target"]
    own = "target"
    rows: list[list[Entry]] = [
        [target, own, record.rows_of(target), None, None, None, None, record.missed(target)]
    ]
    for index, style in _ranked(record):
        name = record.sources[index]
        last = [value for _, value in record.source_values("beta", index)][-1:]
        rows.append(
            [
                Cell(markup(swatch(style), name), name),
                "source",
                record.rows_of(name),
                record.source_mean("beta", index),
                mean(last),
                record.source_mean("cosine", index),
                record.source_mean("d2", index),
                record.missed(name),
            ]
        )
    columns = ["Site", "Role", "Training rows", "Mean weight", "Last weight"]
    columns += ["Mean cosine", "Mean d²", "Rounds missed"]
    return section(
        "Sites",
        table("What every site brought", columns, rows),
        paragraph(
            "Cosine: the angle between the source's and the target's update; 1 is the same "
            "direction, 0 a right angle, below 0 against each other.",
            class_="note",
        ),
    )


def _events(record: RunRecord) -> Html | None:
    """Who was left out and why, and what rounds have to say; nothing when all went well."""
    rows: list[list[Entry]] = []
    for line in record.history:
        number_ = line["round"]
        failures = line.get("failures") or {}
        rows += [[number_, str(site), str(why)] for site, why in failures.items()]
        rows += [[number_, "", str(note)] for note in line.get("notes") or []]
    notes = (record.summary or {}).get("notes") or []
    if not rows and not notes:
        return None
    return section(
        "Left out, and notes",
        tag("ul", *(tag("li", str(note)) for note in notes)) if notes else None,
        *_listed("Sites left out and notes by round", ["Round", "Site", "What"], rows),
    )


def _rounds(record: RunRecord) -> Html | None:
    if not record.history:
        return None
    measured = {
        "accuracy": "Accuracy",
        "balanced_accuracy": "Balanced",
        "auc": "AUC",
        "loss": "Loss",
        "validation_loss": "Validation",
        "sigma2": "σ²",
        "choice": "Chosen",
        "seconds_train": "Training, s",
        "seconds_aggregate": "Mixing, s",
        "seconds_eval": "Testing, s",
    }
    used = [k for k in measured if any(line.get(k) is not None for line in record.history)]
    rows = [[line["round"], *(line.get(name) for name in used)] for line in record.history]
    columns = ["Round", *(measured[name] for name in used)]
    return folded("Every round", *_listed("Measures by round", columns, rows))


def _listed(caption: str, columns: list[str], rows: list[list[Entry]]) -> list[Child]:
    if not rows:
        return []
    shown: list[Child] = [table(caption, columns, rows[-LISTED:])]
    if len(rows) > LISTED:
        told = f"The last {LISTED} of {len(rows)}; history.jsonl has them all."
        shown.append(paragraph(told, class_="note"))
    return shown


def _configuration(record: RunRecord) -> Html:
    config = record.config
    plain = [(key, said(value)) for key, value in config.items() if not isinstance(value, dict)]
    nested = [
        (key if group in ("settings", "options") else f"{group}: {key}", said(value))
        for group, values in config.items()
        if isinstance(values, dict)
        for key, value in values.items()
    ]
    return folded("Configuration", facts([(_name(key), value) for key, value in plain + nested]))


def _split(record: RunRecord) -> Html | None:
    """How many rows are where; which ones is in ``manifest.json``."""
    if not record.manifest:
        return None
    pairs: list[tuple[str, Child]] = []
    for key, value in record.manifest.items():
        if isinstance(value, dict):
            pairs += [(f"{_name(key)}: {site}", _said_rows(rows)) for site, rows in value.items()]
        else:
            pairs.append((_name(key), _said_rows(value)))
    return folded(
        "Split of the data",
        facts(pairs),
        paragraph("Which rows these are is in manifest.json.", class_="note"),
    )


def _reproduction(record: RunRecord) -> Html:
    return section(
        "Run it again",
        tag("pre", tag("code", command(record))),
        paragraph(
            f"With fedbridge {record.config['version']} and the same data (checksum of all rows ",
            tag("code", str(record.config["data_sha256"])[:12]),
            ") this gives the same numbers to the last bit. Options that the task was loaded "
            "with, such as columns or the number of labels, are to be added.",
            class_="note",
        ),
    )


def _name(key: str) -> str:
    return key.replace("_", " ")


def _said_rows(value: object) -> str:
    return f"{len(value):,} rows" if isinstance(value, list) else str(value)
