"""The parts of a run's page for those who look closely: events, rounds, configuration, split."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.report.markup import tag
from fedbridge.report.page import Section, note
from fedbridge.report.reproduce import command, is_from_python, python_call
from fedbridge.report.tables import Table, facts, said

if TYPE_CHECKING:
    from fedbridge.report.markup import Child
    from fedbridge.report.page import Part
    from fedbridge.report.record import RunRecord
    from fedbridge.report.tables import Entry

LISTED = 500
"""Tables of rounds show at most so many rows; ``history.jsonl`` has them all."""

MEASURED = {
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


def events(record: RunRecord) -> Section | None:
    """Who was left out and why, and what rounds have to say; nothing when all went well."""
    rows: list[tuple[Entry, ...]] = []
    for line in record.history:
        number = line["round"]
        failures = line.get("failures") or {}
        rows += [(number, str(site), str(why)) for site, why in failures.items()]
        rows += [(number, "", str(text)) for text in line.get("notes") or []]
    notes = (record.summary or {}).get("notes") or []
    if not rows and not notes:
        return None
    return Section(
        "Left out, and notes",
        (
            tag("ul", *(tag("li", str(text)) for text in notes)) if notes else None,
            *_listed(
                "events", "Sites left out and notes by round", ("Round", "Site", "What"), rows
            ),
        ),
    )


def rounds(record: RunRecord) -> Section | None:
    """Every round with what was measured in it."""
    if not record.history:
        return None
    used = [k for k in MEASURED if any(line.get(k) is not None for line in record.history)]
    rows = [(line["round"], *(line.get(name) for name in used)) for line in record.history]
    columns = ("Round", *(MEASURED[name] for name in used))
    return Section(
        "Every round", tuple(_listed("rounds", "Measures by round", columns, rows)), folded=True
    )


def _listed(
    key: str, caption: str, columns: tuple[str, ...], rows: list[tuple[Entry, ...]]
) -> list[Part]:
    if not rows:
        return []
    shown: list[Part] = [Table(key, caption, columns, tuple(rows[-LISTED:]))]
    if len(rows) > LISTED:
        shown.append(note(f"The last {LISTED} of {len(rows)}; history.jsonl has them all."))
    return shown


def configuration(record: RunRecord) -> Section:
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


def split(record: RunRecord) -> Section | None:
    """How many rows are where; which ones is in ``manifest.json``."""
    if not record.manifest:
        return None
    pairs: list[tuple[str, Child]] = []
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


def reproduction(record: RunRecord) -> Section:
    """The command that runs it again, or the call where no command can."""
    by_hand = is_from_python(record)
    given = " The rows or the network came from a Python program." if by_hand else ""
    return Section(
        "Run it again",
        (
            tag(
                "pre", tag("code", python_call(record) if by_hand else command(record)), tabindex=0
            ),
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
