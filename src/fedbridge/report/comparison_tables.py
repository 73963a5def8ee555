"""The tables of a comparison: scores, and the ranking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.report.tables import Cell, Column, Table
from fedbridge.report.text import minus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.evaluation.ranking import Ranking
    from fedbridge.runs.comparison import Comparison, MeanScore


def comparison_tables(comparison: Comparison, notes: Sequence[str] | None = None) -> list[Table]:
    """All tables of a comparison: the scores, and the ranking where there is enough to rank."""
    ranking = comparison.ranking()
    tables = [comparison_table(comparison, notes)]
    return tables if ranking is None else [*tables, ranking_table(ranking)]


def comparison_table(comparison: Comparison, notes: Sequence[str] | None = None) -> Table:
    """Methods by settings, mean (spread), the best of every column in bold.

    ``notes`` stand in for those of the comparison where these were kept in a file.
    """
    rows = comparison.rows()
    seeds = len(comparison.seeds)
    planned = [seeds] * len(comparison.settings) + [seeds * len(comparison.settings)]
    spread = "std" if seeds > 1 else "half of the 95% interval"
    columns = [
        Column(
            name,
            "number",
            heading=name,
            beside=(f"{name} ({spread})",)
            if any(row.entries[k].spread is not None for row in rows)
            else (),
        )
        for k, name in enumerate(comparison.columns)
    ]
    starred = "" if len(comparison.finished) == len(comparison.cells) else "; * from fewer seeds"
    return Table(
        "comparison",
        f"Mean {comparison.measure} (spread) of every method{starred}",
        (Column("method"), *columns),
        tuple(
            (
                row.method,
                *(
                    _score(entry, comparison.digits, columns[k], partial=entry.count < planned[k])
                    for k, entry in enumerate(row.entries)
                ),
            )
            for row in rows
        ),
        tuple(comparison.notes() if notes is None else notes),
    )


def _score(entry: MeanScore, digits: int, column: Column, *, partial: bool) -> Cell:
    """A score; on the page with a star where it is of fewer seeds than there are to be."""
    text = entry.text(digits)
    star = "*" if partial and entry.mean is not None else ""
    beside = (entry.spread,) if column.beside else ()
    return Cell(entry.mean, text, entry.best, beside, minus(text) + star)


def ranking_table(ranking: Ranking) -> Table:
    """Mean ranks, the best first; those that cannot be told from the best are in bold."""
    first = ranking.entries[0].rank
    rows = [
        (entry.method, Cell(entry.rank, bold=entry.rank - first <= ranking.critical_difference))
        for entry in ranking.entries
    ]
    bold = (
        "In bold: the best mean rank, and those closer to it than the critical difference of "
        f"{ranking.critical_difference:.2f}."
    )
    notes = [ranking.sentence(), bold]
    if ranking.left_out:
        named = ", ".join(ranking.left_out)
        notes.append(f"Not ranked, for they do not apply everywhere: {named}.")
    columns = (Column("method"), Column("mean rank", "number", digits=2))
    return Table("ranking", "Mean ranks of the methods", columns, tuple(rows), tuple(notes))
