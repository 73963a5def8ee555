"""A finished run for programs without fedbridge: one ONNX graph, or weights for torch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch as pytorch

from fedbridge.base.errors import ModelError, OptionError
from fedbridge.base.files import refuse_overwriting, write_atomically
from fedbridge.data.images.preprocessing import ImagePreprocessing
from fedbridge.data.tables.curation import UNCHANGED
from fedbridge.data.tables.preprocessing import NumericColumn, Preprocessing
from fedbridge.runs.folder import RunFolder
from fedbridge.workflows.finished import LoadedRun, usable
from fedbridge.workflows.onnx_graph import (
    LABEL,
    PREDICTION,
    PROBABILITIES,
    SAMPLES,
    OnnxModel,
    columns_of,
    input_names,
    onnx_model,
)
from fedbridge.workflows.plain_torch import plain_torch
from fedbridge.workflows.predict import Predictions, SavedModel, predict_with

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fedbridge.federation.loop import RunResult

SAFETENSORS = ".safetensors"
TOLERANCE = 1e-5
"""So far may the graph's answers be from those of ``predict``."""
TRIED, TRIED_IMAGES = 8, 3
MOST_SHOWN = 5
NO_CATEGORY = "no such category"


@dataclass(frozen=True)
class Exported:
    """What was written, and how it was checked.

    Attributes:
        files: all files.
        inputs: of the graph, with type and shape in words.
        outputs: the same.
        rows: on how many rows onnxruntime was compared with ``predict``; None if it was not.
        difference: the largest difference between their answers.
        needs: what the script for torch needs besides torch and safetensors; empty if nothing.
    """

    files: tuple[Path, ...]
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None
    difference: float | None = None
    needs: str = ""

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "files": [str(file) for file in self.files],
            "inputs": dict(self.inputs),
            "outputs": dict(self.outputs),
            "checked": {"rows": self.rows, "difference": self.difference} if self.rows else None,
            "needs": self.needs or None,
        }

    def __str__(self) -> str:
        """A line per file, then what goes in and comes out and whether that was checked."""
        lines = [f"wrote {file}" for file in self.files]
        if self.inputs:
            names = list(self.inputs)
            shown = ", ".join(f"{name}: {self.inputs[name]}" for name in names[:MOST_SHOWN])
            more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
            lines.append(f"inputs: {shown}{more}")
            lines.append(f"outputs: {', '.join(f'{n}: {how}' for n, how in self.outputs.items())}")
            lines.append(
                f"checked with onnxruntime on {self.rows} rows: as `fedbridge predict`, to "
                f"{self.difference:.1e}"
                if self.rows
                else "not checked: onnxruntime is not installed"
            )
        if self.needs:
            lines.append(f"the script needs {self.needs}")
        return "\n".join(lines)


def export(
    run: LoadedRun | RunResult | str | Path,
    *,
    onnx: str | Path | None = None,
    torch: str | Path | None = None,
    model: str | None = None,
    unchecked: bool = False,
) -> Exported:
    """Write a finished run's model for programs without fedbridge.

    The graph holds the preprocessing too. Its inputs are one tensor ``(rows, 1)`` per column of a
    table, named as the column: float64 for numbers (NaN where missing), text for categories (``""``
    where missing; an unknown one counts as none of the known ones). Arrays and images come as
    ``x``. Its outputs are ``probabilities`` and ``label``, or ``prediction`` for values. A row that
    ``predict`` would refuse gets NaN and an empty label.

    Args:
        run: what ``run`` or ``load_run`` returned, or the folder of a run.
        onnx: the file to write the graph to.
        torch: a folder, or a file ``*.safetensors``, for the weights alone and a script of ten
            lines that loads them with torch and safetensors.
        model: ``module:function`` of a model of your own, where ``run`` is a folder.
        unchecked: open a folder whose files are not as they were written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from fedbridge import run
        >>> result = run("digits-noise", method="fedda", rounds=1, workers=1)
        >>> with TemporaryDirectory() as folder:
        ...     [file.name for file in export(result, torch=folder).files]
        ['model.safetensors', 'load_model.py']
    """
    if onnx is None and torch is None:
        raise OptionError(
            "Expected a file for the graph (--onnx) or a place for the weights (--torch), but got "
            "neither: name one of them."
        )
    saved = usable(run, model, unchecked=unchecked)
    files: dict[Path, bytes | str] = {}
    needs = ""
    if torch is not None:
        weights = _weights_file(Path(torch))
        plain = plain_torch(saved, weights.name)
        needs = plain.needs
        files = {weights: plain.weights, weights.with_name(f"load_{weights.stem}.py"): plain.script}
        if plain.preprocessing is not None:
            files[weights.with_name(f"{weights.stem}.preprocessing.json")] = plain.preprocessing
    graph, tried = OnnxModel(b"", {}, {}), Trial()
    if onnx is not None:
        if Path(onnx) in files:
            raise OptionError(
                f"Expected two files, but --onnx and --torch both name {str(onnx)!r}: name another."
            )
        graph = onnx_model(saved)
        tried = _tried(graph, saved)
        files = {Path(onnx): graph.content, **files}
    for file in files:
        refuse_overwriting(file, _own_files(run))
    for file, content in files.items():
        write_atomically(file, content)
    return Exported(tuple(files), graph.inputs, graph.outputs, tried.rows, tried.difference, needs)


def _weights_file(place: Path) -> Path:
    return place if place.suffix == SAFETENSORS else place / f"model{SAFETENSORS}"


def _own_files(run: LoadedRun | RunResult | str | Path) -> list[Path]:
    """Files of the run, none of which may be written over."""
    folder = run if isinstance(run, str | Path) else run.out
    return [] if folder is None else RunFolder(Path(folder)).own_files()


@dataclass(frozen=True)
class Trial:
    """How a graph answered beside ``predict``; nothing if there is no onnxruntime to ask."""

    rows: int | None = None
    difference: float | None = None


def _tried(graph: OnnxModel, saved: SavedModel) -> Trial:
    """Compare the graph with ``predict``; one that answers differently is not written."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        return Trial()
    rows, expected = _trial_rows(saved)
    try:
        session = onnxruntime.InferenceSession(graph.content, providers=["CPUExecutionProvider"])
        found = dict(zip(graph.outputs, session.run(list(graph.outputs), rows), strict=True))
    except Exception as error:
        raise ModelError(
            f"Expected a graph that onnxruntime {onnxruntime.__version__} runs, but it does not "
            f"({error}): take the weights alone with --torch."
        ) from error
    difference = _difference(found, expected)
    if not difference <= TOLERANCE:
        raise ModelError(
            f"Expected the graph to answer as `fedbridge predict` does, to {TOLERANCE}, but it is "
            f"off by {difference:.1e}, so it was not written: take the weights alone with --torch."
        )
    return Trial(len(expected.rows), difference)


def _difference(found: Mapping[str, NDArray[Any]], expected: Predictions) -> float:
    """The largest between two answers: of probabilities, or of values relative to their size.

    Another label counts as much as the probabilities of the two labels are apart.
    """
    if expected.probabilities is None or expected.class_names is None:
        values = np.array(expected.predictions)
        return float(np.max(np.abs(found[PREDICTION] - values) / np.maximum(1, np.abs(values))))
    shares = expected.probabilities.numpy()
    chosen = [expected.class_names.index(label) for label in found[LABEL]]
    lost = shares.max(axis=1) - shares[np.arange(len(shares)), chosen]
    return float(max(np.max(np.abs(found[PROBABILITIES] - shares)), np.max(lost)))


def _trial_rows(saved: SavedModel) -> tuple[dict[str, NDArray[Any]], Predictions]:
    """Some rows as the graph takes them, and what ``predict`` says of them."""
    how = saved.preprocessing
    if isinstance(how, Preprocessing):
        table = _trial_table(how)
        names = input_names(how)
        rows = {names[str(name)]: table[[name]].to_numpy() for name in table}
        plain = replace(saved, preprocessing=replace(how, curation=UNCHANGED))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the unknown categories, which are meant
            return rows, predict_with(plain, table)
    draw = np.random.default_rng(0)
    if isinstance(how, ImagePreprocessing):
        shape = (TRIED_IMAGES, 1 if how.grayscale else 3, how.size, how.size)
        pixels = draw.integers(0, 256, shape, dtype=np.uint8)
        features = how.same_backbone()(pytorch.from_numpy(pixels)) if how.backbone else pixels
        return {SAMPLES: pixels}, predict_with(saved, features)
    samples: NDArray[Any] = draw.normal(size=(TRIED, *saved.input_shape)).astype(np.float32)
    if saved.in_pixels:
        samples = draw.integers(0, 256, samples.shape, dtype=np.uint8)
    return {SAMPLES: samples}, predict_with(saved, samples)


def _trial_table(how: Preprocessing) -> pd.DataFrame:
    """Numbers around the mean and every kind of category; the last rows miss and surprise."""
    table = {}
    for shift, column in enumerate(columns_of(how)):
        if isinstance(column, NumericColumn):
            steps = np.roll(np.linspace(-2, 2, TRIED), shift)
            table[column.name] = np.append(column.mean + column.scale * steps, [np.nan, np.nan])
        else:
            levels = [column.levels[(k + shift) % len(column.levels)] for k in range(TRIED)]
            table[column.name] = np.array([*levels, "", NO_CATEGORY], dtype=object)
    return pd.DataFrame(table)
