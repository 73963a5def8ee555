"""A finished run in hand: its model, its history as a table, and predictions as a table.

What ``fedbridge.load_run`` and ``fedbridge.predict`` are; the command line has the same predictions
as files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedbridge.base.errors import OptionError
from fedbridge.base.text import block
from fedbridge.federation.loop import RunResult, run_lines
from fedbridge.report import write_model_card, write_report
from fedbridge.runs.folder import RunFolder, RunFolderError
from fedbridge.runs.lock import folder_lock
from fedbridge.workflows.predict import SavedModel, load_model, predict_with

if TYPE_CHECKING:
    from torch import nn

    from fedbridge.data.images.preprocessing import ImagePreprocessing
    from fedbridge.data.tables.preprocessing import Preprocessing


@dataclass(frozen=True, repr=False)
class LoadedRun:
    """A finished run as its folder holds it.

    Attributes:
        out: its folder.
        history: one row per round.
        summary: the run in a few numbers.
        saved: the model with all that is needed to use it.
    """

    out: Path
    history: pd.DataFrame
    summary: dict[str, Any]
    saved: SavedModel

    @property
    def model(self) -> nn.Module:
        """The target's model."""
        return self.saved.model

    @property
    def preprocessing(self) -> Preprocessing | ImagePreprocessing | None:
        """How new rows become the model's samples; None where they are samples already."""
        return self.saved.preprocessing

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by the model's outputs; None for regression."""
        return self.saved.class_names

    def __repr__(self) -> str:
        """Five lines."""
        rounds = f"history: {len(self.history)} rounds, {self.history.shape[1]} columns"
        return block(*run_lines(self.summary, self.model), rounds, f"folder: {self.out}")


def load_run(
    run_dir: str | Path, *, model: str | None = None, unchecked: bool = False
) -> LoadedRun:
    """A finished run from its folder, which never decides what code is run.

    Args:
        run_dir: the folder that ``run`` wrote.
        model: ``module:function`` of a model of your own, named again because you trust it.
        unchecked: open a folder whose files are not as they were written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from fedbridge import run
        >>> with TemporaryDirectory() as folder:
        ...     result = run("digits-noise", method="fedda", rounds=2, workers=1, out=folder)
        ...     loaded = load_run(folder)
        >>> loaded.history["round"].tolist()
        [1, 2]
    """
    if not isinstance(run_dir, str | Path):
        raise OptionError(
            f"Expected the folder of a run as a path, but got {type(run_dir).__name__}: name the "
            f"folder that `out` named."
        )
    saved = load_model(run_dir, model=model, unchecked=unchecked)
    folder = RunFolder(Path(run_dir))
    summary = folder.summary(whole=True)
    assert summary is not None  # or there would be no model
    return LoadedRun(folder.path, pd.DataFrame(folder.history()), summary, saved)


def save_run(result: RunResult, out: str | Path) -> Path:
    """Write a run that was kept in memory into a new folder, which is returned.

    It is that of ``run`` with ``out``, but for what a result does not hold: which rows were where,
    the outputs on test rows, and checkpoints.
    """
    folder, config = RunFolder(Path(out)), dict(result.config)
    if folder.config() is not None:
        raise RunFolderError(
            f"Expected a new folder, but {folder.path} already holds a run: choose another, "
            f"or remove it first."
        )
    folder.check(config, resume=False)
    with folder_lock(folder.path):
        folder.rewind(result.history)
        folder.write_config(config)
        if result.preprocessing is not None:
            folder.write_preprocessing(result.preprocessing.to_json(), config)
        write_model_card(folder.path, result.summary)
        folder.write_result(result.model, result.summary, config)
        write_report(folder.path, unchecked=True)
        folder.seal()
    return folder.path


def predict(
    run: LoadedRun | RunResult | str | Path,
    new: object,
    *,
    model: str | None = None,
    unchecked: bool = False,
) -> pd.DataFrame:
    """Predictions for new rows: ``row``, ``prediction``, ``probability_<class>`` for every class.

    Columns that name rows (``id_column``) stand behind ``row`` as the new data have them; the
    prediction of a regression is the value itself.

    Args:
        run: what ``run`` or ``load_run`` returned, or the folder of a run.
        new: a pandas DataFrame, an array, or a path (a CSV, an ``.npz`` with ``X``, an image, a
            folder of images), of the kind that the run was trained on. Labels are not needed.
        model: ``module:function`` of a model of your own, where ``run`` is a folder.
        unchecked: open a folder whose files are not as they were written.

    Example:
        >>> from fedbridge import load_task, run
        >>> task = load_task("digits-noise")
        >>> found = predict(run(task, method="fedda", rounds=2, workers=1), task.test.x[:3])
        >>> list(found)[:3]
        ['row', 'prediction', 'probability_0']
    """
    return predict_with(usable(run, model, unchecked=unchecked), new).to_table()


def usable(run: object, model: str | None, *, unchecked: bool) -> SavedModel:
    """The model of whatever stands for a finished run; of a folder after its checksums."""
    if isinstance(run, LoadedRun):
        return run.saved
    if isinstance(run, RunResult):
        return SavedModel(
            run.model, run.input_shape, run.class_names, run.preprocessing, run.in_pixels
        )
    if isinstance(run, str | Path):
        return load_model(run, model=model, unchecked=unchecked)
    raise OptionError(
        f"Expected a run as fedbridge.run or fedbridge.load_run returns it, or the folder of one, "
        f"but got {type(run).__name__}."
    )
