"""Predictions for new data with the model of a finished run, treated as its training data were."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from io import StringIO
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedbridge import methods
from fedbridge.base.errors import DataError, ModelError, ShapeError
from fedbridge.base.files import parse_json, read_text
from fedbridge.base.text import csv_text
from fedbridge.base.values import OBJECT_MODEL
from fedbridge.data.arrays import as_features, read_arrays
from fedbridge.data.images.preprocessing import (
    SUFFIXES,
    ImagePreprocessing,
    is_image,
    read_preprocessing,
)
from fedbridge.data.preparing import PixelsToUnit
from fedbridge.data.rows import in_batches
from fedbridge.data.tables.load import TABLE_FILES
from fedbridge.data.tables.preprocessing import Preprocessing, scale_of
from fedbridge.data.tables.spelling import Spelling
from fedbridge.data.task import FederatedTask, Site, check_finite
from fedbridge.federation.settings import MANY
from fedbridge.models import build_model, is_built_in, without_weights
from fedbridge.models.weights import stored_tensors
from fedbridge.runs.folder import FORMAT, PIXELS, RunFolder, RunFolderError, run_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fedbridge.data.rows import Features
    from fedbridge.federation.method import Method

LARGEST_MODEL = 10**10
"""Inputs times outputs: a folder does not decide how much memory is asked for."""


AT_THE_TARGET = (
    " The model of a deployment is at its target, which alone knows how its rows are prepared: the "
    "folder `run` in the target's site folder takes a CSV."
)


@dataclass(frozen=True)
class Predictions:
    """What the model says of every row.

    Attributes:
        rows: what each row is called: its number from 0, or the file of an image.
        predictions: class names, or values for regression (a list each if there are several).
        probabilities: ``(n, classes)``; None for regression.
        class_names: names of the classes; None for regression.
        ids: columns that name the rows, such as a patient's number, as the new data have them.
    """

    rows: tuple[int | str, ...]
    predictions: tuple[Any, ...]
    probabilities: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def to_table(self) -> pd.DataFrame:
        """One line per row: ``row``, what names it, ``prediction``, every class's probability."""
        table = pd.DataFrame({"row": self.rows, **self.ids})
        if self.predictions and isinstance(self.predictions[0], list):
            values = np.array(self.predictions)
            for k in range(values.shape[1]):
                table[f"prediction_{k + 1}"] = values[:, k]
        else:
            table["prediction"] = self.predictions
        if self.probabilities is not None and self.class_names is not None:
            for k, name in enumerate(self.class_names):
                table[f"probability_{name}"] = self.probabilities[:, k].numpy()
        return table

    def to_csv(self) -> str:
        """The table as CSV, in which a spreadsheet finds no formula."""
        text = StringIO()
        table = self.to_table()
        for column in table.columns.intersection(["row", *self.ids, "prediction"]):
            table[column] = [csv_text(c) if isinstance(c, str) else c for c in table[column]]
        table = table.rename(columns=csv_text)
        table.to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
        return text.getvalue()

    def to_json(self) -> list[dict[str, Any]]:
        """One object per row."""
        lines: list[dict[str, Any]] = [
            {"row": row, "prediction": prediction}
            for row, prediction in zip(self.rows, self.predictions, strict=True)
        ]
        for name, cells in self.ids.items():
            for line, cell in zip(lines, cells, strict=True):
                line.setdefault("ids", {})[name] = cell
        if self.probabilities is not None and self.class_names is not None:
            for line, shares in zip(lines, self.probabilities.tolist(), strict=True):
                line["probabilities"] = dict(zip(self.class_names, shares, strict=True))
        return lines


@dataclass(frozen=True)
class SavedModel:
    """The model of a finished run with what is needed to use it."""

    model: nn.Module
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...] | None
    preprocessing: Preprocessing | ImagePreprocessing | None
    in_pixels: bool = False

    def outputs(self, x: Features) -> Tensor:
        """What the model says of rows that are ready for it: logits, or values."""
        with torch.no_grad():
            found = torch.cat([self.model(_as_floats(batch)) for batch in in_batches(x)])
        return scale_of(self.preprocessing).values(found)


def predict(
    run_dir: str | Path,
    new_data: object,
    *,
    model: str | None = None,
    unchecked: bool = False,
    numbers: Mapping[str, Any] | None = None,
) -> Predictions:
    """Predict for a CSV, an ``.npz`` with ``X``, an image, or a folder of images.

    Args:
        run_dir: the folder of a finished run.
        new_data: data of the same kind as those of the run; labels are not needed. A table or an
            array in memory is as good as a path.
        model: ``module:function`` of a model of your own. Its name in the folder is not enough:
            a folder never decides what code runs.
        unchecked: open a folder whose files are not as they were written.
        numbers: how the new table spells numbers, where that is not as in training: ``decimal``,
            ``thousands``, ``percent``.
    """
    saved = load_model(run_dir, model=model, unchecked=unchecked)
    if numbers and isinstance(saved.preprocessing, Preprocessing):
        how = replace(saved.preprocessing.curation, spelling=Spelling(**numbers))
        saved = replace(saved, preprocessing=replace(saved.preprocessing, curation=how))
    return predict_with(saved, new_data)


def predict_with(saved: SavedModel, new_data: object) -> Predictions:
    """What a model says of new rows, which are treated as its training rows were."""
    new = read_rows(new_data, saved)
    rows, x, ids = new.names, new.x, new.ids
    where = repr(str(new_data)) if isinstance(new_data, str | Path) else "the new data"
    if tuple(x.shape[1:]) != saved.input_shape:
        raise ShapeError(
            f"Expected samples of shape {saved.input_shape} as in training, but {where} has "
            f"{tuple(x.shape[1:])}."
        )
    check_finite(x, where, "features")
    outputs = saved.outputs(x)
    if saved.class_names is None:
        values = outputs.reshape(len(x), -1)
        single = values.shape[1] == 1
        return Predictions(rows, tuple((values[:, 0] if single else values).tolist()), ids=ids)
    shares = outputs.double().softmax(dim=1)
    names = tuple(saved.class_names[index] for index in shares.argmax(dim=1).tolist())
    return Predictions(rows, names, shares, saved.class_names, ids)


def inputs_of(run_dir: Path, new_data: Path) -> Iterator[Path]:
    """The files that a prediction reads, none of which it may write over."""
    yield from RunFolder(run_dir).own_files()
    yield from filter(is_image, new_data.rglob("*")) if new_data.is_dir() else (new_data,)


def load_model(
    run_dir: str | Path, *, model: str | None = None, unchecked: bool = False
) -> SavedModel:
    """The model of a finished run, from its configuration and its weights; see ``predict``."""
    folder = RunFolder(Path(run_dir))
    config = folder.config()
    if config is None:
        raise RunFolderError(
            f"Expected the folder of a run, but {str(run_dir)!r} has no config.toml: name the "
            f"folder that `fedbridge run --out` wrote."
        )
    if folder.summary() is None:
        raise RunFolderError(
            f"Expected a finished run, but the one in {str(run_dir)!r} is not: finish it with "
            f"`fedbridge run ... --resume` (a deployment with `fedbridge deploy run`)."
        )
    folder.verify(unchecked=unchecked)
    described = config["model"]
    if described["name"].startswith(OBJECT_MODEL):
        raise RunFolderError(
            f"Expected a run whose model has a name, but the one in {str(run_dir)!r} was given as "
            f"an {described['name']}: load model.safetensors into it yourself, or run with "
            f"--model module:function."
        )
    n_classes = described.get("n_classes")
    names = described.get("class_names") or list(map(str, range(min(n_classes or 0, MANY))))
    shape = tuple(described["input_shape"])
    sizes = (described["outputs"], *shape)
    wrong = n_classes is not None and not n_classes == len(names) == described["outputs"]
    if wrong or min(sizes) < 1 or prod(sizes) > LARGEST_MODEL:
        raise RunFolderError(
            f"Expected a model of sensible sizes in {str(folder.path / 'config.toml')!r}, but it "
            f"has inputs {shape}, {described['outputs']} outputs and {len(names)} class names: "
            f"restore the file."
        )
    architecture = _trusted(without_weights(described["name"]), model, run_dir)
    plain = build_model(architecture, _stand_in(shape, described["outputs"], n_classes))
    weights = folder.path / "model.safetensors"
    tensors, of_model = _read_weights(weights)
    how, of_preprocessing = _preprocessing(folder.path / "preprocessing.json")
    own = run_id(config)
    for file, said in (("model.safetensors", of_model), ("preprocessing.json", of_preprocessing)):
        if said not in (None, own) and not unchecked:
            raise RunFolderError(
                f"Expected the {file} of this run in {str(run_dir)!r}, but it belongs to another: "
                f"restore it, or open the folder all the same with --unchecked."
            )
    restored = _method_class(config["method"], run_dir).restore(plain, tensors)
    _load_weights(restored, tensors, weights)
    class_names = None if n_classes is None else tuple(names)
    in_pixels = (folder.manifest() or {}).get("values") == PIXELS
    return SavedModel(restored.eval(), shape, class_names, how, in_pixels)


def _method_class(name: str, run_dir: str | Path) -> type[Method]:
    """The class of a run's method, whose code is run only if somebody has named it here."""
    if name in methods.names():
        return methods.class_of(name)
    raise RunFolderError(
        f"Expected a method that is known here, but the run in {str(run_dir)!r} has one of its "
        f"own, {name}: if you trust that code, name it again with --method {name}, or its file "
        f"with --plugin."
    )


def _trusted(name: str, given: str | None, run_dir: str | Path) -> str:
    """The model to build: one of ours, or code that the user himself names."""
    if given is not None or is_built_in(name):
        return without_weights(given or name)
    raise RunFolderError(
        f"Expected a built-in model, but the run in {str(run_dir)!r} has one of its own, {name}: "
        f"if you trust that code, name it again with --model {name}."
    )


def _preprocessing(file: Path) -> tuple[Preprocessing | ImagePreprocessing | None, str | None]:
    """How new rows are treated, and which run says so."""
    if not os.path.lexists(file):
        return None, None
    try:
        text = read_text(file)
        content = parse_json(text)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"Could not read {file}: {error}; restore it.") from error
    return read_preprocessing(text), content.get("run")


def _stand_in(shape: tuple[int, ...], outputs: int, n_classes: int | None) -> FederatedTask:
    """A task of the same sizes: what a model is built from, without the data."""
    x = torch.zeros(2, *shape)
    if n_classes is not None:
        y = torch.arange(2)
    else:
        y = torch.zeros(2) if outputs == 1 else torch.zeros(2, outputs)
    return FederatedTask(
        "saved", (Site("source", x, y),), Site("target", x, y), Site("test", x, y), n_classes
    )


def _read_weights(file: Path) -> tuple[dict[str, Tensor], str | None]:
    """The tensors, and the run that they say they are of."""
    try:
        tensors, about = stored_tensors(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"Expected the weights of the run in {str(file)!r}, but they cannot be read ({error}): "
            f"run the training again."
        ) from error
    version, _, run = about.get("format", "").partition(" ")
    if version != str(FORMAT):
        raise ModelError(
            f"Expected weights of format {FORMAT}, but {str(file)!r} has format "
            f"{version or None}: use the version of fedbridge that wrote it."
        )
    broken = [name for name, value in tensors.items() if not bool(value.isfinite().all())]
    if broken:
        raise ModelError(
            f"Expected finite weights in {str(file)!r}, but {broken[0]} holds NaN or Inf: restore "
            f"the file, or run the training again."
        )
    return tensors, run or None


def _load_weights(model: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelError(
            f"Expected weights that fit the model, but those in {str(file)!r} do not: was the "
            f"model's code changed after the run? ({error})"
        ) from error


@dataclass(frozen=True)
class NewRows:
    """Rows to predict: what they are called, as the model takes them, and what names them."""

    names: tuple[int | str, ...]
    x: Tensor
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read_rows(new: object, saved: SavedModel) -> NewRows:
    """New data as the model takes them (images as ``uint8``)."""
    how = saved.preprocessing
    if isinstance(new, str | Path):
        path = Path(new)
        if not path.exists():
            raise DataError(f"Expected new data at {str(path)!r}, but there is nothing.")
        if isinstance(how, Preprocessing):
            return _read_table(path, how)
        return _read_file(path, saved)
    if not isinstance(new, pd.DataFrame | np.ndarray | Tensor | list):
        raise DataError(
            f"Expected new data as a path, a pandas DataFrame or an array, but got "
            f"{type(new).__name__}: convert them to one of these."
        )
    if isinstance(how, Preprocessing):
        return _of_table(_as_frame(new, how), how)
    x = as_features(new.to_numpy() if isinstance(new, pd.DataFrame) else new, "the new data")
    return NewRows(tuple(range(len(x))), x)


def _read_file(path: Path, saved: SavedModel) -> NewRows:
    if path.suffix.lower() == ".npz":
        x = as_features(read_arrays(path, "X")[0], str(path))
        return NewRows(tuple(range(len(x))), x)
    if path.is_dir() or path.suffix.lower() in SUFFIXES:
        how = saved.preprocessing
        of_images = how if isinstance(how, ImagePreprocessing) else None
        names, rows = (of_images or _resizing(path, saved.input_shape)).apply(path)
        return NewRows(tuple(names), torch.from_numpy(rows))
    raise DataError(
        f"Expected an .npz with `X`, an image or a folder of images, as the run was trained on, "
        f"but got {str(path)!r}." + (AT_THE_TARGET if path.suffix.lower() in TABLE_FILES else "")
    )


def _as_frame(new: pd.DataFrame | Any, how: Preprocessing) -> pd.DataFrame:
    """A table; an array has the run's columns in their order."""
    if isinstance(new, pd.DataFrame):
        return new
    values, names = np.asarray(new), list(dict.fromkeys(column.name for column in how.columns))
    if values.ndim != 2 or values.shape[1] != len(names):
        raise ShapeError(
            f"Expected an array with the {len(names)} columns that the run was trained on "
            f"({', '.join(map(repr, names))}), but got one of shape {values.shape}: choose and "
            f"order them so, or give a DataFrame with their names."
        )
    return pd.DataFrame(values, columns=names)


def _read_table(path: Path, preprocessing: Preprocessing) -> NewRows:
    if path.suffix.lower() not in TABLE_FILES:
        raise DataError(
            f"Expected a .csv or .parquet with the columns that the run was trained on, but got "
            f"{str(path)!r}."
        )
    return _of_table(path, preprocessing)


def _of_table(given: pd.DataFrame | Path, preprocessing: Preprocessing) -> NewRows:
    table = preprocessing.read(given)
    return NewRows(tuple(table.rows.tolist()), preprocessing.apply(table), preprocessing.ids(table))


def _resizing(path: Path, shape: tuple[int, ...]) -> ImagePreprocessing:
    """What images need for a model that was trained on arrays of images."""
    if len(shape) != 3 or shape[0] not in (1, 3) or shape[1] != shape[2]:
        raise DataError(
            f"Expected an .npz with `X` of samples of shape {shape}, as the run was trained on, "
            f"but got {str(path)!r}."
        )
    return ImagePreprocessing(shape[1], grayscale=shape[0] == 1)


def _as_floats(batch: Tensor) -> Tensor:
    if batch.dtype != torch.uint8:
        return batch
    return PixelsToUnit()(batch, torch.Generator())
