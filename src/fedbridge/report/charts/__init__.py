"""Charts as Vega-Lite: one description for the page, for a paper's SVG and for its PNG.

A chart is plain data. Names from users' data occur only as values of a column, never as the name
of a field or inside an expression, so nothing that a site is called can become code.
"""

from __future__ import annotations

from fedbridge.report.charts.chart import INK, PALETTE, REST, Chart, Columns, Spec, styles
from fedbridge.report.charts.lines import Series, line_chart

__all__ = [
    "INK",
    "PALETTE",
    "REST",
    "Chart",
    "Columns",
    "Series",
    "Spec",
    "line_chart",
    "styles",
]
