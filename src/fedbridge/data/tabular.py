"""A CSV with a site column, or a folder with one CSV per site, as a task."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd

from fedbridge.data.agreement import category_levels, column_kinds, common_columns
from fedbridge.data.arrays import SiteRows, assemble
from fedbridge.data.fitting import Standardise, fit_preprocessing, imputation_notes
from fedbridge.data.labels import code_labels, show
from fedbridge.data.options import check_choice, check_target_name
from fedbridge.data.split import TEST_FRACTION, split_target
from fedbridge.data.tables import (
    NAMELESS,
    as_text,
    checked_numbers,
    numbers,
    read_csv,
    require_columns,
    spreadsheet_row,
)
from fedbridge.errors import DataError, DisagreementError, OptionError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fedbridge.data.agreement import Tables
    from fedbridge.data.labels import Labels
    from fedbridge.data.task import FederatedTask

TaskKind = Literal["classification", "regression"]

SITE_COLUMN = "site"
STANDARDISED: dict[Standardise, str] = {
    "site": "numeric columns standardised at each site by its own training rows",
    "joint": "numeric columns standardised jointly by the training rows of all sites",
}
MAX_NUMBERED_CLASSES = 20
LARGEST_WHOLE = 2**53
"""Above this, neighbouring whole numbers are the same float and cannot be told apart."""


def table_task(
    path: Path,
    target: str | None = None,
    seed: int = 0,
    *,
    site_column: str | None = None,
    label_column: str = "label",
    columns: str | Sequence[str] | None = None,
    categorical: str | Sequence[str] = (),
    standardise: Standardise = "site",
    kind: TaskKind | None = None,
    n_target: int | None = None,
    target_fraction: float | None = None,
    test_fraction: float = TEST_FRACTION,
) -> FederatedTask:
    """A task from one CSV with a site column, or from a folder with one CSV per site.

    Args:
        path: The file or folder.
        target: The site that adapts.
        seed: Decides every random choice of rows.
        site_column: The column that says whose row it is (``site`` by default); in a folder the
            file names say so, and this column is ignored.
        label_column: The column to predict.
        columns: The columns to learn from, as a list or separated by commas; by default all
            others that have a name.
        categorical: Columns of numbers that are codes.
        standardise: Scale numbers by each ``site``'s own training rows, or ``joint``-ly.
        kind: ``classification`` or ``regression``; by default words and up to 20 different whole
            numbers are classes, other numbers are values.
        n_target: Labelled rows at the target; all its training rows by default.
        target_fraction: The same as a fraction of its training rows.
        test_fraction: Share of the target's rows set aside for testing.
    """
    check_choice("standardise", standardise, get_args(Standardise))
    if kind is not None:
        check_choice("kind", kind, get_args(TaskKind))
    codes = _names(categorical)
    tables = _site_tables(path, site_column)
    target_name = check_target_name(target, tables)
    features = _features(tables, label_column, columns, codes)
    kinds = column_kinds(tables, features, codes)
    levels, level_notes = category_levels(tables, kinds, codes)
    labelled = {site: table[table[label_column] != ""] for site, table in tables.items()}
    y, class_names = code_labels(_labels(labelled, label_column, kind))
    split = split_target(
        None if class_names is None else y[target_name].numpy(),
        len(labelled[target_name]),
        seed,
        n_target=n_target,
        target_fraction=target_fraction,
        test_fraction=test_fraction,
    )
    training = {**labelled, target_name: labelled[target_name].iloc[split.training]}
    fitted = fit_preprocessing(
        training,
        kinds,
        levels,
        standardise=standardise,
        label_column=label_column,
        class_names=class_names,
    )
    rows = {
        site: SiteRows(fitted[site].encode(table), y[site], table.index.tolist())
        for site, table in labelled.items()
    }
    loose = tables[target_name].drop(labelled[target_name].index)
    task = assemble(
        {site: rows[site] for site in rows if site != target_name},
        rows[target_name],
        split,
        name=path.stem,
        origin=path.name,
        seed=seed,
        target_name=target_name,
        class_names=class_names,
        unlabelled=(fitted[target_name].encode(loose), loose.index.tolist())
        if len(loose)
        else None,
    )
    notes = [
        _kind_note(label_column, class_names),
        f"learned from: {', '.join(map(repr, features))}",
        *_unlabelled_notes(tables, labelled, target_name),
        *level_notes,
        STANDARDISED[standardise],
        *imputation_notes(training, fitted),
        *task.notes,
    ]
    return replace(task, preprocessing=fitted[target_name], notes=tuple(notes))


def _site_tables(path: Path, site_column: str | None) -> dict[str, pd.DataFrame]:
    """Every site's rows as text, without the column that names the site."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() == ".csv")
        tables = {file.stem: as_text(read_csv(file)) for file in files}
        if site_column is not None:
            tables = {
                site: t.drop(columns=site_column, errors="ignore") for site, t in tables.items()
            }
    else:
        tables = _divide(read_csv(path), site_column or SITE_COLUMN, path)
    for site, table in tables.items():
        if not len(table):
            raise DataError(
                f"Expected every site to have rows, but {site!r} has none below its header: add "
                f"some or remove its file."
            )
    return tables


def _divide(frame: pd.DataFrame, site_column: str, path: Path) -> dict[str, pd.DataFrame]:
    require_columns(frame, [site_column], f"{path.name!r} to name the site of each row")
    if not len(frame):
        raise DataError(f"Expected rows below the header of {path.name!r}, but there are none.")
    sites = frame[site_column].fillna("").str.strip()
    nameless = sites[sites == ""]
    if len(nameless):
        raise DataError(
            f"Expected every row to name its site, but {len(nameless)} have an empty "
            f"{site_column!r}, first row {spreadsheet_row(nameless)} (the header is row 1): fill "
            f"it in or remove them."
        )
    text = as_text(frame.drop(columns=site_column))
    return {str(site): text.loc[rows] for site, rows in sites.groupby(sites).groups.items()}


def _features(
    tables: Tables,
    label_column: str,
    columns: str | Sequence[str] | None,
    categorical: Sequence[str],
) -> list[str]:
    """The columns to learn from, all of which every site has."""
    for site, table in tables.items():
        wanted = [label_column, *([] if columns is None else _names(columns))]
        require_columns(table, wanted, f"the table of site {site!r}")
    if columns is None:
        features = [
            column
            for column in common_columns(tables)
            if column != label_column and not column.startswith(NAMELESS)
        ]
    else:
        features = _names(columns)
    if label_column in features:
        raise OptionError(
            f"Expected `columns` to learn from, but {label_column!r} is the label: leave it out."
        )
    if not features:
        raise DataError(
            f"Expected columns to learn from besides {label_column!r}, but there are none."
        )
    for column in categorical:
        if column not in features:
            raise OptionError(
                f"Expected `categorical` to name columns to learn from, but got {column!r}."
                f"{nearest(column, features)} Columns: {', '.join(map(repr, features))}."
            )
    return features


def _labels(tables: Tables, label_column: str, kind: TaskKind | None) -> dict[str, Labels]:
    """The labels of every site as whole numbers (classes), floats (values) or words (classes)."""
    text = {site: table[label_column] for site, table in tables.items()}
    for site, cells in text.items():
        if not len(cells):
            raise DataError(
                f"Expected labelled rows at every site, but {site!r} has nothing in column "
                f"{label_column!r}: label some of its rows or leave it out."
            )
    if kind == "regression":
        return {site: checked_numbers(cells, site).to_numpy() for site, cells in text.items()}
    values = {site: numbers(cells) for site, cells in text.items()}
    together = pd.concat([*values.values()])
    if together.isna().all():
        return {site: cells.to_numpy(dtype=str) for site, cells in text.items()}
    if together.isna().any():
        raise _mixed_labels(label_column, text, values)
    whole = bool(((together == together.round()) & (together.abs() < LARGEST_WHOLE)).all())
    if kind is None and not (whole and together.nunique() <= MAX_NUMBERED_CLASSES):
        return {site: column.to_numpy() for site, column in values.items()}
    if not whole:
        return {site: cells.to_numpy(dtype=str) for site, cells in text.items()}
    return {site: column.to_numpy().astype(np.int64) for site, column in values.items()}


def _mixed_labels(
    label_column: str, text: Mapping[str, pd.Series], values: Mapping[str, pd.Series]
) -> DisagreementError:
    """Labels that are words here and numbers there: nobody can know which word is which number."""
    listed = ""
    for site, cells in text.items():
        words = sorted(cells[values[site].isna()].unique())
        figures = sorted(cells[values[site].notna()].unique())
        parts = [f"text ({show(words)})"] if words else []
        parts += [f"numbers ({show(figures)})"] if figures else []
        listed += f"\n  site {site!r} has {' and '.join(parts)}"
    return DisagreementError(
        f"Expected labels in column {label_column!r} coded in one way at all sites, but:{listed}\n"
        f"Recode them alike."
    )


def _kind_note(label_column: str, class_names: tuple[str, ...] | None) -> str:
    if class_names is None:
        return f"{label_column!r} is predicted as a number (regression)"
    return (
        f"{label_column!r} is predicted as one of {len(class_names)} classes: {show(class_names)}"
    )


def _unlabelled_notes(tables: Tables, labelled: Tables, target: str) -> list[str]:
    fate = dict.fromkeys(tables, "left out") | {target: "kept as unlabelled rows"}
    return [
        f"site {site!r}: {len(table) - len(labelled[site])} rows without a label {fate[site]}"
        for site, table in tables.items()
        if len(table) > len(labelled[site])
    ]


def _names(columns: str | Sequence[str]) -> list[str]:
    """Column names, each once, given as a list or as one text separated by commas."""
    listed = columns.split(",") if isinstance(columns, str) else map(str, columns)
    return [name for name in dict.fromkeys(name.strip() for name in listed) if name]
