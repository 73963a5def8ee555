"""``heart``: the UCI heart disease data of four hospitals, prepared as FLamby prepares them.

Columns that most hospitals lack are left out, then rows with missing values; two columns of codes
become indicators; everything is standardised at each hospital by its own training rows. Which rows
test is drawn by the seed, or (``split="flamby"``) as FLamby has fixed it for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from fedbridge.base.errors import DataError
from fedbridge.base.options import check_choice
from fedbridge.base.places import require_dataset
from fedbridge.data.arrays import SiteRows, assemble, select
from fedbridge.data.split import BUILT_IN_SPLIT, SplitOptions, label_rows, split_test
from fedbridge.data.store.catalogue import CATALOGUE, Files
from fedbridge.data.store.verify import content_problem
from fedbridge.data.tables.cells import CellTable, as_table
from fedbridge.data.tables.preprocessing import (
    CodedColumn,
    NumericColumn,
    Preprocessing,
    most_frequent,
)
from fedbridge.data.task import check_target_name

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from fedbridge.data.split import Rows
    from fedbridge.data.tables.preprocessing import Column
    from fedbridge.data.task import FederatedTask

HOSPITALS = CATALOGUE["heart"].domains
COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)
LABEL = "num"
MOSTLY_MISSING = ("slope", "ca", "thal")
CODES = {"cp": ("1", "2", "3", "4"), "restecg": ("0", "1", "2")}
NUMBERS = tuple(c for c in COLUMNS if c not in (LABEL, *MOSTLY_MISSING, *CODES))
CLASS_NAMES = ("no disease", "disease")
SEVEREST = 4

TRAINING_SHARE = 0.66
SEEDED, FLAMBY = "seeded", "flamby"
FLAMBY_STATE = 43
FEWEST_PER_CLASS = 3
"""With fewer rows of a class FLamby does not stratify."""

LABELLED = SplitOptions(target_fraction=0.2)
LABELLED_IN_FULL = "switzerland"
"""It has 30 training rows, so the paper labels them all."""

RUN_DEFAULTS = {"optimizer": "adam", "lr": 0.001, "batch_size": 4, "epochs": 1}


def heart_task(
    target: str | None = None,
    seed: int = 0,
    *,
    split: str = SEEDED,
    labelled: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """Heart disease at four hospitals, 13 features of 46 to 303 patients each.

    Args:
        target: The hospital that adapts: cleveland, hungarian, switzerland or va.
        seed: Decides which patients test and which are labelled.
        split: Patients that test are ``seeded``, or those of FLamby's benchmark (``flamby``), the
            same for every seed.
        labelled: How many of the target's training rows are labelled: by default 0.2 of them, and
            all of switzerland's.
    """
    check_choice("split", split, (SEEDED, FLAMBY))
    target_name = check_target_name(target, HOSPITALS)
    hospitals = _read_all(require_dataset("heart"))
    own = hospitals[target_name]
    training, test = own.divided(split, seed)
    preprocessing = _fit(target_name, own.table.take(training))
    usual = BUILT_IN_SPLIT if target_name == LABELLED_IN_FULL else LABELLED
    return assemble(
        {
            name: hospital.training_rows(name, split, seed)
            for name, hospital in hospitals.items()
            if name != target_name
        },
        own.rows(preprocessing),
        label_rows(own.labels, training, test, seed, labelled.or_else(usual)),
        name="heart",
        origin=", ".join(hospital.path.name for hospital in hospitals.values()),
        seed=seed,
        target_name=target_name,
        class_names=CLASS_NAMES,
        model="linear",
        defaults=RUN_DEFAULTS,
        preprocessing=preprocessing,
        digest=_digest(hospitals),
        notes=(
            *_differences(hospitals),
            *_left_out_notes(hospitals),
            "all features standardised at each hospital by its own training rows",
        ),
        one_class=split == FLAMBY,
    )


@dataclass(frozen=True, eq=False)
class _Hospital:
    """The complete rows of one file, as text, and how many there were before."""

    path: Path
    table: CellTable
    n_rows: int

    @property
    def labels(self) -> NDArray[np.int64]:
        """0 for no disease, 1 for disease of any degree."""
        return (self.table.values_of(LABEL) > 0).astype(np.int64)

    def divided(self, split: str, seed: int) -> tuple[Rows, Rows]:
        """Rows that train and rows that test, both ascending."""
        n = len(self.table)
        if split == FLAMBY:
            return _flamby_split(self.labels)
        return split_test(self.labels, n, n - int(TRAINING_SHARE * n), seed)

    def rows(self, preprocessing: Preprocessing) -> SiteRows:
        return SiteRows(
            preprocessing.encode(self.table),
            torch.from_numpy(self.labels),
            self.table.rows.tolist(),
        )

    def training_rows(self, name: str, split: str, seed: int) -> SiteRows:
        which, _ = self.divided(split, seed)
        return select(self.rows(_fit(name, self.table.take(which))), which)


def _flamby_split(labels: NDArray[np.int64]) -> tuple[Rows, Rows]:
    """The rows that train and test in FLamby's Fed-Heart-Disease (Ogier du Terrail et al. 2022).

    One fixed draw of scikit-learn's, stratified where every class has enough rows; so switzerland's
    only healthy patient tests, and all that train there are ill.
    """
    # Imported here: it takes longer to import than all of fedbridge, and few tasks need it.
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

    _, counts = np.unique(labels, return_counts=True)
    training, test = train_test_split(
        np.arange(len(labels)),
        train_size=TRAINING_SHARE,
        test_size=1 - TRAINING_SHARE,
        random_state=FLAMBY_STATE,
        stratify=labels if len(counts) > 1 and counts.min() >= FEWEST_PER_CLASS else None,
    )
    return np.sort(training), np.sort(test)


def _read_all(folder: Path) -> dict[str, _Hospital]:
    return {name: _read(folder / f"processed.{name}.data") for name in HOSPITALS}


def _read(path: Path) -> _Hospital:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"Expected the patients of a hospital in {str(path)!r}, but it cannot be read "
            f"({error}): get the file again."
        ) from error
    cells = [line.split(",") for line in lines if line.strip()]
    for number, line in enumerate(cells, start=1):
        if len(line) != len(COLUMNS):
            raise DataError(
                f"Expected {len(COLUMNS)} values in each line of {str(path)!r}, but line {number} "
                f"has {len(line)}: get the file again."
            )
    table = as_table(pd.DataFrame(cells, columns=list(COLUMNS), dtype=object))
    for column in (*NUMBERS, *CODES, LABEL):
        _check(table, column, path)
    complete = table.pick([column for column in COLUMNS if column not in MOSTLY_MISSING])
    complete = complete.take((complete.text != "").all(axis=0))
    if not len(complete):
        raise DataError(f"Expected complete rows in {str(path)!r}, but there are none.")
    return _Hospital(path, complete, len(table))


def _check(table: CellTable, column: str, path: Path) -> None:
    """Refuse a cell that is neither missing nor what its column holds."""
    cells = table[column]
    if column in CODES:
        expected, good = f"one of {', '.join(CODES[column])}", np.isin(cells, CODES[column])
    elif column == LABEL:
        degrees = [str(degree) for degree in range(SEVEREST + 1)]
        expected, good = f"a label from 0 to {SEVEREST}", np.isin(cells, degrees)
    else:
        expected, good = "a number", ~np.isnan(table.values_of(column))
    bad = np.flatnonzero(~good & (cells != ""))
    if len(bad):
        raise DataError(
            f"Expected {expected} or ? as {column!r} in {str(path)!r}, but line {bad[0] + 1} has "
            f"{cells[bad[0]]!r}: get the file again."
        )


def _fit(hospital: str, training: CellTable) -> Preprocessing:
    """Means and deviations of the training rows; medians for what a later table may lack."""
    columns: list[Column] = []
    for name in NUMBERS:
        values = np.ascontiguousarray(training.values_of(name))
        columns.append(
            NumericColumn(name, float(np.median(values)), float(values.mean()), _scale(values))
        )
    for name, levels in CODES.items():
        indicators = [(training[name] == level).astype(np.float64) for level in levels[1:]]
        columns.append(
            CodedColumn(
                name,
                most_frequent(training[name].tolist()),
                levels,
                tuple(float(values.mean()) for values in indicators),
                tuple(_scale(values) for values in indicators),
            )
        )
    return Preprocessing(hospital, tuple(columns), LABEL, CLASS_NAMES)


def _scale(values: NDArray[np.float64]) -> float:
    """The sample's deviation; 1 for a column that never varies, which then says nothing."""
    deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return deviation if deviation > 0 else 1.0


def _differences(hospitals: dict[str, _Hospital]) -> list[str]:
    """What is not as published: not an error here, since other patients are data as well."""
    layout = CATALOGUE["heart"].layout
    assert isinstance(layout, Files)
    published = {content.path: content for content in layout.contents}
    files = [hospital.path for hospital in hospitals.values()]
    problems = (content_problem(published[file.name], file) for file in files)
    return [f"not as published: {problem}" for problem in problems if problem is not None]


def _left_out_notes(hospitals: dict[str, _Hospital]) -> list[str]:
    return [
        f"site {name!r}: {hospital.n_rows - len(hospital.table)} of {hospital.n_rows} rows left "
        f"out for missing values"
        for name, hospital in hospitals.items()
        if len(hospital.table) < hospital.n_rows
    ]


def _digest(hospitals: dict[str, _Hospital]) -> str:
    content = sha256()
    for hospital in hospitals.values():
        content.update(hospital.path.read_bytes())
    return content.hexdigest()
