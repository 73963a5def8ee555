"""Every table and figure of the paper by name, read from one small TOML file each.

"The paper" is *Principled Federated Domain Adaptation: Gradient Projection and Auto-Weighting*.
Nothing runs here. Settings are those of ``protocol="paper"`` (``data/builtin/protocols.toml``), so
that a file has only what a row or column needs beyond them. A file reads like this::

    title = "Fashion-MNIST with a noisy target"
    where = "Table 12"                  # as a reader counts, and the LaTeX label
    label = "table:gau-noise-target-acc"
    form = "table"                      # table, curves, map, betas (weights over rounds), cost
    score = "accuracy"                  # accuracy (percent), score (minus the test loss), beta,
                                        # delta-error or seconds
    rounds = 50                         # the paper's; rounds_fair where `fair` counts otherwise
    seeds = 1                           # the paper's
    x = "noise"                         # what the numbers x (and y) of the columns are
    notes = ["..."]                     # what a reader must know to compare
    columns = [                         # one setting each; numbers stand in this order
        { label = "0.4", x = 0.4, task = "fashion-noise", options = { noise = 0.4 } },
        { label = "Avg", mean = true },  # the mean of the others in its group
    ]

    [quick]                             # a meaningful answer in minutes
    rounds = 5
    seeds = 1
    columns = ["0.4"]                   # keys of columns, labels of rows; left out: all of them
    tasks = { colored-mnist = "colored-mnist-14" }      # other tasks, and options for all of them
    options = { backbone = "efficientnet-lite0" }
    run = { model = "mlp:128" }         # options of all runs

    [[rows]]
    label = "FedGP"                     # as the paper calls it
    method = "fedgp"                    # as we do; left out where there is nothing to run
    cited = "..."                       # whose number it is, if not measured by the paper
    options = { beta = 0.5 }            # of the run, beyond the protocol's
    rounds = 150                        # where it differs
    paper = [71.09, nan]                # nan: not printed; left out: the paper prints no numbers
    spread = [0.5, nan]                 # the standard deviations that are printed
    also = [{ where = "Table 16", paper = { "0.4" = 71.93 } }]   # other numbers for some columns

A column may also have ``target``, ``group`` (a panel, or columns under one heading) and ``run``
(options of the run, for all rows: the ``beta`` of an ablation). A map has ``[grid]`` instead of
columns, every ``x`` with every ``y``, and ``[[panels]]``: which rows compete for what. Rows of the
form ``cost`` have ``formulas``.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar

from fedbridge.base.errors import DataError, UnknownNameError, nearest
from fedbridge.base.files import packaged_text, parse_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

Kind = TypeVar("Kind")

FORMS = ("table", "curves", "map", "betas", "cost")
SCORES = ("accuracy", "score", "beta", "delta-error", "seconds")
SUFFIX = ".toml"


@dataclass(frozen=True)
class PaperColumn:
    """One setting: a task, or the mean of the other settings in its group.

    Attributes:
        label: As the paper heads it.
        task: Our task's name; empty for a mean.
        target: Of the task, where there are several.
        options: Of the task.
        run: Of the run, for every row.
        group: The heading or panel that it stands under.
        x, y: Its place on the axes of curves or of a map.
        mean: Whether it is a mean.
    """

    label: str
    task: str = ""
    target: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    run: Mapping[str, object] = field(default_factory=dict)
    group: str = ""
    x: float | None = None
    y: float | None = None
    mean: bool = False

    @property
    def key(self) -> str:
        """What tells it from every other column of its experiment."""
        return f"{self.group}: {self.label}" if self.group else self.label


@dataclass(frozen=True)
class Also:
    """Other numbers for the same cells: ``where`` they stand, one per column or NaN."""

    where: str
    paper: tuple[float, ...]


@dataclass(frozen=True)
class PaperRow:
    """One method in every setting.

    Attributes:
        label: As the paper calls it.
        method: Our name of it; None where there is nothing to run.
        options: Of the run, beyond the protocol's.
        regardless: Options of the settings that do not change its result, and the values at which
            it is run once for all of them.
        rounds: Of this method, if it has others than the experiment.
        paper: The printed numbers, one per column; NaN where there is none.
        spread: The printed standard deviations in the same way.
        also: Where the paper prints other numbers for the same.
        cited: Whose numbers they are, if not the paper's own measurements.
        formulas: What the paper says of costs, by kind.
    """

    label: str
    method: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    regardless: Mapping[str, object] = field(default_factory=dict)
    rounds: int | None = None
    paper: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    also: tuple[Also, ...] = ()
    cited: str = ""
    formulas: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """One map of winners: which of the ``rows`` has the best ``score`` in every cell."""

    label: str
    title: str
    score: str
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Quick:
    """What the quick form takes instead; empty for the same as otherwise.

    Attributes:
        rounds, seeds: How many.
        rounds_fair: Under ``protocol="fair"``, where a round is something else.
        columns: Keys of the columns that stay.
        rows: Labels of the rows that stay.
        tasks: Smaller tasks in the place of others.
        options: Of all tasks, besides their own.
        run: Of all runs, too.
    """

    rounds: int
    seeds: int
    rounds_fair: int | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    tasks: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    run: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: What a user types.
        title: What it shows.
        where: Where the paper has it.
        label: Its LaTeX label; empty if it has none.
        form: How the paper shows it.
        score: What its numbers are.
        rounds: The paper's.
        rounds_fair: Under ``protocol="fair"``, where a round is something else; None for the same.
        seeds: The paper's.
        columns: The settings.
        rows: The methods.
        quick: A small form of it.
        panels: Of a map.
        x, y: What the axes are.
        notes: What a reader must know to compare.
    """

    name: str
    title: str
    where: str
    form: str
    score: str
    rounds: int
    seeds: int
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]
    quick: Quick
    label: str = ""
    rounds_fair: int | None = None
    panels: tuple[Panel, ...] = ()
    x: str = ""
    y: str = ""
    notes: tuple[str, ...] = ()

    @property
    def prints_numbers(self) -> bool:
        """Whether the paper has any numbers for these rows."""
        return any(not math.isnan(value) for row in self.rows for value in row.paper)

    def with_columns(self, taken: Collection[str]) -> Experiment:
        """The part of it that has these columns, by their keys.

        A mean stays only where all columns of its group do: another is not comparable.
        """
        cut = {c.group for c in self.columns if not (c.mean or c.key in taken)}
        stay = [c.group not in cut if c.mean else c.key in taken for c in self.columns]
        return replace(
            self,
            columns=_kept(stay, self.columns),
            rows=tuple(
                replace(
                    row,
                    paper=_kept(stay, row.paper),
                    spread=_kept(stay, row.spread),
                    also=tuple(replace(o, paper=_kept(stay, o.paper)) for o in row.also),
                )
                for row in self.rows
            ),
        )

    def in_quick_form(self) -> Experiment:
        """The small form: fewer columns, rows, rounds and seeds, smaller tasks."""
        quick = self.quick
        part = self.with_columns(quick.columns or [column.key for column in self.columns])
        columns = [
            replace(
                column,
                task=str(quick.tasks.get(column.task, column.task)),
                options=column.options if column.mean else {**column.options, **quick.options},
                run=column.run if column.mean else {**column.run, **quick.run},
            )
            for column in part.columns
        ]
        rows = [row for row in part.rows if row.label in (quick.rows or (row.label,))]
        return replace(
            part,
            rounds=quick.rounds,
            rounds_fair=quick.rounds_fair,
            seeds=quick.seeds,
            columns=tuple(columns),
            rows=tuple(replace(row, rounds=None) for row in rows),
        )


def _kept(stay: Sequence[bool], values: Sequence[Kind]) -> tuple[Kind, ...]:
    return tuple(value for value, stays in zip(values, stay, strict=True) if stays)


@cache
def names() -> tuple[str, ...]:
    """All tables and figures, by the alphabet."""
    files = resources.files(__package__).iterdir()
    return tuple(
        sorted(file.name.removesuffix(SUFFIX) for file in files if file.name.endswith(SUFFIX))
    )


@cache
def load(name: str) -> Experiment:
    """A table or figure by its name."""
    if name not in names():
        raise UnknownNameError(
            f"Expected the name of a table or figure, but got {name!r}.{nearest(name, names())} "
            f"Known: {', '.join(names())}."
        )
    return read(name, packaged_text(__package__, name + SUFFIX))


def read(name: str, text: str) -> Experiment:
    """An experiment from the text of its file.

    Raises:
        DataError: if the text is no such file; the message says where it is wrong.
    """
    where = name + SUFFIX
    try:
        table = parse_toml(text)
    except ValueError as error:
        raise DataError(f"Expected {where!r} to be TOML, but it cannot be read: {error}.") from None
    if "grid" in table:
        table["columns"] = _grid(table.pop("grid"), f"[grid] of {where}")
    columns = _records(PaperColumn, table, "columns", where)
    rows = [_row(row, columns, where) for row in _tables(table, "rows", where)]
    own = {
        "name": name,
        "columns": columns,
        "rows": tuple(rows),
        "panels": _records(Panel, table, "panels", where),
        "quick": _record(Quick, table.get("quick"), f"[quick] of {where}"),
    }
    experiment = _record(Experiment, table, where, own)
    _check(experiment, where)
    return experiment


def _grid(grid: object, where: str) -> list[dict[str, object]]:
    """The cells of a map: every value of ``x`` with every value of ``y``."""
    plan = _record(_Grid, grid, where)
    x, y = (_record(_Axis, axis, f"an axis in {where}") for axis in (plan.x, plan.y))
    return [
        {
            "label": f"{across:g}, {up:g}",
            "task": plan.task,
            "options": {x.option: across, y.option: up},
            "x": across,
            "y": up,
        }
        for across in x.values
        for up in y.values
    ]


@dataclass(frozen=True)
class _Grid:
    task: str
    x: Mapping[str, object]
    y: Mapping[str, object]


@dataclass(frozen=True)
class _Axis:
    option: str
    values: tuple[float, ...]


def _row(table: dict[str, object], columns: Sequence[PaperColumn], where: str) -> PaperRow:
    """A row with a number for every column, NaN where its file has no numbers at all."""
    place = f"row {table.get('label')!r} of {where}"
    blank = [math.nan] * len(columns)
    filled = {**table, **{key: table.get(key) or blank for key in ("paper", "spread")}}
    others = [_also(other, columns, place) for other in _tables(table, "also", place)]
    row = _record(PaperRow, filled, place, {"also": tuple(others)})
    for values in (row.paper, row.spread):
        if len(values) != len(columns):
            raise DataError(
                f"Expected {len(columns)} numbers, one per column, in {place}, but got "
                f"{len(values)}."
            )
    return row


def _also(table: dict[str, object], columns: Sequence[PaperColumn], where: str) -> Also:
    """Numbers by the keys of their columns, in the order of the columns."""
    place, given = f"`also` of {where}", table.get("paper")
    keys = [column.key for column in columns]
    if not isinstance(given, dict) or not set(given) <= set(keys):
        raise DataError(
            f"Expected a table of columns ({', '.join(keys)}) as `paper` in {place}, but got "
            f"{given!r}."
        )
    return _record(Also, {**table, "paper": [given.get(key, math.nan) for key in keys]}, place)


def _tables(table: Mapping[str, object], key: str, where: str) -> list[dict[str, object]]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(part, dict) for part in found):
        raise DataError(f"Expected a list of tables as `{key}` of {where}, but got {found!r}.")
    return found


def _records(
    kind: type[Kind], table: Mapping[str, object], key: str, where: str
) -> tuple[Kind, ...]:
    tables = _tables(table, key, where)
    return tuple(_record(kind, part, f"`{key}` of {where}") for part in tables)


def _record(
    kind: type[Kind], table: object, where: str, own: Mapping[str, object] | None = None
) -> Kind:
    """A table as a record: no key that it does not know, none missing, each of its type.

    ``own`` are fields that were read before.
    """
    if not isinstance(table, dict):
        raise DataError(f"Expected a table as {where}, but got {table!r}.")
    known: dict[str, Any] = {part.name: part for part in fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise DataError(
                f"Expected {', '.join(known)} in {where}, but got {key!r}.{nearest(key, known)}"
            )
    values = dict(own or {})
    for key, part in known.items():
        if key in values:
            continue
        if key in table:
            values[key] = _value(key, table[key], part.type, where)
        elif part.default is MISSING and part.default_factory is MISSING:
            raise DataError(f"Expected `{key}` in {where}, but there is none.")
    return kind(**values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


KINDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "str": ("text", lambda value: isinstance(value, str)),
    "int": ("a whole number", lambda value: isinstance(value, int) and _is_number(value)),
    "float": ("a number", _is_number),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "Mapping[str, object]": ("a table", lambda value: isinstance(value, dict)),
}
"""Types of fields as they are written: what to call each, and how to know it."""


def _value(key: str, value: object, written: str, where: str) -> object:
    """A value of the type that its field is written with; lists become tuples."""
    several = written.startswith("tuple[")
    plain = written.removeprefix("tuple[").removesuffix(", ...]").removesuffix(" | None")
    words, fits = KINDS[plain]
    parts = value if several else [value]
    if not isinstance(parts, list) or not all(map(fits, parts)):
        expected = f"a list, each {words}," if several else words
        raise DataError(f"Expected {expected} as `{key}` of {where}, but got {value!r}.")
    return tuple(parts) if several else value


def _check(experiment: Experiment, where: str) -> None:
    """What no single field shows: known words, names that are there, and none of them twice."""
    keys = [column.key for column in experiment.columns]
    labels = [row.label for row in experiment.rows]
    for what, given in (("column", keys), ("row", labels)):
        if not given:
            raise DataError(f"Expected a {what} in {where}, but there is none.")
        twice = sorted({key for key in given if given.count(key) > 1})
        if twice:
            raise DataError(f"Expected every {what} of {where} once, but {twice[0]!r} is repeated.")
    quick, panels = experiment.quick, experiment.panels
    known: list[tuple[str, Sequence[str], Sequence[str]]] = [
        ("`form`", [experiment.form], FORMS),
        ("`score`", [experiment.score, *(panel.score for panel in panels)], SCORES),
        ("`columns` of [quick]", quick.columns, keys),
        ("`rows` of [quick]", quick.rows, labels),
        ("`rows` of [[panels]]", [row for panel in panels for row in panel.rows], labels),
        ("`tasks` of [quick]", [*quick.tasks], [column.task for column in experiment.columns]),
    ]
    for what, used, choices in known:
        for value in used:
            if value not in choices:
                raise DataError(
                    f"Expected {what} in {where} to be of {', '.join(choices)}, but got {value!r}."
                    f"{nearest(value, choices)}"
                )
    for column in experiment.columns:
        if bool(column.task) == column.mean:
            raise DataError(
                f"Expected either a task or `mean = true` in column {column.key!r} of {where}, but "
                f"it has {'both' if column.mean else 'neither'}."
            )
