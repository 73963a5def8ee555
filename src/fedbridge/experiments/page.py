"""The files of a reproduction: the page with the table and the figure, and both on their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.base.files import to_json, write_atomically
from fedbridge.report.page import REPORT_FILE, Page, Section, note, paragraph
from fedbridge.report.tables import FORMATS
from fedbridge.report.text import markup

if TYPE_CHECKING:
    from pathlib import Path

    from fedbridge.experiments.reproduction import Reproduction

RESULTS = "results.jsonl"


def write_results(found: Reproduction, out: Path) -> Path:
    """Write everything that a reproduction leaves; returns the page."""
    lines = [to_json(one.to_json()) + "\n" for one in found.finished]
    write_atomically(out / RESULTS, "".join(lines))
    for suffix, written in FORMATS.items():
        write_atomically(out / f"table.{suffix}", written(found.table()))
    page = reproduction_page(found)
    write_atomically(out / REPORT_FILE, page.html())
    return out / REPORT_FILE


def reproduction_page(found: Reproduction) -> Page:
    """The page of a table or figure."""
    return Page(
        f"{found.experiment.title}",
        markup(paragraph(found.notes()[0], class_="verdict")),
        (
            Section(
                "Ours beside the paper's",
                (found.table(), found.gains(), *(note(text) for text in found.notes()[1:])),
            ),
        ),
    )
