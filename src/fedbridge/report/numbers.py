"""From numbers to text."""

from __future__ import annotations

import math

MISSING = "–"


def number(value: float | None, digits: int = 3) -> str:
    """A number with few significant digits, or a dash where there is none."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 6:
        return minus(f"{value:.{digits - 1}e}")
    if isinstance(value, int) or size >= digits - 1:
        return minus(f"{value:,.0f}")
    return minus(f"{value:.{digits - 1 - size}f}")


def minus(text: str) -> str:
    """The text of a number with a minus sign as wide as a plus."""
    return text.replace("-", "−")


def percent(value: float | None) -> str:
    """A percentage with one digit, or a dash where there is none."""
    return MISSING if value is None else f"{value:.1f}\N{NO-BREAK SPACE}%"


def size(count: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} GB" if count < 1000 else f"{count:,.0f} GB"


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def counted(count: int, name: str) -> str:
    """A number of things: ``1 seed``, ``3 seeds``."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"
