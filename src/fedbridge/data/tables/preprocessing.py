"""From a table to numbers: what is learned on training rows and applied to every later row.

One `Preprocessing` belongs to one site. The target's is saved with the model, so that a new
patient is imputed, scaled and coded exactly as the training rows were.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedbridge.base.errors import DataError
from fedbridge.data.labels import show
from fedbridge.data.tables.cells import as_text, checked_numbers, read_csv, require_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fedbridge.data.tables.schema import Kind, Tables

FORMAT = 1

Standardise = Literal["site", "joint"]


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers: missing ones become ``fill``, then ``(value - mean) / scale``."""

    name: str
    fill: float
    mean: float
    scale: float

    def __post_init__(self) -> None:
        if not all(map(isfinite, (self.fill, self.mean, self.scale))) or self.scale <= 0:
            raise ValueError(f"column {self.name!r} has a fill, mean or scale that is no number")

    def encode(self, cells: pd.Series) -> NDArray[np.float64]:
        """The cells as one column of scaled numbers."""
        values = checked_numbers(cells).fillna(self.fill)
        return ((values.to_numpy() - self.mean) / self.scale)[:, None]


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories: missing ones become ``fill``, then one indicator per level."""

    name: str
    fill: str
    levels: tuple[str, ...]

    def encode(self, cells: pd.Series) -> NDArray[np.float64]:
        """The cells as indicators; a level that training never saw is all zeros, with a warning."""
        filled = cells.mask(cells == "", self.fill)
        unseen = sorted(set(filled.unique()) - set(self.levels))
        if unseen:
            warnings.warn(
                f"Column {self.name!r} has categories that training never saw, which count as "
                f"none of the known ones: {show(unseen)}.",
                stacklevel=3,
            )
        indicators = [(filled == level).to_numpy(dtype=np.float64) for level in self.levels]
        return np.stack(indicators, axis=1)


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

    def encode(self, cells: pd.Series) -> NDArray[np.float64]:
        """The cells as scaled indicators; see :meth:`CategoricalColumn.encode`."""
        indicators = CategoricalColumn(self.name, self.fill, self.levels).encode(cells)
        scaled: NDArray[np.float64] = (indicators[:, 1:] - self.means) / self.scales
        return scaled


Column: TypeAlias = NumericColumn | CategoricalColumn | CodedColumn


@dataclass(frozen=True)
class Preprocessing:
    """How one site's table becomes the model's input, and what the model's output means.

    Attributes:
        site: Whose imputation and scaling these are.
        columns: The columns used, in the order of the model's inputs.
        label_column: The column to predict.
        class_names: The labels by class index; ``None`` for regression.
    """

    site: str
    columns: tuple[Column, ...]
    label_column: str
    class_names: tuple[str, ...] | None

    def apply(self, table: pd.DataFrame | str | Path) -> Tensor:
        """The rows of a table, or of a CSV, as a float32 tensor of one row each."""
        if isinstance(table, pd.DataFrame):
            frame, where = table, "the table"
        else:
            frame, where = read_csv(Path(table)), repr(str(table))
        require_columns(frame, (column.name for column in self.columns), where)
        if not len(frame):
            raise DataError(f"Expected rows below the header of {where}, but there are none.")
        return self.encode(as_text(frame[[column.name for column in self.columns]]))

    def encode(self, text: pd.DataFrame) -> Tensor:
        """The rows of a table that :func:`as_text` has made, which holds all columns."""
        encoded = [column.encode(text[column.name]) for column in self.columns]
        return torch.from_numpy(np.hstack(encoded)).to(torch.float32)

    def to_json(self) -> str:
        """The preprocessing as JSON text with a format version."""
        content = {
            "format": FORMAT,
            "site": self.site,
            "label_column": self.label_column,
            "class_names": self.class_names,
            "columns": [asdict(column) for column in self.columns],
        }
        return json.dumps(content, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Preprocessing:
        """Read what :meth:`to_json` wrote; anything else is an error, a newer format above all."""
        content = read_record(text, FORMAT)
        try:
            names = content["class_names"]
            return cls(
                site=str(content["site"]),
                columns=tuple(map(_column_from_json, content["columns"])),
                label_column=str(content["label_column"]),
                class_names=None if names is None else tuple(map(str, names)),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"Expected complete preprocessing of format {FORMAT}, but it is damaged "
                f"({error}): run the training again."
            ) from error


def read_record(text: str, format: int) -> dict[str, Any]:
    """Saved preprocessing as plain JSON, refused unless it has the format that is expected."""
    try:
        content: dict[str, Any] = json.loads(text)
        version = content["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            "Expected saved preprocessing as JSON with a `format`, but this is something else."
        ) from error
    if version != format:
        raise DataError(
            f"Expected preprocessing of format {format}, but got {version!r}: use the version of "
            f"fedbridge that wrote it, or a newer one."
        )
    return content


def _column_from_json(content: Mapping[str, object]) -> Column:
    name = str(content["name"])
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
) -> dict[str, Preprocessing]:
    """The preprocessing of every site.

    A column that is empty at one site is filled and scaled there by the values of the others:
    it then says nothing, which is what that site knows.

    Args:
        training: The training rows of each site as text.
        kinds: The columns to use and what they hold.
        levels: The categories of each categorical column over all sites.
        standardise: Scale by each site's own mean and deviation, or by those of all together.
        label_column: The column to predict.
        class_names: The labels by class index; ``None`` for regression.
    """
    columns: dict[str, list[Column]] = {site: [] for site in training}
    for name, kind in kinds.items():
        cells = {site: table[name] for site, table in training.items()}
        fitted: Mapping[str, Column] = (
            _fit_numeric(name, cells, standardise)
            if kind == "numeric"
            else _fit_categorical(name, cells, levels[name])
        )
        for site, column in fitted.items():
            columns[site].append(column)
    return {
        site: Preprocessing(site, tuple(own), label_column, class_names)
        for site, own in columns.items()
    }


def imputation_notes(training: Tables, fitted: Mapping[str, Preprocessing]) -> list[str]:
    """How many training values each site lacked, and what took their place."""
    notes = []
    for site, table in training.items():
        parts = [
            _imputed(column, table[column.name] == "")
            for column in fitted[site].columns
            if (table[column.name] == "").any()
        ]
        if parts:
            notes.append(f"site {site!r}: missing training values imputed: {', '.join(parts)}")
    return notes


def _imputed(column: Column, missing: pd.Series) -> str:
    numeric = isinstance(column, NumericColumn)
    how = "its training median" if numeric else "its most frequent training value"
    if missing.all():
        how = "other sites' value"
    fill = f"{column.fill:.6g}" if isinstance(column.fill, float) else repr(column.fill)
    return f"{int(missing.sum())} of {column.name!r} with {how} {fill}"


def _fit_numeric(
    name: str, cells: Mapping[str, pd.Series], standardise: Standardise
) -> dict[str, NumericColumn]:
    values = {site: checked_numbers(column, site) for site, column in cells.items()}
    known = np.concatenate([column.dropna().to_numpy() for column in values.values()])
    if not len(known):
        return {site: NumericColumn(name, fill=0.0, mean=0.0, scale=1.0) for site in values}
    fills = {
        site: float(column.median()) if column.notna().any() else float(np.mean(known))
        for site, column in values.items()
    }
    filled = {site: column.fillna(fills[site]).to_numpy() for site, column in values.items()}
    if standardise == "joint":
        everything = np.concatenate([*filled.values()])
        scaling = {site: _mean_and_scale(everything) for site in values}
    else:
        scaling = {
            site: _mean_and_scale(filled[site] if column.notna().any() else known)
            for site, column in values.items()
        }
    return {site: NumericColumn(name, fills[site], *scaling[site]) for site in values}


def _mean_and_scale(values: NDArray[np.float64]) -> tuple[float, float]:
    """A constant column has no deviation: it is centred and left at that."""
    deviation = float(np.std(values))
    return float(np.mean(values)), deviation if deviation > 0 else 1.0


def _fit_categorical(
    name: str, cells: Mapping[str, pd.Series], levels: tuple[str, ...]
) -> dict[str, CategoricalColumn]:
    everywhere = _most_frequent(pd.concat([*cells.values()]))
    return {
        site: CategoricalColumn(name, _most_frequent(column) or everywhere, levels)
        for site, column in cells.items()
    }


def _most_frequent(cells: pd.Series) -> str:
    """The most frequent category, the first in the alphabet among equals; ``""`` if all miss."""
    modes = cells[cells != ""].mode()
    return str(modes.iloc[0]) if len(modes) else ""
