"""What a data manager would do to a site's table first, done without touching the file.

Columns get other names or units or are left out, categories and labels another spelling, and
columns that only name a row are kept away from the model: it would learn them by heart.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbridge.base.errors import (
    OptionError,
    nearest,
)
from fedbridge.base.options import check_known, check_number
from fedbridge.data.labels import show
from fedbridge.data.tables.cells import (
    ENCODING,
    NAMELESS,
    PARQUET,
    CellTable,
    check_form,
    plain_cell,
    read_csv,
    read_parquet,
)
from fedbridge.data.tables.schema import are_whole, column_names
from fedbridge.data.tables.spelling import LARGEST, PLAIN, Spelling, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedbridge.data.tables.schema import Reading, Tables

FEWEST = 10
"""In fewer rows, anything may differ in all of them and be in order."""
ACCIDENTS = 3.0
"""So many equal pairs would be expected of whole numbers drawn from a range: where there is none,
the numbers were given out one by one."""
MANY_ROWS = 40
"""In so many rows, whole numbers of any range that all differ are taken for identifiers."""


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
class Unit:
    """Numbers of another unit: ``value * factor + offset`` is what all sites mean."""

    factor: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        check_number("factor", self.factor)
        check_number("offset", self.offset)
        if self.factor == 0:
            raise OptionError("Expected `factor` of a unit other than 0, but got 0.")

    def applied(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers in the unit that all mean; NaN where no model could hold them."""
        with np.errstate(over="ignore"):
            meant = values * self.factor + self.offset
        return np.where(np.abs(meant) <= LARGEST, meant, np.nan)


@dataclass(frozen=True)
class KnownScale:
    """Numbers are standardised by what is known beforehand, rather than by the site's own rows.

    A gap then stands at the mean. So no row changes what another becomes, which differential
    privacy of single rows needs.
    """

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        check_number("mean", self.mean)
        check_number("deviation", self.deviation, above=0)


@dataclass(frozen=True)
class Curation:
    """How one file becomes a table as all sites mean it: on one machine and where a site lives.

    First the file itself, then its columns by their own names, then cells by the agreed names.

    Attributes:
        spelling: How it spells numbers.
        delimiter: What stands between cells; ``None`` for a comma, semicolon or tab.
        encoding: How its characters are stored.
        renamed: New names of columns by their old ones.
        dropped: Columns to leave out.
        ids: Columns that name the row.
        kept: Columns to learn from although they look like identifiers.
        recoded: New spellings of categories by their old ones, by column.
        labels: New spellings of labels by their old ones.
        units: What columns of numbers are multiplied by, and what is added then.
        scales: What columns of numbers are standardised by, in these units; others by their rows.
    """

    spelling: Spelling = PLAIN
    delimiter: str | None = None
    encoding: str = ENCODING
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    recoded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, Unit] = field(default_factory=dict)
    scales: Mapping[str, KnownScale] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_form(self.delimiter, self.encoding)

    @classmethod
    def of(cls, options: Mapping[str, Any], where: str = "") -> Curation:
        """What the options say, those of a site's settings with hyphens as well."""
        given = {name.replace("-", "_"): value for name, value in options.items()}
        check_known(given, KEYS, where or "a site's file")
        dropped, ids, kept = (column_names(given.get(name) or ()) for name in LISTS)
        return cls(
            Spelling(
                given.get("decimal") or PLAIN.decimal,
                given.get("thousands") or None,
                given.get("percent", False),
            ),
            given.get("delimiter") or None,
            given.get("encoding") or ENCODING,
            pairs_of("rename", given.get("rename")),
            dropped,
            ids,
            kept,
            {
                column: pairs_of(f"recode.{column}", own)
                for column, own in _by_column("recode", given.get("recode")).items()
            },
            pairs_of("label_map", given.get("label_map")),
            {
                column: _unit(column, own)
                for column, own in _by_column("units", given.get("units")).items()
            },
            {
                column: _scale(column, own)
                for column, own in _by_column("scales", given.get("scales")).items()
            },
        )

    def read(self, file: Path) -> CellTable:
        """The cells of a file."""
        if file.suffix.lower() == PARQUET:
            return read_parquet(file, self.spelling)
        return read_csv(file, self.spelling, self.delimiter, self.encoding)

    def check(self, tables: Iterable[CellTable], reading: Reading) -> None:
        """Refuse what none of the tables, as they were read, has: it was meant to do something."""
        self._check_uses(reading)
        read = list(tables)
        known = list(dict.fromkeys(name for table in read for name in table.names))
        _check_columns("rename", self.renamed, known)
        new = list(dict.fromkeys(self.renamed.get(name, name) for name in known))
        for option, asked in (
            *(("drop_columns", self.dropped), ("id_column", self.ids)),
            *(("keep_columns", self.kept), ("recode", self.recoded), ("units", self.units)),
            ("scales", self.scales),
        ):
            _check_columns(option, asked, new)
        named = [rename_columns(table, self.renamed) for table in read]
        maps = {("recode", column): own for column, own in self.recoded.items()}
        for (option, column), pairs in (
            *maps.items(),
            (("label_map", reading.label_column), self.labels),
        ):
            cells = [table[column] for table in named if column in table.names]
            there = sorted({cell for own in cells for cell in own} - {""})
            what = "labels" if option == "label_map" else "categories"
            for old in pairs:
                if there and not _meant(old, pairs, there):
                    raise OptionError(
                        f"Expected `{option}` to name {what} in column {column!r}, but got "
                        f"{old!r}.{nearest(old, there)} {what.capitalize()}: {show(there)}."
                    )

    def _check_uses(self, reading: Reading) -> None:
        learned = (*(reading.columns or ()), *reading.categorical, *self.kept)
        for option, names in (("id_column", self.ids), ("drop_columns", self.dropped)):
            for name in names:
                if name == reading.label_column or name in learned:
                    use = "the label" if name == reading.label_column else "learned from"
                    raise OptionError(
                        f"Expected `{option}` to name columns that have no other use, but "
                        f"{name!r} is {use}: leave it out of one of the two."
                    )

    def apply(self, table: CellTable, label_column: str | None = None) -> CellTable:
        """A table as it was read with the names, categories and units that are meant."""
        table = rename_columns(table, self.renamed).without(self.dropped)
        labels = {label_column: self.labels} if label_column is not None else {}
        for column, pairs in (*self.recoded.items(), *labels.items()):
            if pairs and column in table.names:
                table = _recoded(table, column, pairs)
        for column, unit in self.units.items():
            if column in table.names:
                values = unit.applied(table.values_of(column))
                table = table.replaced(column, _spelled(table[column], values), values)
        return table

    def to_record(self) -> dict[str, Any]:
        """What a later table needs to be read alike, ready for JSON; nothing of what is usual."""
        every = {
            "numbers": self.spelling.options,
            "delimiter": self.delimiter,
            "encoding": "" if self.encoding == ENCODING else self.encoding,
            "renamed": dict(self.renamed),
            "dropped": self.dropped,
            "id_columns": self.ids,
            "recoded": {column: dict(pairs) for column, pairs in self.recoded.items()},
            "units": {column: asdict(unit) for column, unit in self.units.items()},
        }
        return {name: value for name, value in every.items() if value}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Curation:
        """Read what :meth:`to_record` wrote, beside whatever else."""
        return cls(
            Spelling(**record.get("numbers", {})),
            record.get("delimiter"),
            record.get("encoding", ENCODING),
            pairs_of("renamed", record.get("renamed")),
            tuple(map(str, record.get("dropped", ()))),
            tuple(map(str, record.get("id_columns", ()))),
            recoded={c: pairs_of(c, own) for c, own in record.get("recoded", {}).items()},
            units={str(c): Unit(**own) for c, own in record.get("units", {}).items()},
        )


UNCHANGED = Curation()
FORM = ("encoding", "delimiter", "decimal", "thousands", "percent")
"""What is said of a file as a whole."""
LISTS = ("drop_columns", "id_column", "keep_columns")
PAIRS = ("rename", "label_map", "recode", "units", "scales")
KEYS = (*FORM, *PAIRS, *LISTS)
"""What may be said of a file, by the names of the options."""


def merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of all files and of one of them, which wins."""
    both = {**common, **own}
    for name in LISTS:
        both[name] = [*column_names(common.get(name) or ()), *column_names(own.get(name) or ())]
    for name in PAIRS:
        read = pairs_of if name in ("rename", "label_map") else _by_column
        both[name] = {**read(name, common.get(name)), **read(name, own.get(name))}
    return both


def _by_column(option: str, given: object) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(
            f"Expected `{option}` by column, as in `{option}.COLUMN` of a site's settings, but got "
            f"{given!r}."
        )
    return {str(column): own for column, own in given.items()}


def _unit(column: str, given: object) -> Unit:
    """A unit as factor and offset, or as a factor alone."""
    if isinstance(given, Unit):
        return given
    if not isinstance(given, Mapping):
        return Unit(check_number(f"units.{column}", given))
    check_known(given, ("factor", "offset"), f"the unit of column {column!r}")
    return Unit(**given)


def _scale(column: str, given: object) -> KnownScale:
    """A scale as mean and deviation; both are needed."""
    if isinstance(given, KnownScale):
        return given
    if not isinstance(given, Mapping) or set(given) != {"mean", "deviation"}:
        raise OptionError(
            f"Expected `scales.{column}.mean` and `scales.{column}.deviation`, but got {given!r}: "
            f"give both, in the unit that was agreed, and nothing else."
        )
    return KnownScale(**given)


def without_identifiers(
    tables: Tables, reading: Reading, curations: Mapping[str, Curation]
) -> tuple[dict[str, CellTable], list[str]]:
    """The tables without what names rows, and which of these columns nobody had told of."""
    told = {name for own in curations.values() for name in (*own.ids, *own.kept)}
    asked = {*told, *reading.categorical, *reading.impute, reading.label_column}
    every = dict.fromkeys(name for table in tables.values() for name in table.names)
    free = [name for name in every if name not in asked and not name.startswith(NAMELESS)]
    likely = likely_identifiers(tables, free) if reading.columns is None else []
    left = {site: table.without((*curations[site].ids, *likely)) for site, table in tables.items()}
    return left, likely


def _check_columns(option: str, asked: Iterable[str], known: Sequence[str]) -> None:
    for name in asked:
        if name not in known:
            raise OptionError(
                f"Expected `{option}` to name columns of the table, but got {name!r}."
                f"{nearest(name, known)} Columns: {', '.join(map(repr, known))}."
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


def _meant(old: str, pairs: Mapping[str, str], there: Iterable[str]) -> list[str]:
    """The spellings that an old one stands for: case does not matter, unless several are named."""
    plain = plain_cell(old)
    alike = (cell for cell in there if cell.casefold() == plain.casefold())
    return [cell for cell in alike if cell == plain or cell not in pairs]


def _recoded(table: CellTable, column: str, pairs: Mapping[str, str]) -> CellTable:
    there = sorted(set(table[column]) - {""})
    meant = {
        cell: plain_cell(new) for old, new in pairs.items() for cell in _meant(old, pairs, there)
    }
    text = [meant.get(cell, cell) for cell in table[column]]
    return table.replaced(column, text, numbers(text))


def _spelled(cells: Iterable[str], values: NDArray[np.float64]) -> list[str]:
    """Cells with these numbers in the place of their own; what is none stays as it is."""
    return [
        cell if np.isnan(value) else plain_cell(repr(value))
        for cell, value in zip(cells, values.tolist(), strict=True)
    ]


def likely_identifiers(tables: Tables, columns: Sequence[str]) -> list[str]:
    """Columns of numbers that differ in every row, and are whole or in order.

    What may differ by accident is not meant: the ages of eight patients, say. Sites that number
    their rows anew, each from its own first number on, have the same numbers and mean others. Only
    the sites that have a column are asked.
    """
    return [
        column
        for column in columns
        if _name_rows([t.values_of(column) for t in tables.values() if column in t.names])
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
    listed, first = ", ".join(map(repr, columns)), shlex.quote(columns[0])
    what = "a likely identifier" if len(columns) == 1 else "likely identifiers"
    return (
        f"left out as {what}, different in every "
        f"row: {listed} (--keep-columns {first} learns from it, --id-column {first} says that it "
        f"is one)"
    )
