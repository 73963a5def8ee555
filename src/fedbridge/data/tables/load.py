"""Tables as sites: a CSV with a site column, one CSV per site, or one's own CSV where it lies.

A site that reads its own CSV, by a schema that the sites agreed on beforehand, gets the rows that
``load_task`` gives for it when it sees the files of all: the same code reads, splits, imputes,
scales and codes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

from fedbridge.base.errors import (
    DataError,
    DisagreementError,
    EmptyColumnError,
    OptionError,
    joined,
    nearest,
)
from fedbridge.base.options import check_choice
from fedbridge.data.arrays import SiteRows, assemble, select, unlabelled_rows
from fedbridge.data.labels import AS_THEY_ARE, show
from fedbridge.data.site_files import site_files
from fedbridge.data.site_package import LocalSite
from fedbridge.data.split import OWN_SPLIT, SplitOptions, split_target
from fedbridge.data.tables.cells import ENCODING, PARQUET, require_columns, spreadsheet_row
from fedbridge.data.tables.curation import (
    FORM,
    UNCHANGED,
    Curation,
    identifier_note,
    merged,
    not_learned,
    without_identifiers,
)
from fedbridge.data.tables.preprocessing import Standardise, fit_preprocessing, imputation_notes
from fedbridge.data.tables.proposals import ways_out
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
from fedbridge.data.task import (
    Site,
    check_target_classes,
    check_target_name,
    chosen_sources,
    left_out_notes,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from fedbridge.data.site_package import Role
    from fedbridge.data.tables.cells import CellTable
    from fedbridge.data.tables.preprocessing import Preprocessing
    from fedbridge.data.tables.schema import Schema, Tables, TableSummary, TaskKind
    from fedbridge.data.task import FederatedTask

SITE_COLUMN = "site"
TABLE_FILES = (".csv", PARQUET)
"""What files of tables are called."""
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
    impute: str | Sequence[str] = (),
    decimal: str = ".",
    thousands: str | None = None,
    percent: bool = False,
    delimiter: str | None = None,
    encoding: str = ENCODING,
    recode: Mapping[str, Mapping[str, str]] | None = None,
    units: Mapping[str, Mapping[str, float]] | None = None,
    scales: Mapping[str, Mapping[str, float]] | None = None,
    sites: Mapping[str, Mapping[str, object]] | None = None,
    split: SplitOptions = OWN_SPLIT,
) -> FederatedTask:
    """A task from one CSV with a site column, or from a folder with one CSV per site.

    Parquet files are as good as CSVs (``pip install "fedbridge[parquet]"``).

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
        impute: Columns that a site may lack: its own median where it has some, otherwise the mean
            of those who have it; an input of its own says where a value is missing.
        decimal: What stands before the fraction of a number, ``.`` or ``,``.
        thousands: What stands between groups of three digits: ``,``, ``.``, a space, ``_`` or
            ``'``; nothing by default.
        percent: Whether ``12%`` is a number, 0.12.
        delimiter: What stands between cells; by default a comma, a semicolon or a tab.
        encoding: How characters are stored.
        recode: Other spellings of categories, ``{"sex": {"male": "m"}}``; empty for missing.
        units: Other units, ``{"chol": {"factor": 38.67}}``: times a factor, plus an offset.
        scales: What numbers are standardised by instead of any rows, and gaps filled with the mean
            of: ``{"age": {"mean": 50, "deviation": 15}}``.
        sites: What is said of one site's file alone, by the site's name: any of ``rename``,
            ``recode``, ``units``, ``scales``, ``label_map``, ``drop_columns``, ``id_column``,
            ``keep_columns`` and, where each has a file of its own, ``decimal``, ``thousands``,
            ``percent``, ``delimiter`` and ``encoding``.
        split: How the target's rows are divided; all its training rows are labelled by default.
    """
    check_choice("standardise", standardise, get_args(Standardise))
    chosen = None if columns is None else column_names(columns)
    coded = column_names(categorical)
    reading = Reading(label_column, chosen, coded, kind, column_names(impute))
    said = SaidOfFiles(
        {
            "decimal": decimal,
            "thousands": thousands,
            "percent": percent,
            "delimiter": delimiter,
            "encoding": encoding,
            "rename": rename,
            "label_map": label_map,
            "recode": recode,
            "units": units,
            "scales": scales,
            "drop_columns": drop_columns,
            "id_column": id_column,
            "keep_columns": keep_columns,
        },
        sites or {},
    )
    tables, target_name, left_out = _site_tables(
        path, target, site_column, said, reading, sources, exclude_sites
    )
    curations = {site: said.of(site) for site in tables}
    for site, table in tables.items():
        where = f"the table of site {site!r}"
        require_columns(table.names, [label_column], where, "--label-column NAME says which it is")
    tables, ids = without_identifiers(tables, reading, curations)
    summaries = {site: summarise(table, site, reading) for site, table in tables.items()}
    try:
        schema, schema_notes = agree(summaries, reading)
    except DisagreementError as error:
        raise type(error)(f"{error}{ways_out(error, summaries, reading, target_name)}") from error
    tables = {site: table.with_empty(reading.impute) for site, table in tables.items()}
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
        imputed=schema.imputed,
        curations={site: _kept(curations[site], training[site], schema, ids) for site in training},
        scale=schema.scale,
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
        preprocessing=fitted[target_name],
        notes=[
            _kind_note(schema),
            f"learned from: {', '.join(map(repr, schema.kinds))}",
            *([identifier_note(ids)] if ids else []),
            *left_out_notes(left_out),
            *_unlabelled_notes(tables, labelled, target_name),
            *schema_notes,
            f"{STANDARDISED[standardise]}{_but_for_scales(curations)}",
            *imputation_notes(training, fitted),
        ],
    )


def _but_for_scales(curations: Mapping[str, Curation]) -> str:
    """Which columns are not, in words that follow."""
    scaled = {site: own.scales for site, own in curations.items() if own.scales}
    told = [f"{', '.join(map(repr, known))} at {site}" for site, known in scaled.items()]
    return f", but for those that have `scales`: {'; '.join(told)}" if told else ""


@dataclass(frozen=True)
class SaidOfFiles:
    """What is said of all files, and of single ones.

    Attributes:
        common: Options by name.
        own: The same of single sites, by the site's name.
    """

    common: Mapping[str, object]
    own: Mapping[str, Mapping[str, object]]

    def of(self, site: str) -> Curation:
        """How the file of a site is read."""
        return Curation.of(merged(self.common, self._own(site)), f"[sites.{site}]")

    def check(self, tables: Tables, reading: Reading) -> None:
        """Refuse what is said of no column or category that is there."""
        Curation.of(self.common).check(tables.values(), reading)
        for site in self.own.keys() & tables.keys():
            Curation.of(self._own(site), f"[sites.{site}]").check([tables[site]], reading)

    def check_names(self, sites: Collection[str]) -> None:
        """Refuse what is said of a site that there is not."""
        for site in self.own:
            if site not in sites:
                raise OptionError(
                    f"Expected `sites` to name sites of the task, but got {site!r}."
                    f"{nearest(site, sites)} Sites: {show(sorted(sites))}."
                )

    def check_one_file(self, path: Path) -> None:
        """Refuse what is said of a site's file where there is one file for all."""
        for site in self.own:
            for name in self._own(site):
                if name in FORM:
                    raise OptionError(
                        f"Expected `{name}` for all sites of {path.name!r}, since it is one file, "
                        f"but it is given for site {site!r} alone: give it without the site."
                    )

    def _own(self, site: str) -> dict[str, object]:
        own = self.own.get(site, {})
        if not isinstance(own, Mapping):
            raise OptionError(f"Expected options of site {site!r} by name, but got {own!r}.")
        return {name.replace("-", "_"): value for name, value in own.items()}


def _site_tables(
    path: Path,
    target: str | None,
    site_column: str | None,
    said: SaidOfFiles,
    reading: Reading,
    keep: object,
    leave_out: object,
) -> tuple[dict[str, CellTable], str, list[str]]:
    """The rows of the sites that take part, without the column that names the site; the target.

    What is left out is not even read, since it may be the reason why somebody leaves it out.
    """
    if path.is_dir():
        files = site_files(path, *TABLE_FILES)
        said.check_names(files)
        target_name, left_out = _parts(files, target, keep, leave_out)
        tables = {
            site: said.of(site).read(file) for site, file in files.items() if site not in left_out
        }
        said.check(tables, reading)
    else:
        said.check_one_file(path)
        curation = Curation.of(said.common)
        table = curation.read(path)
        curation.check([table], reading)
        old = {new: old for old, new in curation.renamed.items()}
        called = site_column or SITE_COLUMN
        divided = _divide(table, old.get(called, called), path)
        said.check_names(divided)
        target_name, left_out = _parts(divided, target, keep, leave_out)
        tables = {site: own for site, own in divided.items() if site not in left_out}
        SaidOfFiles({}, said.own).check(tables, reading)
    tables = {
        site: said.of(site).apply(table, reading.label_column).without([site_column or ""])
        for site, table in tables.items()
    }
    for site, table in tables.items():
        if not len(table):
            raise DataError(
                f"Expected every site to have rows, but {site!r} has none below its header: add "
                f"some or remove its file."
            )
    return tables, target_name, left_out


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


def _kind_note(schema: Schema) -> str:
    label_column, class_names, scale = schema.label_column, schema.class_names, schema.scale
    if class_names is not None:
        classes = f"{len(class_names)} classes: {show(class_names)}"
        return f"{label_column!r} is predicted as one of {classes}"
    learned = (
        f"; models learn it less {scale.centre:g} and in units of {scale.size:g}, but what is "
        f"shown is as in the table"
    )
    how = "" if scale == AS_THEY_ARE else learned
    return f"{label_column!r} is predicted as a number (regression){how}"


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
        left_out: Columns that seem to be identifiers.
    """

    summary: TableSummary
    rows: int
    labelled: int
    cautions: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def describe_csv(
    csv: Path, name: str, reading: Reading, curation: Curation = UNCHANGED
) -> DescribedTable:
    """Describe a site's table without any of its rows, or of what names them.

    Refused is what must not leave a site: text that differs in most rows, such as names or notes.
    Everything that is wrong is told at once.
    """
    table = _read(csv, name, reading.label_column, curation, reading)
    tables, ids = without_identifiers({name: table}, reading, {name: curation})
    table = tables[name].with_empty(reading.impute)
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
                "leave it out with `drop-columns`, or with `id-column` if it names rows",
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
    return DescribedTable(summary, len(table), len(labelled), tuple(cautions), tuple(ids))


def load_csv_site(
    csv: Path,
    schema: Schema,
    name: str,
    role: Role,
    seed: int = 0,
    split: SplitOptions = OWN_SPLIT,
    curation: Curation = UNCHANGED,
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
        curation: How this site's file becomes a table as agreed.
    """
    table = _read(csv, name, schema.label_column, curation)
    others = table.without([schema.label_column, *schema.kinds])
    _, ids = without_identifiers({name: others}, Reading(schema.label_column), {name: curation})
    table = schema.fitted(table, name)
    labelled = labelled_rows(table, name, schema.label_column)
    y = schema.labels(labelled, name)
    if role == "source":
        x = _fit(labelled, schema, name, role, curation).encode(labelled)
        return LocalSite(name, role, Site(name, x, y), None, schema.n_classes, schema.class_names)
    strata = None if schema.class_names is None else y.numpy()
    divided = split_target(strata, len(labelled), seed, split)
    training = labelled.take(divided.training)
    fitted = _fit(training, schema, name, role, _kept(curation, training, schema, ids))
    rows = SiteRows(fitted.encode(labelled), y, range(len(labelled)))
    train, test = select(rows, divided.labelled), select(rows, divided.test)
    target = Site(name, train.x, train.y, scale=schema.scale)
    if schema.class_names is not None:
        check_target_classes(target, schema.class_names)
    loose = table.take(table[schema.label_column] == "")
    more = (fitted.encode(loose), loose.rows.tolist()) if len(loose) else None
    return LocalSite(
        name,
        role,
        target,
        Site(f"{name} (test)", test.x, test.y, scale=schema.scale),
        schema.n_classes,
        schema.class_names,
        fitted,
        unlabelled=unlabelled_rows(rows, divided, more)[0],
    )


def _fit(
    training: CellTable, schema: Schema, site: str, role: Role, curation: Curation
) -> Preprocessing:
    """The site's preprocessing, from nobody's rows but its own.

    A source's column of numbers without any says nothing and stays at zero, as it does when all
    files are at hand. For anything else that is empty, other sites' rows would be needed, unless
    the sites agreed that it may be missing.
    """
    for column, kind in schema.kinds.items():
        if column in schema.imputed:
            continue
        if (kind == "categorical" or role == "target") and (training[column] == "").all():
            raise EmptyColumnError(
                f"Expected values in column {column!r} at site {site!r}, but its training rows "
                f"have none, and other sites' rows are not here to fill it: leave it out with "
                f"`columns` at all sites, or let it be missing with `impute`."
            )
    return fit_preprocessing(
        {site: training},
        schema.kinds,
        schema.levels,
        standardise="site",
        label_column=schema.label_column,
        class_names=schema.class_names,
        imputed=schema.imputed,
        curations={site: curation},
        scale=schema.scale,
    )[site]


def _kept(
    curation: Curation, training: CellTable, schema: Schema, likely: Sequence[str]
) -> Curation:
    """What later tables of a site need; a column that it had no value of, it does not learn."""
    absent = tuple(c for c in schema.imputed if (training[c] == "").all())
    return replace(curation, dropped=absent, ids=(*curation.ids, *likely), kept=(), labels={})


def _cautions(column: str, cells: Iterable[str]) -> list[str]:
    rare = sorted(cell for cell, times in Counter(cells).items() if times < FEW_ROWS)
    if not rare:
        return []
    return [f"column {column!r}: fewer than {FEW_ROWS} rows each have {show(rare)}"]


def _read(
    csv: Path, site: str, label_column: str, curation: Curation, reading: Reading | None = None
) -> CellTable:
    """A site's table as agreed; with ``reading``, what is said of no column of it is refused."""
    table = curation.read(csv)
    if reading is not None:
        curation.check([table], reading)
    if not len(table):
        raise DataError(
            f"Expected every site to have rows, but {site!r} has none below the header of "
            f"{csv.name!r}: add some."
        )
    return curation.apply(table, label_column)
