"""From values to places on a drawing, and from numbers to text."""

from __future__ import annotations

import math
from dataclasses import dataclass

MISSING = "–"


@dataclass(frozen=True)
class Scale:
    """A straight line from values ``low..high`` to places ``start..end``."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(
        cls,
        values: list[float],
        start: float,
        end: float,
        bounds: tuple[float, float] | None = None,
    ) -> Scale:
        """A scale that holds all values with a little air, but never goes beyond ``bounds``."""
        low, high = min(values), max(values)
        air = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
        low, high = low - air, high + air
        if bounds is not None:
            low, high = max(low, bounds[0]), min(high, bounds[1])
        return cls(low, high, start, end)

    def __call__(self, value: float) -> float:
        """The place of a value, to a tenth of a unit."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int = 5, *, whole: bool = False) -> list[float]:
        """About ``count`` round numbers inside; only whole ones where others make no sense."""
        rough = (self.high - self.low) / count
        unit = 10.0 ** math.floor(math.log10(rough))
        step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
        if whole:
            step = max(1.0, step)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


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


def tick_label(value: float) -> str:
    """A tick as short as it can be said."""
    return "0" if abs(value) < 1e-12 else minus(f"{value:.6g}")


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
