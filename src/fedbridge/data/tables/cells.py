"""Tables as text: one way to read a CSV, to spell "missing" and to turn text into numbers.

Every cell is read as text and interpreted here, so that a message can name the column, the site,
the row and the very characters that were wrong, and so that training and prediction cannot
interpret a cell differently.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedbridge.base.errors import DataError, nearest
from fedbridge.base.files import readable_size

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MISSING = frozenset({"", "na", "n/a", "nan", "<na>", "null", "?"})
LONGEST_MISSING = max(map(len, MISSING))
WHOLE_FLOAT = re.compile(r"[+-]?\d+\.0+")
SEPARATORS = (",", ";", "\t")
HEADER_ROWS = 2
NAMELESS = "Unnamed: "
"""How pandas calls a column without a name, such as the index that it writes itself."""


def read_csv(path: Path) -> pd.DataFrame:
    """All cells of a CSV as text; the index counts the rows below the header from 0."""
    try:
        readable_size(path)
        with path.open(encoding="utf-8-sig") as file, warnings.catch_warnings():
            # Rows longer than the header would lose their last cells with no more than a warning.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            header = file.readline()
            file.seek(0)
            frame = pd.read_csv(
                file,
                sep=max(SEPARATORS, key=header.count),
                dtype=str,
                keep_default_na=False,
                skip_blank_lines=False,
                index_col=False,
                skipinitialspace=True,
            )
    except (
        OSError,
        UnicodeDecodeError,
        pd.errors.ParserError,
        pd.errors.ParserWarning,
        pd.errors.EmptyDataError,
    ) as error:
        raise DataError(
            f"Expected {str(path)!r} to be a CSV in UTF-8 with a header row, but it cannot be "
            f"read: {error}"
        ) from error
    return frame.loc[~frame.isin(["", None]).all(axis=1)]


def as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """The cells as trimmed text, every spelling of a missing value as ``""``, ``1.0`` as ``1``."""
    return frame.apply(_column_as_text) if len(frame.columns) else frame


def _column_as_text(column: pd.Series) -> pd.Series:
    cells = column.astype(object).where(column.notna(), "")
    return pd.Series([_cell(str(cell)) for cell in cells], column.index, dtype=object)


def _cell(text: str) -> str:
    text = text.strip()
    if text.endswith("0") and WHOLE_FLOAT.fullmatch(text):
        text = text[: text.index(".")]
    return "" if len(text) <= LONGEST_MISSING and text.lower() in MISSING else text


def numbers(column: pd.Series) -> pd.Series:
    """The cells as floats; NaN where they are missing or not a finite number."""
    values = pd.to_numeric(column, errors="coerce").astype(np.float64)
    return values.where(np.isfinite(values))


def checked_numbers(column: pd.Series, site: str | None = None) -> pd.Series:
    """The cells as floats, NaN where missing, or an error that names the first that is junk."""
    values = numbers(column)
    junk = column[values.isna() & (column != "")]
    if len(junk):
        where = "" if site is None else f" at site {site!r}"
        raise DataError(
            f"Expected numbers in column {str(column.name)!r}, but row {spreadsheet_row(junk)}"
            f"{where} has {_short(junk.iloc[0])} ({len(junk)} such cells; the header is row 1): "
            f"correct it, leave it empty if unknown, or name the column in `categorical`."
        )
    return values


def spreadsheet_row(cells: pd.Series) -> int:
    """Row number of the first of these cells as a spreadsheet shows it: the header is row 1."""
    return int(cells.index[0]) + HEADER_ROWS


def require_columns(frame: pd.DataFrame, needed: Iterable[str], where: str) -> None:
    """Refuse a table without the needed columns, and list those it has."""
    has = [str(column) for column in frame.columns]
    for column in needed:
        if column not in has:
            raise DataError(
                f"Expected a column {column!r} in {where}, but there is none."
                f"{nearest(column, has)} It has: {', '.join(map(repr, has))}."
            )


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}..."
