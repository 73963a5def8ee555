"""What sites agree on: the same columns, categories and labels for all, whoever reads a table.

First what others must know of one site's table before they can train together, and no row of it:
columns, whether they hold numbers or categories, which categories and labels there are. Sites
agree on these alone, so a site that is elsewhere can take part without showing its rows.

Then: do the sites mean the same by their columns? Asked before training, answered site by site.
What cannot be right (a column of numbers here and of words there) is an error; what may be right
(a category that one site never saw) is a note.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from fedbridge.base.errors import (
    DataError,
    DisagreementError,
    EmptyColumnError,
    FedbridgeError,
    LabelsDisagreeError,
    NotAgreedError,
    OptionError,
    joined,
    nearest,
)
from fedbridge.base.files import parse_json
from fedbridge.base.options import check_choice
from fedbridge.data.labels import AS_THEY_ARE, Scale, class_indices, code_labels, show
from fedbridge.data.tables.cells import NAMELESS, CellTable, require_columns
from fedbridge.data.tables.spelling import looks_numeric, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    Tables: TypeAlias = Mapping[str, CellTable]
    Summaries: TypeAlias = Mapping[str, "TableSummary"]
    Categories: TypeAlias = tuple[dict[str, tuple[str, ...]], list[str]]

Kind: TypeAlias = Literal["numeric", "categorical"]
TaskKind: TypeAlias = Literal["classification", "regression"]
LabelForm: TypeAlias = Literal["words", "whole numbers", "values"]

T = TypeVar("T")

FORMAT, SCALED_FORMAT = 1, 2
IMPUTE = "impute"
"""What a schema says of a column that a site may lack."""
AGAIN = "describe the data anew and agree again"
MAX_LEVELS = 100
MAX_NUMBERED_CLASSES = 20
LARGEST_WHOLE = 2**53
"""Above this, neighbouring whole numbers are the same float and cannot be told apart."""
EXAMPLES = 3


@dataclass(frozen=True)
class Reading:
    """How tables are to be read, the same at every site.

    Attributes:
        label_column: The column to predict.
        columns: The columns to learn from; ``None`` for all others that have a name.
        categorical: Columns of numbers that are codes.
        kind: What is predicted; ``None`` lets the labels tell.
        impute: Columns that a site may lack: an input of their own says where a value is missing.
    """

    label_column: str = "label"
    columns: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    kind: TaskKind | None = None
    impute: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is not None:
            check_choice("kind", self.kind, get_args(TaskKind))
        if self.columns is not None and self.label_column in self.columns:
            raise OptionError(
                f"Expected `columns` to learn from, but {self.label_column!r} is the label: leave "
                f"it out."
            )
        for column in self.impute:
            if column == self.label_column or column not in (self.columns or self.impute):
                raise OptionError(
                    f"Expected `impute` to name columns to learn from, but got {column!r}: leave "
                    f"it out, or name it in `columns`."
                )

    @property
    def needed(self) -> list[str]:
        """The columns that every table must have."""
        return [c for c in (self.label_column, *(self.columns or ())) if c not in self.impute]


def column_names(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Column names, each once, given as a list or as one text separated by commas."""
    if not isinstance(columns, Iterable):
        raise OptionError(f"Expected names of columns, but got {columns!r}: name them in quotes.")
    listed = columns.split(",") if isinstance(columns, str) else map(str, columns)
    return tuple(name for name in dict.fromkeys(name.strip() for name in listed) if name)


@dataclass(frozen=True)
class ColumnSummary:
    """One column at one site.

    Attributes:
        kind: What it holds; ``None`` when it is empty.
        levels: Its different values in order; numbers are not listed.
        examples: A few of its numbers, for a message on this machine; they go nowhere else.
        span: Its least and its largest number, in the same way.
    """

    kind: Kind | None
    levels: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    span: tuple[float, float] | None = None


@dataclass(frozen=True)
class TableSummary:
    """One site's table without its rows.

    Attributes:
        columns: The columns to learn from, in the order of the table.
        labels: The different labels as they are spelled; ``None`` when they are values, of which
            there is no list,
        scale: but a scale.
    """

    columns: Mapping[str, ColumnSummary]
    labels: tuple[str, ...] | None
    scale: Scale | None = None

    def of(self, columns: Sequence[str] | None) -> TableSummary:
        """The same with some of the columns, in this order; None for all."""
        if columns is None:
            return self
        return replace(self, columns={c: self.columns[c] for c in columns if c in self.columns})

    def with_empty(self, columns: Iterable[str]) -> TableSummary:
        """The same with these columns, empty where there are none."""
        empty = {column: ColumnSummary(None) for column in columns}
        return replace(self, columns={**empty, **self.columns})


def summarise(table: CellTable, site: str, reading: Reading) -> TableSummary:
    """All that sites must agree on, from the cells of one table.

    Junk is refused here, where its row is known: a word in a column that mostly holds numbers, or
    numbers in another format than the table's.
    """
    summary, errors = examine(table, site, reading)
    if errors:
        raise errors[0]
    return summary


def examine(
    table: CellTable, site: str, reading: Reading
) -> tuple[TableSummary, list[FedbridgeError]]:
    """What :func:`summarise` finds, as far as it goes, and everything that is wrong."""
    label_column, errors = reading.label_column, list[FedbridgeError]()
    where = f"the table of site {site!r}"
    _attempt(lambda: require_columns(table.names, reading.needed, where), None, errors)
    table = table.with_empty(reading.impute)
    features = [
        column
        for column in reading.columns or table.names
        if column in table.names and column != label_column and not column.startswith(NAMELESS)
    ]
    kinds = _kinds(table.pick(features), reading.categorical)
    for column in (column for column, kind in kinds.items() if kind == "numeric"):
        _attempt(partial(table.numbers, [column], site), None, errors)

    def labels() -> tuple[tuple[str, ...] | None, Scale | None]:
        labelled = labelled_rows(table, site, label_column)
        found = _labels(labelled, site, reading)
        return found, Scale.of(labelled.values_of(label_column)) if found is None else None

    found: tuple[tuple[str, ...] | None, Scale | None] = None, None
    if label_column in table.names:
        found = _attempt(labels, found, errors)
    columns = {column: _summary(table, column, kind) for column, kind in kinds.items()}
    return TableSummary(columns, *found), errors


def _attempt(do: Callable[[], T], otherwise: T, errors: list[FedbridgeError]) -> T:
    """What comes of it, or what to go on with where that is an error, which joins the others."""
    try:
        return do()
    except (DataError, OptionError) as error:
        errors.append(error)
        return otherwise


def labelled_rows(table: CellTable, site: str, label_column: str) -> CellTable:
    """The rows that have a label, of which every site must have some."""
    labelled = table.take(table[label_column] != "")
    if not len(labelled):
        raise EmptyColumnError(
            f"Expected labelled rows at every site, but {site!r} has nothing in column "
            f"{label_column!r}: label some of its rows or leave it out."
        )
    return labelled


def are_whole(values: NDArray[np.float64]) -> bool:
    """Whether all of these numbers are whole and can be told apart."""
    return bool(((values == np.round(values)) & (np.abs(values) < LARGEST_WHOLE)).all())


def _kinds(table: CellTable, categorical: Sequence[str]) -> dict[str, Kind | None]:
    """Numbers, when most cells that hold anything are numbers, if only to somebody else."""
    present = np.count_nonzero(table.text != "", axis=1).tolist()
    found = np.count_nonzero(~np.isnan(table.values), axis=1).tolist()
    kinds: dict[str, Kind | None] = {}
    for column, cells, some, figures in zip(table.names, table.text, present, found, strict=True):
        if 2 * figures <= some and column not in categorical:
            counted = Counter(cells[np.isnan(table.values_of(column))].tolist())
            figures += sum(times for cell, times in counted.items() if looks_numeric(cell))
        numeric = 2 * figures > some and column not in categorical
        kinds[column] = ("numeric" if numeric else "categorical") if some else None
    return kinds


def _summary(table: CellTable, column: str, kind: Kind | None) -> ColumnSummary:
    cells, values = table[column], table.values_of(column)
    if kind == "categorical":
        return ColumnSummary(kind, tuple(sorted(set(cells) - {""})))
    examples = tuple(dict.fromkeys(islice(filter(None, cells), EXAMPLES)))
    known = values[~np.isnan(values)]
    span = (float(known.min()), float(known.max())) if len(known) else None
    return ColumnSummary(kind, examples=examples, span=span)


def _labels(labelled: CellTable, site: str, reading: Reading) -> tuple[str, ...] | None:
    """The different labels, unless they can only be values."""
    column = reading.label_column
    values = labelled.values_of(column)
    words = set(labelled[column][np.isnan(values)])
    misspelt = reading.kind is None and words and all(map(looks_numeric, words))
    if reading.kind == "regression" or misspelt:
        labelled.numbers([column], site, "give `kind='classification'` if they are names")
        return None
    classes = are_whole(values) and len(np.unique(values)) <= MAX_NUMBERED_CLASSES
    if reading.kind is None and not words and not classes:
        return None
    return tuple(sorted(set(labelled[column])))


@dataclass(frozen=True)
class Schema:
    """How every site turns its table into the model's inputs and classes.

    Attributes:
        label_column: The column to predict.
        label_form: What labels are.
        class_names: The labels by class index; ``None`` for regression.
        kinds: What each column holds, in the order of the model's inputs.
        levels: The categories of each categorical column over all sites.
        imputed: The columns that a site may lack.
        scale: What the numbers that a model learns stand for.
    """

    label_column: str
    label_form: LabelForm
    class_names: tuple[str, ...] | None
    kinds: Mapping[str, Kind]
    levels: Mapping[str, tuple[str, ...]]
    imputed: tuple[str, ...] = ()
    scale: Scale = AS_THEY_ARE

    def __post_init__(self) -> None:
        if not self.kinds or self.label_column in self.kinds:
            raise ValueError("it needs columns to learn from, and the label is none of them")
        categorical = {column for column, kind in self.kinds.items() if kind == "categorical"}
        if categorical != set(self.levels) or not all(self.levels.values()):
            raise ValueError("it needs levels of all categorical columns and of no others")
        if (self.label_form == "values") != (self.class_names is None):
            raise ValueError("it needs class names unless labels are values")
        if not {*self.imputed} <= {*self.kinds}:
            raise ValueError("it imputes columns that are not learned from")

    @property
    def n_classes(self) -> int | None:
        """Number of classes; ``None`` for regression."""
        return None if self.class_names is None else len(self.class_names)

    def fitted(self, table: CellTable, site: str) -> CellTable:
        """A site's table with every column, refused if it is not as the site has described it."""
        needed = [self.label_column, *(c for c in self.kinds if c not in self.imputed)]
        require_columns(table.names, needed, f"the table of site {site!r}")
        table = table.with_empty(self.imputed)
        for column, levels in self.levels.items():
            new = sorted(set(table[column]) - {"", *levels})
            if new:
                raise NotAgreedError(
                    f"Expected categories of column {column!r} among {show(levels)}, as the sites "
                    f"agreed, but site {site!r} has {show(new)}: correct them, or {AGAIN}."
                )
        return table

    def labels(self, labelled: CellTable, site: str) -> Tensor:
        """One site's labels as class indices, or as numbers to learn."""
        labels: NDArray[np.generic]
        if self.label_form == "words":
            labels, index = labelled[self.label_column].astype(str), self._index(str)
        else:
            labels, index = labelled.numbers([self.label_column], site)[0], self._index(float)
        if self.class_names is None:
            return self.scale.numbers(labels)
        new = [label for label in np.unique(labels).tolist() if label not in index]
        if new:
            raise NotAgreedError(
                f"Expected labels in column {self.label_column!r} among {show(self.class_names)}, "
                f"as the sites agreed, but site {site!r} has {show(new)}: correct them, or {AGAIN}."
            )
        return class_indices(labels, index)

    def _index(self, type_: type[str] | type[float]) -> dict[object, int]:
        return {type_(name): index for index, name in enumerate(self.class_names or ())}

    def to_json(self) -> str:
        """The schema as JSON text with a format version."""
        columns = [
            {"name": name, "kind": kind}
            | ({"levels": self.levels[name]} if name in self.levels else {})
            | ({"missing": IMPUTE} if name in self.imputed else {})
            for name, kind in self.kinds.items()
        ]
        content = {
            "format": FORMAT if self.scale == AS_THEY_ARE else SCALED_FORMAT,
            "label_column": self.label_column,
            "label_form": self.label_form,
            "class_names": self.class_names,
            "columns": columns,
            **({} if self.scale == AS_THEY_ARE else {"scale": asdict(self.scale)}),
        }
        return json.dumps(content, indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read what :meth:`to_json` wrote, and refuse anything else."""
        try:
            content = parse_json(text)
            if content["format"] not in (FORMAT, SCALED_FORMAT):
                raise ValueError(f"it has format {content['format']!r} and not {FORMAT}")
            names, columns = content["class_names"], content["columns"]
            kinds = {str(column["name"]): column["kind"] for column in columns}
            if not set(kinds.values()) <= set(get_args(Kind)):
                raise ValueError(f"columns have kinds {show(sorted(map(str, kinds.values())))}")
            if content["label_form"] not in get_args(LabelForm):
                raise ValueError(f"labels have the form {content['label_form']!r}")
            return cls(
                str(content["label_column"]),
                content["label_form"],
                None if names is None else tuple(map(str, names)),
                kinds,
                {c["name"]: tuple(map(str, c["levels"])) for c in columns if "levels" in c},
                tuple(_may_be_missing(c) for c in columns if "missing" in c),
                Scale(**content.get("scale", {})),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"Expected a schema that `fedbridge deploy check` wrote, but it cannot be used "
                f"({error}): {AGAIN}."
            ) from error


def _may_be_missing(column: Mapping[str, Any]) -> str:
    if column["missing"] != IMPUTE:
        raise ValueError(f"missing values of {column['name']!r} are {column['missing']!r}")
    return str(column["name"])


def agree(sites: Summaries, reading: Reading) -> tuple[Schema, list[str]]:
    """The schema of all sites, and notes on what may be right or not.

    Raises:
        DisagreementError: When they do not agree; the message lists who has what, about
            everything at once. The notes come with it.
    """
    errors: list[FedbridgeError] = []
    sites = _with_imputed(sites, reading)
    label_column, codes = reading.label_column, reading.categorical
    features = _attempt(lambda: _features(sites, reading), shared_columns(sites), errors)
    told = {column: kinds_of(sites, column, codes) for column in features}
    certain = {column: found.pop() for column, found in told.items() if len(found) == 1}
    kinds = _attempt(lambda: column_kinds(sites, features, codes), certain, errors)
    none: Categories = ({}, [])
    levels, notes = _attempt(lambda: category_levels(sites, kinds, codes), none, errors)
    values: LabelForm = "values"
    form = _attempt(lambda: label_form(sites, label_column, reading.kind), values, errors)
    names = _attempt(lambda: _class_names(sites, form), None, errors)
    if errors:
        error = joined(errors)
        for note in notes:
            error.add_note(note)
        raise error
    notes += [
        f"column {column!r} is missing at {site!r}: it is imputed there, and an input of its own "
        f"says where it is missing"
        for site, own in sites.items()
        for column in reading.impute
        if own.columns[column].kind is None
    ]
    scale = AS_THEY_ARE
    if form == "values":
        scale = Scale.agreed(own.scale for own in sites.values() if own.scale is not None)
    return Schema(label_column, form, names, kinds, levels, reading.impute, scale), notes


def _with_imputed(sites: Summaries, reading: Reading) -> Summaries:
    """The summaries with every column that a site may lack; one that all lack is a mistake."""
    every = dict.fromkeys(column for own in sites.values() for column in own.columns)
    known = [
        c for c in every if any(own.columns[c].kind for own in sites.values() if c in own.columns)
    ]
    for column in reading.impute:
        if column not in known:
            raise OptionError(
                f"Expected `impute` to name columns that some site has, but got {column!r}."
                f"{nearest(column, known)} Columns: {', '.join(map(repr, known))}."
            )
    order = reading.columns or tuple(every)
    return {site: own.with_empty(reading.impute).of(order) for site, own in sites.items()}


def shared_columns(sites: Summaries) -> list[str]:
    """The columns that every site has, in the order of the first."""
    first, *others = sites.values()
    return [column for column in first.columns if all(column in own.columns for own in others)]


def kinds_of(sites: Summaries, column: str, categorical: Sequence[str]) -> set[Kind]:
    """What a column holds at the sites that have anything in it; numbers may be codes."""
    found = {summary.columns[column].kind for summary in sites.values()}
    kinds: set[Kind] = {kind for kind in found if kind is not None}
    return {"categorical"} if kinds and column in categorical else kinds


def _features(sites: Summaries, reading: Reading) -> list[str]:
    """The columns to learn from, all of which every site has."""
    features = common_columns(sites)
    if not features:
        raise DataError(
            f"Expected columns to learn from besides {reading.label_column!r}, but there are none."
        )
    for column in reading.categorical:
        if column not in features:
            raise OptionError(
                f"Expected `categorical` to name columns to learn from, but got {column!r}."
                f"{nearest(column, features)} Columns: {', '.join(map(repr, features))}."
            )
    return features


def _class_names(sites: Summaries, form: LabelForm) -> tuple[str, ...] | None:
    if form == "values":
        return None
    dtype = str if form == "words" else np.float64
    found = {site: np.array(summary.labels, dtype=dtype) for site, summary in sites.items()}
    if form == "whole numbers":
        found = {site: labels.astype(np.int64) for site, labels in found.items()}
    return code_labels(found)[1]


def common_columns(sites: Summaries) -> list[str]:
    """The columns of all sites, which must be the same; each has brought a file of its own."""
    everywhere = list(dict.fromkeys(c for summary in sites.values() for c in summary.columns))
    lacking = {
        site: [column for column in everywhere if column not in summary.columns]
        for site, summary in sites.items()
    }
    if any(lacking.values()):
        raise _disagreement(
            (
                f"site {site!r} lacks {', '.join(map(repr, missing))}"
                for site, missing in lacking.items()
                if missing
            ),
            f"add them, name those that may be missing in `impute`, or choose among the columns "
            f"that all have with `columns`: {','.join(shared_columns(sites))}",
        )
    return everywhere


def column_kinds(
    sites: Summaries, columns: Sequence[str], categorical: Sequence[str]
) -> dict[str, Kind]:
    """Whether each column holds numbers or categories, which all sites must agree on.

    A column is numeric at a site when most of its values there are numbers; the few that are not
    are then junk and reported as such.
    """
    kinds: dict[str, Kind] = {}
    problems = []
    for column in columns:
        found = {site: summary.columns[column] for site, summary in sites.items()}
        distinct = kinds_of(sites, column, categorical)
        if not distinct:
            raise DataError(
                f"Expected values in column {column!r}, but it is empty at every site: leave it "
                f"out with `columns`."
            )
        if len(distinct) > 1:
            problems.append(f"column {column!r}: {_listed(found)}")
        kinds[column] = distinct.pop()
    if problems:
        raise _disagreement(
            problems, "recode them alike, or name the columns that are codes in `categorical`"
        )
    return kinds


def category_levels(
    sites: Summaries, kinds: Mapping[str, Kind], categorical: Sequence[str]
) -> Categories:
    """The levels of every categorical column over all sites, and notes on who lacks which."""
    levels: dict[str, tuple[str, ...]] = {}
    notes = []
    for column in (column for column, kind in kinds.items() if kind == "categorical"):
        here = {site: set(summary.columns[column].levels) for site, summary in sites.items()}
        union = sorted(set().union(*here.values()))
        if len(union) > MAX_LEVELS and column not in categorical:
            raise DataError(
                f"Expected at most {MAX_LEVELS} categories in column {column!r}, but it has "
                f"{len(union)} ({show(union)}): leave it out with `columns` if it is an "
                f"identifier or free text, or name it in `categorical` if it is meant."
            )
        levels[column] = tuple(union)
        notes += [
            f"column {column!r}: site {site!r} has no {show(sorted(set(union) - own))}"
            for site, own in here.items()
            if set(union) - own
        ]
        notes += _spelling_notes(column, union)
    return levels, notes


def label_form(sites: Summaries, label_column: str, kind: TaskKind | None) -> LabelForm:
    """What labels are at all sites: words, whole numbers that stand for classes, or values."""
    listed = {site: summary.labels for site, summary in sites.items()}
    together = numbers([label for own in listed.values() for label in own or ()])
    wordy = np.isnan(together)
    if None in listed.values() and not wordy.any():
        return "values"
    if None not in listed.values() and wordy.all():
        return "words"
    if wordy.any():
        raise _mixed_labels(label_column, listed)
    whole = are_whole(together)
    if kind is None and not (whole and len(np.unique(together)) <= MAX_NUMBERED_CLASSES):
        return "values"
    return "whole numbers" if whole else "words"


def _listed(found: Mapping[str, ColumnSummary]) -> str:
    words = {"numeric": "numbers", "categorical": "text", None: "no values"}
    parts = []
    for site, here in found.items():
        examples = show((here.levels or here.examples)[:EXAMPLES])
        parts.append(f"{words[here.kind]} at {site!r}" + (f" ({examples})" if examples else ""))
    return ", ".join(parts)


def _spelling_notes(column: str, levels: Sequence[str]) -> list[str]:
    spellings: dict[str, list[str]] = {}
    for level in levels:
        spellings.setdefault(level.casefold(), []).append(level)
    return [
        f"column {column!r}: {show(variants)} differ only in case and count as different categories"
        for variants in spellings.values()
        if len(variants) > 1
    ]


def _mixed_labels(
    label_column: str, listed: Mapping[str, tuple[str, ...] | None]
) -> LabelsDisagreeError:
    """Labels that are words here and numbers there: nobody can know which word is which number."""
    lines = ""
    for site, own in listed.items():
        wordy = np.isnan(numbers(own or ()))
        words, figures = (np.array(own or ())[which].tolist() for which in (wordy, ~wordy))
        parts = [f"text ({show(words)})"] if words else []
        parts += [f"numbers ({show(figures)})"] if figures else []
        lines += f"\n  site {site!r} has {' and '.join(parts) or 'numbers'}"
    return LabelsDisagreeError(
        f"Expected labels in column {label_column!r} coded in one way at all sites, but:{lines}\n"
        f"Recode them alike."
    )


def _disagreement(problems: Iterable[str], advice: str) -> DisagreementError:
    listed = "".join(f"\n  {problem}" for problem in problems)
    said = advice[:1].upper() + advice[1:]  # names of columns keep their case
    return DisagreementError(f"Expected all sites to agree, but:{listed}\n{said}.")
