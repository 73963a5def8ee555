"""Tables that a reader can sort, with the keyboard too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fedbridge.report.markup import Child, Html, tag
from fedbridge.report.numbers import MISSING, number

if TYPE_CHECKING:
    from collections.abc import Sequence

LONG = 40
"""Tables with more rows scroll inside the page instead of pushing the rest of it away."""


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and what it is sorted by."""

    shown: Child
    key: str | float | None


Entry: TypeAlias = Cell | str | float | None


@dataclass(frozen=True)
class Table:
    """A sortable table; the first cell of a row is its header.

    Attributes:
        key: Unique on the page.
        caption: What the table shows, for those who jump from table to table.
        columns: Their names.
        rows: Text, numbers (set right, three digits), None (a dash, sorted last) or ``Cell``.
    """

    key: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]

    def html(self) -> Html:
        """The table as it stands on the page."""
        numeric = [self._numeric(k) for k in range(len(self.columns))]
        heads = [
            tag(
                "th", tag("button", name, type="button"), scope="col", class_="n" if right else None
            )
            for name, right in zip(self.columns, numeric, strict=True)
        ]
        lines = [
            tag("tr", *(_cell(entry, k, numeric[k]) for k, entry in enumerate(row)))
            for row in self.rows
        ]
        whole = tag(
            "table",
            tag("caption", self.caption),
            tag("thead", tag("tr", *heads)),
            tag("tbody", *lines),
            class_="sortable",
        )
        style = "wide long" if len(self.rows) > LONG else "wide"
        return tag(
            "div",
            whole,
            class_=style,
            id=f"table-{self.key}",
            tabindex=0,
            role="region",
            aria_label=self.caption,
        )

    def _numeric(self, column: int) -> bool:
        entries = [row[column] for row in self.rows]
        keys = [entry.key if isinstance(entry, Cell) else entry for entry in entries]
        return not any(isinstance(key, str) for key in keys)


def facts(pairs: Sequence[tuple[str, Child]], *, class_: str = "facts") -> Html:
    """Names and values one below the other; what has no value is left out."""
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value))
            for name, value in pairs
            if value not in (None, "")
        ),
        class_=class_,
    )


def said(value: object) -> str:
    """A value of a configuration as text."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _cell(entry: Entry, column: int, right: bool) -> Html:
    cell = entry if isinstance(entry, Cell) else Cell(_shown(entry), entry)
    return tag(
        "td" if column else "th",
        cell.shown,
        scope=None if column else "row",
        class_="n" if right else None,
        data_key="" if cell.key is None else cell.key,
    )


def _shown(entry: str | float | None) -> str:
    if entry is None:
        return MISSING
    return entry if isinstance(entry, str) else number(entry)
