"""One site's own CSV: read where it lies, by a schema that the sites agreed on beforehand.

The rows are those that ``load_task`` gives for this site when it sees the files of all: the same
code reads, splits, imputes, scales and codes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbridge.base.errors import DataError
from fedbridge.data.arrays import SiteRows, select
from fedbridge.data.labels import show
from fedbridge.data.site_package import LocalSite
from fedbridge.data.split import OWN_SPLIT, SplitOptions, split_target
from fedbridge.data.tables.cells import as_text, read_csv
from fedbridge.data.tables.preprocessing import fit_preprocessing
from fedbridge.data.tables.schema import MAX_LEVELS, label_form
from fedbridge.data.tables.summary import labelled_rows, summarise
from fedbridge.data.task import Site, check_target_classes

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from fedbridge.data.site_package import Role
    from fedbridge.data.tables.preprocessing import Preprocessing
    from fedbridge.data.tables.schema import Schema
    from fedbridge.data.tables.summary import Reading, TableSummary

FEW_ROWS = 5
"""A category that fewer rows have may point to a person."""
FEW_LEVELS = 10
"""Up to so many different values are categories even in the smallest table."""


@dataclass(frozen=True)
class DescribedTable:
    """A site's table as others may know it, and what its owner should think about first.

    Attributes:
        summary: What sites agree on.
        rows: How many rows there are.
        labelled: How many of them have a label.
        cautions: Rare categories, for the eyes of the site alone.
    """

    summary: TableSummary
    rows: int
    labelled: int
    cautions: tuple[str, ...]


def describe_csv(csv: Path, name: str, reading: Reading) -> DescribedTable:
    """Describe a site's table without any of its rows.

    Refused is what must not leave a site: text that differs in most rows, such as names or notes.
    """
    table = _read(csv, name)
    summary = summarise(table, name, reading)
    label_form({name: summary}, reading.label_column, reading.kind)
    listed = {c: own.levels for c, own in summary.columns.items() if own.kind == "categorical"}
    if summary.labels is not None:
        listed[reading.label_column] = summary.labels
    for column, levels in listed.items():
        few = max(FEW_LEVELS, int((table[column] != "").sum()) // 2)
        if column not in reading.categorical and len(levels) > min(few, MAX_LEVELS):
            raise DataError(
                f"Expected categories in column {column!r}, but {len(levels)} of its values at "
                f"site {name!r} differ, as in an identifier or free text, which must not leave "
                f"the site: leave it out with `columns`, or name it in `categorical` if it is "
                f"meant."
            )
    labelled = labelled_rows(table, name, reading.label_column)
    cautions = [
        text for column in listed for text in _cautions(column, table[column][table[column] != ""])
    ]
    return DescribedTable(summary, len(table), len(labelled), tuple(cautions))


def load_csv_site(
    csv: Path,
    schema: Schema,
    name: str,
    role: Role,
    seed: int = 0,
    split: SplitOptions = OWN_SPLIT,
) -> LocalSite:
    """What one site brings to a federation, from its own CSV and the agreed schema.

    Numbers are standardised by the site's own training rows, as ``standardise="site"`` does.

    Args:
        csv: The site's file.
        schema: What the sites agreed on.
        name: The site.
        role: Whether it is a source or the target.
        seed: Decides the target's split.
        split: How the target's rows are divided; all its training rows are labelled by default.
    """
    table = _read(csv, name)
    schema.check(table, name)
    labelled = labelled_rows(table, name, schema.label_column)
    y = schema.labels(labelled[schema.label_column], name)
    if role == "source":
        x = _fit(labelled, schema, name, role).encode(labelled)
        return LocalSite(name, role, Site(name, x, y), None, schema.n_classes, schema.class_names)
    strata = None if schema.class_names is None else y.numpy()
    divided = split_target(strata, len(labelled), seed, split)
    fitted = _fit(labelled.iloc[divided.training], schema, name, role)
    rows = SiteRows(fitted.encode(labelled), y, range(len(labelled)))
    train, test = select(rows, divided.labelled), select(rows, divided.test)
    target = Site(name, train.x, train.y)
    if schema.class_names is not None:
        check_target_classes(target, schema.class_names)
    return LocalSite(
        name,
        role,
        target,
        Site(f"{name} (test)", test.x, test.y),
        schema.n_classes,
        schema.class_names,
        fitted,
    )


def _fit(training: pd.DataFrame, schema: Schema, site: str, role: Role) -> Preprocessing:
    """The site's preprocessing, from nobody's rows but its own.

    A source's column of numbers without any says nothing and stays at zero, as it does when all
    files are at hand. For anything else that is empty, other sites' rows would be needed.
    """
    for column, kind in schema.kinds.items():
        if (kind == "categorical" or role == "target") and (training[column] == "").all():
            raise DataError(
                f"Expected values in column {column!r} at site {site!r}, but its training rows "
                f"have none, and other sites' rows are not here to fill it: leave it out with "
                f"`columns` at all sites."
            )
    return fit_preprocessing(
        {site: training},
        schema.kinds,
        schema.levels,
        standardise="site",
        label_column=schema.label_column,
        class_names=schema.class_names,
    )[site]


def _cautions(column: str, cells: pd.Series) -> list[str]:
    counts = cells.value_counts()
    rare = sorted(counts[counts < FEW_ROWS].index)
    if not rare:
        return []
    return [f"column {column!r}: fewer than {FEW_ROWS} rows each have {show(rare)}"]


def _read(csv: Path, site: str) -> pd.DataFrame:
    table = as_text(read_csv(csv))
    if not len(table):
        raise DataError(
            f"Expected every site to have rows, but {site!r} has none below the header of "
            f"{csv.name!r}: add some."
        )
    return table
