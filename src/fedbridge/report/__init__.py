"""One self-contained HTML page per run or comparison, written from the files in its folder.

Everything comes from disk, so that a page can be made of a run that is still going, was killed,
or ran elsewhere. A page is one file without network, fonts or libraries: it can be mailed, kept
with a paper, and opened in ten years.
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

__all__ = ["REPORT_FILE", "ReportError", "write_report"]


def write_report(folder: Path) -> Path:
    """Write ``report.html`` for the run or the comparison in ``folder``, finished or not.

    Returns:
        The file that was written.
    """
    if (folder / COMPARISON_FILE).exists():
        page = comparison_page(read_comparison(folder))
    elif (folder / "config.toml").exists():
        page = run_page(read_run(folder))
    else:
        raise ReportError(
            f"Expected the folder of a run (config.toml) or of a comparison ({COMPARISON_FILE}), "
            f"but {folder} has neither: name the folder that `--out` named."
        )
    write_atomically(folder / REPORT_FILE, page)
    return folder / REPORT_FILE
