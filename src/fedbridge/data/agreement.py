"""Do the sites mean the same by their columns? Asked before training, answered site by site.

What cannot be right (a column of numbers here and of words there) is an error; what may be right
(a category that one site never saw) is a note.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from fedbridge.data.labels import show
from fedbridge.data.tables import checked_numbers, numbers
from fedbridge.errors import DataError, DisagreementError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd

    Kind: TypeAlias = Literal["numeric", "categorical"]
    Tables: TypeAlias = Mapping[str, pd.DataFrame]

MAX_LEVELS = 100


def common_columns(tables: Tables) -> list[str]:
    """The columns of all sites, which must be the same; each has brought a file of its own."""
    everywhere = list(dict.fromkeys(str(c) for table in tables.values() for c in table.columns))
    lacking = {
        site: [column for column in everywhere if column not in table.columns]
        for site, table in tables.items()
    }
    if any(lacking.values()):
        shared = [c for c in everywhere if not any(c in missing for missing in lacking.values())]
        raise _disagreement(
            (
                f"site {site!r} lacks {show(missing)}"
                for site, missing in lacking.items()
                if missing
            ),
            f"add them, or choose among the columns that all have with `columns`: {show(shared)}",
        )
    return everywhere


def column_kinds(
    tables: Tables, columns: Sequence[str], categorical: Sequence[str]
) -> dict[str, Kind]:
    """Whether each column holds numbers or categories, which all sites must agree on.

    A column is numeric at a site when most of its values there are numbers; the few that are not
    are then junk and reported as such.
    """
    kinds: dict[str, Kind] = {}
    problems = []
    for column in columns:
        found = {site: _kind_at(table[column]) for site, table in tables.items()}
        distinct = {kind for kind in found.values() if kind is not None}
        if not distinct:
            raise DataError(
                f"Expected values in column {column!r}, but it is empty at every site: leave it "
                f"out with `columns`."
            )
        if column in categorical:
            distinct = {"categorical"}
        elif len(distinct) > 1:
            problems.append(f"column {column!r}: {_listed(tables, column, found)}")
        kinds[column] = distinct.pop()
    if problems:
        raise _disagreement(
            problems, "recode them alike, or name the columns that are codes in `categorical`"
        )
    for column, kind in kinds.items():
        if kind == "numeric":
            for site, table in tables.items():
                checked_numbers(table[column], site)
    return kinds


def category_levels(
    tables: Tables, kinds: Mapping[str, Kind], categorical: Sequence[str]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The levels of every categorical column over all sites, and notes on who lacks which."""
    levels: dict[str, tuple[str, ...]] = {}
    notes = []
    for column in (column for column, kind in kinds.items() if kind == "categorical"):
        here = {site: set(table[column].unique()) - {""} for site, table in tables.items()}
        union = sorted(set().union(*here.values()))
        if len(union) > MAX_LEVELS and column not in categorical:
            raise DataError(
                f"Expected at most {MAX_LEVELS} categories in column {column!r}, but it has "
                f"{len(union)} ({show(union)}): leave it out with `columns` if it is an "
                f"identifier or free text, or name it in `categorical` if it is meant."
            )
        levels[column] = tuple(union)
        notes += [
            f"column {column!r}: site {site!r} has no {show(sorted(set(union) - own))}"
            for site, own in here.items()
            if set(union) - own
        ]
        notes += _spelling_notes(column, union)
    return levels, notes


def _kind_at(cells: pd.Series) -> Kind | None:
    present = cells[cells != ""]
    if not len(present):
        return None
    return "numeric" if numbers(present).notna().mean() > 0.5 else "categorical"


def _listed(tables: Tables, column: str, found: Mapping[str, Kind | None]) -> str:
    words = {"numeric": "numbers", "categorical": "text", None: "no values"}
    parts = []
    for site, kind in found.items():
        values = tables[site][column]
        examples = show(values[values != ""].unique()[:3])
        parts.append(f"{words[kind]} at {site!r}" + (f" ({examples})" if examples else ""))
    return ", ".join(parts)


def _spelling_notes(column: str, levels: Sequence[str]) -> list[str]:
    spellings: dict[str, list[str]] = {}
    for level in levels:
        spellings.setdefault(level.casefold(), []).append(level)
    return [
        f"column {column!r}: {show(variants)} differ only in case and count as different categories"
        for variants in spellings.values()
        if len(variants) > 1
    ]


def _disagreement(problems: Iterable[str], advice: str) -> DisagreementError:
    listed = "".join(f"\n  {problem}" for problem in problems)
    return DisagreementError(f"Expected all sites to agree, but:{listed}\n{advice.capitalize()}.")
