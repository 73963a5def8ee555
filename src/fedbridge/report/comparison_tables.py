"""The tables of a comparison for other programs and for papers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.ranking import rank_comparison
from fedbridge.report.exports import Entry, ExportTable, Number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.comparison import Comparison
    from fedbridge.ranking import Ranking


def comparison_table(comparison: Comparison, notes: Sequence[str] | None = None) -> ExportTable:
    """Methods by settings, mean (std), the best of every column in bold.

    ``notes`` stand in for those of the comparison where these were kept in a file.
    """
    digits = comparison.digits
    rows: list[tuple[Entry, ...]] = [
        (row.method, *(Number(e.mean, e.spread, e.best, digits) for e in row.entries))
        for row in comparison.rows()
    ]
    said = comparison.notes() if notes is None else notes
    spread = "std" if len(comparison.seeds) > 1 else "half of the 95% interval"
    headers = ("method", *comparison.columns)
    return ExportTable("comparison", headers, tuple(rows), tuple(said), spread)


def ranking_table(ranking: Ranking) -> ExportTable:
    """Mean ranks, the best first; those that cannot be told from the best are in bold."""
    first = ranking.entries[0].rank
    rows = [
        (
            entry.method,
            Number(entry.rank, bold=entry.rank - first <= ranking.critical_difference, digits=2),
        )
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
    return ExportTable("ranking", ("method", "mean rank"), tuple(rows), tuple(notes))


def comparison_tables(
    comparison: Comparison, notes: Sequence[str] | None = None
) -> list[ExportTable]:
    """All tables of a comparison: the scores, and the ranking where there is enough to rank."""
    ranking = rank_comparison(comparison)
    tables = [comparison_table(comparison, notes)]
    return tables if ranking is None else [*tables, ranking_table(ranking)]
