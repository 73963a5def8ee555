"""What a data manager would do to the sites' tables first, done without touching a file.

Columns get other names or are left out, labels another spelling, and columns that only name a row
are kept away from the model: it would learn them by heart.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedbridge.base.errors import (
    DisagreementError,
    LabelsDisagreeError,
    OptionError,
    SeveralError,
    nearest,
)
from fedbridge.data.labels import show
from fedbridge.data.tables.cells import NAMELESS, CellTable
from fedbridge.data.tables.schema import are_whole
from fedbridge.data.tables.spelling import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fedbridge.data.tables.schema import Reading, Summaries, Tables

FEWEST = 10
"""In fewer rows, anything may differ in all of them and be in order."""
ACCIDENTS = 3.0
"""So many equal pairs would be expected of whole numbers drawn from a range: where there is none,
the numbers were given out one by one."""
MANY_ROWS = 40
"""In so many rows, whole numbers of any range that all differ are taken for identifiers."""
YES = frozenset({"ja", "j", "yes", "y", "true", "wahr", "oui", "si", "sí", "sim", "positive"})
NO = frozenset({"nein", "n", "no", "false", "falsch", "non", "não", "negative"})


def pairs_of(option: str, given: object) -> dict[str, str]:
    """``old=new,old=new`` as a mapping; a list of such texts and a mapping say the same."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(old): str(new) for old, new in given.items()}
    listed = given.split(",") if isinstance(given, str) else given
    if not isinstance(listed, Iterable):
        listed = [given]
    found: dict[str, str] = {}
    for text in filter(str.strip, map(str, listed)):
        old, equals, new = (part.strip() for part in text.partition("="))
        if not (old and equals and new):
            raise OptionError(
                f"Expected `{option}` as old=new, several separated by commas, but got {text!r}: "
                f"give it as in --{option.replace('_', '-')} OLD=NEW."
            )
        if found.setdefault(old, new) != new:
            raise OptionError(
                f"Expected one new name for {old!r} in `{option}`, but got {found[old]!r} and "
                f"{new!r}: leave one out."
            )
    return found


@dataclass(frozen=True)
class Curation:
    """What is done to the sites' tables before they are compared.

    Attributes:
        site_column: The column that names the site, if somebody says which.
        reading: How the tables are read.
        ids: Columns that name the row.
        dropped: Columns to leave out.
        kept: Columns to learn from although they look like identifiers.
        renamed: New names of columns by their old ones.
        recoded: New spellings of labels by their old ones.
    """

    site_column: str | None
    reading: Reading
    ids: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    recoded: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        learned = (*(self.reading.columns or ()), *self.reading.categorical, *self.kept)
        for option, names in (("id_column", self.ids), ("drop_columns", self.dropped)):
            for name in names:
                if name == self.reading.label_column or name in learned:
                    use = "the label" if name == self.reading.label_column else "learned from"
                    raise OptionError(
                        f"Expected `{option}` to name columns that have no other use, but "
                        f"{name!r} is {use}: leave it out of one of the two."
                    )

    def check_renamed(self, tables: Iterable[CellTable]) -> None:
        """Refuse old names that no site has: they were meant to do something."""
        known = list(dict.fromkeys(name for table in tables for name in table.names))
        _check_columns("rename", self.renamed, known)
        new = list(dict.fromkeys(self.renamed.get(name, name) for name in known))
        for option in ("ids", "dropped", "kept"):
            _check_columns(OPTIONS[option], getattr(self, option), new)

    def apply(self, table: CellTable) -> CellTable:
        """A table as it was read with the names that are meant, and without what is left out."""
        dropped = [name for name in self.dropped if name != self.site_column]
        return rename_columns(table, self.renamed).without(dropped)

    def recode(self, tables: Tables) -> dict[str, CellTable]:
        """Labels in the spelling that they are given, at every site that has them.

        Case does not matter, unless a label is named in several. A site without the column is left
        to those who look for it.
        """
        column = self.reading.label_column
        having = [table for table in tables.values() if column in table.names]
        there = sorted({cell for table in having for cell in table[column]} - {""})
        meant: dict[str, str] = {}
        for old, new in self.recoded.items():
            alike = [cell for cell in there if cell.casefold() == old.casefold()]
            found = [cell for cell in alike if cell == old or cell not in self.recoded]
            if not found and there:
                raise OptionError(
                    f"Expected `label_map` to name labels in column {column!r}, but got {old!r}."
                    f"{nearest(old, there)} Labels: {show(there)}."
                )
            meant |= dict.fromkeys(found, new)
        return {
            site: _recoded(table, column, meant) if meant and column in table.names else table
            for site, table in tables.items()
        }

    def without_identifiers(self, tables: Tables) -> tuple[dict[str, CellTable], list[str]]:
        """The tables without what names rows, and which of these columns nobody had told of."""
        first = next(iter(tables.values()))
        asked = (*self.ids, *self.kept, *self.reading.categorical, self.reading.label_column)
        named = [name for name in first.names if not name.startswith(NAMELESS)]
        free = [name for name in named if name not in asked]
        likely = likely_identifiers(tables, free) if self.reading.columns is None else []
        gone = (*self.ids, *likely, *([self.site_column] if self.site_column else []))
        return {site: table.without(gone) for site, table in tables.items()}, likely


OPTIONS = {"ids": "id_column", "dropped": "drop_columns", "kept": "keep_columns"}
"""What the parts of a curation are called where they are given."""


def _check_columns(option: str, asked: Iterable[str], known: Sequence[str]) -> None:
    for name in asked:
        if name not in known:
            raise OptionError(
                f"Expected `{option}` to name columns of the table, but got {name!r}."
                f"{nearest(name, known)} Columns: {show(known)}."
            )


def rename_columns(table: CellTable, renamed: Mapping[str, str]) -> CellTable:
    """The table with new names for the columns that it has under the old ones."""
    names = tuple(renamed.get(name, name) for name in table.names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(
            f"Expected `rename` to give columns names that no other has, but there would be two "
            f"columns {twice[0]!r}: choose another name."
        )
    return CellTable(names, table.text, table.values, table.rows)


def _recoded(table: CellTable, column: str, recoded: Mapping[str, str]) -> CellTable:
    place = table.names.index(column)
    text, values = table.text.copy(), table.values.copy()
    text[place] = [recoded.get(cell, cell) for cell in table[column]]
    values[place] = numbers(text[place].tolist())
    return CellTable(table.names, text, values, table.rows)


def likely_identifiers(tables: Tables, columns: Sequence[str]) -> list[str]:
    """Columns of numbers that differ in every row, and are whole or in order.

    What may differ by accident is not meant: the ages of eight patients, say. Sites that number
    their rows anew, each from its own first number on, have the same numbers and mean others.
    """
    return [
        column
        for column in columns
        if all(column in table.names for table in tables.values())
        and _name_rows([table.values_of(column) for table in tables.values()])
    ]


def _name_rows(sites: Sequence[NDArray[np.float64]]) -> bool:
    every = np.concatenate(sites)
    n = len(every)
    if np.isnan(every).any() or n < FEWEST:
        return False
    if all((np.diff(own) == 1).all() for own in sites) and are_whole(every):
        return True
    if len(np.unique(every)) < n:
        return False
    if all(_in_order(own) for own in sites):
        return True
    equal_pairs = n * (n - 1) / 2 / (np.ptp(every) + 1)
    return are_whole(every) and bool(n >= MANY_ROWS or equal_pairs >= ACCIDENTS)


def _in_order(values: NDArray[np.float64]) -> bool:
    steps = np.diff(values)
    return bool((steps > 0).all() or (steps < 0).all())


def not_learned(column: str) -> str:
    """How to keep a column away from the model, for a message."""
    named = shlex.quote(column)
    return (
        f"leave it out with --drop-columns {named}, or with --id-column {named} if it names rows "
        f"and predictions should show it"
    )


def identifier_note(columns: Sequence[str]) -> str:
    """What was left out, and how to have it."""
    listed = ", ".join(map(repr, columns))
    what = "a likely identifier" if len(columns) == 1 else "likely identifiers"
    return (
        f"left out as {what}, different in every "
        f"row: {listed} (--keep-columns {columns[0]} learns from it, --id-column {columns[0]} says "
        f"that it is one)"
    )


def ways_out(error: DisagreementError, sites: Summaries) -> str:
    """The options that settle what sites disagree on, as a line to put behind it."""
    leave_out = "or leave a site out with --exclude-sites NAME"
    every = error.errors if isinstance(error, SeveralError) else (error,)
    if any(isinstance(one, LabelsDisagreeError) for one in every):
        example = _label_map([label for own in sites.values() for label in own.labels or ()])
        return f"\nWithout touching the files: --label-map {example}, {leave_out}."
    if len({tuple(sorted(own.columns)) for own in sites.values()}) > 1:
        return (
            f"\nWithout touching the files: --rename OLD=NEW, or --drop-columns NAME, {leave_out}."
        )
    return ""


def _label_map(labels: Sequence[str]) -> str:
    """The map for labels of which some say yes and no; otherwise its form alone."""
    every = sorted({label.casefold() for label in labels})
    words = {label: "1" for label in every if label in YES}
    words |= {label: "0" for label in every if label in NO}
    understood = words and not set(every) - {"0", "1", *words}
    return ",".join(f"{old}={new}" for old, new in words.items()) if understood else "OLD=NEW,..."
