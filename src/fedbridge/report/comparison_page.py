"""The page of a comparison: methods against each other, setting by setting."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fedbridge.report.charts import INK, PALETTE, REST, Chart
from fedbridge.report.charts.maps import Angles, Place
from fedbridge.report.charts.plots import DotRow, Series, dot_chart, line_chart, rank_chart
from fedbridge.report.page import (
    REPORT_FILE,
    Page,
    Section,
    code,
    facts,
    map_of_winners,
    note,
    paragraph,
    said,
    small_test_note,
)
from fedbridge.report.reproduce import comparison_command
from fedbridge.report.result_tables import comparison_table
from fedbridge.report.tables import Cell, Column, Table
from fedbridge.report.text import Html, Piece, counted, markup, tag
from fedbridge.runs.record import mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.evaluation.ranking import Ranking
    from fedbridge.runs.comparison import CellResult, Comparison, ComparisonRecord

ALONE = "target-only"
LEAST_VALUES = 3
"""A curve over a dial needs so many of its values."""
RUN_COLUMNS = (Column("setting"), Column("method"), Column("seed", "number"))


def comparison_page(record: ComparisonRecord) -> Page:
    """The whole page of a comparison, finished or not."""
    ranking, command = record.comparison.ranking(), comparison_command(record)
    return Page(
        f"Comparison: {record.name}",
        _lead(record.comparison, ranking),
        (
            Section(
                "Means",
                (comparison_table(record.comparison), *(note(text) for text in record.notes)),
            ),
            _ranking(ranking),
            Section("Turning a dial", tuple(_dial_charts(record))),
            _by_setting(record.comparison),
            Section("Who wins where", (_map_chart(record),)),
            Section("Over the rounds", tuple(_curve_charts(record))),
            _failures(record.comparison),
            Section("Run it again", (None if command is None else code(command),)),
            Section("Every run", (_runs(record.comparison),), folded=True),
            Section("Configuration", (facts(_configuration(record)),), folded=True),
        ),
    )


def _lead(comparison: Comparison, ranking: Ranking | None) -> Html:
    done, planned = len(comparison.finished), len(comparison.cells)
    finished = "" if done == planned else f"Unfinished: {done} of {planned} runs so far. "
    failed = f"{len(comparison.failures)} failed. " if comparison.failures else ""
    tested = [cell.summary["n_test"] for cell in comparison.finished if cell.summary]
    scored = {cell.method for cell in comparison.finished}
    return markup(
        paragraph(_verdict(comparison), class_="verdict"),
        note(
            f"{finished}{failed}{counted(len(comparison.methods), 'method')} in "
            f"{counted(len(comparison.settings), 'setting')}, "
            f"{counted(len(comparison.seeds), 'seed')}, {counted(comparison.rounds, 'round')}."
        ),
        paragraph(_sureness(ranking)) if len(scored) > 1 else None,
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


def _by_setting(comparison: Comparison) -> Section:
    """Dots per method, a chart per setting."""
    charts, every = [], comparison.rows()
    for column, setting in enumerate(comparison.settings):
        rows = []
        for row in every:
            entry, scores = row.entries[column], comparison.scores(setting, row.method)
            rows.append(DotRow(row.method, scores, entry.mean, entry.spread, entry.best))
        charts.append(dot_chart(f"setting-{column}", setting, rows, x_label=comparison.measure))
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
    columns = (*RUN_COLUMNS, Column("error"))
    return Section("Failed", (Table("failures", "Runs that failed, and why", columns, rows),))


def _runs(comparison: Comparison) -> Table:
    rows = tuple(
        (cell.setting, cell.method, cell.seed, _state(cell), cell.score)
        for cell in comparison.cells
    )
    columns = (*RUN_COLUMNS, Column("run"), Column(comparison.measure, "number"))
    return Table("runs", "All runs of the comparison", columns, rows)


def _state(cell: CellResult) -> Cell:
    """Where the run stands; a finished one leads to its own page."""
    shown = "failed" if cell.error is not None else "done" if cell.summary else "open"
    if cell.unmet:
        shown = "does not apply"
    if shown != "done" or cell.folder is None:
        return Cell(shown)
    return Cell(shown, page=tag("a", shown, href=quote(f"{cell.folder}/{REPORT_FILE}")))


def _configuration(record: ComparisonRecord) -> list[tuple[str, Piece]]:
    pairs: list[tuple[str, Piece]] = [
        ("Seeds", said(list(record.comparison.seeds))),
        ("Rounds", record.comparison.rounds),
        *((name, said(value)) for name, value in record.options.items()),
    ]
    for variant in record.comparison.variants:
        if variant.label is not None:
            pairs.append((variant.label, replace(variant, label=None).name))
    for task in record.tasks:
        told = {"task": task["task"], "target": task["target"], **task["options"]}
        told |= task.get("run", {})
        listed = [f"{name} {said(value)}" for name, value in told.items() if value is not None]
        pairs.append((str(task["label"]), ", ".join(listed)))
    return pairs


def _curve_charts(record: ComparisonRecord) -> list[Chart | None]:
    """The mean over seeds of every method over the rounds, a chart per setting."""
    looks, measure = _looks_of_methods(record), record.comparison.measure
    charts = []
    for column, setting in enumerate(record.comparison.settings):
        lines = [
            Series(method, _mean_curve(record, setting, method), look)
            for method, look in looks.items()
        ]
        charts.append(
            line_chart(f"curves-{column}", setting, lines, x_label="round", y_label=measure)
        )
    return charts


def _looks_of_methods(record: ComparisonRecord) -> dict[str, str]:
    """Methods in their colours, which those with the best means over settings get.

    The target alone is always drawn in ink: it is what all others have to beat.
    """
    comparison = record.comparison
    scores: dict[str, list[float]] = {}
    for row in comparison.rows():
        means = [entry.mean for entry in row.entries[: len(comparison.settings)]]
        scores[row.method] = [score for score in means if score is not None]
    contenders = [
        m for m in comparison.methods if scores[m] and m != ALONE and m not in comparison.bounds
    ]
    contenders.sort(key=lambda method: (-len(scores[method]), -fmean(scores[method])))
    looks = dict.fromkeys(comparison.methods, REST)
    looks |= dict(zip(contenders, PALETTE, strict=False))
    looks |= {ALONE: INK} if ALONE in looks else {}
    return dict(sorted(looks.items(), key=itemgetter(1)))


def _mean_curve(
    record: ComparisonRecord, setting: str, method: str
) -> tuple[tuple[float, float | None], ...]:
    values: defaultdict[int, list[float | None]] = defaultdict(list)
    for history in record.histories:
        if (history.setting, history.method) == (setting, method):
            for number, value in history.curve:
                values[number].append(value)
    return tuple((number, mean(values[number])) for number in sorted(values))


def _dial_charts(record: ComparisonRecord) -> list[Chart | None]:
    """Scores over an option that several settings turn: shift curves, sample sizes, beta."""
    looks, measure = _looks_of_methods(record), record.comparison.measure
    charts = []
    for number, (name, fixed, steps) in enumerate(_dials(record.tasks)):
        lines = [
            Series(
                method,
                tuple((value, record.comparison.score(label, method)) for value, label in steps),
                look,
            )
            for method, look in looks.items()
        ]
        dial, others = name.replace("_", " "), ", ".join(f"{key} {value}" for key, value in fixed)
        title = f"Over {dial}" + (f" ({others})" if others else "")
        charts.append(
            line_chart(f"dial-{number}", title, lines, x_label=dial, y_label=measure, whole=False)
        )
    return charts


def _dials(
    tasks: Sequence[dict[str, Any]],
) -> list[tuple[str, list[tuple[str, str]], list[tuple[float, str]]]]:
    """Options that are turned while everything else stays: name, the rest, and the steps."""
    families: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, str]]] = {}
    for task in tasks:
        turned = {**task["options"], **task.get("run", {})}
        told = {"task": task["task"], "target": task["target"], **turned}
        for name, value in turned.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            rest = tuple((k, str(v)) for k, v in told.items() if k != name and v is not None)
            families.setdefault((name, rest), []).append((float(value), str(task["label"])))
    return [
        (name, [(k, v) for k, v in rest if k != "task"], sorted(steps))
        for (name, rest), steps in families.items()
        if len({value for value, _ in steps}) >= LEAST_VALUES
    ]


def _map_chart(record: ComparisonRecord) -> Chart | Html | None:
    """Settings where their noise and distances are, coloured by who won there."""
    comparison = record.comparison
    rows = comparison.rows()
    places, shares, sizes = [], [], []
    for column, setting in enumerate(comparison.settings):
        measured = [h for h in record.histories if h.setting == setting]
        d2 = mean([h.d2 for h in measured])
        sigma2 = mean([h.sigma2 for h in measured if h.d2 is not None])
        best = [row.method for row in rows if row.entries[column].best]
        if d2 is None or sigma2 is None or not best:
            continue
        places.append(Place(setting, d2, sigma2, best[0] if len(best) == 1 else "several"))
        shares += [h.tau2 for h in measured]
        sizes += [h.entries for h in measured if h.entries]
    return map_of_winners(
        "Who wins where",
        places,
        Angles(mean(shares) if sizes else None, max(sizes, default=1)),
        "a mark is a setting where its first round was measured, in the colour of the method with "
        "the best test result.",
    )
