"""What others must know of one site's table before they can train together: no row of it.

Columns, whether they hold numbers or categories, which categories and labels there are. Sites
agree on these alone, so a site that is elsewhere can take part without showing its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from fedbridge.base.errors import DataError, OptionError
from fedbridge.base.options import check_choice
from fedbridge.data.tables.cells import NAMELESS, checked_numbers, numbers, require_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    Tables: TypeAlias = Mapping[str, pd.DataFrame]

Kind: TypeAlias = Literal["numeric", "categorical"]
TaskKind: TypeAlias = Literal["classification", "regression"]

MAX_NUMBERED_CLASSES = 20
LARGEST_WHOLE = 2**53
"""Above this, neighbouring whole numbers are the same float and cannot be told apart."""
EXAMPLES = 3


@dataclass(frozen=True)
class Reading:
    """How tables are to be read, the same at every site.

    Attributes:
        label_column: The column to predict.
        columns: The columns to learn from; ``None`` for all others that have a name.
        categorical: Columns of numbers that are codes.
        kind: What is predicted; ``None`` lets the labels tell.
    """

    label_column: str = "label"
    columns: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    kind: TaskKind | None = None

    def __post_init__(self) -> None:
        if self.kind is not None:
            check_choice("kind", self.kind, get_args(TaskKind))
        if self.columns is not None and self.label_column in self.columns:
            raise OptionError(
                f"Expected `columns` to learn from, but {self.label_column!r} is the label: leave "
                f"it out."
            )


def column_names(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Column names, each once, given as a list or as one text separated by commas."""
    listed = columns.split(",") if isinstance(columns, str) else map(str, columns)
    return tuple(name for name in dict.fromkeys(name.strip() for name in listed) if name)


@dataclass(frozen=True)
class ColumnSummary:
    """One column at one site.

    Attributes:
        kind: What it holds; ``None`` when it is empty.
        levels: Its different values in order; numbers are not listed.
        examples: A few of its numbers, for a message on this machine; they go nowhere else.
    """

    kind: Kind | None
    levels: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableSummary:
    """One site's table without its rows.

    Attributes:
        columns: The columns to learn from, in the order of the table.
        labels: The different labels as they are spelled; ``None`` when they are values, of which
            there is no list.
    """

    columns: Mapping[str, ColumnSummary]
    labels: tuple[str, ...] | None


def summarise(table: pd.DataFrame, site: str, reading: Reading) -> TableSummary:
    """All that sites must agree on, from the text of one table.

    Junk is refused here, where its row is known: a word in a column that mostly holds numbers.
    """
    label_column = reading.label_column
    require_columns(table, [label_column, *(reading.columns or ())], f"the table of site {site!r}")
    features = reading.columns or [
        column
        for column in map(str, table.columns)
        if column != label_column and not column.startswith(NAMELESS)
    ]
    return TableSummary(
        {c: _column(table[c], site, coded=c in reading.categorical) for c in features},
        _labels(labelled_rows(table, site, label_column)[label_column], site, reading.kind),
    )


def labelled_rows(table: pd.DataFrame, site: str, label_column: str) -> pd.DataFrame:
    """The rows that have a label, of which every site must have some."""
    labelled = table[table[label_column] != ""]
    if not len(labelled):
        raise DataError(
            f"Expected labelled rows at every site, but {site!r} has nothing in column "
            f"{label_column!r}: label some of its rows or leave it out."
        )
    return labelled


def are_whole(values: pd.Series) -> bool:
    """Whether all of these numbers are whole and can be told apart."""
    return bool(((values == values.round()) & (values.abs() < LARGEST_WHOLE)).all())


def _column(cells: pd.Series, site: str, *, coded: bool) -> ColumnSummary:
    present = cells[cells != ""]
    if not len(present):
        return ColumnSummary(None)
    if coded or numbers(present).notna().mean() <= 0.5:
        return ColumnSummary("categorical", tuple(sorted(present.unique())))
    checked_numbers(cells, site)
    return ColumnSummary("numeric", examples=tuple(present.unique()[:EXAMPLES]))


def _labels(cells: pd.Series, site: str, kind: TaskKind | None) -> tuple[str, ...] | None:
    """The different labels, unless they can only be values."""
    if kind == "regression":
        checked_numbers(cells, site)
        return None
    if kind is None:
        values = numbers(cells)
        classes = are_whole(values) and values.nunique() <= MAX_NUMBERED_CLASSES
        if values.notna().all() and not classes:
            return None
    return tuple(sorted(cells.unique()))
