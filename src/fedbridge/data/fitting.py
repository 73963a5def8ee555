"""Learns each site's preprocessing from its training rows, and says what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from fedbridge.data.preprocessing import CategoricalColumn, NumericColumn, Preprocessing
from fedbridge.data.tables import checked_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fedbridge.data.preprocessing import Column
    from fedbridge.data.summary import Kind, Tables

Standardise = Literal["site", "joint"]


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
