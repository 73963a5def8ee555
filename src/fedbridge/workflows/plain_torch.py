"""A finished network for torch: its ``state_dict``, and a script of ten lines that loads it.

The script spells the network out in layers of torch, so that fedbridge is not needed, and reads the
weights with safetensors, so that no pickle is. Where the network cannot be spelled out, because a
model has code of its own, the script says what it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING

from safetensors.torch import save
from torch import nn

from fedbridge._version import __version__
from fedbridge.base.files import packaged_text
from fedbridge.data.images.preprocessing import ImagePreprocessing
from fedbridge.data.labels import AS_THEY_ARE
from fedbridge.data.tables.preprocessing import scale_of
from fedbridge.models.networks import AsImages, ChannelsLast, LinearModel, SplitModel
from fedbridge.training.blend import Blended, LinearMap

if TYPE_CHECKING:
    from fedbridge.workflows.predict import SavedModel

IN_ORDER = (nn.Sequential, SplitModel, LinearModel)
"""Modules that do nothing but call what is in them, one after the other."""


class _OwnCodeError(Exception):
    """A module that is more than layers of torch; the message names it."""


@dataclass(frozen=True)
class PlainTorch:
    """What goes into files.

    Attributes:
        weights: the ``state_dict`` as safetensors.
        script: Python that loads it.
        preprocessing: JSON that says how rows become samples; None where they are samples already.
        needs: what the script needs besides torch and safetensors; empty if nothing.
    """

    weights: bytes
    script: str
    preprocessing: str | None
    needs: str


def plain_torch(saved: SavedModel, file: str) -> PlainTorch:
    """The network of a run for torch and safetensors.

    Args:
        saved: the model with what it takes and returns.
        file: what the file of the weights is called, which the script reads.
    """
    tensors = {
        name: value.detach().cpu().clone().contiguous()
        for name, value in saved.model.state_dict().items()
    }
    needs = parts = argument = build = ""
    try:
        build = f"    network = {_spelled(saved.model, saved.input_shape)}\n"
        if isinstance(saved.model, Blended):
            parts = packaged_text("fedbridge.workflows", "blend.txt")
    except _OwnCodeError as own:
        needs, argument = str(own), "network, "
    text = Template(packaged_text("fedbridge.workflows", "loader.txt")).substitute(
        about=_about(saved, needs),
        ordered="from collections import OrderedDict\n" if "OrderedDict" in build else "",
        torch="import torch\n" if parts else "",
        layers="from torch import nn\n" if build else "",
        names=repr(saved.class_names),
        parts=parts,
        argument=argument,
        file=repr(file),
        build=build,
    )
    how = saved.preprocessing
    return PlainTorch(save(tensors), text, None if how is None else how.to_json(), needs)


def _about(saved: SavedModel, needs: str) -> str:
    """The head of the script: what it needs, what goes in, what comes out."""
    how = saved.preprocessing
    if isinstance(how, ImagePreprocessing) and how.backbone is not None:
        rows = f"features of the backbone {how.identity}"
    elif saved.in_pixels or isinstance(how, ImagePreprocessing):
        rows = "pixels divided by 255"
    else:
        rows = "samples" if how is None else "columns as the preprocessing's JSON codes them"
    use = "load()" if not needs else f"load(network), with a network that {needs} builds"
    return (
        f"The network of a run of fedbridge {__version__}: {use}.\n\n"
        f"Needs {f'torch, safetensors and {needs}' if needs else 'torch and safetensors'}. "
        f"Takes float32 of shape (n, {', '.join(map(str, saved.input_shape))}), {rows};\nreturns "
        f"{_answers(saved)}.\n"
    )


def _answers(saved: SavedModel) -> str:
    if saved.class_names is not None:
        return "logits in the order of CLASSES"
    scale = scale_of(saved.preprocessing)
    if scale == AS_THEY_ARE:
        return "values"
    return f"numbers, of which {scale.centre:.17g} + {scale.size:.17g} * number is the value"


def _spelled(module: nn.Module, shape: tuple[int, ...], indent: str = "    ") -> str:
    """The code that builds a module of layers of torch, with the same names of weights."""
    deeper = indent + "    "
    if isinstance(module, Blended):
        members = [_spelled(member, shape, deeper) for member in module.members]
        last = "None" if module.linear is None else _spelled(module.linear, shape)
        return f"Blend(\n{deeper}[{', '.join(members)}],\n{deeper}{last},\n{indent})"
    if isinstance(module, LinearMap):
        outputs, inputs = module.weight.shape
        return f"nn.Linear({inputs}, {outputs})"
    if isinstance(module, AsImages):
        return f"nn.Unflatten(1, (1, {shape[0]}))"
    if isinstance(module, ChannelsLast):
        return "nn.Identity()"
    kind = type(module)
    if kind in IN_ORDER:
        children = [
            (name, _spelled(child, shape, deeper)) for name, child in module.named_children()
        ]
        if [name for name, _ in children] == [str(k) for k in range(len(children))]:
            lines = "".join(f"{deeper}{child},\n" for _, child in children)
            return f"nn.Sequential(\n{lines}{indent})"
        lines = "".join(f"{deeper}({name!r}, {child}),\n" for name, child in children)
        return f"nn.Sequential(OrderedDict([\n{lines}{indent}]))"
    if getattr(nn, kind.__name__, None) is kind and not list(module.children()):
        return f"nn.{module!r}"
    raise _OwnCodeError(f"the code of {kind.__module__}.{kind.__qualname__}")
