"""Text from data (names of sites, classes, files) as plain text in Markdown, LaTeX and CSV."""

from __future__ import annotations

import re

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
_FORMULA = re.compile(r"[=@]|[+-](?!\d+(\.\d+)?%?$)")


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


def csv_text(text: str) -> str:
    """Text that a spreadsheet does not take for a formula.

    What could be one gets an apostrophe in front, as spreadsheets themselves write text; signed
    numbers such as ``+90%`` cannot do harm and stay as they are.
    """
    plain = one_line(text)
    return f"'{plain}" if _FORMULA.match(plain) else plain


def one_line(text: str) -> str:
    """The text without line breaks and characters that cannot be seen."""
    return "".join(c if c.isprintable() else " " for c in text).strip()
