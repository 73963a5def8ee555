"""Charts of a page as files of their own, for a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedbridge.files import write_atomically
from fedbridge.report.charts.style import config, on_paper

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fedbridge.report.charts import Chart, Spec
    from fedbridge.report.page import Page

WIDTH, WIDE = 420, 640
PADDING = 10
SCALE = 3
"""Pixels of a PNG per unit of the drawing: sharp in print."""


def save_figures(
    page: Page, folder: Path, progress: Callable[[float, str], object] | None = None
) -> list[Path]:
    """Every chart as SVG and as PNG.

    Args:
        page: What to save.
        folder: Where to; made if it is not there.
        progress: Told the share that is done, and what is next.

    Returns:
        The files that were written.
    """
    # It starts a JavaScript engine, which nothing else needs.
    import vl_convert

    written = []
    charts = page.charts
    for done, chart in enumerate(charts):
        if progress is not None:
            progress(done / len(charts), chart.title)
        svg = vl_convert.vegalite_to_svg(paper_spec(chart))
        for suffix, content in (("svg", svg), ("png", vl_convert.svg_to_png(svg, scale=SCALE))):
            written.append(folder / f"{chart.key}.{suffix}")
            write_atomically(written[-1], content)
    return written


def paper_spec(chart: Chart) -> Spec:
    """A chart on white paper, with everything that it needs inside."""
    spec: dict[str, Any] = on_paper({**chart.alone(), "config": config()})
    spec["config"]["background"] = "white"
    return {**spec, "padding": PADDING, "width": WIDE if chart.wide else WIDTH}
