"""The figures of a comparison: by setting, over rounds, over a dial, and on the map of who wins."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedbridge.methods import is_bound
from fedbridge.report.charts import INK, PALETTE, REST, Series, line_chart
from fedbridge.report.charts.dots import DotRow, dot_chart
from fedbridge.report.charts.maps import NO_MAP, Angles, Place, win_map
from fedbridge.report.page import note
from fedbridge.report.record import mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.report.charts import Chart
    from fedbridge.report.comparison_record import ComparisonRecord
    from fedbridge.report.markup import Html

ALONE = "target-only"
LEAST_VALUES = 3
"""A curve over a dial needs so many of its values."""


def setting_charts(record: ComparisonRecord) -> list[Chart | None]:
    """Dots per method, a chart per setting."""
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


def curve_charts(record: ComparisonRecord) -> list[Chart | None]:
    """The mean over seeds of every method over the rounds, a chart per setting."""
    looks = looks_of_methods(record)
    charts = []
    for column, setting in enumerate(record.comparison.settings):
        lines = [
            Series(method, _mean_curve(record, setting, method), looks[method])
            for method in sorted(looks, key=lambda name: looks[name])
        ]
        charts.append(
            line_chart(f"curves-{column}", setting, lines, x_label="round", y_label=record.measure)
        )
    return charts


def looks_of_methods(record: ComparisonRecord) -> dict[str, str]:
    """Colours for the methods with the best means over settings, the same in every chart.

    The target alone is always drawn in ink: it is what all others have to beat.
    """
    comparison = record.comparison
    scores: dict[str, list[float]] = {}
    for row in comparison.rows():
        means = [entry.mean for entry in row.entries[: len(comparison.settings)]]
        scores[row.method] = [score for score in means if score is not None]
    contenders = [m for m in comparison.methods if scores[m] and m != ALONE and not is_bound(m)]
    contenders.sort(key=lambda method: (-len(scores[method]), -fmean(scores[method])))
    looks = dict.fromkeys(comparison.methods, REST)
    looks |= dict(zip(contenders, PALETTE, strict=False))
    return looks | ({ALONE: INK} if ALONE in looks else {})


def _mean_curve(
    record: ComparisonRecord, setting: str, method: str
) -> tuple[tuple[float, float | None], ...]:
    values: defaultdict[int, list[float | None]] = defaultdict(list)
    for history in record.histories:
        if (history.setting, history.method) == (setting, method):
            for number, value in history.curve:
                values[number].append(value)
    return tuple((number, mean(values[number])) for number in sorted(values))


def dial_charts(record: ComparisonRecord) -> list[Chart | None]:
    """Scores over an option that several settings turn: shift curves, sample sizes, beta."""
    looks = looks_of_methods(record)
    charts = []
    for number, (name, fixed, steps) in enumerate(_dials(record.tasks)):
        lines = [
            Series(
                method,
                tuple((value, record.comparison.score(label, method)) for value, label in steps),
                looks[method],
            )
            for method in sorted(looks, key=lambda m: looks[m])
        ]
        others = ", ".join(f"{key} {value}" for key, value in fixed)
        charts.append(
            line_chart(
                f"dial-{number}",
                f"Over {name.replace('_', ' ')}" + (f" ({others})" if others else ""),
                lines,
                x_label=name.replace("_", " "),
                y_label=record.measure,
                whole=False,
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


def map_chart(record: ComparisonRecord) -> Chart | Html | None:
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
    drawn = win_map(
        "map",
        "Who wins where",
        places,
        Angles(mean(shares) if sizes else None, max(sizes, default=1)),
        mine="you are here",
        note="The ground says which rule has the smallest expected error of its update (Delta "
        "error) with one source at this distance, β = ½ where a rule has one; a mark is a "
        "setting where its first round was measured, in the colour of the method with the best "
        "test result.",
    )
    return note(NO_MAP) if drawn is None and places else drawn
