"""The tables of runs and comparisons, for pages, model cards, other programs and papers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedbridge.evaluation.diagnostics import THRESHOLD, Diagnosis
from fedbridge.evaluation.metrics import SCORED_ROUNDS
from fedbridge.report.charts import PALETTE, REST, styles
from fedbridge.report.tables import Cell, Column, Line, Table
from fedbridge.report.text import capital, counted, markup, minus, tag
from fedbridge.runs.lines import GROUPED, NAMED
from fedbridge.runs.record import RunRecord, mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.evaluation.intervals import WithInterval
    from fedbridge.evaluation.ranking import Ranking
    from fedbridge.runs.comparison import Comparison, MeanScore

MEASURES = {
    "accuracy": ("accuracy of the delivered model, %", "Accuracy, %", 1),
    "balanced_accuracy": ("balanced accuracy, %", "Balanced accuracy, %", 1),
    "auc": ("area under the ROC curve", "Area under ROC", 3),
    "squared_error": ("mean squared error", "Squared error", 4),
    "absolute_error": ("mean absolute error", "Absolute error", 4),
}
"""What a diagnosis measures, in words for a document and for the page, and the digits to show."""
ROUND_MEASURES: dict[str, tuple[str, int | None]] = {
    "accuracy": ("Accuracy", 1),
    "balanced_accuracy": ("Balanced", 1),
    "auc": ("AUC", 3),
    "loss": ("Loss", 4),
    "validation_loss": ("Validation", None),
    "sigma2": ("σ²", 6),
    "choice": ("Chosen", None),
    "seconds_train": ("Training, s", None),
    "seconds_aggregate": ("Mixing, s", None),
    "seconds_eval": ("Testing, s", None),
}
"""What lines of the history hold: as the page calls it, and the digits in files that show it."""


def run_tables(record: RunRecord) -> list[Table]:
    """All tables of a run, finished or not."""
    tables = [measures_table(record), sites_table(record, grouped=False), rounds_table(record)]
    if record.candidates:
        tables.append(candidates_table(record))
    found = record.diagnosis
    if found is not None and found.confusion is not None:
        tables += [classes_table(record, found), confusion_table(record, found.confusion)]
    return tables


def candidates_table(record: RunRecord) -> Table:
    """What the target chose among, the weightiest first."""
    columns = (
        Column("candidate", heading="Candidate"),
        Column("held-out loss", "number", digits=3, heading="Held-out loss"),
        Column("standard error", "number", digits=3, heading="±"),
        Column("weight", "number", digits=3, heading="Weight"),
    )
    rows = sorted(record.candidates, key=lambda row: (-(row[3] or 0.0), row[1]))
    return Table("candidates", "What the target chose from", columns, tuple(rows))


def measures_table(record: RunRecord) -> Table:
    """Every measure on the test set, with its interval where the outputs were kept."""
    found = record.diagnosis
    rows = _scored(record)
    if found is None:
        rows += _without_intervals(record.result)
    else:
        for name, measured in found.measures.items():
            text, short, digits = MEASURES[name]
            rows.append(_measured(text, measured, digits, short))
        rows += _at_threshold(record)
        if found.calibration is not None:
            error = found.calibration.expected_error
            rows.append(_measure("expected calibration error, points", error, rows=found.count))
    columns = (
        Column("measure"),
        Column("value", "number"),
        Column("95% from", "number", heading="From"),
        Column("95% to", "number", heading="To"),
        Column("test rows", "number", only="page"),
    )
    caption = "Measures on the test set with 95 % confidence intervals"
    return Table("measures", caption, columns, tuple(rows))


def _scored(record: RunRecord) -> list[Line]:
    """The score of the run, which is not that of its last round alone."""
    summary = record.summary
    if summary is None or summary["accuracy"] is None:
        return []
    last = min(SCORED_ROUNDS, summary["rounds"])
    low, high = record.interval(summary["accuracy"]) or (None, None)
    name = f"accuracy, mean of the last {counted(last, 'round')}, %"
    return [_measure(name, summary["accuracy"], low, high, rows=summary["n_test"])]


def _at_threshold(record: RunRecord) -> list[Line]:
    """Sensitivity, specificity and precision, for two classes that both occur."""
    point = record.at_threshold(THRESHOLD)
    if point is None:
        return []
    positive = record.class_names[record.positive]
    return [
        _measured(f"{name} for {positive} at a threshold of {THRESHOLD}, %", measured, 1)
        for name, measured in point.shares.items()
        if measured is not None
    ]


def _without_intervals(result: dict[str, Any]) -> list[Line]:
    """Measures of a run whose outputs on the test rows were not kept."""
    named = {name: MEASURES[name] for name in ("balanced_accuracy", "auc")}
    named["loss"] = ("test loss", "Test loss", 4)
    return [
        _measure(text, result[name], digits=digits, short=short)
        for name, (text, short, digits) in named.items()
        if result.get(name) is not None
    ]


def _measured(name: str, found: WithInterval, digits: int, short: str | None = None) -> Line:
    return _measure(
        name, found.value, found.low, found.high, digits=digits, rows=found.count, short=short
    )


def _measure(
    name: str,
    value: float,
    low: float | None = None,
    high: float | None = None,
    *,
    digits: int = 1,
    rows: int | None = None,
    short: str | None = None,
) -> Line:
    numbers = (Cell(n, None if n is None else f"{n:.{digits}f}") for n in (value, low, high))
    return (Cell(name, page=short or capital(name)), *numbers, rows)


def sites_table(record: RunRecord, *, grouped: bool = True) -> Table:
    """Who took part, with how many rows, how often, and how far it was trusted.

    Very many sources are ``grouped``: the weightiest are named, the others share a line.
    """
    target = str(record.config["target"])
    rows: list[Line] = [
        (target, "target", record.rows_of(target), None, None, None, None, record.missed(target))
    ]
    absent = record.absent
    every = ranked(record)
    named = NAMED if grouped and len(every) > GROUPED else len(every)
    for index, style in every[:named]:
        name = record.sources[index]
        swatch = tag("span", class_=f"swatch {style}", aria_hidden="true")
        role = "source, never took part" if name in absent else "source"
        told = _of_sources(record, [index])
        rows.append((Cell(name, page=markup(swatch, name)), role, *told))
    if others := [index for index, _ in every[named:]]:
        never = sum(record.sources[index] in absent for index in others)
        role = "sources: rows and missed rounds of all, means of the rest"
        role += f"; {never} never took part" if never else ""
        rows.append((f"{len(others)} more", role, *_of_sources(record, others)))
    columns = (
        Column("site"),
        Column("role"),
        Column("labelled training rows", "number", digits=0, heading="Training rows"),
        Column("mean weight", "number", digits=3),
        Column("last weight", "number", only="page"),
        Column("mean cosine", "number", only="page"),
        Column("mean d²", "number", only="page"),
        Column("rounds missed", "number", digits=0),
    )
    return Table("sites", "What every site brought", columns, tuple(rows))


def _of_sources(record: RunRecord, indices: Sequence[int]) -> Line:
    """Rows of some sources, mean and last weight, mean cosine and distance, missed rounds."""
    names = [record.sources[index] for index in indices]
    counts = [count for count in map(record.rows_of, names) if count is not None]
    last = [record.source_values("beta", index)[-1:] for index in indices]

    def middle(measure: str) -> float | None:
        return mean([record.source_mean(measure, index) for index in indices])

    return (
        sum(counts) if counts else None,
        middle("beta"),
        mean([value for values in last for _, value in values]),
        middle("cosine"),
        middle("d2"),
        sum(map(record.missed, names)),
    )


def ranked(record: RunRecord) -> list[tuple[int, str]]:
    """Sources and their colours; with more sources than colours, the weighty ones get them.

    The palette's first is that of the model which the run makes.
    """
    count = len(record.sources)
    order, colours = [*range(count)], styles(count, PALETTE[1:])
    if REST in colours:
        order.sort(key=lambda index: -(record.source_mean("beta", index) or 0.0))
    return list(zip(order, colours, strict=True))


def rounds_table(record: RunRecord) -> Table:
    """The history: measures, noise, times, and the weight of every source."""
    names, columns = [], [Column("round", "number", digits=0)]
    for name, (heading, digits) in ROUND_MEASURES.items():
        used = any(line.get(name) is not None for line in record.history)
        if used or digits is not None:
            names.append(name)
            columns.append(
                Column(
                    name,
                    "text" if name == "choice" else "number",
                    digits=digits or 0,
                    heading=heading,
                    only="page" if digits is None else None if used else "files",
                )
            )
    columns += [
        Column(f"weight of {site}", "number", digits=3, only="files") for site in record.sources
    ]
    rows = tuple(
        (
            line["round"],
            *(line.get(name) for name in names),
            *(line.get("beta") or [None] * len(record.sources)),
        )
        for line in record.history
    )
    return Table("rounds", "Measures by round", tuple(columns), rows)


def classes_table(record: RunRecord, found: Diagnosis) -> Table:
    """How every class fares, in percent, with intervals."""
    rows = tuple(
        (record.class_names[of.label], of.rows, _share(of.recall), _share(of.precision))
        for of in found.classes or ()
    )
    columns = (
        Column("class"),
        Column("test rows", "number", digits=0),
        Column("recall, %", "number", beside=("recall from", "recall to")),
        Column("precision, %", "number", beside=("precision from", "precision to")),
    )
    caption = "Of the rows of a class, how many were found; of those named so, how many are it"
    return Table("classes", caption, columns, rows, ("In brackets the 95% interval.",))


def _share(found: WithInterval | None) -> Cell:
    if found is None:
        return Cell(None)
    text = f"{found.value:.1f} ({found.low:.1f} to {found.high:.1f})"
    return Cell(found.value, text, beside=(found.low, found.high))


def confusion_table(record: RunRecord, confusion: list[list[int]]) -> Table:
    """Test rows by true class (lines) and predicted class (columns)."""
    names = record.class_names
    columns = [Column(name, "number", digits=0, heading=name) for name in names]
    rows: tuple[Line, ...] = tuple(
        (name, *line) for name, line in zip(names, confusion, strict=True)
    )
    head = Column(r"true \ predicted")
    return Table("confusion", "Test rows by true and predicted class", (head, *columns), rows)


def comparison_tables(comparison: Comparison) -> list[Table]:
    """All tables of a comparison: the scores, and the ranking where there is enough to rank."""
    ranking = comparison.ranking()
    tables = [comparison_table(comparison)]
    return tables if ranking is None else [*tables, ranking_table(ranking)]


def comparison_table(comparison: Comparison) -> Table:
    """Methods by settings, mean (spread), the best of every column in bold."""
    rows = comparison.rows()
    seeds = len(comparison.seeds)
    planned = [seeds] * len(comparison.settings) + [seeds * len(comparison.complete)]
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
        tuple(comparison.notes()),
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
