"""Tables as sites: a CSV with a site column, one CSV per site, or one's own CSV where it lies.

A site that reads its own CSV, by a schema that the sites agreed on beforehand, gets the rows that
``load_task`` gives for it when it sees the files of all: the same code reads, splits, imputes,
scales and codes them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

from fedbridge.base.errors import DataError, DisagreementError, EmptyColumnError, joined
from fedbridge.base.options import check_choice
from fedbridge.data.arrays import SiteRows, assemble, select
from fedbridge.data.labels import show
from fedbridge.data.site_files import site_files
from fedbridge.data.site_package import LocalSite
from fedbridge.data.split import OWN_SPLIT, SplitOptions, split_target
from fedbridge.data.tables.cells import read_csv, require_columns, spreadsheet_row
from fedbridge.data.tables.curation import (
    Curation,
    identifier_note,
    likely_identifiers,
    not_learned,
    pairs_of,
    ways_out,
)
from fedbridge.data.tables.preprocessing import Standardise, fit_preprocessing, imputation_notes
from fedbridge.data.tables.schema import (
    MAX_LEVELS,
    Reading,
    agree,
    column_names,
    examine,
    label_form,
    labelled_rows,
    summarise,
)
from fedbridge.data.tables.spelling import PLAIN, Spelling
from fedbridge.data.task import (
    Site,
    check_target_classes,
    check_target_name,
    chosen_sources,
    left_out_notes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from fedbridge.data.site_package import Role
    from fedbridge.data.tables.cells import CellTable
    from fedbridge.data.tables.preprocessing import Preprocessing
    from fedbridge.data.tables.schema import Schema, Tables, TableSummary, TaskKind
    from fedbridge.data.task import FederatedTask

SITE_COLUMN = "site"
STANDARDISED: dict[Standardise, str] = {
    "site": "numeric columns standardised at each site by its own training rows",
    "joint": "numeric columns standardised jointly by the training rows of all sites",
}
FEW_ROWS = 5
"""A category that fewer rows have may point to a person."""
FEW_LEVELS = 10
"""Up to so many different values are categories even in the smallest table."""


def table_task(
    path: Path,
    target: str | None = None,
    seed: int = 0,
    *,
    site_column: str | None = None,
    label_column: str = "label",
    id_column: str | Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    drop_columns: str | Sequence[str] = (),
    keep_columns: str | Sequence[str] = (),
    categorical: str | Sequence[str] = (),
    rename: str | Mapping[str, str] | None = None,
    label_map: str | Mapping[str, str] | None = None,
    sources: str | Sequence[str] | None = None,
    exclude_sites: str | Sequence[str] | None = None,
    standardise: Standardise = "site",
    kind: TaskKind | None = None,
    decimal: str = ".",
    thousands: str | None = None,
    percent: bool = False,
    split: SplitOptions = OWN_SPLIT,
) -> FederatedTask:
    """A task from one CSV with a site column, or from a folder with one CSV per site.

    Args:
        path: The file or folder.
        target: The site that adapts.
        seed: Decides every random choice of rows.
        site_column: The column that says whose row it is (``site`` by default); in a folder the
            file names say so, and this column is ignored.
        label_column: The column to predict.
        id_column: The column that names the row, such as a patient's number: nothing is learned
            from it, and ``predict`` hands it on. Several as in ``columns``.
        columns: The columns to learn from, as a list or separated by commas; by default all
            others that have a name, but for numbers that seem to be identifiers.
        drop_columns: Columns to leave out.
        keep_columns: Columns to learn from although they look like identifiers.
        categorical: Columns of numbers that are codes.
        rename: Other names for columns, ``old=new``; all other options use the new ones.
        label_map: Other spellings of labels, ``ja=1,nein=0``.
        sources: The sources to keep; the rows of others are not looked at.
        exclude_sites: Sites to leave out.
        standardise: Scale numbers by each ``site``'s own training rows, or ``joint``-ly.
        kind: ``classification`` or ``regression``; by default words and up to 20 different whole
            numbers are classes, other numbers are values.
        decimal: What stands before the fraction of a number, ``.`` or ``,``.
        thousands: What stands between groups of three digits: ``,``, ``.``, a space, ``_`` or
            ``'``; nothing by default.
        percent: Whether ``12%`` is a number, 0.12.
        split: How the target's rows are divided; all its training rows are labelled by default.
    """
    check_choice("standardise", standardise, get_args(Standardise))
    chosen = None if columns is None else column_names(columns)
    coded = column_names(categorical)
    reading = Reading(label_column, chosen, coded, kind, decimal, thousands, percent)
    curation = Curation(
        site_column,
        reading,
        () if id_column is None else column_names(id_column),
        column_names(drop_columns),
        column_names(keep_columns),
        pairs_of("rename", rename),
        pairs_of("label_map", label_map),
    )
    tables, target_name, left_out = _site_tables(path, target, curation, sources, exclude_sites)
    for site, table in tables.items():
        where = f"the table of site {site!r}"
        require_columns(table.names, [label_column], where, "--label-column NAME says which it is")
    tables, ids = curation.without_identifiers(tables)
    summaries = {site: summarise(table, site, reading) for site, table in tables.items()}
    try:
        schema, schema_notes = agree(summaries, reading)
    except DisagreementError as error:
        raise type(error)(f"{error}{ways_out(error, summaries)}") from error
    for column, levels in schema.levels.items():
        present = sum(int((table[column] != "").sum()) for table in tables.values())
        check_categories(column, len(levels), present, reading, instead=not_learned(column))
    class_names = schema.class_names
    labelled = {site: labelled_rows(table, site, label_column) for site, table in tables.items()}
    y = {site: schema.labels(table, site) for site, table in labelled.items()}
    strata = None if class_names is None else y[target_name].numpy()
    divided = split_target(strata, len(labelled[target_name]), seed, split)
    training = {**labelled, target_name: labelled[target_name].take(divided.training)}
    fitted = fit_preprocessing(
        training,
        schema.kinds,
        schema.levels,
        standardise=standardise,
        label_column=label_column,
        class_names=class_names,
        spelling=reading.spelling,
    )
    rows = {
        site: SiteRows(fitted[site].encode(table), y[site], table.rows.tolist())
        for site, table in labelled.items()
    }
    loose = tables[target_name].take(tables[target_name][label_column] == "")
    return assemble(
        {site: rows[site] for site in rows if site != target_name},
        rows[target_name],
        divided,
        name=path.stem,
        origin=path.name,
        seed=seed,
        target_name=target_name,
        class_names=class_names,
        unlabelled=(fitted[target_name].encode(loose), loose.rows.tolist()) if len(loose) else None,
        preprocessing=replace(
            fitted[target_name], id_columns=(*curation.ids, *ids), renamed=curation.renamed
        ),
        notes=[
            _kind_note(label_column, class_names),
            f"learned from: {', '.join(map(repr, schema.kinds))}",
            *([identifier_note(ids)] if ids else []),
            *left_out_notes(left_out),
            *_unlabelled_notes(tables, labelled, target_name),
            *schema_notes,
            STANDARDISED[standardise],
            *imputation_notes(training, fitted),
        ],
    )


def _site_tables(
    path: Path, target: str | None, curation: Curation, keep: object, leave_out: object
) -> tuple[dict[str, CellTable], str, list[str]]:
    """The rows of the sites that take part, without the column that names the site; the target.

    What is left out is not even read, since it may be the reason why somebody leaves it out.
    """
    spelling = curation.reading.spelling
    if path.is_dir():
        files = site_files(path, ".csv")
        target_name, left_out = _parts(files, target, keep, leave_out)
        tables = {
            site: read_csv(file, spelling) for site, file in files.items() if site not in left_out
        }
        curation.check_renamed(tables.values())
        tables = {site: curation.apply(table) for site, table in tables.items()}
    else:
        table = read_csv(path, spelling)
        curation.check_renamed([table])
        divided = _divide(curation.apply(table), curation.site_column or SITE_COLUMN, path)
        target_name, left_out = _parts(divided, target, keep, leave_out)
        tables = {site: own for site, own in divided.items() if site not in left_out}
    for site, table in tables.items():
        if not len(table):
            raise DataError(
                f"Expected every site to have rows, but {site!r} has none below its header: add "
                f"some or remove its file."
            )
    return curation.recode(tables), target_name, left_out


def _parts(
    sites: Iterable[str], target: str | None, keep: object, leave_out: object
) -> tuple[str, list[str]]:
    """The target, and the sites that have no part."""
    names = list(sites)
    if target is None:
        check_target_name(None, chosen_sources(names, None, None, leave_out))
    target_name = check_target_name(target, names)
    others = [name for name in names if name != target_name]
    kept = chosen_sources(others, target_name, keep, leave_out)
    return target_name, [name for name in others if name not in kept]


def _divide(table: CellTable, site_column: str, path: Path) -> dict[str, CellTable]:
    require_columns(
        table.names,
        [site_column],
        f"{path.name!r} to name the site of each row",
        "--site-column NAME says which it is",
    )
    if not len(table):
        raise DataError(f"Expected rows below the header of {path.name!r}, but there are none.")
    sites = table[site_column]
    nameless = table.rows[sites == ""]
    if len(nameless):
        raise DataError(
            f"Expected every row to name its site, but {len(nameless)} have an empty "
            f"{site_column!r}, first row {spreadsheet_row(nameless)} (the header is row 1): fill "
            f"it in or remove them."
        )
    others = table.without([site_column])
    return {str(site): others.take(sites == site) for site in sorted(set(sites))}


def check_categories(
    column: str,
    levels: int,
    present: int,
    reading: Reading,
    where: str = "",
    why: str = "",
    instead: str = "leave it out with `columns`",
) -> None:
    """Refuse text that differs in most rows, such as names or notes."""
    few = max(FEW_LEVELS, present // 2)
    if column not in reading.categorical and levels > min(few, MAX_LEVELS):
        raise DataError(
            f"Expected categories in column {column!r}, but {levels} of its {present} values"
            f"{where} differ, as in an identifier or free text{why}: {instead}, or name it in "
            f"`categorical` if it is meant."
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
    Everything that is wrong is told at once.
    """
    table = _read(csv, name, reading.spelling)
    summary, errors = examine(table, name, reading)
    listed = {c: own.levels for c, own in summary.columns.items() if own.kind == "categorical"}
    if summary.labels is not None:
        listed[reading.label_column] = summary.labels
    for column, levels in listed.items():
        try:
            check_categories(
                column,
                len(levels),
                int((table[column] != "").sum()),
                reading,
                f" at site {name!r}",
                ", which must not leave the site",
            )
        except DataError as error:
            errors.append(error)
    if errors:
        raise joined(errors)
    label_form({name: summary}, reading.label_column, reading.kind)
    labelled = labelled_rows(table, name, reading.label_column)
    cautions = [
        text for column in listed for text in _cautions(column, filter(None, table[column]))
    ]
    free = [column for column in summary.columns if column not in (reading.columns or ())]
    cautions += [
        f"column {column!r}: its numbers differ in every row, as those of an identifier do, and "
        f"would be learned from: leave it out with `columns`"
        for column in likely_identifiers({name: table}, free)
    ]
    return DescribedTable(summary, len(table), len(labelled), tuple(cautions))


def load_csv_site(
    csv: Path,
    schema: Schema,
    name: str,
    role: Role,
    seed: int = 0,
    split: SplitOptions = OWN_SPLIT,
    spelling: Spelling = PLAIN,
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
        spelling: How this site's file spells numbers.
    """
    table = _read(csv, name, spelling)
    schema.check(table, name)
    labelled = labelled_rows(table, name, schema.label_column)
    y = schema.labels(labelled, name)
    if role == "source":
        x = _fit(labelled, schema, name, role, spelling).encode(labelled)
        return LocalSite(name, role, Site(name, x, y), None, schema.n_classes, schema.class_names)
    strata = None if schema.class_names is None else y.numpy()
    divided = split_target(strata, len(labelled), seed, split)
    fitted = _fit(labelled.take(divided.training), schema, name, role, spelling)
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


def _fit(
    training: CellTable, schema: Schema, site: str, role: Role, spelling: Spelling
) -> Preprocessing:
    """The site's preprocessing, from nobody's rows but its own.

    A source's column of numbers without any says nothing and stays at zero, as it does when all
    files are at hand. For anything else that is empty, other sites' rows would be needed.
    """
    for column, kind in schema.kinds.items():
        if (kind == "categorical" or role == "target") and (training[column] == "").all():
            raise EmptyColumnError(
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
        spelling=spelling,
    )[site]


def _cautions(column: str, cells: Iterable[str]) -> list[str]:
    rare = sorted(cell for cell, times in Counter(cells).items() if times < FEW_ROWS)
    if not rare:
        return []
    return [f"column {column!r}: fewer than {FEW_ROWS} rows each have {show(rare)}"]


def _read(csv: Path, site: str, spelling: Spelling = PLAIN) -> CellTable:
    table = read_csv(csv, spelling)
    if not len(table):
        raise DataError(
            f"Expected every site to have rows, but {site!r} has none below the header of "
            f"{csv.name!r}: add some."
        )
    return table
