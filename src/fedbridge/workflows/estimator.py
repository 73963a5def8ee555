"""``FederatedClassifier`` and ``FederatedRegressor``: a federation in scikit-learn's manners.

Whose row is whose is said by ``sites``, one name per row, which scikit-learn hands on as metadata.
Every row given to ``fit`` trains, as in any estimator of scikit-learn: nothing is set aside to
test, because cross-validation, or the user, does that. Tables are treated as CSVs are, by what the
training rows of the federation say; predictions are those of the target's model, for rows of the
target.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import current_process
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
import pandas as pd
import torch
from sklearn.base import (  # type: ignore[import-untyped]
    BaseEstimator,
    ClassifierMixin,
    RegressorMixin,
)
from sklearn.model_selection import KFold, StratifiedKFold  # type: ignore[import-untyped]
from sklearn.utils import _safe_indexing  # type: ignore[import-untyped]
from sklearn.utils.multiclass import (  # type: ignore[import-untyped]
    check_classification_targets,
    type_of_target,
)
from sklearn.utils.validation import (  # type: ignore[import-untyped]
    check_array,
    check_consistent_length,
    check_is_fitted,
    check_X_y,
    column_or_1d,
    validate_data,
)

from fedbridge.base.errors import DataError, EmptyColumnError, OptionError
from fedbridge.base.options import check_choice
from fedbridge.base.text import console
from fedbridge.data.arrays import as_features
from fedbridge.data.labels import AS_THEY_ARE, Scale
from fedbridge.data.preparing import PixelsToUnit
from fedbridge.data.tables.cells import CellTable, as_table
from fedbridge.data.tables.load import STANDARDISED, check_categories
from fedbridge.data.tables.preprocessing import (
    NumericColumn,
    Standardise,
    fit_preprocessing,
    imputation_notes,
)
from fedbridge.data.tables.schema import Reading, agree, column_names, summarise
from fedbridge.data.task import Site, UntestedTask, check_target_name, distant_site
from fedbridge.workflows.finished import save_run
from fedbridge.workflows.predict import SavedModel
from fedbridge.workflows.run import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from fedbridge.data.tables.cells import Text
    from fedbridge.data.tables.preprocessing import Preprocessing
    from fedbridge.data.tables.schema import TableSummary
    from fedbridge.federation.follow import Callback
    from fedbridge.federation.loop import RunResult
    from fedbridge.federation.method import Method

    Names = NDArray[np.str_]

NAMELESS_TARGET = "target"
"""What the only site is called where nobody gives it a name."""
WITHOUT_SOURCES = {
    "auto": "alone-auto",
    **{name: name for name in ("alone-auto", "alone-logistic", "alone-forest", "target-only")},
}
"""What a method is where there is no source; others need one."""
A_NUMBER = "0"
"""Stands for the text of a cell that is a number already, of which nobody asks more."""
AS_NUMBERS: dict[str, Any] = {"ensure_all_finite": "allow-nan", "allow_nd": True}
"""How scikit-learn is to check arrays: values may be missing, samples may be images."""


class _Federated(BaseEstimator):  # type: ignore[misc]
    """What both estimators have in common."""

    run_: RunResult
    target_: str
    preprocessing_: Preprocessing | None

    def __init__(
        self,
        method: str | type[Method] | Callable[..., Any] = "auto",
        rounds: int = 50,
        seed: int = 0,
        target: str | None = None,
        *,
        standardise: Standardise = "site",
        categorical: str | Sequence[str] = (),
        workers: int | None = 1,
        verbose: bool | None = None,
        **options: Any,
    ) -> None:
        """Take parameters as they are; ``fit`` checks them.

        Args:
            method: as in ``fedbridge.run``. Without rows of other sites ``auto`` is ``alone-auto``.
            rounds: rounds after the warm-up.
            seed: of the initial model and of everything random in training.
            target: the site that the model is for, one of the names in ``sites``.
            standardise: scale numbers by each ``site``'s own training rows, or ``joint``-ly.
            categorical: columns of numbers that are codes; columns of words and of pandas'
                categories are known as such.
            workers: worker processes, as in ``fedbridge.run``; the result does not depend on them.
            verbose: show a bar while fitting; None: in a terminal, not in worker processes.
            **options: any other option of ``fedbridge.run`` or of the method, such as ``model``,
                ``lr`` or ``beta``. They are parameters for scikit-learn too: a grid may have them.
        """
        self.method = method
        self.rounds = rounds
        self.seed = seed
        self.target = target
        self.standardise = standardise
        self.categorical = categorical
        self.workers = workers
        self.verbose = verbose
        self._options = options

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters, and the options that were given.

        Args:
            deep: no parameter has parameters of its own, so that this changes nothing.
        """
        return {**super().get_params(deep), **self._options}

    def set_params(self, **params: Any) -> Self:
        """Set parameters, or any option of the run or its method; ``fit`` checks them."""
        own = {name: params.pop(name) for name in self._get_param_names() if name in params}
        super().set_params(**own)
        self._options = {**self._options, **params}
        return self

    def fit(self, X: Any, y: Any, sites: Any = None) -> Self:  # noqa: N803
        """Train a federation for its target.

        Args:
            X: an array, or a DataFrame with numbers, categories and missing values.
            y: what to predict of every row.
            sites: whose row it is; None if all are the target's.
        """
        if hasattr(self, "run_"):
            del self.run_  # what fails below leaves no half of an earlier fit
        check_choice("standardise", self.standardise, get_args(Standardise))
        check_choice("engine", self._options.get("engine", "local"), ("local",))
        x, labels = self._checked(X, y)
        whose, target = self._sites(sites, len(labels))
        task = self._task(x, labels, whose, target, getattr(y, "name", None))
        with self._progress() as callbacks:
            self.run_ = run(
                task,
                self._method_for(task),
                self.rounds,
                self.seed,
                callbacks=callbacks,
                workers=self.workers,
                **self._options,
            )
        self.target_ = target
        return self

    def save(self, out: str | Path) -> Path:
        """Write the fitted model as the folder of a run.

        ``fedbridge predict``, ``fedbridge.load_run`` and ``fedbridge report`` take it.

        Args:
            out: a new or empty folder, which is returned.
        """
        check_is_fitted(self)
        return save_run(self.run_, out)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "run_")

    @abstractmethod
    def _coded(self, y: Any, whose: Names | None) -> tuple[Tensor, tuple[str, ...] | None, Scale]:
        """Labels as a task has them, the names of classes, and what numbers stand for.

        ``whose`` is None if numbers have to stay as they are: nothing saved would tell of a scale.
        """

    def _checked(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Rows and labels as scikit-learn checks them; a DataFrame keeps its columns' types."""
        several = {"multi_output": self.__sklearn_tags__().target_tags.multi_output}
        if not isinstance(x, pd.DataFrame):
            return validate_data(self, x, y, **several, **AS_NUMBERS)  # type: ignore[no-any-return]
        validate_data(self, x, y, skip_check_array=True)
        _, labels = check_X_y(np.zeros(x.shape), y, **several, estimator=self)
        return x, labels

    def _new_rows(self, x: Any) -> Any:
        """The same for rows to predict, which are like those of training."""
        if not isinstance(x, pd.DataFrame):
            return validate_data(self, x, reset=False, **AS_NUMBERS)
        validate_data(self, x, reset=False, skip_check_array=True)
        check_array(np.zeros(x.shape), estimator=self)
        return x

    def _sites(self, sites: Any, n: int) -> tuple[Names, str]:
        """The site of every row, and the target."""
        if sites is None:
            name = NAMELESS_TARGET if self.target is None else str(self.target)
            return np.full(n, name), name
        names = _site_names(sites)
        check_consistent_length(names, np.empty(n))
        return names, check_target_name(self.target, np.unique(names).tolist())

    def _task(
        self,
        x: Any,
        labels: Any,
        whose: Names,
        target: str,
        label: object,
    ) -> UntestedTask:
        """The federation, all of whose rows train."""
        in_table = not (isinstance(x, np.ndarray) and x.ndim > 2)
        y, class_names, scale = self._coded(labels, whose if in_table else None)
        rows = {
            site: np.flatnonzero(whose == site)
            for site in [target, *(site for site in np.unique(whose).tolist() if site != target)]
        }
        if in_table:
            inputs, how, notes = self._encoded(x, rows, target, label, class_names)
            self.preprocessing_ = replace(how, scale=scale)
        else:
            self.preprocessing_, notes = None, list[str]()
            inputs = {site: as_features(x[own], site) for site, own in rows.items()}
        ready = PixelsToUnit() if inputs[target].dtype == torch.uint8 else None
        sites = {
            site: Site(site, inputs[site], y[own], ready, scale=scale) for site, own in rows.items()
        }
        own = sites.pop(target)
        n_classes = None if class_names is None else len(class_names)
        shape, outputs = own.x.shape[1:], own.y.shape[1] if own.y.ndim > 1 else 1
        given = {"standardise": self.standardise, "categorical": column_names(self.categorical)}
        known = {"task": type(self).__name__, "target": target, "options": given}
        return UntestedTask(
            name=type(self).__name__,
            sources=tuple(sites.values()),
            target=own,
            test=distant_site(f"{target} (test)", 0, shape, n_classes=n_classes, outputs=outputs),
            n_classes=n_classes,
            class_names=class_names,
            manifest={"loaded_as": known},
            preprocessing=self.preprocessing_,
            notes=tuple(notes),
        )

    def _encoded(
        self,
        x: Any,
        rows: Mapping[str, NDArray[np.int64]],
        target: str,
        label: object,
        class_names: tuple[str, ...] | None,
    ) -> tuple[dict[str, Tensor], Preprocessing, list[str]]:
        """Every site's rows as a model takes them, what later ones go through, and notes."""
        codes = [*column_names(self.categorical)]
        if isinstance(x, pd.DataFrame):
            self._columns = tuple(map(str, x.columns))
            codes += map(str, x.columns[x.dtypes == "category"])
        else:
            self._columns = tuple(f"x{place}" for place in range(x.shape[1]))
        table = self._cells(x, numbers=not codes)
        predicted = str(label) if label is not None and str(label) not in table.names else "y"
        while predicted in table.names:
            predicted += "_"
        # Sites agree on columns only: of the labels scikit-learn's checks have taken care.
        reading = Reading(predicted, categorical=tuple(dict.fromkeys(codes)), kind="regression")
        nothing = CellTable(
            (*table.names, predicted),
            np.vstack([table.text, np.full((1, len(table)), A_NUMBER, dtype=object)]),
            np.vstack([table.values, np.zeros((1, len(table)))]),
            table.rows,
        )
        training = {site: nothing.take(own) for site, own in rows.items()}
        summaries = {site: summarise(own, site, reading) for site, own in training.items()}
        for column in summaries[target].columns:
            _check_column(column, table[column], summaries.values(), reading)
        schema, notes = agree(summaries, reading)
        fitted = fit_preprocessing(
            training,
            schema.kinds,
            schema.levels,
            standardise=self.standardise,
            label_column=predicted,
            class_names=class_names,
        )
        inputs = {site: fitted[site].encode(own) for site, own in training.items()}
        return (
            inputs,
            fitted[target],
            [
                *notes,
                STANDARDISED[self.standardise],
                *imputation_notes(training, fitted),
            ],
        )

    def _cells(self, x: Any, *, numbers: bool) -> CellTable:
        """Rows as a table with the names of training; an array may be known to hold ``numbers``."""
        if not isinstance(x, np.ndarray):
            return as_table(x.set_axis(list(self._columns), axis=1))
        if not numbers:
            return as_table(pd.DataFrame(x, columns=list(self._columns)))
        values = x.T.astype(np.float64)
        text = np.where(np.isnan(values), "", A_NUMBER).astype(object)
        return CellTable(self._columns, text, values, np.arange(len(x)))

    def _method_for(self, task: UntestedTask) -> Any:
        if task.sources:
            return self.method
        if isinstance(self.method, str) and self.method in WITHOUT_SOURCES:
            return WITHOUT_SOURCES[self.method]
        raise OptionError(
            f"Expected rows of other sites for the method {self.method!r}, but all rows are the "
            f"target's: name every row's site with `sites`, or choose a method that needs no "
            f"source ({', '.join(WITHOUT_SOURCES)})."
        )

    @contextmanager
    def _progress(self) -> Iterator[list[Callback]]:
        """A bar on stderr, if it is asked for or somebody looks."""
        looks = sys.stderr.isatty() and current_process().name == "MainProcess"
        if not (looks if self.verbose is None else self.verbose):
            yield []
            return
        from rich.progress import Progress

        with Progress(console=console(stderr=True), transient=True) as bar:
            rounds = bar.add_task(f"{type(self).__name__}: rounds", total=None)
            yield [
                lambda line: bar.update(rounds, total=self.rounds, completed=max(0, line["round"]))
            ]

    def _outputs(self, x: Any) -> Tensor:
        """What the target's model says of new rows."""
        check_is_fitted(self)
        x, how = self._new_rows(x), self.preprocessing_
        if how is None:
            inputs = as_features(x, self.target_)
        else:
            numbers = all(isinstance(column, NumericColumn) for column in how.columns)
            inputs = how.encode(self._cells(x, numbers=numbers))
        result = self.run_
        saved = SavedModel(result.model, result.input_shape, result.class_names, how)
        return saved.outputs(inputs)

    def _of_target(self, sites: Any, x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """The target's rows among those to be scored; all if nobody says whose they are."""
        if sites is None:
            return x, y, sample_weight
        check_is_fitted(self)
        check_consistent_length(x, y, sites, sample_weight)
        own = np.flatnonzero(_site_names(sites) == self.target_)
        if not len(own):
            raise DataError(
                f"Expected rows of the target {self.target_!r} to score, but `sites` names "
                f"others only: divide the rows with fedbridge.target_folds."
            )
        weight = None if sample_weight is None else _safe_indexing(sample_weight, own)
        return _safe_indexing(x, own), _safe_indexing(y, own), weight


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier for one site, the target, that learns with the help of others.

    Attributes:
        classes_: the labels at all sites, in the order of the probabilities.
        run_: what ``fedbridge.run`` returned: its model, history and notes. Nothing is measured in
            it, since all rows train.
        target_: the target's name among the ``sites``.
        preprocessing_: how rows of a table become the model's; None for images.
        n_features_in_: columns of ``X``;
        feature_names_in_: their names, where all are text.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> sites = ["north", "south", "east"] * 50
        >>> model = FederatedClassifier(rounds=2, target="south", model="linear")
        >>> model.fit(X, y, sites=sites).predict(X[:1])
        array([0])
    """

    classes_: NDArray[Any]

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The class of every row."""
        indices = self._outputs(X).argmax(1).numpy()
        classes: NDArray[Any] = self.classes_[indices]
        return classes

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """The probability of every class, one column each in the order of ``classes_``."""
        shares: NDArray[np.float64] = self._outputs(X).double().softmax(1).numpy()
        return shares

    def score(self, X: Any, y: Any, sample_weight: Any = None, sites: Any = None) -> float:  # noqa: N803
        """Share of right answers among the target's rows, all rows if ``sites`` is None."""
        return float(super().score(*self._of_target(sites, X, y, sample_weight)))

    def _coded(self, y: Any, whose: Names | None) -> tuple[Tensor, tuple[str, ...], Scale]:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(
                f"Expected at least two classes, but all rows have one class, "
                f"{str(self.classes_[0])!r}: add rows of another."
            )
        names = tuple(map(str, self.classes_.tolist()))
        return torch.from_numpy(codes.astype(np.int64)), names, AS_THEY_ARE


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor for one site, the target, that learns with the help of others.

    Values may be of any size; several values of a row, or values of images, should be of the order
    of 1: scikit-learn's ``TransformedTargetRegressor`` sees to it.
    Attributes are those of ``FederatedClassifier``, but for the classes.

    Example:
        >>> from sklearn.datasets import make_regression
        >>> X, y = make_regression(60, 4, random_state=0)
        >>> model = FederatedRegressor(rounds=2, model="linear")
        >>> model.fit(X, y).predict(X[:2]).shape
        (2,)
    """

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """The value of every row, or its values."""
        outputs = self._outputs(X).double()
        values: NDArray[np.float64] = outputs.reshape(len(outputs), -1).numpy()
        return values[:, 0] if values.shape[1] == 1 else values

    def score(self, X: Any, y: Any, sample_weight: Any = None, sites: Any = None) -> float:  # noqa: N803
        """R² over the target's rows, all rows if ``sites`` is None."""
        return float(super().score(*self._of_target(sites, X, y, sample_weight)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _coded(self, y: Any, whose: Names | None) -> tuple[Tensor, None, Scale]:
        if y.ndim > 1 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        scale = AS_THEY_ARE
        if y.ndim == 1 and whose is not None:
            scale = Scale.agreed(Scale.of(y[whose == site]) for site in np.unique(whose))
        return scale.numbers(y), None, scale


def target_folds(
    sites: Any, target: str, y: Any = None, n_splits: int = 5, seed: int = 0
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Folds for scikit-learn's ``cv`` that test on the target's rows alone.

    The target's rows are divided, by class if ``y`` has classes; the rows of other sites are in
    every training set and in no test set. So any scorer sees rows of the target only.

    Args:
        sites: whose row it is, one name per row.
        target: the site that is tested.
        y: the labels; None for a plain shuffle.
        n_splits: number of folds.
        seed: decides which row is in which.

    Example:
        >>> target_folds(["north", "south", "south"], "south", n_splits=2)
        [(array([0, 1]), array([2])), (array([0, 2]), array([1]))]
    """
    names = _site_names(sites)
    own = names == check_target_name(target, np.unique(names).tolist())
    mine, others = np.flatnonzero(own), np.flatnonzero(~own)
    labels = None if y is None else np.asarray(y)[mine]
    classes = labels is not None and type_of_target(labels) in ("binary", "multiclass")
    kind = StratifiedKFold if classes else KFold
    dealt = kind(n_splits, shuffle=True, random_state=seed).split(mine, labels)
    return [(np.sort(np.concatenate([others, mine[rest]])), mine[test]) for rest, test in dealt]


def _check_column(
    column: str, cells: Text, sites: Iterable[TableSummary], reading: Reading
) -> None:
    """Refuse a column that nothing can be learned from, in words that fit here."""
    present = int((cells != "").sum())
    if not present:
        raise EmptyColumnError(
            f"Expected values in column {column!r}, but it is empty in all rows: leave it out of X."
        )
    levels = {level for own in sites for level in own.columns[column].levels}
    check_categories(column, len(levels), present, reading, instead="leave it out of X")


def _site_names(sites: Any) -> Names:
    """The site of every row as text."""
    given = column_or_1d(sites, dtype=object)
    unknown = pd.isna(given)
    if unknown.any():
        raise DataError(
            f"Expected `sites` to name the site of every row, but {int(unknown.sum())} have none, "
            f"first row {int(np.flatnonzero(unknown)[0])} (from 0): fill it in or leave these rows "
            f"out."
        )
    return np.array([str(name) for name in given])
