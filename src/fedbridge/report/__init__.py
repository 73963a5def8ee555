"""One self-contained HTML page per run or comparison, and its figures and tables for a paper.

Everything comes from the files in a folder, so that a page can be made of a run that is still
going, was killed, or ran elsewhere. A page is one file that loads nothing: it can be mailed, kept
with a paper, and opened in ten years.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from fedbridge.base.errors import ReportError
from fedbridge.base.files import refuse_overwriting, write_atomically
from fedbridge.federation.loop import Extras, FinishedRun
from fedbridge.methods import is_bound
from fedbridge.report.charts import Chart, Spec, config, on_paper
from fedbridge.report.comparison_page import comparison_page
from fedbridge.report.model_card import write_model_card
from fedbridge.report.page import REPORT_FILE, Page
from fedbridge.report.result_tables import comparison_tables, run_tables
from fedbridge.report.run_page import run_page
from fedbridge.report.tables import FORMATS
from fedbridge.runs.comparison import COMPARISON_FILE, ComparisonRecord, read_comparison
from fedbridge.runs.folder import RunFolder, RunFolderError
from fedbridge.runs.record import (
    RunRecord,
    positive_measures,
    read_run,
    tested_on,
    write_tested,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from fedbridge.data.task import Site

__all__ = [
    "REPORT_FILE",
    "AllResultFiles",
    "ReportError",
    "ResultPages",
    "figure_sheet",
    "keep_outputs",
    "read_page",
    "save_figures",
    "write_model_card",
    "write_report",
    "write_tables",
]

WIDTH, WIDE = 420, 640
PADDING = 10
DRAWING = """
import json, sys, vl_convert
drawn = [vl_convert.vegalite_to_svg(spec) for spec in json.load(sys.stdin.buffer)]
sys.stdout.buffer.write(json.dumps(drawn).encode())
"""
"""In a process of its own: a JavaScript engine has no business in one that may train again."""
SIZE = re.compile(r'\b(?:width|height)="([\d.]+)"')
PART = re.compile(r'(\bid="|url\(#|href="#)')
SCALE = 3
"""Pixels of a PNG per unit of the drawing: sharp in print."""


def write_report(folder: Path, out: Path | None = None, *, unchecked: bool = False) -> Path:
    """Write ``report.html`` for the run or the comparison in ``folder``, finished or not.

    ``out`` is another place for the page; ``unchecked`` opens a run whose files are not as they
    were written.
    """
    file = folder / REPORT_FILE if out is None else out
    refuse_overwriting(file, [folder / COMPARISON_FILE, *RunFolder(folder).own_files()])
    write_atomically(file, read_page(folder, unchecked=unchecked).html())
    return file


def read_page(folder: Path, *, unchecked: bool = False) -> Page:
    """The page of a folder, with its charts and tables."""
    record = _read(folder, unchecked=unchecked)
    return comparison_page(record) if isinstance(record, ComparisonRecord) else run_page(record)


def write_tables(folder: Path, out: Path, *, unchecked: bool = False) -> list[Path]:
    """Write every table of the run or the comparison in ``folder`` as CSV, Markdown and LaTeX."""
    record = _read(folder, unchecked=unchecked)
    if isinstance(record, ComparisonRecord):
        tables = comparison_tables(record.comparison)
    else:
        tables = run_tables(record)
    files = []
    for table in tables:
        for suffix, text in FORMATS.items():
            files.append(out / f"{table.name}.{suffix}")
            write_atomically(files[-1], text(table))
    return files


def _read(folder: Path, *, unchecked: bool) -> RunRecord | ComparisonRecord:
    try:
        if (folder / COMPARISON_FILE).exists():
            return read_comparison(folder, is_bound)
        if (folder / "config.toml").exists():
            RunFolder(folder).verify(unchecked=unchecked)
            return read_run(folder)
    except RunFolderError as error:
        raise ReportError(str(error)) from error
    raise ReportError(
        f"Expected the folder of a run or of a comparison, but {folder} has neither (no "
        f"config.toml and no {COMPARISON_FILE}): name the folder that `--out` named."
    )


def save_figures(
    page: Page, folder: Path, progress: Callable[[float, str], object] | None = None
) -> list[Path]:
    """Every chart as SVG, PNG and PDF; ``progress`` is told the share done, and what is next."""
    # It starts a JavaScript engine, which nothing else needs.
    import vl_convert

    written = []
    charts = page.charts
    for done, chart in enumerate(charts):
        if progress is not None:
            progress(done / len(charts), chart.title)
        svg = vl_convert.vegalite_to_svg(paper_spec(chart))
        drawn: dict[str, str | bytes] = {
            "svg": svg,
            "png": vl_convert.svg_to_png(svg, scale=SCALE),
            "pdf": vl_convert.svg_to_pdf(svg),
        }
        for suffix, content in drawn.items():
            written.append(folder / f"{chart.key}.{suffix}")
            write_atomically(written[-1], content)
    return written


def figure_sheet(charts: Sequence[Chart], columns: int = 3) -> str:
    """Charts side by side as the panels of one SVG."""
    specs = json.dumps([paper_spec(chart) for chart in charts])
    done = subprocess.run(
        [sys.executable, "-c", DRAWING], input=specs.encode(), capture_output=True, check=False
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ReportError(f"Expected the charts to be drawn, but vl-convert-python said {said}.")
    drawn: list[str] = json.loads(done.stdout)
    sizes = [tuple(math.ceil(float(n)) for n in SIZE.findall(svg)[:2]) for svg in drawn]
    lines = [range(k, min(k + columns, len(drawn))) for k in range(0, len(drawn), columns)]
    panels, top, widest = [], 0, 0
    for line in lines:
        left = 0
        for k in line:
            # Names of parts are told apart: one file has them once.
            own = PART.sub(rf"\g<1>p{k}-", drawn[k])
            panels.append(own.replace("<svg ", f'<svg x="{left}" y="{top}" ', 1))
            left += sizes[k][0]
        widest, top = max(widest, left), top + max(sizes[k][1] for k in line)
    space = "http://www.w3.org/2000/svg"
    head = f'<svg xmlns="{space}" width="{widest}" height="{top}" viewBox="0 0 {widest} {top}">'
    return "\n".join([head, *panels, "</svg>", ""])


def paper_spec(chart: Chart) -> Spec:
    """A chart on white paper, with everything that it needs inside."""
    spec: dict[str, Any] = on_paper({**chart.alone(), "config": config()})
    spec["config"]["background"] = "white"
    return {**spec, "padding": PADDING, "width": WIDE if chart.wide else WIDTH}


class ResultPages(Extras):
    """What a finished run gets besides its result when its test rows are elsewhere."""

    def before_result(self, folder: Path, run: FinishedRun, summary: Mapping[str, Any]) -> None:
        """The model card."""
        write_model_card(folder, summary)

    def after_result(self, folder: Path) -> None:
        """The page."""
        write_report(folder, unchecked=True)


class AllResultFiles(ResultPages):
    """The same for a run whose test rows are here."""

    def measures(self, run: FinishedRun) -> Mapping[str, Any]:
        """How the positive of two classes fares, which rows alone can tell."""
        if run.task.n_classes != 2 or not len(run.task.test):
            return {}
        return positive_measures(tested_on(run.outputs, run.task.test), run.task)

    def before_result(self, folder: Path, run: FinishedRun, summary: Mapping[str, Any]) -> None:
        """The outputs on the test rows too."""
        if len(run.task.test):
            keep_outputs(folder, run.outputs, run.task.test)
        super().before_result(folder, run, summary)


def keep_outputs(folder: Path, outputs: Tensor, test: Site) -> None:
    """Keep what a model says of the test rows, if it is finite: measures are made of it."""
    tested = tested_on(outputs, test)
    if tested is not None:
        write_tested(folder, tested)
