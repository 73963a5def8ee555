"""The page of one run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from statistics import stdev
from typing import TYPE_CHECKING

from fedbridge.core.theory import share_off_line
from fedbridge.methods.candidates import ALONE
from fedbridge.report.charts import CHANCE, INK, Chart
from fedbridge.report.charts.maps import Angles, Place
from fedbridge.report.charts.plots import DotRow, Series, dot_chart, line_chart
from fedbridge.report.charts.tested import calibration_chart, confusion_chart, roc_chart
from fedbridge.report.page import (
    Page,
    Part,
    Section,
    code,
    facts,
    map_of_winners,
    note,
    paragraph,
    said,
    small_test_note,
)
from fedbridge.report.reproduce import again
from fedbridge.report.result_tables import (
    candidates_table,
    classes_table,
    measures_table,
    ranked,
    rounds_table,
    sites_table,
)
from fedbridge.report.tables import Cell, Column, Line, Table
from fedbridge.report.text import (
    MISSING,
    NOTHING_TO_TEST,
    Html,
    Piece,
    counted,
    duration,
    markup,
    number,
    percent,
    size,
    some,
    stretches,
    tag,
)
from fedbridge.runs.record import RunRecord, mean

if TYPE_CHECKING:
    from fedbridge.evaluation.diagnostics import OperatingPoint
    from fedbridge.evaluation.intervals import WithInterval

NAMED_CLASSES = 10
"""Classes without test rows that are named one by one."""

SHOWN_SITES = 25
"""The chart of contributions shows at most so many sources; the table has them all."""

LISTED = 500
"""Tables of rounds show at most so many rows; ``history.jsonl`` has them all."""

WEIGHTY, LIGHT = 6, 0.01
"""The chart of weights shows so many candidates, and none that never had more than this."""

STRETCHES = 4
"""Of the rounds that have the same to say, so many stretches are named."""

NO_LOSS_BELOW = (0.0, math.inf)
MODEL, MODEL_TOO = "c0", "c0/1"
"""The style of the model that the run makes, and of another measure of it; no source has it."""

ALL = 100.0
STEPS = 100
"""Thresholds that a reader can choose from, from 0 to 1."""


def run_page(record: RunRecord) -> Page:
    """The whole page of a run, finished or not."""
    config = record.config
    return Page(
        f"{config['task']}: {config['method']} for {config['target']}",
        markup(_verdict(record), _tiles(record)),
        (
            Section("Over the rounds", tuple(_curves(record))),
            _alone_or_joined(record),
            _sites(record),
            _tested(record),
            _events(record),
            _reproduction(record),
            Section("Every round", tuple(_listed(rounds_table(record))), folded=True),
            _configuration(record),
            _split(record),
        ),
    )


def _verdict(record: RunRecord) -> Html:
    config, result = record.config, record.result
    who = f"{config['method']} for {config['target']}"
    if not result:
        return paragraph(f"{who}: no round is finished yet.", class_="verdict")
    if record.all_trained:
        return markup(
            paragraph(f"{who}: not tested", class_="verdict"),
            note(NOTHING_TO_TEST),
            None if record.said is None else paragraph(record.said, class_="note"),
        )
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
        _below_chance(record),
        None if record.said is None else paragraph(record.said, class_="note"),
        _evidence(record),
        _untested(record),
    )


def _below_chance(record: RunRecord) -> Html | None:
    """A warning where knowing nothing is worth more than the model, as shown.

    In a test set of one class, naming it is no chance.
    """
    accuracy, chance = record.result.get("accuracy"), record.chance
    if accuracy is None or chance is None:
        return None
    if not round(accuracy, 1) < round(chance.accuracy, 1) < ALL:
        return None
    return paragraph(
        f"The accuracy is below chance, which is {percent(chance.accuracy)} ({chance.how}).",
        class_="caution",
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
    return paragraph(
        f"No test row is of {some(classes, NAMED_CLASSES)}: how well the model finds "
        f"{'it' if len(classes) == 1 else 'them'} is not known.",
        class_="caution",
    )


def _standing(record: RunRecord) -> str:
    """How far the run is, and so what its numbers are."""
    done, planned = len(record.trained), record.config["rounds"]
    if record.summary is None:
        return f"Unfinished, {done} of {planned} rounds so far: the last round's value"
    early = f"Stopped early after {done} of {planned} rounds. " if done < planned else ""
    return f"{early}Mean of the last rounds"


def _tiles(record: RunRecord) -> Html:
    result, summary = record.result, record.summary or {}
    auc = result.get("auc")
    sent = sum(line.get("bytes_up", 0) + line.get("bytes_down", 0) for line in record.history)
    balanced = result.get("balanced_accuracy")
    last, labels = summary.get("accuracy_last"), record.rows_of(record.config["target"])
    return facts(
        [
            ("Last round", None if last is None else percent(last)),
            ("Balanced accuracy", None if balanced is None else percent(balanced)),
            ("Area under ROC", None if auc is None else number(auc)),
            ("Test loss", None if result.get("loss") is None else number(result["loss"])),
            ("Rounds", f"{len(record.trained)} of {record.config['rounds']}"),
            ("Sources", str(len(record.sources))),
            ("Target's labels", None if labels is None else f"{labels:,}"),
            ("Seed", str(record.config["seed"])),
            ("Over the wire", size(sent) if sent else None),
            ("Time", duration(summary["seconds"]) if "seconds" in summary else None),
        ],
        class_="tiles",
    )


def _curves(record: RunRecord) -> list[Chart | Html | None]:
    warm = "Rounds up to 0 are the warm-up." if len(record.history) > len(record.trained) else ""
    return [
        _accuracy_chart(record, warm),
        line_chart(
            "loss-over-rounds",
            "Loss",
            [
                Series("test", record.curve("loss"), MODEL),
                Series("validation", record.curve("validation_loss"), MODEL_TOO),
            ],
            x_label="round",
            y_label="squared error" if record.regression else "cross-entropy",
            note=warm,
            limits=NO_LOSS_BELOW,
        ),
    ]


def _accuracy_chart(record: RunRecord, warm: str) -> Chart | None:
    points = record.curve("accuracy")
    chance = record.chance
    if chance is None or not any(value is not None for _, value in points):
        return None
    band = tuple(record.interval(value) for _, value in points)
    shaded = "Shaded: 95 % confidence interval of the accuracy. " if any(band) else ""
    guess = f"Chance: {chance.how}, {percent(chance.accuracy)}."
    return line_chart(
        "accuracy-over-rounds",
        "Accuracy",
        [
            Series("chance", tuple((x, chance.accuracy) for x, _ in points), CHANCE),
            Series("balanced", record.curve("balanced_accuracy"), MODEL_TOO),
            Series("accuracy", points, MODEL, band),
        ],
        x_label="round",
        y_label="test accuracy in %",
        note=f"{shaded}{guess} {warm}".strip(),
        limits=(0.0, 100.0),
    )


def _alone_or_joined(record: RunRecord) -> Section:
    """Whether joining was worth it by the target's own labels, and what it chose from."""
    title = "Alone against joined"
    if not record.candidates:
        return Section(title, (_no_evidence(record),))
    explained = note(
        "Held-out loss: on the target's labelled rows, each judged by a replica that never saw it. "
        "The answers of all candidates are added with these weights; what is called earlier starts "
        "from the sources' model of an earlier round, and what is called alone from none."
    )
    parts = (_held_out_chart(record), _weights_chart(record), candidates_table(record), explained)
    return Section(title, parts)


def _no_evidence(record: RunRecord) -> Html | None:
    """Where a run cannot tell what training alone would have given, who can."""
    method = str(record.config["method"])
    if method.startswith(("target-only", ALONE)) or not record.history:
        return None
    return note(
        f"This run does not tell what training alone would have given: {method} tries nothing else "
        f"at the target. ",
        tag("code", "fedbridge advise"),
        " estimates it before a run, auto cross-validates it in every run, and a comparison with "
        "target-only measures it.",
    )


def _held_out_chart(record: RunRecord) -> Chart | None:
    """What all candidates come to, beside what those without the sources come to."""
    judged = [(line["round"], worth) for line in record.trained if (worth := line.get("worth"))]
    if not judged:
        return None
    alone = [(number, worth["alone"]) for number, worth in judged]
    joined = [(number, worth["alone"] - worth["gain"]) for number, worth in judged]
    errors = [worth["error"] for _, worth in judged]
    band = [(y - error, y + error) for (_, y), error in zip(joined, errors, strict=True)]
    chance: tuple[tuple[float, float], ...] = ()
    guess = ""
    if record.n_classes:
        chance = tuple((number, math.log(record.n_classes)) for number, _ in judged)
        guess = f" Chance: the same probability for each of {record.n_classes} classes."
    return line_chart(
        "alone-against-joined",
        "What the target's own labels say",
        [
            Series("chance", chance, CHANCE),
            Series("alone", tuple(alone), INK),
            Series("with the sources", tuple(joined), MODEL, tuple(band)),
        ],
        x_label="round",
        y_label="squared error, held out" if record.regression else "cross-entropy, held out",
        note="What all candidates come to, and what those come to that need no source, by "
        f"cross-validation; smaller is better. Shaded: standard error of the difference.{guess}",
        limits=NO_LOSS_BELOW,
    )


def _weights_chart(record: RunRecord) -> Chart | None:
    """How much every candidate weighs, in the colour of its side."""
    weighted = {line["round"]: line["weights"] for line in record.trained if line.get("weights")}
    shares = {name: [w.get(name) for w in weighted.values()] for name, *_ in record.candidates}
    heavy = [name for name in shares if max((w or 0.0 for w in shares[name]), default=0) >= LIGHT]
    heavy.sort(key=lambda name: -(shares[name][-1] or 0.0))
    drawn = heavy[:WEIGHTY]
    why = "heaviest at the end" if len(heavy) > WEIGHTY else f"that ever weighed {LIGHT} or more"
    few = f" Drawn: the {len(drawn)} {why}, of {len(shares)}; the table has all."
    return line_chart(
        "candidate-weights",
        "Weights of the candidates",
        [
            Series(
                name,
                tuple(zip(weighted, shares[name], strict=True)),
                f"{INK if name.startswith(ALONE) else MODEL}/{number}",
            )
            for number, name in enumerate(drawn)
        ],
        x_label="round",
        y_label="weight",
        note="Blue: with the sources' model. Weights change in the rounds in which the target "
        f"chooses anew.{few if len(drawn) < len(shares) else ''}",
        limits=(0.0, 1.0),
        from_zero=True,
    )


def _sites(record: RunRecord) -> Section:
    """Whom the target trusted, and why."""
    return Section(
        "Whom it trusted",
        (
            _source_chart(
                record,
                "beta",
                "source-weights",
                "Weight of every source",
                "weight β",
                note="How far a source was trusted: 0 is not at all, 1 is all the way.",
                from_zero=True,
            ),
            _source_chart(
                record,
                "d2",
                "noise-and-distances",
                "Noise and distances",
                "squared length",
                Series("target's noise σ²", record.curve("sigma2"), INK),
                note="Estimated squared distances d² of the sources from the target, beside the "
                "target's noise σ². Unbiased estimates may be below zero: no distance was seen.",
            ),
            _contributions(record),
            _map(record),
            sites_table(record),
            note(
                "Cosine: the angle between the source's and the target's update; 1 is the same "
                "direction, 0 a right angle, below 0 against each other."
            ),
        ),
    )


def _source_chart(
    record: RunRecord,
    name: str,
    key: str,
    title: str,
    y_label: str,
    *more: Series,
    note: str,
    from_zero: bool = False,
) -> Chart | None:
    """A line per source, those with most weight in colour; every chart has the same colours."""
    lines = [
        Series(record.sources[index], tuple(record.source_values(name, index)), style)
        for index, style in ranked(record)
    ]
    if not any(line.present() for line in lines):
        return None
    return line_chart(
        key,
        title,
        [*more, *lines],
        x_label="round",
        y_label=y_label,
        note=note,
        from_zero=from_zero,
    )


def _contributions(record: RunRecord) -> Chart | None:
    rows = []
    for index, style in ranked(record):
        weights = [w for _, w in record.source_values("beta", index) if w is not None]
        spread = stdev(weights) if len(weights) > 1 else None
        name = record.sources[index]
        rows.append(DotRow(name, (), mean(list(weights)), spread, style=style))
    rows.sort(key=lambda row: -(row.mean or 0.0))
    more = len(rows) - SHOWN_SITES
    hidden = f" The {more} lightest are in the table only." if more > 0 else ""
    return dot_chart(
        "source-contributions",
        "What every source contributed",
        rows[:SHOWN_SITES],
        x_label="mean weight β over the rounds",
        note=f"Bars: standard deviation over the rounds.{hidden}",
        limits=(0.0, max([1.0, *(row.mean for row in rows if row.mean is not None)])),
        from_zero=True,
    )


def _map(record: RunRecord) -> Chart | Html | None:
    """Where the sources lie on the map of who wins; None where nothing was measured."""
    sigma2 = mean([value for _, value in record.curve("sigma2")])
    places, shares = [], []
    for index, style in ranked(record):
        d2 = record.source_mean("d2", index)
        if d2 is None or sigma2 is None:
            continue
        weight = record.source_mean("beta", index) or 0.0
        places.append(Place(record.sources[index], d2, sigma2, style, weight))
        shares.append(share_off_line(d2, record.source_mean("tau2_d2", index)))
    entries = (record.summary or {}).get("parameters")
    return map_of_winners(
        "Where the sources lie",
        places,
        Angles(mean(shares) if entries else None, entries or 1),
        "your sources lie where the mean of their estimates is.",
    )


def _tested(record: RunRecord) -> Section | None:
    """Measures with intervals, confusion, and for two classes ROC, threshold and calibration."""
    diagnosis = record.diagnosis
    if diagnosis is None:
        return None
    parts: list[Part] = [
        measures_table(record),
        note(
            "Of the model as it was delivered, unless a row says otherwise: its values may differ "
            "from the means of the last rounds. Intervals hold in 95 of 100 such test sets."
        ),
    ]
    names = record.class_names
    if diagnosis.confusion is not None:
        parts.append(confusion_chart(diagnosis.confusion, names))
    panel: Html | None = None
    if diagnosis.roc is not None:
        each = (record.at_threshold(step / STEPS) for step in range(STEPS + 1))
        points = [point for point in each if point is not None]
        parts.append(roc_chart(diagnosis.roc, points))
        panel = _panel(points, names[record.positive])
    if diagnosis.calibration is not None:
        parts.append(calibration_chart(diagnosis.calibration, names[record.positive]))
    parts += [panel, classes_table(record, diagnosis) if diagnosis.classes else None]
    return Section("On the test set", tuple(parts))


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
        data_moves="roc-curve",
    )


def _said(point: OperatingPoint) -> dict[str, str]:
    def told(found: WithInterval | None) -> str:
        if found is None:
            return MISSING
        return f"{percent(found.value)} ({found.low:.0f} to {found.high:.0f})"

    sensitivity, specificity = told(point.sensitivity), told(point.specificity)
    threshold = number(point.threshold, 2) if point.threshold else "0"
    return {
        "threshold": threshold,
        "sensitivity": sensitivity,
        "specificity": specificity,
        "told": f"{threshold}: sensitivity {sensitivity}, specificity {specificity}",
    }


def _events(record: RunRecord) -> Section | None:
    """Who was left out and why, and what rounds have to say; nothing when all went well."""
    seen: dict[tuple[str, str], list[int]] = {}
    for line in record.history:
        failures = line.get("failures") or {}
        found = [(str(site), str(why)) for site, why in failures.items()]
        for event in [*found, *(("", str(text)) for text in line.get("notes") or [])]:
            seen.setdefault(event, []).append(line["round"])
    notes = dict.fromkeys(map(str, (record.summary or {}).get("notes") or []))
    if not seen and not notes:
        return None
    rows: tuple[Line, ...] = tuple(
        (Cell(rounds[0], stretches(rounds, STRETCHES)), *event) for event, rounds in seen.items()
    )
    columns = (Column("rounds"), Column("site"), Column("what"))
    table = Table("events", "Sites left out and notes by round", columns, rows)
    listed = tag("ul", *(tag("li", text) for text in notes)) if notes else None
    return Section("Left out, and notes", (listed, *_listed(table)))


def _listed(table: Table) -> list[Part]:
    """The newest rows of a table; nothing where it has none."""
    if not table.rows:
        return []
    shown: list[Part] = [replace(table, rows=table.rows[-LISTED:])]
    if len(table.rows) > LISTED:
        shown.append(note(f"The last {LISTED} of {len(table.rows)}; history.jsonl has them all."))
    return shown


def _configuration(record: RunRecord) -> Section:
    """What was run, option by option."""
    config = record.config
    plain = [(key, said(value)) for key, value in config.items() if not isinstance(value, dict)]
    nested = [
        (key if group in ("settings", "options") else f"{group}: {key}", said(value))
        for group, values in config.items()
        if isinstance(values, dict)
        for key, value in values.items()
    ]
    listed = facts([(_name(key), value) for key, value in plain + nested])
    return Section("Configuration", (listed,), folded=True)


def _split(record: RunRecord) -> Section | None:
    """How many rows are where; which ones is in ``manifest.json``."""
    if not record.manifest:
        return None
    pairs: list[tuple[str, Piece]] = []
    for key, value in record.manifest.items():
        if isinstance(value, dict):
            pairs += [(f"{_name(key)}: {site}", _said_rows(rows)) for site, rows in value.items()]
        else:
            pairs.append((_name(key), _said_rows(value)))
    return Section(
        "Split of the data",
        (facts(pairs), note("Which rows these are is in manifest.json.")),
        folded=True,
    )


def _reproduction(record: RunRecord) -> Section:
    """The command that runs it again, or the call where no command can."""
    text, by_hand = again(record)
    given = " The rows or the network came from a Python program." if by_hand else ""
    return Section(
        "Run it again",
        (
            code(text),
            note(
                f"With fedbridge {record.config['version']} and the same data (checksum of all "
                f"rows ",
                tag("code", str(record.config["data_sha256"])[:12]),
                f") this gives the same numbers to the last bit.{given}",
            ),
        ),
    )


def _name(key: str) -> str:
    return key.replace("_", " ")


def _said_rows(value: object) -> str:
    return f"{len(value):,} rows" if isinstance(value, list) else str(value)
