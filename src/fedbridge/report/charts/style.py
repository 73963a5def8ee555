"""Colours, dashes and shapes of charts, and how a chart looks on the page and on paper.

Colours are variables of the page's style sheet (``var(--c0)``), so that one drawing is right in
light, in dark and in print. They are the palette of Okabe and Ito, which people with any kind of
colour vision tell apart; lines differ in their dashes too, and points in their shapes.
"""

from __future__ import annotations

import re
from typing import Any

PALETTE = tuple(f"c{index}" for index in range(6))
INK = "ink"
REST = "rest"

DASHES = {
    "c0": (1, 0),
    "c1": (7, 3),
    "c2": (2, 2),
    "c3": (9, 3, 2, 3),
    "c4": (4, 2),
    "c5": (12, 3),
    INK: (5, 4),
    REST: (1, 0),
}
SHAPES = {
    "c0": "circle",
    "c1": "square",
    "c2": "triangle-up",
    "c3": "diamond",
    "c4": "cross",
    "c5": "triangle-down",
    INK: "stroke",
    REST: "circle",
}
ON_PAPER = {
    "ground": "#ffffff",
    "card": "#ffffff",
    "ink": "#1d2126",
    "soft": "#4a525c",
    "hair": "#e3e3de",
    "rest": "#b9bdc2",
    "c0": "#0072b2",
    "c1": "#d55e00",
    "c2": "#009e73",
    "c3": "#cc79a7",
    "c4": "#56b4e9",
    "c5": "#e69f00",
}
"""The page's variables in the light, for files outside of the page."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
PAPER_FONT = "Helvetica, Arial, sans-serif"


def colour(style: str) -> str:
    """A colour of the style sheet."""
    return f"var(--{style})"


def styles(count: int) -> list[str]:
    """Styles for so many lines: those after the palette's end are all pale."""
    return [PALETTE[k] if k < len(PALETTE) else REST for k in range(count)]


def config() -> dict[str, Any]:
    """What all charts have in common."""
    soft, hair = colour("soft"), colour("hair")
    text = {"labelColor": soft, "titleColor": soft, "labelFontSize": 11, "titleFontSize": 11}
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            **text,
            "titleFontWeight": "normal",
            "gridColor": hair,
            "domain": False,
            "ticks": False,
            "labelPadding": 6,
            "labelOverlap": "greedy",
            "labelFlush": False,
            "titlePadding": 8,
        },
        "legend": {
            **text,
            "labelColor": colour(INK),
            "titleFontWeight": "normal",
            "orient": "bottom",
            "labelLimit": 150,
            "symbolSize": 70,
            "symbolStrokeWidth": 2,
            "columnPadding": 14,
            "rowPadding": 3,
            "offset": 8,
        },
        "text": {"color": colour(INK), "fontSize": 11},
    }


def on_paper(value: Any) -> Any:
    """A chart with its variables replaced by colours, for a file of its own."""
    if isinstance(value, dict):
        return {key: on_paper(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [on_paper(item) for item in value]
    if isinstance(value, str):
        if value == FONT:
            return PAPER_FONT
        found = re.fullmatch(r"var\(--(\w+)\)", value)
        if found and found[1] in ON_PAPER:
            return ON_PAPER[found[1]]
    return value
