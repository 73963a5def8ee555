"""How tables spell numbers: ``1234.5``, or as the options say.

No spelling is guessed: ``1,234`` is a thousand to one writer and a bit more than one to another.
What cannot be read is named together with the options that read it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from fedbridge.base.errors import OptionError
from fedbridge.base.options import check_flag

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

LARGEST = float(np.finfo(np.float32).max)
"""What lies beyond it is infinite in a model."""
DECIMALS = (".", ",")
SPACES = " \u00a0\u2009\u202f"
THOUSANDS = {None: "(?!)", ",": ",", ".": r"\.", " ": f"[{SPACES}]", "_": "_", "'": "['\u2019]"}
"""What may stand between groups of three digits: every kind of space is a space."""
LIKE_A_NUMBER = re.compile(rf"[+-]?[\d.,][\d.,_'’{SPACES}e+-]*%?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Spelling:
    """How numbers are spelled.

    Attributes:
        decimal: What stands before the fraction, ``.`` or ``,``.
        thousands: What stands between groups of three digits: ``,``, ``.``, a space, ``_`` or
            ``'``; ``None`` for nothing.
        percent: Whether ``12%`` is a number, 0.12.
    """

    decimal: str = "."
    thousands: str | None = None
    percent: bool = False

    def __post_init__(self) -> None:
        for name, known in (("decimal", DECIMALS), ("thousands", tuple(THOUSANDS))):
            if getattr(self, name) not in known:
                raise OptionError(
                    f"Expected `{name}` to be one of {' '.join(map(repr, known))}, but got "
                    f"{getattr(self, name)!r}."
                )
        check_flag("percent", self.percent)
        if self.decimal == self.thousands:
            raise OptionError(
                f"Expected `decimal` and `thousands` to differ, but both are {self.decimal!r}."
            )

    @property
    def options(self) -> dict[str, object]:
        """What differs from plain numbers."""
        plain = asdict(PLAIN)
        return {name: value for name, value in asdict(self).items() if value != plain[name]}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        grouped = rf"\d{{1,3}}(?:{THOUSANDS[self.thousands]}\d{{3}})+"
        point, percent = re.escape(self.decimal), r"\s?%?" if self.percent else ""
        return re.compile(
            rf"([+-]?)(?={point}?\d)({grouped}|\d*)(?:{point}(\d*))?(e[+-]?\d+)?({percent})",
            re.IGNORECASE | re.ASCII,
        )

    def plain(self, cell: str) -> str | None:
        """The number of a cell as Python spells it; ``None`` if it is none that a model holds."""
        found = self._pattern.fullmatch(cell)
        if found is None:
            return None
        sign, whole, part, power, percent = found.groups()
        digits = "".join(filter(str.isdigit, whole))
        spelled = f"{sign}{digits or 0}{'' if part is None else f'.{part}'}{power or ''}"
        value = float(spelled) / (100 if percent else 1)
        if not abs(value) <= LARGEST:
            return None
        return repr(value) if percent else spelled


PLAIN = Spelling()
SPELLINGS = sorted(
    (
        Spelling(decimal, thousands, percent)
        for decimal, thousands, percent in product(DECIMALS, THOUSANDS, (False, True))
        if decimal != thousands
    ),
    key=lambda spelling: len(spelling.options),
)


def numbers(cells: Sequence[str]) -> NDArray[np.float64]:
    """Plain numbers of the cells; NaN where there is none that a model can hold."""
    joined = "".join(cells)
    try:
        if "_" in joined or not joined.isascii():  # float() takes more for a number than others do
            raise ValueError
        given = [cell or "nan" for cell in cells] if "" in cells else cells
        values = np.fromiter(map(float, given), np.float64, len(cells))
    except ValueError:
        spelled = {cell: PLAIN.plain(cell) for cell in set(cells)}
        known = {cell: np.nan if own is None else float(own) for cell, own in spelled.items()}
        values = np.array([known[cell] for cell in cells], dtype=np.float64)
    return np.where(np.abs(values) <= LARGEST, values, np.nan)


def looks_numeric(cell: str) -> bool:
    """Whether a cell is a number to somebody, or one that is too large for everybody."""
    return is_too_large(cell) or (
        LIKE_A_NUMBER.fullmatch(cell) is not None and bool(spellings_for([cell]))
    )


def is_too_large(cell: str) -> bool:
    """Whether a cell is a number that no model holds."""
    try:
        return abs(float(cell)) > LARGEST
    except ValueError:
        return False


def spellings_for(cells: Collection[str]) -> list[Spelling]:
    """The formats that read all of these cells with the fewest options."""
    found = [spelling for spelling in SPELLINGS if all(spelling.plain(cell) for cell in cells)]
    return [spelling for spelling in found if len(spelling.options) == len(found[0].options)]


def shown(spellings: Collection[Spelling]) -> str:
    """Options to choose from, for a message."""
    return " or ".join(
        " and ".join(f"`{name}={value!r}`" for name, value in _given(spelling).items())
        for spelling in spellings
    )


def flags(spellings: Collection[Spelling]) -> str:
    """The same as one types them after a command."""
    return " or ".join(
        " ".join(
            f"--{name}" + ("" if value is True else f" {shlex.quote(str(value))}")
            for name, value in _given(spelling).items()
        )
        for spelling in spellings
    )


def _given(spelling: Spelling) -> dict[str, object]:
    return spelling.options or {"decimal": PLAIN.decimal}
