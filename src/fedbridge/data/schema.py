"""What sites agreed on: the same columns, categories and labels for all, whoever reads a table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np

from fedbridge.data.agreement import (
    LabelForm,
    category_levels,
    column_kinds,
    common_columns,
    label_form,
)
from fedbridge.data.labels import as_values, class_indices, code_labels, show
from fedbridge.data.summary import Kind
from fedbridge.data.tables import checked_numbers, require_columns
from fedbridge.errors import DataError, OptionError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from torch import Tensor

    from fedbridge.data.agreement import Summaries
    from fedbridge.data.summary import Reading

FORMAT = 1
AGAIN = "describe the data anew and agree again"


@dataclass(frozen=True)
class Schema:
    """How every site turns its table into the model's inputs and classes.

    Attributes:
        label_column: The column to predict.
        label_form: What labels are.
        class_names: The labels by class index; ``None`` for regression.
        kinds: What each column holds, in the order of the model's inputs.
        levels: The categories of each categorical column over all sites.
    """

    label_column: str
    label_form: LabelForm
    class_names: tuple[str, ...] | None
    kinds: Mapping[str, Kind]
    levels: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        if not self.kinds or self.label_column in self.kinds:
            raise ValueError("it needs columns to learn from, and the label is none of them")
        categorical = {column for column, kind in self.kinds.items() if kind == "categorical"}
        if categorical != set(self.levels) or not all(self.levels.values()):
            raise ValueError("it needs levels of all categorical columns and of no others")
        if (self.label_form == "values") != (self.class_names is None):
            raise ValueError("it needs class names unless labels are values")

    @property
    def n_classes(self) -> int | None:
        """Number of classes; ``None`` for regression."""
        return None if self.class_names is None else len(self.class_names)

    def check(self, table: pd.DataFrame, site: str) -> None:
        """Refuse a table that is not as this site described it when it agreed."""
        require_columns(table, [self.label_column, *self.kinds], f"the table of site {site!r}")
        for column, levels in self.levels.items():
            new = sorted(set(table[column].unique()) - {"", *levels})
            if new:
                raise DataError(
                    f"Expected categories of column {column!r} among {show(levels)}, as the sites "
                    f"agreed, but site {site!r} has {show(new)}: correct them, or {AGAIN}."
                )

    def labels(self, cells: pd.Series, site: str) -> Tensor:
        """One site's labels as class indices, or as values."""
        if self.label_form == "words":
            labels, index = cells.to_numpy(dtype=str), self._index(str)
        else:
            labels, index = checked_numbers(cells, site).to_numpy(), self._index(float)
        if self.class_names is None:
            return as_values(labels)
        new = [label for label in np.unique(labels).tolist() if label not in index]
        if new:
            raise DataError(
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
            for name, kind in self.kinds.items()
        ]
        content = {
            "format": FORMAT,
            "label_column": self.label_column,
            "label_form": self.label_form,
            "class_names": self.class_names,
            "columns": columns,
        }
        return json.dumps(content, indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read what :meth:`to_json` wrote, and refuse anything else."""
        try:
            content = json.loads(text)
            if content["format"] != FORMAT:
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
            )
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"Expected a schema that `fedbridge deploy check` wrote, but it cannot be used "
                f"({error}): {AGAIN}."
            ) from error


def agree(sites: Summaries, reading: Reading) -> tuple[Schema, list[str]]:
    """The schema of all sites, and notes on what may be right or not.

    Raises:
        DisagreementError: When they do not agree; the message lists who has what.
    """
    features = _features(sites, reading)
    kinds = column_kinds(sites, features, reading.categorical)
    levels, notes = category_levels(sites, kinds, reading.categorical)
    form = label_form(sites, reading.label_column, reading.kind)
    return Schema(reading.label_column, form, _class_names(sites, form), kinds, levels), notes


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
