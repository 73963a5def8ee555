"""``model-card.md``: what a model is, what it was made of, how good it is, and what it is not for.

Everything that the files of a run know is said; what only its owner can know is marked as open.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedbridge import methods
from fedbridge.base.files import write_atomically
from fedbridge.report.reproduce import again
from fedbridge.report.result_tables import classes_table, measures_table, sites_table
from fedbridge.report.tables import Column, Table, to_markdown
from fedbridge.report.text import NOTHING_TO_TEST, counted, markdown_code, markdown_text, some
from fedbridge.runs.record import RunRecord, read_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


FILE = "model-card.md"
MOST_CLASSES = 30
"""Classes listed with recall and precision; the report has them all."""
BADLY_CALIBRATED = 10.0
FEW_ROWS = 10
TO_DO = "**[TO BE FILLED IN BY THE OWNER]**"
UNKNOWN = (
    "nothing is known of other sites, of later years, or of rows that came about in another way."
)
LIMITS = (
    "Groups of people within the test set were not looked at one by one.",
    (
        "It is the result of a computation, not a medical device or any other approved product: "
        "decisions about people need a review by those who answer for them."
    ),
    (
        "Updates of a model can give away something about the rows behind them; the settings below "
        "say what, if anything, was done against that."
    ),
)
BOUND = (
    "The method is a bound for comparison: it used rows or labels that a federation does not have "
    "in one place."
)
QUESTIONS = (
    ("Licence of the model", "under which terms it may be used and passed on"),
    ("Licences of the data", "what the sites allow, and who agreed to this use"),
    ("Owner and contact", "who answers for the model"),
    ("Intended use", "for what decisions, by whom, on which rows"),
    ("Review", "ethical, legal or regulatory, where it is needed"),
)


def write_model_card(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write the card of a run whose summary is about to be written beside it."""
    record = replace(read_run(folder), summary=dict(summary))
    write_atomically(folder / FILE, model_card(record))


def model_card(record: RunRecord) -> str:
    """The card of a finished run, as Markdown."""
    config = record.config
    sections = {
        "What it is": _what_it_is(record),
        "Data": _data(record),
        "How good it is": _measures(record),
        "Limits of use": [_bullets(_limits(record))],
        "Settings": [_settings(record)],
        "How to make it again": _again(record),
        "Left to the owner": [_bullets(f"{name} ({what}): {TO_DO}" for name, what in QUESTIONS)],
    }
    blocks = [f"# Model card: {_text(config['task'])}, {_text(config['target'])}"]
    for heading, content in sections.items():
        blocks += [f"## {heading}", *content]
    return "\n\n".join(blocks) + "\n"


def _what_it_is(record: RunRecord) -> list[str]:
    config, summary = record.config, _summary(record)
    model = config["model"]
    shape = " x ".join(map(str, model["input_shape"]))
    answer = (
        counted(model["outputs"], "value")
        if record.regression
        else f"one of {model['n_classes']} classes"
    )
    others = len(record.sources) - len(record.absent)
    together = f"in a federation with {counted(others, 'other site')}"
    apart = "" if methods.is_bound(config["method"]) else ", whose rows stay where they are"
    if not record.sources:
        together, apart = "on its own rows alone", ""
    meaning = methods.summary_of(config["method"]).rstrip(".")
    early = ", stopped early" if summary["stopped_early"] else ""
    purpose = (
        f"A model for the site {_text(config['target'])}, trained {together}{apart}. It takes "
        f"samples of {shape} numbers and answers with {answer}."
    )
    facts = [
        f"Network: {_text(model['name'])}, {summary['parameters']:,} parameters in training",
        f"Method: {_text(config['method'])} ({_text(meaning)})",
        f"Rounds: {summary['rounds']}{early}; seed {config['seed']}",
        f"Made with fedbridge {_text(summary['version'])}",
    ]
    facts += [f"Took no part: {_text(name)} ({_text(why)})" for name, why in record.absent.items()]
    if record.said is not None:
        facts.insert(2, f"What it is made of: {_text(record.said)}")
    return [purpose, _bullets(facts)]


def _data(record: RunRecord) -> list[str]:
    summary, manifest = _summary(record), record.manifest
    test = f"Test set: {counted(summary['n_test'], 'row')}"
    if "test_is" in manifest:
        test += f" ({_text(manifest['test_is'])})"
    test = "Test set: none." if record.all_trained else f"{test}; no training saw them."
    blocks = [_table(sites_table(record)), test]
    if manifest.get("unlabelled"):
        blocks.append(f"Rows of the target without labels: {len(manifest['unlabelled']):,}.")
    if manifest.get("origin"):
        blocks.append(f"Origin: {_text(manifest['origin'])}. Which row is where: `manifest.json`.")
    blocks.append(f"Checksum of all rows (SHA-256): `{record.config['data_sha256']}`")
    if summary["notes"]:
        blocks += ["What was done to the data:", _bullets(map(_text, summary["notes"]))]
    return blocks


def _measures(record: RunRecord) -> list[str]:
    if record.all_trained:
        return [NOTHING_TO_TEST]
    blocks = [_table(measures_table(record))]
    if record.evidence is not None:
        blocks.append(f"**{record.evidence.sentence}**")
    found = record.diagnosis
    if found is None:
        blocks.append("The outputs on the test rows were not kept, so some have no interval.")
    elif found.classes is not None and len(found.classes) <= MOST_CLASSES:
        blocks.append(_table(classes_table(record, found)))
    blocks.append("Every round is in `history.jsonl`, and as a picture in `report.html`.")
    return blocks


def _limits(record: RunRecord) -> list[str]:
    """What must not be concluded; the general first, then what this run shows."""
    target = _text(record.config["target"])
    tested = "not tested" if record.all_trained else "tested on rows of that site only"
    return [
        f"It was adapted to {target} and {tested}: {UNKNOWN}",
        *LIMITS,
        *([BOUND] if methods.is_bound(record.config["method"]) else []),
        *_limits_of_classes(record),
        *_limits_of_sites(record),
    ]


def _limits_of_classes(record: RunRecord) -> list[str]:
    found, names = record.diagnosis, record.class_names
    if found is None or found.classes is None or found.calibration is None:
        return []
    limits = []
    few = [names[of.label] for of in found.classes if 0 < of.rows < FEW_ROWS]
    if record.untested:
        limits.append(f"No test row is of {_listed(record.untested)}: nothing is known of them.")
    if few:
        limits.append(f"Fewer than {FEW_ROWS} test rows each are of {_listed(few)}.")
    error = found.calibration.expected_error
    if error >= BADLY_CALIBRATED:
        limits.append(
            f"Its probabilities are off by {error:.0f} points on average: do not take them for "
            f"chances as they are."
        )
    return limits


def _limits_of_sites(record: RunRecord) -> list[str]:
    missed = {site: record.missed(site) for site in [record.config["target"], *record.sources]}
    return [
        f"{_text(site)} was missing in {count} of {counted(len(record.history), 'round')}."
        for site, count in missed.items()
        if count
    ]


def _settings(record: RunRecord) -> str:
    options = {**record.config["settings"], **record.config["options"]}
    rows = tuple((name, str(value)) for name, value in options.items())
    return _table(Table("settings", "Settings", (Column("setting"), Column("value")), rows))


def _again(record: RunRecord) -> list[str]:
    text, by_hand = again(record)
    lead = "With the same data and version this command gives the same model:"
    if by_hand:
        lead = (
            "The rows or the network came from a Python program. With the same ones and the same "
            "version this call gives the same model:"
        )
    return [lead, markdown_code(text)]


def _summary(record: RunRecord) -> dict[str, Any]:
    assert record.summary is not None, "a card is of a finished run"
    return record.summary


def _listed(names: list[str]) -> str:
    return some([*map(_text, names)], MOST_CLASSES)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(table: Table) -> str:
    return to_markdown(table).rstrip()


def _text(value: object) -> str:
    return markdown_text(str(value))
