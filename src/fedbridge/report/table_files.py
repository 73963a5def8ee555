"""Every table of a run or comparison as a file: CSV, Markdown and LaTeX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.files import write_atomically
from fedbridge.report.comparison_record import COMPARISON_FILE, read_comparison
from fedbridge.report.comparison_tables import comparison_tables
from fedbridge.report.exports import FORMATS
from fedbridge.report.record import read_run
from fedbridge.report.run_tables import run_tables

if TYPE_CHECKING:
    from pathlib import Path


def write_tables(folder: Path, out: Path) -> list[Path]:
    """Write the tables of the run or the comparison in ``folder``, finished or not.

    Returns:
        The files that were written, three for every table.
    """
    if (folder / COMPARISON_FILE).exists():
        record = read_comparison(folder)
        tables = comparison_tables(record.comparison, record.notes)
    else:
        tables = run_tables(read_run(folder))
    files = []
    for table in tables:
        for suffix, text in FORMATS.items():
            files.append(out / f"{table.name}.{suffix}")
            write_atomically(files[-1], text(table))
    return files
