"""A finished model and its preprocessing as one ONNX graph.

The network is what torch's exporter makes of it. Before it stand the steps of the preprocessing,
written by hand because torch has no tensors of text; behind it the probabilities, the names of the
classes, and what becomes of a row that ``predict`` would refuse: a graph cannot refuse one, so its
answers are NaN and its label is empty.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import groupby, product
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedbridge._version import __version__
from fedbridge.base.errors import ModelError
from fedbridge.data.images.preprocessing import ImagePreprocessing
from fedbridge.data.labels import AS_THEY_ARE
from fedbridge.data.tables.cells import MISSING
from fedbridge.data.tables.preprocessing import (
    FARTHEST,
    ByOwnRows,
    CodedColumn,
    MissingColumn,
    NumericColumn,
    Preprocessing,
    scale_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

    from fedbridge.data.labels import Scale
    from fedbridge.data.tables.preprocessing import CategoricalColumn
    from fedbridge.workflows.predict import SavedModel

SAMPLES = "x"
PROBABILITIES, LABEL, PREDICTION = "probabilities", "label", "prediction"
ROWS = "rows"
"""The size that is not known yet: how many rows come."""
INSIDE = "fedbridge/"
"""Names inside the graph begin with it, so that no column has the same."""
FOR_TEXT, FOR_TEXT_VERSION = "ai.onnx.ml", 3
WHOLE_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)
LARGEST_FILE = 2**31 - 1
"""Bytes of a protocol buffer; what is larger can be neither written nor read."""
EXTRA = "run `pip install 'fedbridge[export]'`"


@dataclass(frozen=True)
class OnnxModel:
    """The graph as bytes, and what goes in and comes out, each with its type and shape in words."""

    content: bytes
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def onnx_model(saved: SavedModel) -> OnnxModel:
    """One graph of the preprocessing and the network."""
    _require_exporter()
    from onnx import helper

    how = saved.preprocessing
    if isinstance(how, ByOwnRows):
        raise ModelError(
            "Expected preprocessing with a site's own means and deviations, but this run has none, "
            "since its rows are standardised by those that come with them: export the run in the "
            "target's folder."
        )
    graph = _Graph(_prefix(how))
    metadata = {"fedbridge": __version__}
    if isinstance(how, Preprocessing):
        names = input_names(how)
        network = _network(saved, graph.prefix + ROWS, graph.prefix)
        ready = graph.table(how, names)
        metadata |= _described(how, names)
    else:
        network = _network(saved, SAMPLES, graph.prefix)
        graph.inputs.append(deepcopy(network.graph.input[0]))
        ready = SAMPLES
        if isinstance(how, ImagePreprocessing):
            metadata["images"] = json.dumps(asdict(how))
    graph.network(network)
    in_bytes = _takes_pixels(saved)
    refused = None if in_bytes else graph.refused(ready, table=isinstance(how, Preprocessing))
    answer = network.graph.output[0].name
    if saved.class_names is None:
        graph.values(answer, refused, _answers_per_row(saved), scale_of(how))
    else:
        metadata["class_names"] = json.dumps(saved.class_names)
        graph.classes(answer, refused, saved.class_names)
    opsets = {found.domain: found.version for found in network.opset_import}
    if isinstance(how, Preprocessing):
        opsets[FOR_TEXT] = FOR_TEXT_VERSION
    model = helper.make_model(
        helper.make_graph(graph.nodes, "fedbridge", graph.inputs, graph.outputs, graph.constants),
        opset_imports=[helper.make_opsetid(*pair) for pair in opsets.items()],
        ir_version=network.ir_version,
        producer_name="fedbridge",
        producer_version=__version__,
    )
    helper.set_model_props(model, metadata)
    return OnnxModel(
        _as_bytes(model),
        {value.name: _in_words(value) for value in graph.inputs},
        {value.name: _in_words(value) for value in graph.outputs},
    )


def input_names(how: Preprocessing) -> dict[str, str]:
    """What the input of each column is called: as the column, unless an output has that name."""
    outputs = (PREDICTION,) if how.class_names is None else (PROBABILITIES, LABEL)
    names = {column.name: column.name for column in how.columns}
    for name in names.keys() & outputs:
        while names[name] in (*names, *outputs):
            names[name] += "_"
    return names


def columns_of(how: Preprocessing) -> list[NumericColumn | CategoricalColumn | CodedColumn]:
    """The columns that rows come with; marks of missing values are made of them in the graph."""
    return [column for column in how.columns if not isinstance(column, MissingColumn)]


def places_of(column: CategoricalColumn | CodedColumn) -> dict[str, int]:
    """Which level a text stands for; all spellings of a missing value stand for the fill.

    A level that is a whole number may come as a table's column of floats has it, ``1.0``.
    """
    places = {level: place for place, level in enumerate(column.levels)}
    whole = {f"{text}.0": k for text, k in places.items() if WHOLE_NUMBER.fullmatch(text)}
    return {**whole, **places, **dict.fromkeys(_missing(), places.get(column.fill, -1))}


def _missing() -> Iterator[str]:
    """All spellings of a missing value, in small and capital letters."""
    for text in sorted(MISSING):
        yield from map("".join, product(*zip(text, text.upper(), strict=True)))


class _Graph:
    """Nodes, constants, inputs and outputs, as they are put together."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []

    def node(self, kind: str, *inputs: str, out: str = "", domain: str = "", **how: Any) -> str:
        """Add a step; returns what its output is called."""
        from onnx import helper

        name = out or f"{self.prefix}step-{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], domain=domain, **how))
        return name

    def constant(self, values: NDArray[Any]) -> str:
        """Add numbers or texts; returns what they are called."""
        from onnx import numpy_helper

        name = f"{self.prefix}constant-{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def cast(self, value: str, kind: type[np.generic], out: str = "") -> str:
        from onnx import helper

        return self.node("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)), out=out)

    def output(self, name: str, kind: Any, shape: Sequence[int | str]) -> None:
        from onnx import helper

        code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        self.outputs.append(helper.make_tensor_value_info(name, code, shape))

    def network(self, model: ModelProto) -> None:
        """Add the network, whose own names get the prefix; where it begins and ends is known."""
        from onnx import compose

        compose.add_prefix(
            model, self.prefix + "network/", rename_inputs=False, rename_outputs=False, inplace=True
        )
        self.nodes.extend(model.graph.node)
        self.constants.extend(model.graph.initializer)

    def table(self, how: Preprocessing, names: Mapping[str, str]) -> str:
        """Columns as the network's rows, in float64 until they are ready, as training has them."""
        from onnx import TensorProto, helper

        numbers = {c.name for c in how.columns if isinstance(c, NumericColumn)}
        for name in dict.fromkeys(column.name for column in how.columns):
            kind = TensorProto.DOUBLE if name in numbers else TensorProto.STRING
            self.inputs.append(helper.make_tensor_value_info(names[name], kind, [ROWS, 1]))
        parts = []
        for are_numbers, group in groupby(how.columns, lambda c: isinstance(c, NumericColumn)):
            if are_numbers:
                parts.append(self._numbers(cast("list[NumericColumn]", list(group)), names))
                continue
            for column in cast("Iterator[CategoricalColumn | CodedColumn | MissingColumn]", group):
                name = names[column.name]
                parts.append(
                    self._mark(name, number=column.name in numbers)
                    if isinstance(column, MissingColumn)
                    else self._indicators(column, name)
                )
        return self.cast(self.node("Concat", *parts, axis=1), np.float32, out=self.prefix + ROWS)

    def _mark(self, name: str, *, number: bool) -> str:
        """1 where a column has no value, else 0."""
        if number:
            return self.cast(self.node("IsNaN", name), np.float64)
        return self.cast(self._places(name, dict.fromkeys(_missing(), 1), other=0), np.float64)

    def _numbers(self, columns: Sequence[NumericColumn], names: Mapping[str, str]) -> str:
        fill, mean, scale = (
            self.constant(np.array([getattr(column, part) for column in columns]))
            for part in ("fill", "mean", "scale")
        )
        values = self.node("Concat", *(names[column.name] for column in columns), axis=1)
        known = self.node("Where", self.node("IsNaN", values), fill, values)
        return self.node("Div", self.node("Sub", known, mean), scale)

    def _indicators(self, column: CategoricalColumn | CodedColumn, name: str) -> str:
        place = self._places(name, places_of(column), other=-1)
        coded = isinstance(column, CodedColumn)
        levels = self.constant(np.arange(int(coded), len(column.levels), dtype=np.int64))
        indicators = self.cast(self.node("Equal", place, levels), np.float64)
        if not isinstance(column, CodedColumn):
            return indicators
        means, scales = (self.constant(np.array(v)) for v in (column.means, column.scales))
        return self.node("Div", self.node("Sub", indicators, means), scales)

    def _places(self, name: str, places: Mapping[str, int], *, other: int) -> str:
        """Texts as whole numbers."""
        return self.node(
            "LabelEncoder",
            name,
            domain=FOR_TEXT,
            keys_strings=list(places),
            values_int64s=list(places.values()),
            default_int64=other,
        )

    def refused(self, ready: str, *, table: bool) -> str:
        """``(rows, 1)``: whether ``predict`` would refuse the row for a number that is none."""
        largest = FARTHEST if table else np.finfo(np.float32).max
        size = self.node("Abs", self.node("Flatten", ready, axis=1))
        fine = self.node("LessOrEqual", size, self.constant(np.array(largest, np.float32)))
        axis, no = self.constant(np.array([1])), self.constant(np.array(0, np.int32))
        all_fine = self.node("ReduceMin", self.cast(fine, np.int32), axis, keepdims=1)
        return self.node("Equal", all_fine, no)

    def classes(self, answer: str, refused: str | None, names: Sequence[str]) -> None:
        """Probabilities in float64 until they are ready, and the name of the largest."""
        shares = self.node("Softmax", self.cast(answer, np.float64), axis=1)
        place = self.node("ArgMax", shares, axis=1, keepdims=0)
        label = self.node("Gather", self.constant(np.array(names, dtype=object)), place)
        self._answers(PROBABILITIES, self.cast(shares, np.float32), refused, [ROWS, len(names)])
        self._answers(LABEL, label, refused, [ROWS], unknown=np.array("", dtype=object))

    def values(self, answer: str, refused: str | None, count: int, scale: Scale) -> None:
        """The values of a regression: one per row, or a row of them."""
        shape: list[int | str] = [ROWS] if count == 1 else [ROWS, count]
        sizes = self.constant(np.array([-1, count][: len(shape)]))
        values = self.node("Reshape", self.cast(answer, np.float32), sizes)
        if scale != AS_THEY_ARE:
            size, centre = (np.array(n, np.float32) for n in (scale.size, scale.centre))
            values = self.node("Mul", values, self.constant(size))
            values = self.node("Add", values, self.constant(centre))
        self._answers(PREDICTION, values, refused, shape)

    def _answers(
        self,
        name: str,
        values: str,
        refused: str | None,
        shape: list[int | str],
        unknown: NDArray[Any] = np.array(np.nan, np.float32),  # noqa: B008
    ) -> None:
        if refused is None:
            self.node("Identity", values, out=name)
        else:
            if len(shape) == 1:
                refused = self.node("Squeeze", refused, self.constant(np.array([1])))
            self.node("Where", refused, self.constant(unknown), values, out=name)
        self.output(name, unknown.dtype, shape)


def _network(saved: SavedModel, name: str, prefix: str) -> ModelProto:
    """What torch's exporter makes of the network, with any number of rows."""
    module = _Served(saved)
    rows = module.rows()
    try:
        with _quietly(), torch.no_grad():
            program = torch.onnx.export(
                module,
                (rows,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim(ROWS)},),
                input_names=[name],
                output_names=[prefix + "answer"],
                verbose=False,
            )
    except Exception as error:
        raise ModelError(
            f"Expected a network whose layers ONNX has, but this one cannot be exported "
            f"({_reason(error)}): replace that layer, or take the weights alone with --torch."
        ) from error
    assert program is not None
    model = program.model_proto
    if not model.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise ModelError(
            "Expected a network that takes any number of rows, but the code of this one fixes it "
            "while it is exported: write x.shape[0] for len(x) in its forward, or take the weights "
            "alone with --torch."
        )
    _forget_origins(model)
    return model


class _Served(nn.Module):
    """The network with what torch can do of the preprocessing: bytes to floats, a backbone."""

    def __init__(self, saved: SavedModel) -> None:
        super().__init__()
        self.model = _with_constants(saved.model)
        self.in_pixels = _takes_pixels(saved)
        how = saved.preprocessing
        self.shape = saved.input_shape
        self.backbone: nn.Module | None = None
        if isinstance(how, ImagePreprocessing) and how.backbone is not None:
            self.backbone = deepcopy(how.same_backbone().network)
            self.shape = (3, how.size, how.size)

    def rows(self) -> Tensor:
        """Two samples as they come in: one is what exporters take for a constant."""
        return torch.zeros(2, *self.shape, dtype=torch.uint8 if self.in_pixels else torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """The network's answer."""
        if self.in_pixels:
            x = x.to(torch.float32) / 255
        if self.backbone is not None:
            x = self.backbone(x)
        return cast("Tensor", self.model(x))


def _with_constants(model: nn.Module) -> nn.Module:
    """A copy in which single numbers are no tensors: what they decide is decided in the graph."""
    model = deepcopy(model).cpu().eval()
    for module in model.modules():
        for name, value in list(module.named_buffers(recurse=False)):
            if value.ndim == 0:
                delattr(module, name)
                setattr(module, name, value.item())
    return model


def _takes_pixels(saved: SavedModel) -> bool:
    return saved.in_pixels or isinstance(saved.preprocessing, ImagePreprocessing)


def _answers_per_row(saved: SavedModel) -> int:
    return saved.outputs(torch.zeros(2, *saved.input_shape)).reshape(2, -1).shape[1]


def _prefix(how: object) -> str:
    names = [column.name for column in how.columns] if isinstance(how, Preprocessing) else []
    prefix = INSIDE
    while any(name.startswith(prefix) for name in names):
        prefix += "/"
    return prefix


def _described(how: Preprocessing, names: Mapping[str, str]) -> dict[str, str]:
    """What the metadata say of a table."""
    columns = [
        {
            "name": column.name,
            "input": names[column.name],
            "kind": "number" if isinstance(column, NumericColumn) else "category",
            **({} if isinstance(column, NumericColumn) else {"levels": column.levels}),
            "fill": column.fill,
            **({"imputed": True} if column.name in how.marked else {}),
        }
        for column in columns_of(how)
    ]
    own = how.curation.to_record()
    return {
        "columns": json.dumps(columns),
        "label_column": how.label_column,
        "site": how.site,
        **({"own_table": json.dumps(own)} if own else {}),
    }


def _forget_origins(model: ModelProto) -> None:
    """Drop what the exporter notes of files and lines of code: nobody else's business."""
    graph = model.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def _in_words(value: ValueInfoProto) -> str:
    from onnx import helper

    tensor = value.type.tensor_type
    shape = ", ".join(str(d.dim_param or d.dim_value) for d in tensor.shape.dim)
    kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    return f"{'text' if kind == 'object' else kind} ({shape})"


def _as_bytes(model: ModelProto) -> bytes:
    from onnx import checker

    if model.ByteSize() > LARGEST_FILE:
        raise ModelError(
            f"Expected a network of at most {LARGEST_FILE:,} bytes, as ONNX files hold, but this "
            f"one is larger: take the weights alone with --torch."
        )
    checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporter tells of packages that it could use and of its own old code: not here."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _reason(error: BaseException) -> str:
    """The first line of what went wrong first."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _require_exporter() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"Expected the extra `export` to write ONNX, but it is not installed ({error}): "
            f"{EXTRA}."
        ) from error
