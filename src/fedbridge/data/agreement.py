"""Do the sites mean the same by their columns? Asked before training, answered site by site.

What cannot be right (a column of numbers here and of words there) is an error; what may be right
(a category that one site never saw) is a note.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import pandas as pd

from fedbridge.data.labels import show
from fedbridge.data.summary import EXAMPLES, MAX_NUMBERED_CLASSES, are_whole
from fedbridge.data.tables import numbers
from fedbridge.errors import DataError, DisagreementError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fedbridge.data.summary import ColumnSummary, Kind, TableSummary, TaskKind

    Summaries: TypeAlias = Mapping[str, TableSummary]

LabelForm: TypeAlias = Literal["words", "whole numbers", "values"]
MAX_LEVELS = 100


def common_columns(sites: Summaries) -> list[str]:
    """The columns of all sites, which must be the same; each has brought a file of its own."""
    everywhere = list(dict.fromkeys(c for summary in sites.values() for c in summary.columns))
    lacking = {
        site: [column for column in everywhere if column not in summary.columns]
        for site, summary in sites.items()
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
    sites: Summaries, columns: Sequence[str], categorical: Sequence[str]
) -> dict[str, Kind]:
    """Whether each column holds numbers or categories, which all sites must agree on.

    A column is numeric at a site when most of its values there are numbers; the few that are not
    are then junk and reported as such.
    """
    kinds: dict[str, Kind] = {}
    problems = []
    for column in columns:
        found = {site: summary.columns[column] for site, summary in sites.items()}
        distinct = {here.kind for here in found.values() if here.kind is not None}
        if not distinct:
            raise DataError(
                f"Expected values in column {column!r}, but it is empty at every site: leave it "
                f"out with `columns`."
            )
        if column in categorical:
            distinct = {"categorical"}
        elif len(distinct) > 1:
            problems.append(f"column {column!r}: {_listed(found)}")
        kinds[column] = distinct.pop()
    if problems:
        raise _disagreement(
            problems, "recode them alike, or name the columns that are codes in `categorical`"
        )
    return kinds


def category_levels(
    sites: Summaries, kinds: Mapping[str, Kind], categorical: Sequence[str]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The levels of every categorical column over all sites, and notes on who lacks which."""
    levels: dict[str, tuple[str, ...]] = {}
    notes = []
    for column in (column for column, kind in kinds.items() if kind == "categorical"):
        here = {site: set(summary.columns[column].levels) for site, summary in sites.items()}
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


def label_form(sites: Summaries, label_column: str, kind: TaskKind | None) -> LabelForm:
    """What labels are at all sites: words, whole numbers that stand for classes, or values."""
    listed = {site: summary.labels for site, summary in sites.items()}
    together = pd.concat([numbers(_cells(own)) for own in listed.values()])
    if None in listed.values() and together.notna().all():
        return "values"
    if None not in listed.values() and together.isna().all():
        return "words"
    if together.isna().any():
        raise _mixed_labels(label_column, listed)
    whole = are_whole(together)
    if kind is None and not (whole and together.nunique() <= MAX_NUMBERED_CLASSES):
        return "values"
    return "whole numbers" if whole else "words"


def _listed(found: Mapping[str, ColumnSummary]) -> str:
    words = {"numeric": "numbers", "categorical": "text", None: "no values"}
    parts = []
    for site, here in found.items():
        examples = show((here.levels or here.examples)[:EXAMPLES])
        parts.append(f"{words[here.kind]} at {site!r}" + (f" ({examples})" if examples else ""))
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


def _mixed_labels(
    label_column: str, listed: Mapping[str, tuple[str, ...] | None]
) -> DisagreementError:
    """Labels that are words here and numbers there: nobody can know which word is which number."""
    lines = ""
    for site, own in listed.items():
        cells = _cells(own)
        words, figures = (cells[numbers(cells).isna() == wordy].tolist() for wordy in (True, False))
        parts = [f"text ({show(words)})"] if words else []
        parts += [f"numbers ({show(figures)})"] if figures else []
        lines += f"\n  site {site!r} has {' and '.join(parts) or 'numbers'}"
    return DisagreementError(
        f"Expected labels in column {label_column!r} coded in one way at all sites, but:{lines}\n"
        f"Recode them alike."
    )


def _cells(labels: tuple[str, ...] | None) -> pd.Series:
    return pd.Series(labels or (), dtype=object)


def _disagreement(problems: Iterable[str], advice: str) -> DisagreementError:
    listed = "".join(f"\n  {problem}" for problem in problems)
    return DisagreementError(f"Expected all sites to agree, but:{listed}\n{advice.capitalize()}.")
