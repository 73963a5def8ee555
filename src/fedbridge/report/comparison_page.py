"""The page of a comparison: methods against each other, setting by setting."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fedbridge.base.files import file_name
from fedbridge.report.charts import CHANCE, INK, PALETTE, REST, Chart, more_styles
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
from fedbridge.report.text import Html, Piece, counted, markup, some, tag
from fedbridge.runs.record import mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbridge.evaluation.ranking import Ranking
    from fedbridge.runs.comparison import CellResult, Comparison, ComparisonRecord

ALONE = "target-only"
NAMED = 8
"""Of more methods than this, a sentence says how many more there are."""
LEAST_VALUES = 3
"""A curve over a dial needs so many of its values."""
RUN_COLUMNS = (Column("setting"), Column("method"), Column("seed", "number"))


def comparison_page(record: ComparisonRecord) -> Page:
    """The whole page of a comparison, finished or not."""
    ranking, command = record.comparison.ranking(), comparison_command(record)
    looks, means = _looks_of_methods(record.comparison), comparison_table(record.comparison)
    return Page(
        f"Comparison: {record.name}",
        _lead(record.comparison, ranking),
        (
            Section("Means", (means, *map(note, means.notes))),
            _ranking(ranking, looks),
            Section("Turning a dial", tuple(_dial_charts(record, looks))),
            _by_setting(record.comparison, looks),
            Section("Who wins where", (_map_chart(record, looks),)),
            Section("Over the rounds", tuple(_curve_charts(record, looks))),
            _failures(record.comparison),
            Section("Run it again", (None if command is None else code(command),)),
            Section("Every run", (_runs(record.comparison),), folded=True),
            Section("Configuration", (facts(_configuration(record)),), folded=True),
        ),
    )


def _lead(comparison: Comparison, ranking: Ranking | None) -> Html:
    done, planned = len(comparison.finished), len(comparison.cells)
    failed = f"{counted(len(comparison.failures), 'run')} failed. " if comparison.failures else ""
    finished = ""
    if comparison.open:
        whole = f"{len(comparison.complete)} of {counted(len(comparison.settings), 'setting')}"
        finished = (
            f"Unfinished: {done} of {planned} runs so far, {len(comparison.open)} still to come. "
            f"Counted: {whole}, those in which all methods have finished. "
        )
    tested = [cell.summary["n_test"] for cell in comparison.finished if cell.summary]
    scored = {cell.method for cell in comparison.finished}
    return markup(
        paragraph(_verdict(comparison), class_="verdict"),
        note(
            f"{finished}{failed}{counted(len(comparison.methods), 'method')} in "
            f"{counted(len(comparison.settings), 'setting')}, "
            f"{counted(len(comparison.seeds), 'seed')}, {counted(comparison.rounds, 'round')}."
        ),
        paragraph(_sureness(ranking)) if len(scored) > 1 and comparison.complete else None,
        small_test_note(min(tested), "differences may be chance.") if tested else None,
    )


def _verdict(comparison: Comparison) -> str:
    """Who has the best mean, or with several settings, the best in how many of them.

    Settings in which a method is still to run do not count.
    """
    settings, complete = len(comparison.settings), len(comparison.complete)
    wins = {
        row.method: sum(entry.best for entry in row.entries[:settings]) for row in comparison.rows()
    }
    most = max(wins.values())
    if not most:
        if comparison.open and comparison.finished:
            return "No best yet: in no setting all methods have finished."
        return "No run is finished yet." if comparison.open else "No run has a score."
    leading = [method for method in wins if wins[method] == most]
    each = " each" if len(leading) > 1 else ""
    where = "" if settings == 1 else f" in {most} of {complete} settings{each}"
    so_far = "" if complete == settings else " so far"
    return f"Best{so_far}{where}: {some(leading, NAMED)}"


def _sureness(ranking: Ranking | None) -> str:
    """Whether the verdict may be chance."""
    if ranking is None:
        return "There are too few runs to tell whether the differences are chance."
    if ranking.p_value > ranking.alpha:
        return "By their ranks the methods cannot be told apart: the differences may be chance."
    first, *others = ranking.leaders
    if len(others) == len(ranking.entries) - 1:
        return "By their ranks the methods differ, but of no two it can be said which is better."
    if others:
        return f"{first} has the best mean rank, but cannot be told from {some(others, NAMED)}."
    return f"{first} has the best mean rank, and the others are behind by more than chance."


def _by_setting(comparison: Comparison, looks: Mapping[str, str]) -> Section:
    """Dots per method, a chart per setting, the methods in the same order in all."""
    charts, every = [], {row.method: row for row in comparison.rows()}
    for column, setting in enumerate(comparison.settings):
        rows = []
        for method, look in looks.items():
            entry, scores = every[method].entries[column], comparison.scores(setting, method)
            whole = len(scores) == len(comparison.seeds)
            mean, spread = (entry.mean, entry.spread) if whole else (None, None)
            rows.append(DotRow(method, scores, mean, spread, entry.best and whole, look))
        charts.append(
            dot_chart(
                f"by-setting-{file_name(setting)}",
                setting,
                rows,
                x_label=comparison.measure,
                limits=_limits(comparison),
            )
        )
    seen = note(
        "Diamonds: the best mean of a setting. Small dots: single seeds; there is a mean where all "
        "seeds are. Bars: the spread."
    )
    return Section("By setting", (*charts, seen if any(charts) else None))


def _limits(comparison: Comparison) -> tuple[float, float]:
    """Between what scores are: accuracies in percent, or negative losses."""
    return (0.0, 100.0) if comparison.has_classes else (-math.inf, 0.0)


def _ranking(ranking: Ranking | None, looks: Mapping[str, str]) -> Section | None:
    if ranking is None:
        return None
    left_out = ", ".join(ranking.left_out)
    return Section(
        "Ranking",
        (
            paragraph(ranking.sentence()),
            rank_chart(ranking, looks),
            note(f"Not ranked, because they do not apply everywhere: {left_out}.")
            if left_out
            else None,
        ),
    )


def _failures(comparison: Comparison) -> Section | None:
    if not comparison.failures:
        return None
    seeds: dict[tuple[str, str, str], list[int]] = {}
    for cell in comparison.failures:
        seeds.setdefault((cell.setting, cell.method, str(cell.error)), []).append(cell.seed)
    rows = tuple(
        (setting, method, Cell(numbers[0], ", ".join(map(str, numbers))), error)
        for (setting, method, error), numbers in seeds.items()
    )
    columns = (Column("setting"), Column("method"), Column("seeds"), Column("error"))
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
    shown = "failed" if cell.error is not None else "done" if cell.summary else "not finished"
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


def _curve_charts(record: ComparisonRecord, looks: Mapping[str, str]) -> list[Chart | None]:
    """The mean over seeds of every method over the rounds, a chart per setting."""
    comparison = record.comparison
    rows = {row.method: row for row in comparison.rows()}
    charts = []
    for column, setting in enumerate(comparison.settings):
        lines = [
            Series(
                method,
                _mean_curve(record, setting, method),
                look,
                best=rows[method].entries[column].best,
            )
            for method, look in looks.items()
        ]
        charts.append(
            line_chart(
                f"over-rounds-{file_name(setting)}",
                setting,
                lines,
                x_label="round",
                y_label=comparison.measure,
                note=_undrawn(comparison, lines),
                name_pale=True,
                wide=len(lines) > len(PALETTE),
                limits=_limits(comparison),
            )
        )
    return charts


def _undrawn(comparison: Comparison, lines: Sequence[Series]) -> str:
    """Which methods have no line, where means over seeds are drawn and all apply."""
    unmet = {cell.method for cell in comparison.cells if cell.unmet}
    missing = [line.name for line in lines if not line.present() and line.name not in unmet]
    if len(comparison.seeds) == 1 or not missing:
        return ""
    return f"Without a line, for not all seeds are there: {some(missing, NAMED)}."


def _looks_of_methods(comparison: Comparison) -> dict[str, str]:
    """All methods, the best first, with their styles: one for the whole page.

    Who has the best mean anywhere always has a colour, whatever it takes; the rest of the palette
    goes to the best means over settings, and what is left over is grey, as are bounds. The target
    alone is always drawn in ink: it is what all others have to beat.
    """
    scores: dict[str, list[float]] = {}
    wins: dict[str, int] = {}
    for row in comparison.rows(so_far=True):
        entries = row.entries[: len(comparison.settings)]
        scores[row.method] = [entry.mean for entry in entries if entry.mean is not None]
        wins[row.method] = sum(entry.best for entry in entries)
    order = sorted(
        comparison.methods,
        key=lambda m: (-len(scores[m]), -fmean(scores[m]) if scores[m] else 0.0),
    )
    contenders = [m for m in order if scores[m] and m != ALONE and m not in comparison.bounds]
    winners = [m for m in contenders if wins[m]]
    coloured = [*winners, *(m for m in contenders if not wins[m])]
    coloured = coloured[: max(len(winners), len(PALETTE))]
    looks = dict.fromkeys(order, REST)
    looks |= dict(zip(coloured, more_styles(len(coloured)), strict=True))
    return looks | ({ALONE: INK} if ALONE in looks else {})


def _mean_curve(
    record: ComparisonRecord, setting: str, method: str
) -> tuple[tuple[float, float | None], ...]:
    """The mean in every round that all seeds have: one of fewer would jump where one ends."""
    values: defaultdict[int, list[float | None]] = defaultdict(list)
    for history in record.histories:
        if (history.setting, history.method) == (setting, method):
            for number, value in history.curve:
                values[number].append(value)
    planned = len(record.comparison.seeds)
    return tuple(
        (number, mean(there) if len(there) == planned and None not in there else None)
        for number, there in sorted(values.items())
    )


def _dial_charts(record: ComparisonRecord, looks: Mapping[str, str]) -> list[Chart | None]:
    """Scores over an option that several settings turn: shift curves, sample sizes, beta."""
    comparison, charts = record.comparison, []
    for name, fixed, steps in _dials(record.tasks):
        lines = [
            Series(
                method,
                tuple((value, comparison.whole_score(label, method)) for value, label in steps),
                look,
            )
            for method, look in looks.items()
        ]
        dial, others = name.replace("_", " "), ", ".join(f"{key} {value}" for key, value in fixed)
        title = f"Over {dial}" + (f" ({others})" if others else "")
        charts.append(
            line_chart(
                file_name(f"over-{dial}" + "".join(f"-{key}-{value}" for key, value in fixed)),
                title,
                lines,
                x_label=dial,
                y_label=comparison.measure,
                whole=False,
                note=_undrawn(comparison, lines),
                name_pale=True,
                wide=len(lines) > len(PALETTE),
                limits=_limits(comparison),
            )
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


def _map_chart(record: ComparisonRecord, looks: Mapping[str, str]) -> Chart | Html | None:
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
        won, look = (best[0], looks[best[0]]) if len(best) == 1 else ("several", CHANCE)
        places.append(Place(setting, d2, sigma2, look, won=won))
        shares += [h.tau2 for h in measured]
        sizes += [h.entries for h in measured if h.entries]
    return map_of_winners(
        "Who wins where",
        places,
        Angles(mean(shares) if sizes else None, max(sizes, default=1)),
        "a mark is a setting where its first round was measured, in the colour of the method with "
        "the best test result.",
    )
