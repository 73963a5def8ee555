"""Values as text: numbers as people read them, and names from data that stay plain text.

Names of sites, files and classes come from users' data. In HTML a plain string that enters a piece
is always escaped; only what ``tag`` made is taken as it is. So a site called ``<script>`` cannot be
anything but text, whoever writes the next page. Markdown, LaTeX and CSV have their own escapes.
"""

from __future__ import annotations

import math
import re
from html import escape
from typing import TypeAlias

from fedbridge.base.text import one_line

MISSING = "–"
NOTHING_TO_TEST = (
    "All rows trained and none was left to test: how good the model is can be told by rows that it "
    "has never seen."
)

_MARKDOWN = str.maketrans(
    {character: f"\\{character}" for character in r"\`*_[]|~$#"}
    | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
)
_LATEX: dict[str, str | int | None] = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "`": r"\textasciigrave{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "–": "--",
    "—": "---",
    "±": r"$\pm$",
    "β": r"$\beta$",
    "σ": r"$\sigma$",
}


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


def capital(text: str) -> str:
    """The text with a capital letter; the others stay as they are."""
    return text[:1].upper() + text[1:]


def some(names: list[str], most: int) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def stretches(numbers: list[int], most: int) -> str:
    """Rising numbers as people say them: ``2, 4 to 7``; after so many stretches how many more.

    Example:
        >>> stretches([2, 4, 5, 6, 9, 11], 2)
        '2, 4 to 6 and 2 more'
    """
    ends: list[list[int]] = []
    for number in numbers:
        if ends and number == ends[-1][1] + 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    said = [str(low) if low == high else f"{low} to {high}" for low, high in ends[:most]]
    more = sum(high - low + 1 for low, high in ends[most:])
    return ", ".join(map(minus, said)) + (f" and {more} more" if more else "")


def counted(count: int, name: str) -> str:
    """A number of things: ``1 seed``, ``3 seeds``."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Piece: TypeAlias = str | int | float | None
Attribute: TypeAlias = str | int | float | bool | None

VOID = frozenset({"meta", "link", "br", "input"})


def markup(*children: Piece) -> Html:
    """The children one after the other, escaped unless they are HTML; None is nothing."""
    pieces = (c if isinstance(c, Html) else escape(str(c)) for c in children if c is not None)
    return Html("".join(pieces))


def tag(name: str, /, *children: Piece, **attributes: Attribute) -> Html:
    """An element of text (escaped) and other elements.

    Attributes: ``class_`` is ``class``, ``aria_label`` is ``aria-label``; None leaves one out, True
    writes its bare name.

    Example:
        >>> tag("p", "a < b", class_="note")
        '<p class="note">a &lt; b</p>'
    """
    opened = f"<{name}{''.join(_attribute(key, attributes[key]) for key in attributes)}>"
    return Html(opened if name in VOID else f"{opened}{markup(*children)}</{name}>")


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is, in a line or in a cell of a table."""
    return one_line(text).translate(_MARKDOWN)


def markdown_code(text: str) -> str:
    """A block of code, fenced by more backticks than the code has in a row."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def latex_text(text: str) -> str:
    """Text that LaTeX sets as it is, also at the start of a line of a table.

    There a bracket or a star would belong to the line break before it.
    """
    return one_line(text).translate(str.maketrans(_LATEX))
