"""From a table to numbers: what is learned on training rows and applied to every later row.

One `Preprocessing` belongs to one site. The target's is saved with the model, so that a new
patient is imputed, scaled and coded exactly as the training rows were.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedbridge.base.errors import DataError, OptionError
from fedbridge.base.files import check_memory, parse_json
from fedbridge.data.labels import AS_THEY_ARE, Scale, show
from fedbridge.data.tables.cells import (
    CellTable,
    as_table,
    require_columns,
    spreadsheet_row,
)
from fedbridge.data.tables.curation import UNCHANGED, Curation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fedbridge.data.tables.cells import Text
    from fedbridge.data.tables.schema import Kind, Schema, Tables

FIRST_FORMAT, FORMAT = 1, 2
FIRST = (
    *("format", "site", "label_column", "class_names", "columns"),
    *("numbers", "id_columns", "renamed"),
)
"""What the first format holds. What needs no more is written in it, so that older versions read it;
they would pass over the rest in silence."""
FARTHEST = 1e18
"""So many deviations from the mean, a square is still a number to a model."""

Standardise = Literal["site", "joint"]


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers: missing ones become ``fill``, then ``(value - mean) / scale``."""

    name: str
    fill: float
    mean: float
    scale: float
    width: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not all(map(isfinite, (self.fill, self.mean, self.scale))) or self.scale <= 0:
            raise ValueError(f"column {self.name!r} has a fill, mean or scale that is no number")


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories: missing ones become ``fill``, then one indicator per level."""

    name: str
    fill: str
    levels: tuple[str, ...]

    @property
    def width(self) -> int:
        """How many inputs of the model it becomes."""
        return len(self.levels)

    def encode(self, cells: Text) -> NDArray[np.float64]:
        """The cells as indicators; a level that training never saw is all zeros, with a warning."""
        place = {level: place for place, level in enumerate(self.levels)}
        unseen = sorted({cell or self.fill for cell in cells} - {"", *place})
        if unseen:
            warnings.warn(
                f"Column {self.name!r} has categories that training never saw, which count as "
                f"none of the known ones: {show(unseen)}.",
                stacklevel=3,
            )
        indicators = np.zeros((len(cells), len(self.levels) + 1))
        places = [place.get(cell or self.fill, len(self.levels)) for cell in cells]
        indicators[np.arange(len(cells)), places] = 1.0
        return indicators[:, :-1]


@dataclass(frozen=True)
class CodedColumn:
    """A column of codes as standardised indicators of every level but the first.

    The first level is what the others are compared with, so that a linear model has one solution.
    """

    name: str
    fill: str
    levels: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.levels) - 1 == len(self.means) == len(self.scales):
            raise ValueError(f"column {self.name!r} has means or scales that do not fit its levels")
        if not all(map(isfinite, (*self.means, *self.scales))) or min(self.scales) <= 0:
            raise ValueError(f"column {self.name!r} has a mean or scale that is no number")

    @property
    def width(self) -> int:
        """How many inputs of the model it becomes."""
        return len(self.means)

    def encode(self, cells: Text) -> NDArray[np.float64]:
        """The cells as scaled indicators; see :meth:`CategoricalColumn.encode`."""
        indicators = CategoricalColumn(self.name, self.fill, self.levels).encode(cells)
        scaled: NDArray[np.float64] = (indicators[:, 1:] - self.means) / self.scales
        return scaled


@dataclass(frozen=True)
class MissingColumn:
    """An input that is 1 where a column has no value, so that a model need not believe a fill."""

    name: str
    marks: Literal["missing"] = "missing"
    width: ClassVar[int] = 1

    def encode(self, cells: Text) -> NDArray[np.float64]:
        """Where the cells are empty."""
        missing: NDArray[np.bool_] = cells == ""
        return missing.astype(np.float64)[:, None]


Column: TypeAlias = NumericColumn | CategoricalColumn | CodedColumn | MissingColumn


@dataclass(frozen=True)
class Preprocessing:
    """How one site's table becomes the model's input, and what the model's output means.

    Attributes:
        site: Whose imputation and scaling these are.
        columns: The columns used, in the order of the model's inputs.
        label_column: The column to predict.
        class_names: The labels by class index; ``None`` for regression.
        curation: How this site's own tables are read: what is called, coded and measured otherwise
            there. The columns that it says name rows, the model never sees; predictions show them.
        scale: What the model's numbers stand for.
    """

    site: str
    columns: tuple[Column, ...]
    label_column: str
    class_names: tuple[str, ...] | None
    curation: Curation = UNCHANGED
    scale: Scale = AS_THEY_ARE

    @property
    def id_columns(self) -> tuple[str, ...]:
        """Columns that name rows."""
        return self.curation.ids

    @property
    def marked(self) -> tuple[str, ...]:
        """Columns that a table may lack."""
        return tuple(c.name for c in self.columns if isinstance(c, MissingColumn))

    def apply(self, table: pd.DataFrame | CellTable | str | Path) -> Tensor:
        """The rows of a table, or of a CSV, as a float32 tensor of one row each."""
        where = repr(str(table)) if isinstance(table, str | Path) else "the table"
        if not isinstance(table, CellTable):
            table = self.read(table)
        names, marked = dict.fromkeys(column.name for column in self.columns), self.marked
        require_columns(table.names, [name for name in names if name not in marked], where)
        table = table.with_empty(marked)
        if not len(table):
            raise DataError(f"Expected rows below the header of {where}, but there are none.")
        return self.encode(table)

    def read(self, given: pd.DataFrame | str | Path) -> CellTable:
        """A table that spells, calls and measures things as that of the training rows did.

        One in which a column has its new name already is as good.
        """
        if isinstance(given, pd.DataFrame):
            table = as_table(given, self.curation.spelling)
        else:
            table = self.curation.read(Path(given))
        renamed = self.curation.renamed.items()
        there = {old: new for old, new in renamed if new not in table.names}
        return replace(self.curation, renamed=there).apply(table)

    def ids(self, table: CellTable) -> dict[str, list[str]]:
        """What names the rows, as far as the table says it."""
        return {name: table[name].tolist() for name in self.id_columns if name in table.names}

    def encode(self, table: CellTable) -> Tensor:
        """The rows of a table that holds all columns."""
        ends = np.cumsum([column.width for column in self.columns], dtype=np.int64).tolist()
        what = f"the encoded rows of site {self.site!r}"
        check_memory(8 * len(table) * ends[-1], what, "leave columns of categories out")
        encoded = np.empty((len(table), ends[-1]), dtype=np.float32)
        numeric: dict[int, NumericColumn] = {}
        for column, end in zip(self.columns, ends, strict=True):
            if isinstance(column, NumericColumn):
                numeric[end - 1] = column
            else:
                encoded[:, end - column.width : end] = column.encode(table[column.name])
        encoded[:, list(numeric)] = _standardised(table, list(numeric.values())).T
        return torch.from_numpy(encoded)

    def to_json(self) -> str:
        """The preprocessing as JSON text with a format version."""
        content = {
            "format": FIRST_FORMAT,
            "site": self.site,
            "label_column": self.label_column,
            "class_names": self.class_names,
            "columns": [asdict(column) for column in self.columns],
            **self.curation.to_record(),
            **({} if self.scale == AS_THEY_ARE else {"scale": asdict(self.scale)}),
        }
        if self.marked or not {*content} <= {*FIRST}:
            content["format"] = FORMAT
        return json.dumps(content, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Preprocessing:
        """Read what :meth:`to_json` wrote; anything else is an error, a newer format above all."""
        content = read_record(text, FIRST_FORMAT, FORMAT)
        try:
            names = content["class_names"]
            kind = ByOwnRows if content.get(OWN_ROWS) else cls
            return kind(
                site=str(content["site"]),
                columns=tuple(map(_column_from_json, content["columns"])),
                label_column=str(content["label_column"]),
                class_names=None if names is None else tuple(map(str, names)),
                curation=Curation.from_record(content),
                scale=Scale(**content.get("scale", {})),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"Expected complete preprocessing of format {FORMAT}, but it is damaged "
                f"({error}): run the training again."
            ) from error


def scale_of(how: object) -> Scale:
    """What a model's numbers stand for, if new rows go through this preprocessing."""
    return how.scale if isinstance(how, Preprocessing) else AS_THEY_ARE


def read_record(text: str, *formats: int) -> dict[str, Any]:
    """Saved preprocessing as plain JSON, refused unless it has a format that is expected."""
    try:
        content: dict[str, Any] = parse_json(text)
        version = content["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            "Expected saved preprocessing as JSON with a `format`, but this is something else."
        ) from error
    if version not in formats:
        raise DataError(
            f"Expected preprocessing of format {formats[-1]}, but got {version!r}: use the version "
            f"of fedbridge that wrote it, or a newer one."
        )
    return content


def _column_from_json(content: Mapping[str, object]) -> Column:
    name = str(content["name"])
    if content.get("marks") == "missing":
        return MissingColumn(name)
    if "levels" in content:
        levels = content["levels"]
        if not isinstance(levels, list):
            raise TypeError(f"column {name!r} has levels that are no list")
        fill, named = str(content["fill"]), tuple(map(str, levels))
        if "means" in content:
            means, scales = (_numbers(content[key]) for key in ("means", "scales"))
            return CodedColumn(name, fill, named, means, scales)
        return CategoricalColumn(name, fill, named)
    return NumericColumn(name, *(_number(content[key]) for key in ("fill", "mean", "scale")))


def _number(value: object) -> float:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _numbers(values: object) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is no list of numbers")
    return tuple(map(_number, values))


def fit_preprocessing(
    training: Tables,
    kinds: Mapping[str, Kind],
    levels: Mapping[str, tuple[str, ...]],
    *,
    standardise: Standardise,
    label_column: str,
    class_names: tuple[str, ...] | None,
    imputed: Sequence[str] = (),
    curations: Mapping[str, Curation] | None = None,
    scale: Scale = AS_THEY_ARE,
) -> dict[str, Preprocessing]:
    """The preprocessing of every site.

    A column that is empty at one site is filled and scaled there by the values of the others:
    it then says nothing, which is what that site knows. Categories that may be imputed are none
    there: who sees only its own rows can do the same.

    Args:
        training: The training rows of each site.
        kinds: The columns to use and what they hold.
        levels: The categories of each categorical column over all sites.
        standardise: Scale by each site's own mean and deviation, or by those of all together.
        label_column: The column to predict.
        class_names: The labels by class index; ``None`` for regression.
        imputed: Columns that a site may lack; an input of their own says where.
        curations: How each site's tables are read, which is kept for later ones.
        scale: What the model's numbers stand for.
    """
    numeric = _fit_numeric([c for c in kinds if c not in levels], training, standardise)
    for site, curation in (curations or {}).items():
        for name, known in curation.scales.items():
            if name in levels:
                raise OptionError(
                    f"Expected `scales` to name columns of numbers, but {name!r} holds categories: "
                    f"leave it out."
                )
            if name in numeric:
                numeric[name][site] = NumericColumn(name, known.mean, known.mean, known.deviation)
    categorical = {c: _fit_categorical(c, training, levels[c], alone=c in imputed) for c in levels}
    fitted: Mapping[str, Mapping[str, Column]] = {**numeric, **categorical}
    marks: dict[str, list[Column]] = {name: [MissingColumn(name)] for name in imputed}
    return {
        site: Preprocessing(
            site,
            tuple(c for name in kinds for c in (fitted[name][site], *marks.get(name, ()))),
            label_column,
            class_names,
            (curations or {}).get(site, UNCHANGED),
            scale,
        )
        for site in training
    }


OWN_ROWS = "by_own_rows"
"""Entry of saved preprocessing that says so."""


@dataclass(frozen=True)
class ByOwnRows(Preprocessing):
    """Preprocessing for any site: rows are imputed and scaled by themselves, as every site's are.

    A coordinator knows what columns mean, but no site's means and deviations. So a row depends on
    those it comes with, which should be all of a site.
    """

    def encode(self, table: CellTable) -> Tensor:
        """The rows of a table that holds all columns."""
        coded = {c.name: c.levels for c in self.columns if isinstance(c, CategoricalColumn)}
        kinds: dict[str, Kind] = {
            c.name: "categorical" if c.name in coded else "numeric" for c in self.columns
        }
        warnings.warn(
            f"Numbers are standardised by these {len(table)} rows, since those of no site are "
            f"known here: give all rows of a site at once.",
            stacklevel=2,
        )
        fitted = fit_preprocessing(
            {self.site: table},
            kinds,
            coded,
            standardise="site",
            label_column=self.label_column,
            class_names=self.class_names,
            imputed=self.marked,
        )
        return fitted[self.site].encode(table)

    def to_json(self) -> str:
        """The preprocessing as JSON text with a format version."""
        return json.dumps({**parse_json(super().to_json()), OWN_ROWS: True}, indent=2)

    @classmethod
    def of_schema(cls, schema: Schema) -> ByOwnRows:
        """For all sites that agreed on a schema."""
        columns: list[Column] = []
        for name in schema.kinds:
            levels = schema.levels.get(name)
            columns.append(
                CategoricalColumn(name, levels[0], levels)
                if levels
                else NumericColumn(name, 0.0, 0.0, 1.0)
            )
            columns += [MissingColumn(name)] if name in schema.imputed else []
        return cls(
            "any site",
            tuple(columns),
            schema.label_column,
            schema.class_names,
            scale=schema.scale,
        )


def imputation_notes(training: Tables, fitted: Mapping[str, Preprocessing]) -> list[str]:
    """How many training values each site lacked, and what took their place."""
    notes = []
    for site, table in training.items():
        columns = [c for c in fitted[site].columns if not isinstance(c, MissingColumn)]
        missing = table.pick([column.name for column in columns]).text == ""
        known = fitted[site].curation.scales
        parts = [
            _imputed(columns[k], missing[k], known=columns[k].name in known)
            for k in np.flatnonzero(missing.any(axis=1))
        ]
        if parts:
            notes.append(f"site {site!r}: missing training values imputed: {', '.join(parts)}")
    return notes


def _imputed(
    column: NumericColumn | CategoricalColumn | CodedColumn,
    missing: NDArray[np.bool_],
    *,
    known: bool,
) -> str:
    numeric = isinstance(column, NumericColumn)
    how = "its training median" if numeric else "its most frequent training value"
    if known:
        how = "the mean of its scale"
    elif missing.all():
        how = "other sites' value"
        if not column.fill and isinstance(column.fill, str):
            return f"{len(missing)} of {column.name!r} as none of the categories"
    fill = f"{column.fill:.6g}" if isinstance(column.fill, float) else repr(column.fill)
    return f"{int(missing.sum())} of {column.name!r} with {how} {fill}"


def _standardised(table: CellTable, columns: Sequence[NumericColumn]) -> NDArray[np.float64]:
    """Columns of numbers, missing ones filled, in deviations from their means."""
    values = table.numbers([column.name for column in columns])
    fill, mean, scale = (
        np.array([getattr(column, part) for column in columns]).reshape(-1, 1)
        for part in ("fill", "mean", "scale")
    )
    scaled: NDArray[np.float64] = (np.where(np.isnan(values), fill, values) - mean) / scale
    far = np.argwhere(np.abs(scaled) > FARTHEST)
    if len(far):
        place, row = far[0].tolist()
        raise DataError(
            f"Expected numbers in column {columns[place].name!r} like those of training, around "
            f"{columns[place].mean:.6g}, but row {spreadsheet_row(table.rows[row:])} (the header "
            f"is row 1) has {values[place, row]:.6g}: correct it, or leave it empty if unknown."
        )
    return scaled


def _fit_numeric(
    names: Sequence[str], training: Tables, standardise: Standardise
) -> dict[str, dict[str, NumericColumn]]:
    """Fill, mean and scale of every column at every site, all columns at once."""
    values = {site: table.numbers(names, site) for site, table in training.items()}
    empty: dict[str, NDArray[np.bool_]] = {
        site: np.all(np.isnan(own), axis=1) for site, own in values.items()
    }
    fills = {site: _medians(own) for site, own in values.items()}
    known = {}
    for place in np.flatnonzero(np.any([*empty.values()], axis=0)).tolist():
        everywhere = np.concatenate([own[place] for own in values.values()])
        known[place] = everywhere = everywhere[~np.isnan(everywhere)]
        for site, own in fills.items():
            if empty[site][place]:
                own[place] = np.mean(everywhere) if len(everywhere) else 0.0
    filled = {
        site: np.where(np.isnan(own), fills[site][:, None], own) for site, own in values.items()
    }
    if standardise == "joint":
        together = _means_and_scales(np.concatenate([*filled.values()], axis=1))
        scaling = dict.fromkeys(values, together)
    else:
        scaling = {site: _means_and_scales(own) for site, own in filled.items()}
        for site, (means, scales) in scaling.items():
            for place in np.flatnonzero(empty[site]).tolist():
                if len(known[place]):
                    (means[place],), (scales[place],) = _means_and_scales(known[place][None])
    return {
        name: {
            site: NumericColumn(
                name, *(float(part[place]) for part in (fills[site], *scaling[site]))
            )
            for site in values
        }
        for place, name in enumerate(names)
    }


def _medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of every row without its NaN; NaN where there is nothing else."""
    ordered = np.sort(values, axis=1)  # NaN last
    count = np.count_nonzero(~np.isnan(values), axis=1)
    middle = np.maximum(np.stack([count - 1, count]), 0) // 2
    low, high = np.take_along_axis(ordered, middle.T, axis=1).T
    medians: NDArray[np.float64] = (low + high) / 2
    return medians


def _means_and_scales(
    values: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of every row; a constant one has none: it is centred and left at that."""
    deviations = np.std(values, axis=1)
    return np.mean(values, axis=1), np.where(deviations > 0, deviations, 1.0)


def _fit_categorical(
    name: str, training: Tables, levels: tuple[str, ...], *, alone: bool
) -> dict[str, CategoricalColumn]:
    """The levels and the fill of every site; one with no value at all asks others unless alone."""
    cells = {site: table[name].tolist() for site, table in training.items()}
    everywhere = most_frequent([] if alone else [cell for own in cells.values() for cell in own])
    return {
        site: CategoricalColumn(name, most_frequent(own) or everywhere, levels)
        for site, own in cells.items()
    }


def most_frequent(cells: Sequence[str]) -> str:
    """The most frequent category, the first in the alphabet among equals; ``""`` if all miss."""
    counts = Counter(filter(None, cells))
    return min(counts, key=lambda cell: (-counts[cell], cell), default="")
