"""One table for every place: the page, CSV, Markdown, LaTeX and the terminal.

A table is built once, as data. What a reader sees of a number follows from the place: short on the
page, with a column's digits in a document, all digits in a CSV.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Literal, TypeAlias

from fedbridge.base.text import csv_text, one_line
from fedbridge.report.text import (
    MISSING,
    Html,
    Piece,
    capital,
    latex_text,
    markdown_text,
    number,
    tag,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table as TerminalTable

LONG = 40
"""Tables with more rows scroll inside the page instead of pushing the rest of it away."""

Value: TypeAlias = str | float | None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: In documents, files and the terminal.
        kind: Numbers are set to the right; code is what somebody types, such as a name.
        digits: After the point, in documents.
        heading: On the page; None for the title with a capital letter.
        beside: Columns of a CSV that follow, for the numbers beside a cell's own.
        only: Where it is shown, if not everywhere: on the ``page``, or in ``files``.
    """

    title: str
    kind: Literal["text", "number", "code"] = "text"
    digits: int = 1
    heading: str | None = None
    beside: tuple[str, ...] = ()
    only: Literal["page", "files"] | None = None


@dataclass(frozen=True)
class Cell:
    """A cell that is more than its value.

    Attributes:
        value: What it is sorted by, and what a CSV holds.
        text: What a reader sees instead of the value.
        bold: Whether it is the best of its column.
        beside: Numbers that belong to it, such as a spread or the ends of an interval.
        page: What the page shows instead of the text.
    """

    value: Value
    text: str | None = None
    bold: bool = False
    beside: tuple[float | None, ...] = ()
    page: Piece = None


Line: TypeAlias = tuple[Cell | Value, ...]


@dataclass(frozen=True)
class Table:
    """A table as data; the first cell of a row names the row.

    Attributes:
        name: Of its files, its label in LaTeX and its place on the page.
        caption: What it shows, for those who jump from table to table on the page.
        columns: Their titles and kinds.
        rows: Text, numbers, None (a dash, sorted last) or ``Cell``.
        notes: What a reader of a document must know to read it.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    def shown(self, place: Literal["page", "files"]) -> tuple[list[Column], list[list[Cell]]]:
        """The columns and cells that belong on the page, or in documents and files."""
        kept = [k for k, column in enumerate(self.columns) if column.only in (None, place)]
        rows = [[_cell(row[k]) for k in kept] for row in self.rows]
        return [self.columns[k] for k in kept], rows


def _cell(entry: Cell | Value) -> Cell:
    return entry if isinstance(entry, Cell) else Cell(entry)


def _text(cell: Cell, column: Column) -> str:
    """What a document says."""
    if cell.text is not None:
        return cell.text
    if cell.value is None:
        return MISSING
    return cell.value if isinstance(cell.value, str) else f"{cell.value:.{column.digits}f}"


def to_html(table: Table) -> Html:
    """The table as it stands on the page: sortable, with the keyboard too."""
    columns, rows = table.shown("page")
    heads = [
        tag(
            "th",
            tag("button", column.heading or capital(column.title), type="button"),
            scope="col",
            class_=_side(column),
        )
        for column in columns
    ]
    lines = [tag("tr", *map(_html_cell, row, columns, range(len(row)))) for row in rows]
    whole = tag(
        "table",
        tag("caption", tag("span", table.caption)),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *lines),
        class_="sortable",
    )
    scrolled = tag(
        "div",
        whole,
        class_="wide long" if len(rows) > LONG else "wide",
        id=f"table-{table.name}",
        tabindex=0,
        role="region",
        aria_label=table.caption,
    )
    more = tag(
        "button", "›", type="button", class_="onward", aria_label="More columns", hidden=True
    )
    return tag("div", scrolled, more, class_="table")


def _side(column: Column) -> str | None:
    return "n" if column.kind == "number" else None


def _html_cell(cell: Cell, column: Column, place: int) -> Html:
    shown: Piece = cell.text if cell.page is None else cell.page
    if shown is None:
        shown = cell.value if isinstance(cell.value, str) else number(cell.value)
    return tag(
        "td" if place else "th",
        tag("strong", shown) if cell.bold else shown,
        scope=None if place else "row",
        class_=_side(column),
        data_key="" if cell.value is None else cell.value,
    )


def to_csv(table: Table) -> str:
    """One line per row with all digits; numbers beside a cell's own have columns of their own."""
    columns, rows = table.shown("files")
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [csv_text(head) for column in columns for head in (column.title, *column.beside)]
    )
    for row in rows:
        line: list[Value] = []
        for cell, column in zip(row, columns, strict=True):
            own = csv_text(cell.value) if isinstance(cell.value, str) else cell.value
            line += [own, *(cell.beside or [None] * len(column.beside))]
        writer.writerow(line)
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """A table for a document, the notes below it."""
    columns, rows = table.shown("files")
    lines = [
        [markdown_text(column.title) for column in columns],
        ["---:" if column.kind == "number" else "---" for column in columns],
        *_written(rows, columns, markdown_text, "**{}**", "`{}`"),
    ]
    piped = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*piped, "", *(markdown_text(note) + "\n" for note in table.notes)])


def to_latex(table: Table) -> str:
    """A floating table for a paper; needs ``booktabs``."""
    columns, rows = table.shown("files")
    sides = "".join("r" if column.kind == "number" else "l" for column in columns)
    caption = " ".join(latex_text(note) for note in table.notes)
    head = [latex_text(column.title) for column in columns]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            rf"  \begin{{tabular}}{{{sides}}}",
            r"    \toprule",
            _ampersands(head),
            r"    \midrule",
            *map(_ampersands, _written(rows, columns, latex_text, r"\textbf{{{}}}")),
            r"    \bottomrule",
            r"  \end{tabular}",
            *([rf"  \caption{{{caption}}}"] if caption else []),
            rf"  \label{{tab:{table.name}}}",
            r"\end{table}",
            "",
        ]
    )


def to_terminal(table: Table, *, styled: bool = True, titled: bool = False) -> TerminalTable:
    """For ``rich``; what is bold is in stars where there is no style."""
    from rich import table as rich
    from rich.text import Text

    columns, rows = table.shown("files")
    made = rich.Table(title=table.caption if titled else None, title_justify="left")
    for column in columns:
        side: Literal["left", "right"] = "right" if column.kind == "number" else "left"
        made.add_column(Text(one_line(column.title)), justify=side)
    bold = "{}" if styled else "**{}**"
    for row, line in zip(rows, _written(rows, columns, one_line, bold), strict=True):
        looks = ("bold" if cell.bold and styled else "" for cell in row)
        made.add_row(*map(Text, line, looks))
    return made


FORMATS: dict[str, Callable[[Table], str]] = {"csv": to_csv, "md": to_markdown, "tex": to_latex}


def _written(
    rows: Sequence[Sequence[Cell]],
    columns: Sequence[Column],
    escape: Callable[[str], str],
    bold: str,
    code: str = "{}",
) -> list[list[str]]:
    """The texts of all cells for a document."""

    def written(cell: Cell, column: Column) -> str:
        is_code = column.kind == "code" and cell.value is not None
        text = (code if is_code else "{}").format(escape(_text(cell, column)))
        return (bold if cell.bold else "{}").format(text)

    return [[*map(written, row, columns)] for row in rows]


def _ampersands(cells: Sequence[str]) -> str:
    return rf"    {' & '.join(cells)} \\"
