"""The networks: built-in ones sized from the data, or a user's own by ``module:function``.

Layers are initialised by PyTorch as usual, so a caller that sets ``torch.manual_seed`` before
building decides the initial parameters.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from torch import Tensor, nn

from fedbridge.errors import ModelError
from fedbridge.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedbridge.data.task import FederatedTask

    Builder: TypeAlias = Callable[[FederatedTask, str | None], nn.Module]
    ModelSpec: TypeAlias = str | nn.Module | Callable[..., nn.Module]

HIDDEN = 64
LARGEST_MAP = 8
SMALLEST_FOR_5X5 = 20
SMALLEST_IMAGE = 4


class SplitModel(nn.Module):
    """A feature extractor and a head, for the methods that treat the two differently."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """The head's answer on the features of ``x``."""
        return cast("Tensor", self.head(self.features(x)))


class LinearModel(nn.Module):
    """A head on the raw inputs: logistic or linear regression."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """A linear function of the flattened ``x``."""
        return cast("Tensor", self.head(x.flatten(1)))


class AsImages(nn.Module):
    """Gives grey images ``(n, H, W)`` the channel that convolutions expect."""

    def forward(self, x: Tensor) -> Tensor:
        """The batch as ``(n, 1, H, W)``."""
        return x.unsqueeze(1)


def linear(task: FederatedTask, size: str | None = None) -> nn.Module:
    """Logistic regression, or linear regression for values."""
    _refuse_size("linear", size)
    return LinearModel(prod(task.input_shape), task.outputs)


def mlp(task: FederatedTask, size: str | None = None) -> nn.Module:
    """One hidden layer of ReLU units, 64 unless ``mlp:128`` says otherwise."""
    hidden = _hidden_units(size)
    features = nn.Sequential(nn.Flatten(), nn.Linear(prod(task.input_shape), hidden), nn.ReLU())
    return SplitModel(features, nn.Linear(hidden, task.outputs))


def cnn(task: FederatedTask, size: str | None = None) -> nn.Module:
    """The paper's network of two convolutions, its first full layer sized from the images.

    For 28x28x1 it has the paper's 44,426 parameters. Images under 20 pixels get padded 3x3
    convolutions, because two 5x5 ones would leave next to nothing of them; large ones are pooled
    further until the map is at most 8x8.
    """
    _refuse_size("cnn", size)
    channels, height, width = _image_shape(task)
    kernel, padding = (5, 0) if min(height, width) >= SMALLEST_FOR_5X5 else (3, 1)
    layers: list[nn.Module] = [AsImages()] if len(task.input_shape) == 2 else []
    for inputs, outputs in ((channels, 6), (6, 16)):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        height, width = ((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
    while max(height, width) > LARGEST_MAP and min(height, width) > 1:
        layers.append(nn.MaxPool2d(2))
        height, width = height // 2, width // 2
    layers += [nn.Flatten(), nn.Linear(16 * height * width, 120), nn.ReLU()]
    layers += [nn.Linear(120, 84), nn.ReLU()]
    return SplitModel(nn.Sequential(*layers), nn.Linear(84, task.outputs))


def _adapt(name: str, entry: object) -> Builder:
    if not callable(entry):
        raise ModelError(f"Expected model {name!r} to be a function of the task and a size.")
    return cast("Builder", entry)


registry: Registry[Builder] = Registry("model", "fedbridge.models", _adapt)
for _builder in (linear, mlp, cnn):
    registry.add(_builder.__name__, _builder)


def build_model(spec: ModelSpec, task: FederatedTask) -> nn.Module:
    """The model that ``spec`` names, checked to fit the task.

    Args:
        spec: A built-in name (``"mlp"``, ``"mlp:128"``), ``"module:function"`` with a module that
            Python finds from the current directory, a function that is called with the task (or
            with nothing, when it takes nothing), or a ready module, which is copied.
        task: Decides the sizes of inputs and outputs.
    """
    model = _build(spec, task)
    _check_fit(model, task)
    return model


def split_model(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The model's ``features`` and ``head``, or an error when it has no such parts."""
    features, head = getattr(model, "features", None), getattr(model, "head", None)
    if not isinstance(features, nn.Module) or not isinstance(head, nn.Module):
        raise ModelError(
            f"Expected a model with submodules `features` and `head`, so that its output is "
            f"head(features(x)), but {type(model).__name__} has not both: use mlp or cnn, or name "
            f"the two parts of your own model so."
        )
    return features, head


def _build(spec: ModelSpec, task: FederatedTask) -> nn.Module:
    if isinstance(spec, nn.Module):
        return deepcopy(spec)
    if not isinstance(spec, str):
        return _call_factory(spec, task, getattr(spec, "__name__", type(spec).__name__))
    name, colon, rest = spec.partition(":")
    if colon and rest.isidentifier():
        return _call_factory(_import_factory(name, rest), task, spec)
    return registry.get(name)(task, rest if colon else None)


def _import_factory(module_name: str, function: str) -> Callable[..., nn.Module]:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ModelError(
            f"Expected to import {module_name!r} for the model '{module_name}:{function}', but "
            f"that failed with {type(error).__name__}: {error}. Run from the folder that holds it, "
            f"or install it."
        ) from error
    factory = getattr(module, function, None)
    if not callable(factory):
        raise ModelError(
            f"Expected {module_name!r} ({getattr(module, '__file__', 'built in')}) to have a "
            f"function {function!r} that returns a model, but it has none."
        )
    return cast("Callable[..., nn.Module]", factory)


def _call_factory(factory: Callable[..., nn.Module], task: FederatedTask, name: str) -> nn.Module:
    try:
        model = factory(task) if _takes_task(factory) else factory()
    except Exception as error:
        raise ModelError(
            f"Expected {name!r} to build a model from the task, or from no argument, but it failed "
            f"with {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"Expected {name!r} to return a torch.nn.Module, but it returned "
            f"{type(model).__name__}."
        )
    return model


def _takes_task(factory: Callable[..., nn.Module]) -> bool:
    parameters = inspect.signature(factory).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return any(p.default is p.empty or p.name == "task" for p in positional[:1])


def _check_fit(model: nn.Module, task: FederatedTask) -> None:
    """Run two samples through the model; nothing of the model or the random state changes."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError("Expected a model with parameters to train, but it has none.")
    output = try_out(model, task)
    allowed: list[tuple[int, ...]] = [(2, task.outputs)]
    if task.kind == "regression" and task.target.y.ndim == 1:
        allowed.append((2,))
    found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if found not in allowed:
        needed = (
            f"{task.outputs} outputs, one per class"
            if task.kind == "classification"
            else f"{task.outputs} output(s)"
        )
        raise ModelError(
            f"Expected {needed}, so an output of shape {allowed[0]} for two samples of task "
            f"{task.name!r}, but the model returned {found}: size its last layer with "
            f"task.outputs."
        )


def try_out(model: nn.Module, task: FederatedTask) -> object:
    """What a model, or a part that takes its inputs, returns for two samples; it stays as it is."""
    site = task.target
    samples = site.x[:1].repeat(2, *(1 for _ in task.input_shape))
    if site.prepare is not None:
        samples = site.prepare(samples, torch.Generator().manual_seed(0))
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return model.eval()(samples.to(next(model.parameters(), samples).device))
    except Exception as error:
        raise ModelError(
            f"Expected a model that takes batches of shape (n, "
            f"{', '.join(map(str, task.input_shape))}) and type {samples.dtype}, but it failed "
            f"with {type(error).__name__}: {error}"
        ) from error
    finally:
        for module, training in modes.items():
            module.training = training


def _refuse_size(name: str, size: str | None) -> None:
    if size is not None:
        raise ModelError(f"Expected {name!r} without a size, but got '{name}:{size}'.")


def _hidden_units(size: str | None) -> int:
    if size is None:
        return HIDDEN
    if not (size.isascii() and size.isdigit()) or int(size) < 1:
        raise ModelError(
            f"Expected a number of hidden units above 0, such as 'mlp:64', but got 'mlp:{size}'."
        )
    return int(size)


def _image_shape(task: FederatedTask) -> tuple[int, int, int]:
    """Channels, height and width of the task's samples, or advice when they are no images."""
    shape = task.input_shape
    if len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3:
        raise ModelError(
            f"Expected images of shape (channels, height, width) for 'cnn', but samples of task "
            f"{task.name!r} have shape {task.input_shape}: use 'mlp' or 'linear'."
        )
    if min(shape[1:]) < SMALLEST_IMAGE:
        hint = " Put the channels first." if shape[2] in (1, 3) else ""
        raise ModelError(
            f"Expected images of at least {SMALLEST_IMAGE}x{SMALLEST_IMAGE} pixels as (channels, "
            f"height, width) for 'cnn', but samples have shape {task.input_shape}.{hint}"
        )
    return shape[0], shape[1], shape[2]
