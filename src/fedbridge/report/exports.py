"""Tables for other programs and for papers: CSV, Markdown, LaTeX with booktabs."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, TypeAlias

from fedbridge.comparison import mean_and_spread
from fedbridge.escaping import csv_text, latex_text, markdown_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Number:
    """An entry ``mean (spread)``.

    Attributes:
        mean: None where there is nothing to show.
        spread: a standard deviation, or half an interval; None where there is none.
        bold: whether it is the best of its column.
        digits: shown after the point; a CSV holds all of them.
    """

    mean: float | None
    spread: float | None = None
    bold: bool = False
    digits: int = 1

    @property
    def text(self) -> str:
        """What a reader sees."""
        return mean_and_spread(self.mean, self.spread, self.digits)


Entry: TypeAlias = str | Number


@dataclass(frozen=True)
class ExportTable:
    """A table as data.

    Attributes:
        name: of its files, and its label in LaTeX.
        headers: one per column.
        rows: text, or numbers.
        notes: what a reader must know to read it.
        spread: what the spread of a number is, for the heading of its column in a CSV.
    """

    name: str
    headers: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()
    spread: str = "std"

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers."""
        return any(isinstance(row[column], Number) for row in self.rows)

    def has_spread(self, column: int) -> bool:
        """Whether some entry of a column has a spread."""
        entries = (row[column] for row in self.rows)
        return any(isinstance(entry, Number) and entry.spread is not None for entry in entries)


def to_csv(table: ExportTable) -> str:
    """One line per row with all digits; a spread has a column of its own."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    spread = [table.has_spread(k) for k in range(len(table.headers))]
    heads: list[str] = []
    for header, wide in zip(table.headers, spread, strict=True):
        heads += [csv_text(header)] + ([csv_text(f"{header} ({table.spread})")] if wide else [])
    writer.writerow(heads)
    for row in table.rows:
        cells: list[str | float | None] = []
        for entry, wide in zip(row, spread, strict=True):
            if isinstance(entry, Number):
                cells += [entry.mean] + ([entry.spread] if wide else [])
            else:
                cells += [csv_text(entry)] + ([None] if wide else [])
        writer.writerow(cells)
    return text.getvalue()


def to_markdown(table: ExportTable) -> str:
    """A table for a document, the notes below it."""
    marks = ["---:" if table.numeric(k) else "---" for k in range(len(table.headers))]
    lines = [
        _pipes([markdown_text(header) for header in table.headers]),
        _pipes(marks),
        *(_pipes(_shown(row, markdown_text, "**{}**")) for row in table.rows),
    ]
    return "\n".join([*lines, "", *(markdown_text(note) + "\n" for note in table.notes)])


def to_latex(table: ExportTable) -> str:
    """A floating table for a paper; needs ``booktabs``."""
    columns = "".join("r" if table.numeric(k) else "l" for k in range(len(table.headers)))
    caption = " ".join(latex_text(note) for note in table.notes)
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            _ampersands([latex_text(header) for header in table.headers]),
            r"    \midrule",
            *(_ampersands(_shown(row, latex_text, r"\textbf{{{}}}")) for row in table.rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            *([rf"  \caption{{{caption}}}"] if caption else []),
            rf"  \label{{tab:{table.name}}}",
            r"\end{table}",
            "",
        ]
    )


FORMATS: dict[str, Callable[[ExportTable], str]] = {
    "csv": to_csv,
    "md": to_markdown,
    "tex": to_latex,
}


def _shown(row: Sequence[Entry], escape: Callable[[str], str], bold: str) -> list[str]:
    shown = []
    for entry in row:
        text = escape(entry.text if isinstance(entry, Number) else entry)
        strong = isinstance(entry, Number) and entry.bold
        shown.append(bold.format(text) if strong else text)
    return shown


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ampersands(cells: Sequence[str]) -> str:
    return rf"    {' & '.join(cells)} \\"
