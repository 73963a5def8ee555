"""The page of a comparison: methods against each other, setting by setting."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from fedbridge.ranking import rank_comparison
from fedbridge.report.charts.ranks import rank_chart
from fedbridge.report.comparison_charts import (
    curve_charts,
    dial_charts,
    map_chart,
    setting_charts,
)
from fedbridge.report.markup import Html, markup, tag
from fedbridge.report.numbers import counted, minus
from fedbridge.report.page import (
    REPORT_FILE,
    Page,
    Section,
    note,
    paragraph,
    small_test_note,
)
from fedbridge.report.reproduce import comparison_command
from fedbridge.report.tables import Cell, Table, facts, said

if TYPE_CHECKING:
    from fedbridge.comparison import CellResult, Comparison
    from fedbridge.comparison import Entry as TableEntry
    from fedbridge.ranking import Ranking
    from fedbridge.report.comparison_record import ComparisonRecord
    from fedbridge.report.markup import Child
    from fedbridge.report.tables import Entry


def comparison_page(record: ComparisonRecord) -> Page:
    """The whole page of a comparison, finished or not."""
    ranking = rank_comparison(record.comparison)
    return Page(
        f"Comparison: {record.name}",
        _lead(record.comparison, ranking),
        (
            Section("Means", (_means(record), *(note(text) for text in record.notes))),
            _ranking(ranking),
            Section("Turning a dial", tuple(dial_charts(record))),
            _by_setting(record),
            Section("Who wins where", (map_chart(record),)),
            Section("Over the rounds", tuple(curve_charts(record))),
            _failures(record.comparison),
            _reproduction(record),
            Section("Every run", (_runs(record),), folded=True),
            Section("Configuration", (facts(_configuration(record)),), folded=True),
        ),
    )


def _lead(comparison: Comparison, ranking: Ranking | None) -> Html:
    done, planned = len(comparison.finished), len(comparison.cells)
    finished = "" if done == planned else f"Unfinished: {done} of {planned} runs so far. "
    failed = f"{len(comparison.failures)} failed. " if comparison.failures else ""
    tested = [cell.summary["n_test"] for cell in comparison.finished if cell.summary]
    return markup(
        paragraph(_verdict(comparison), class_="verdict"),
        note(
            f"{finished}{failed}{counted(len(comparison.methods), 'method')} in "
            f"{counted(len(comparison.settings), 'setting')}, "
            f"{counted(len(comparison.seeds), 'seed')}, {counted(comparison.rounds, 'round')}."
        ),
        paragraph(_sureness(ranking)) if len(_scored(comparison)) > 1 else None,
        small_test_note(min(tested), "differences may be chance.") if tested else None,
    )


def _verdict(comparison: Comparison) -> str:
    """Who has the best mean, or with several settings, the best in how many of them."""
    settings = len(comparison.settings)
    wins = {
        row.method: sum(entry.best for entry in row.entries[:settings]) for row in comparison.rows()
    }
    most = max(wins.values())
    if not most:
        return "No run is finished yet."
    leading = [method for method in wins if wins[method] == most]
    each = " each" if len(leading) > 1 else ""
    where = "" if settings == 1 else f" in {most} of {settings} settings{each}"
    so_far = " so far" if comparison.open else ""
    return f"Best{so_far}{where}: {', '.join(leading)}"


def _scored(comparison: Comparison) -> set[str]:
    """Methods with a result."""
    return {cell.method for cell in comparison.finished}


def _sureness(ranking: Ranking | None) -> str:
    """Whether the verdict may be chance."""
    if ranking is None:
        return "There are too few runs to tell whether the differences are chance."
    first, *others = ranking.leaders
    if len(others) == len(ranking.entries) - 1:
        return "By their ranks the methods cannot be told apart: the differences may be chance."
    if others:
        return f"{first} has the best mean rank, but cannot be told from {', '.join(others)}."
    return f"{first} has the best mean rank, and the others are behind by more than chance."


def _means(record: ComparisonRecord) -> Table:
    comparison = record.comparison
    seeds = len(comparison.seeds)
    planned = [seeds] * len(comparison.settings) + [seeds * len(comparison.settings)]
    rows: tuple[tuple[Entry, ...], ...] = tuple(
        (
            row.method,
            *(
                _mean_cell(entry, comparison.digits, partial=entry.count < runs)
                for entry, runs in zip(row.entries, planned, strict=False)
            ),
        )
        for row in comparison.rows()
    )
    starred = "" if len(comparison.finished) == len(comparison.cells) else "; * from fewer seeds"
    caption = f"Mean {record.measure} (spread) of every method{starred}"
    return Table("means", caption, ("Method", *comparison.columns), rows)


def _mean_cell(entry: TableEntry, digits: int, *, partial: bool) -> Cell:
    if entry.mean is None:
        return Cell(entry.text(), None)
    shown = minus(entry.text(digits)) + ("*" if partial else "")
    return Cell(tag("strong", shown) if entry.best else shown, entry.mean)


def _by_setting(record: ComparisonRecord) -> Section:
    charts = setting_charts(record)
    seen = note("Diamonds: the best mean of a setting. Small dots: single seeds. Bars: the spread.")
    return Section("By setting", (*charts, seen if any(charts) else None))


def _ranking(ranking: Ranking | None) -> Section | None:
    if ranking is None:
        return None
    left_out = ", ".join(ranking.left_out)
    return Section(
        "Ranking",
        (
            paragraph(ranking.sentence()),
            rank_chart(ranking),
            note(f"Not ranked, because they do not apply everywhere: {left_out}.")
            if left_out
            else None,
        ),
    )


def _failures(comparison: Comparison) -> Section | None:
    if not comparison.failures:
        return None
    rows = tuple((cell.setting, cell.method, cell.seed, cell.error) for cell in comparison.failures)
    columns = ("Setting", "Method", "Seed", "Error")
    return Section("Failed", (Table("failures", "Runs that failed, and why", columns, rows),))


def _reproduction(record: ComparisonRecord) -> Section | None:
    command = comparison_command(record)
    if command is None:
        return None
    return Section("Run it again", (tag("pre", tag("code", command), tabindex=0),))


def _runs(record: ComparisonRecord) -> Table:
    rows = tuple(
        (cell.setting, cell.method, cell.seed, _state(cell), cell.score)
        for cell in record.comparison.cells
    )
    columns = ("Setting", "Method", "Seed", "Run", record.measure.capitalize())
    return Table("runs", "All runs of the comparison", columns, rows)


def _state(cell: CellResult) -> Cell:
    """Where the run stands; a finished one leads to its own page."""
    shown = "failed" if cell.error is not None else "done" if cell.summary else "open"
    if cell.unmet:
        shown = "does not apply"
    if shown != "done" or cell.folder is None:
        return Cell(shown, shown)
    return Cell(tag("a", shown, href=quote(f"{cell.folder}/{REPORT_FILE}")), shown)


def _configuration(record: ComparisonRecord) -> list[tuple[str, Child]]:
    pairs: list[tuple[str, Child]] = [
        ("Seeds", said(list(record.comparison.seeds))),
        ("Rounds", record.comparison.rounds),
        *((name, said(value)) for name, value in record.options.items()),
    ]
    for task in record.tasks:
        told = {"task": task["task"], "target": task["target"], **task["options"]}
        told |= task.get("run", {})
        listed = [f"{name} {said(value)}" for name, value in told.items() if value is not None]
        pairs.append((str(task["label"]), ", ".join(listed)))
    return pairs
