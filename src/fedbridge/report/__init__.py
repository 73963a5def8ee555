"""One self-contained HTML page per run or comparison, written from the files in its folder.

Everything comes from disk, so that a page can be made of a run that is still going, was killed,
or ran elsewhere. A page is one file that loads nothing: it can be mailed, kept with a paper, and
opened in ten years.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.files import write_atomically
from fedbridge.report.comparison_page import comparison_page
from fedbridge.report.comparison_record import COMPARISON_FILE, read_comparison
from fedbridge.report.errors import ReportError
from fedbridge.report.page import REPORT_FILE
from fedbridge.report.record import read_run
from fedbridge.report.run_page import run_page

if TYPE_CHECKING:
    from pathlib import Path

    from fedbridge.report.page import Page

__all__ = ["REPORT_FILE", "ReportError", "read_page", "write_report"]


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write ``report.html`` for the run or the comparison in ``folder``, finished or not.

    Args:
        folder: Of the run or the comparison.
        out: Another place for the page than the folder.

    Returns:
        The file that was written.
    """
    file = folder / REPORT_FILE if out is None else out
    write_atomically(file, read_page(folder).html())
    return file


def read_page(folder: Path) -> Page:
    """The page of a folder, with its charts and tables."""
    if (folder / COMPARISON_FILE).exists():
        return comparison_page(read_comparison(folder))
    if (folder / "config.toml").exists():
        return run_page(read_run(folder))
    raise ReportError(
        f"Expected the folder of a run (config.toml) or of a comparison ({COMPARISON_FILE}), "
        f"but {folder} has neither: name the folder that `--out` named."
    )
