"""The page of a comparison: methods against each other, setting by setting."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from fedbridge.report.charts import DotRow, dot_chart
from fedbridge.report.markup import Html, markup, tag
from fedbridge.report.page import REPORT_FILE, folded, page, paragraph, section, small_test_note
from fedbridge.report.scale import minus
from fedbridge.report.tables import Cell, facts, said, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.comparison import CellResult, Comparison
    from fedbridge.comparison import Entry as TableEntry
    from fedbridge.report.comparison_record import ComparisonRecord
    from fedbridge.report.markup import Child
    from fedbridge.report.tables import Entry


def comparison_page(record: ComparisonRecord) -> str:
    """The whole page of a comparison, finished or not."""
    return page(
        f"Comparison: {record.name}",
        _lead(record.comparison),
        section(
            "Means",
            _means(record),
            *(paragraph(note, class_="note") for note in record.notes),
        ),
        section("By setting", tag("div", *_charts(record), class_="charts")),
        _failures(record.comparison),
        folded("Every run", _runs(record)),
        folded("Configuration", facts(_configuration(record))),
    )


def _lead(comparison: Comparison) -> Html:
    done, planned = len(comparison.finished), len(comparison.cells)
    finished = "" if done == planned else f"Unfinished: {done} of {planned} runs so far. "
    failed = f"{len(comparison.failures)} failed. " if comparison.failures else ""
    tested = [cell.summary["n_test"] for cell in comparison.finished if cell.summary]
    return markup(
        paragraph(_verdict(comparison), class_="verdict"),
        paragraph(
            f"{finished}{failed}{_count(comparison.methods, 'method')} in "
            f"{_count(comparison.settings, 'setting')}, {_count(comparison.seeds, 'seed')}, "
            f"{comparison.rounds} rounds.",
            class_="note",
        ),
        small_test_note(min(tested), "differences may be chance.") if tested else None,
    )


def _verdict(comparison: Comparison) -> str:
    """Who is best, or with several settings, best in how many of them."""
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
    return f"Best{where}: {', '.join(leading)}"


def _means(record: ComparisonRecord) -> Html:
    comparison = record.comparison
    seeds = len(comparison.seeds)
    planned = [seeds] * len(comparison.settings) + [seeds * len(comparison.settings)]
    rows: list[list[Entry]] = [
        [
            row.method,
            *(
                _mean_cell(entry, comparison.digits, partial=entry.count < runs)
                for entry, runs in zip(row.entries, planned, strict=False)
            ),
        ]
        for row in comparison.rows()
    ]
    starred = "" if len(comparison.finished) == len(comparison.cells) else "; * from fewer seeds"
    caption = f"Mean {record.measure} (spread) of every method{starred}"
    return table(caption, ["Method", *comparison.columns], rows)


def _mean_cell(entry: TableEntry, digits: int, *, partial: bool) -> Cell:
    if entry.mean is None:
        return Cell(entry.text(), None)
    shown = minus(entry.text(digits)) + ("*" if partial else "")
    return Cell(tag("strong", shown) if entry.best else shown, entry.mean)


def _charts(record: ComparisonRecord) -> list[Html]:
    comparison = record.comparison
    table_rows = comparison.rows()
    charts = []
    for column, setting in enumerate(comparison.settings):
        rows = []
        for row in table_rows:
            entry, scores = row.entries[column], record.scores(setting, row.method)
            rows.append(DotRow(row.method, scores, entry.mean, entry.spread, entry.best))
        charts.append(dot_chart(f"setting-{column}", setting, rows, x_label=record.measure))
    return charts


def _failures(comparison: Comparison) -> Html | None:
    if not comparison.failures:
        return None
    rows: list[list[Entry]] = [
        [cell.setting, cell.method, cell.seed, cell.error] for cell in comparison.failures
    ]
    columns = ["Setting", "Method", "Seed", "Error"]
    return section("Failed", table("Runs that failed, and why", columns, rows))


def _runs(record: ComparisonRecord) -> Html:
    rows: list[list[Entry]] = [
        [cell.setting, cell.method, cell.seed, _state(cell), cell.score]
        for cell in record.comparison.cells
    ]
    columns = ["Setting", "Method", "Seed", "Run", record.measure.capitalize()]
    return table("All runs of the comparison", columns, rows)


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
        listed = [f"{name} {said(value)}" for name, value in told.items() if value is not None]
        pairs.append((str(task["label"]), ", ".join(listed)))
    return pairs


def _count(items: Sequence[object], name: str) -> str:
    return f"{len(items)} {name}{'' if len(items) == 1 else 's'}"
