"""Tables as text: one way to read a CSV, to spell "missing" and to turn text into numbers.

Every cell is read as text and interpreted here, so that a message can name the column, the site,
the row and the very characters that were wrong, and so that training and prediction cannot
interpret a cell differently.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fedbridge.base.errors import (
    DataError,
    MissingColumnError,
    NotANumberError,
    OptionError,
    UnreadableError,
    nearest,
)
from fedbridge.base.files import check_memory, read_bytes, readable_size
from fedbridge.data.labels import show
from fedbridge.data.tables.spelling import (
    LARGEST,
    PLAIN,
    Spelling,
    flags,
    is_too_large,
    looks_numeric,
    numbers,
    shown,
    spellings_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    Text: TypeAlias = NDArray[np.object_]
    Which: TypeAlias = NDArray[np.bool_] | NDArray[np.int64]

MISSING = frozenset({"", "na", "n/a", "nan", "<na>", "null", "?"})
LONGEST_MISSING = max(map(len, MISSING))
WHOLE_FLOAT = re.compile(r"[+-]?\d+\.0+")
SEPARATORS = (",", ";", "\t")
OTHER_SEPARATORS = ("|", "^", "~", ":")
ENCODING = "utf-8"
PARQUET = ".parquet"
HEADER_ROWS = 2
NAMELESS = "Unnamed: "
"""How pandas calls a column without a name, such as the index that it writes itself."""
MEMORY_PER_BYTE = 16
"""Bytes of memory that a byte of a CSV takes while its cells are Python's strings."""
MEMORY_PER_CELL = 100
"""The same of a cell of a file that is packed, whose size says little."""


@dataclass(frozen=True, eq=False)
class CellTable:
    """Cells as text and as the numbers they spell, column by column.

    Attributes:
        names: The columns.
        text: ``(columns, rows)``; ``""`` where a value is missing, ``1.0`` as ``1``.
        values: The same as numbers; NaN where there is none.
        rows: What each row is called: its place below the header, from 0.
    """

    names: tuple[str, ...]
    text: Text
    values: NDArray[np.float64]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def __getitem__(self, name: str) -> Text:
        """The text of one column."""
        cells: Text = self.text[self._places[name]]
        return cells

    def take(self, which: Which) -> CellTable:
        """Some of the rows."""
        return CellTable(self.names, self.text[:, which], self.values[:, which], self.rows[which])

    def pick(self, names: Sequence[str]) -> CellTable:
        """Some of the columns."""
        places = [self._places[name] for name in names]
        return CellTable(tuple(names), self.text[places], self.values[places], self.rows)

    def without(self, names: Sequence[str]) -> CellTable:
        """All columns but these."""
        return self.pick([name for name in self.names if name not in names])

    def replaced(self, name: str, cells: Sequence[str], values: NDArray[np.float64]) -> CellTable:
        """The same with other cells, and their numbers, in one column."""
        place, text, own = self._places[name], self.text.copy(), self.values.copy()
        text[place], own[place] = cells, values
        return CellTable(self.names, text, own, self.rows)

    def with_empty(self, names: Iterable[str]) -> CellTable:
        """The same with these columns, empty where there are none."""
        new = [name for name in names if name not in self._places]
        shape = (len(new), len(self))
        text = np.concatenate([self.text, np.full(shape, "", dtype=object)])
        values = np.concatenate([self.values, np.full(shape, np.nan)])
        return CellTable((*self.names, *new), text, values, self.rows)

    def values_of(self, name: str) -> NDArray[np.float64]:
        """The numbers of one column, NaN where there is none."""
        values: NDArray[np.float64] = self.values[self._places[name]]
        return values

    def numbers(
        self,
        names: Sequence[str],
        site: str | None = None,
        otherwise: str = "name the column in `categorical`",
    ) -> NDArray[np.float64]:
        """``(columns, rows)`` of numbers, NaN where missing.

        Anything else is junk: the error names its first cell and what to do about it, or
        ``otherwise`` if no numbers were meant.
        """
        values: NDArray[np.float64] = self.values[[self._places[name] for name in names]]
        missing = np.isnan(values)
        for place in np.flatnonzero(missing.any(axis=1)).tolist():
            junk = missing[place] & (self[names[place]] != "")
            if junk.any():
                raise _junk(names[place], self.pick(names).take(junk), site, otherwise)
        return values


def check_form(delimiter: str | None, encoding: str) -> None:
    """Refuse what cannot stand between cells, and encodings that there are not."""
    one = delimiter is None or (isinstance(delimiter, str) and len(delimiter) == 1)
    if not one or (delimiter is not None and delimiter in '"\r\n'):
        raise OptionError(
            f"Expected `delimiter` to be the one character between cells, but got {delimiter!r}."
        )
    try:
        "".encode(encoding)
    except (LookupError, TypeError, ValueError) as error:
        raise OptionError(
            f"Expected `encoding` to be one that Python knows, such as utf-8, cp1252 or utf-16, "
            f"but got {encoding!r}."
        ) from error


def read_csv(
    path: Path,
    spelling: Spelling = PLAIN,
    delimiter: str | None = None,
    encoding: str = ENCODING,
) -> CellTable:
    """The cells of a CSV; rows that hold nothing are left out but counted."""
    lines = _lines(path, delimiter, encoding)
    names = [name.strip() for name in lines[0]]
    longer = next((row for row, line in enumerate(lines) if len(line) > len(names)), None)
    if longer is not None:
        raise _unreadable(
            path, f"row {longer + 1} has {len(lines[longer])} cells and the header {len(names)}"
        )
    kept = [row for row, line in enumerate(lines) if row and any(line)]
    padding = [""] * len(names)
    columns = list(zip(*(lines[row] + padding[len(lines[row]) :] for row in kept), strict=True))
    found = {place: _column(cells, spelling) for place, cells in enumerate(columns)}
    return _table(names, found, np.array(kept, dtype=np.int64) - 1, repr(str(path)))


def read_parquet(path: Path, spelling: Spelling = PLAIN) -> CellTable:
    """The cells of a Parquet file; numbers are numbers there, and text is read as a CSV's."""
    if find_spec("pyarrow") is None:
        raise UnreadableError(
            f"Expected pyarrow, which reads {path.name!r}, but it is not installed: run pip "
            f'install "fedbridge[parquet]", or save the table as a CSV.'
        )
    import pandas as pd
    from pyarrow import parquet

    try:
        about = parquet.read_metadata(path)
        cells = about.num_rows * about.num_columns
        check_memory(cells * MEMORY_PER_CELL, repr(str(path)), "leave columns out")
        return as_table(pd.read_parquet(path, engine="pyarrow").reset_index(drop=True), spelling)
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError, MemoryError) as error:
        if isinstance(error, DataError):
            raise
        raise UnreadableError(
            f"Expected {str(path)!r} to be a Parquet file, but it cannot be read: {error}."
        ) from error


def as_table(frame: pd.DataFrame, spelling: Spelling = PLAIN) -> CellTable:
    """The cells of a table in memory, of any types: what is no text is a number already."""
    found = {}
    for place in range(frame.shape[1]):
        column = frame.iloc[:, place]
        cells = [
            "" if missing else cell if isinstance(cell, str) else str(cell)
            for cell, missing in zip(column.tolist(), column.isna(), strict=True)
        ]
        words = any(isinstance(cell, str) for cell in column.tolist())
        found[place] = _column(cells, spelling if words else PLAIN)
    return _table(list(map(str, frame.columns)), found, np.arange(len(frame)), "the table")


def _table(
    names: Sequence[str],
    found: dict[int, tuple[list[str], NDArray[np.float64]]],
    rows: NDArray[np.int64],
    where: str,
) -> CellTable:
    """Columns without a name say nothing; a name that stands twice would say two things."""
    named = [place for place, name in enumerate(names) if name]
    twice = [name for name, times in Counter(names).items() if name and times > 1]
    if twice:
        raise DataError(
            f"Expected a name of its own for every column of {where}, but {show(twice)} stands "
            f"there more than once: rename or remove one of them."
        )
    shape = (len(named), len(rows))
    text, values = np.empty(shape, dtype=object), np.empty(shape)
    for place, (cells, own) in enumerate(found[place] for place in named if found):
        text[place], values[place] = cells, own
    return CellTable(tuple(names[place] for place in named), text, values, rows)


def _lines(path: Path, delimiter: str | None, encoding: str) -> list[list[str]]:
    """The cells of every line, the header's first."""
    try:
        check_memory(readable_size(path) * MEMORY_PER_BYTE, repr(str(path)), "leave columns out")
        data = read_bytes(path)
        text = data.decode("utf-8-sig" if encoding == ENCODING else encoding)
        if "\0" in text:
            raise ValueError("it holds characters of code 0, as other encodings and formats do")
        bare = re.sub(r'"[^"]*"', "", text[: text.find("\n") + 1] or text)
        reader = csv.reader(
            StringIO(text, newline=""),
            delimiter=delimiter or max(SEPARATORS, key=bare.count),
            skipinitialspace=True,
            strict=True,
        )
        try:
            lines = list(reader)
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error
        if not any(map(str.strip, lines[0] if lines else ())):
            raise ValueError("its first line is empty")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        advice = "save it as UTF-8, or say which with `encoding`, such as cp1252 or utf-16"
        raise _unreadable(
            path, f"line {line} is in another encoding, so {advice}", encoding
        ) from error
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise _unreadable(path, error, encoding) from error
    return lines


def _unreadable(path: Path, problem: object, encoding: str = ENCODING) -> UnreadableError:
    return UnreadableError(
        f"Expected {str(path)!r} to be a CSV in {encoding.upper()} with a header row, but it "
        f"cannot be read: {problem}."
    )


def _column(cells: Sequence[str], spelling: Spelling) -> tuple[list[str], NDArray[np.float64]]:
    """Trimmed text with every spelling of a missing value as ``""``, and its numbers.

    A number becomes plain text whatever its format; what only looks like a plain number, but has
    another format than the table, is none.
    """
    text = list(map(str.strip, cells))
    if spelling != PLAIN:
        plain = {cell: spelling.plain(cell) for cell in set(text)}
        values = numbers([plain[cell] or "" for cell in text])
        return [plain_cell(plain[cell] or cell) for cell in text], values
    values = numbers(text)
    odd = np.flatnonzero(np.isnan(values) | (values == np.round(values))).tolist()
    spelled = {cell: plain_cell(cell) for cell in {text[row] for row in odd}}
    for row in odd:
        text[row] = spelled[text[row]]
    return text, values


def plain_cell(text: str) -> str:
    """A cell that means the same, spelled in one way: ``1.0`` as ``1``, missing as ``""``."""
    if text.endswith("0") and WHOLE_FLOAT.fullmatch(text):
        text = text[: text.index(".")]
    return "" if len(text) <= LONGEST_MISSING and text.lower() in MISSING else text


def _junk(column: str, table: CellTable, site: str | None, otherwise: str) -> NotANumberError:
    """An error that names the first cell that is no number, and the options that read it."""
    cells = table[column]
    where = "" if site is None else f" at site {site!r}"
    others = {cell for cell in cells if looks_numeric(cell) and not is_too_large(cell)}
    spellings = spellings_for(others) or spellings_for([cells[0]]) if others else []
    advice = "correct it, leave it empty if unknown"
    if spellings:
        examples = dict.fromkeys(spelling.plain(cells[0]) for spelling in spellings)
        written = " or ".join(filter(None, examples))
        advice = f"write {written}, read such numbers with {shown(spellings)}"
        otherwise += f" (on a command line: {flags(spellings)})"
    elif is_too_large(cells[0]):
        advice = f"numbers go up to {LARGEST:.1e}, so {advice}"
    return NotANumberError(
        f"Expected numbers in column {column!r}, but row {spreadsheet_row(table.rows)}{where} has "
        f"{_short(cells[0])} ({len(cells)} such cells; the header is row 1): {advice}, or "
        f"{otherwise}.",
        column,
        shown(spellings) if spellings else "",
    )


def spreadsheet_row(rows: NDArray[np.int64]) -> int:
    """Number of the first of these rows as a spreadsheet shows it: the header is row 1."""
    return int(rows[0]) + HEADER_ROWS


def require_columns(
    names: Sequence[str], needed: Iterable[str], where: str, advice: str = ""
) -> None:
    """Refuse a table without the needed columns, and list all that it has."""
    missing = [column for column in needed if column not in names]
    if missing:
        one = "a column" if len(missing) == 1 else "the columns"
        hint = nearest(missing[0], names) if len(missing) == 1 else ""
        odd = ""
        if len(names) == 1:
            other = next((mark for mark in OTHER_SEPARATORS if mark in names[0]), None)
            hint = f", such as `delimiter = {other!r}`" if other else ""
            odd = f" A comma, semicolon, tab, or what `delimiter` says stands between cells{hint}."
        raise MissingColumnError(
            f"Expected {one} {', '.join(map(repr, missing))} in {where}, but there is none."
            f"{hint} It has: {', '.join(map(repr, names))}{advice and f'; {advice}'}.{odd}"
        )


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}..."
