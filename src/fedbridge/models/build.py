"""From the name of a model, or whatever else stands for one, to a module that fits the task.

Layers are initialised by PyTorch as usual, so a caller that sets ``torch.manual_seed`` before
building decides the initial parameters.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from torch import Tensor, nn

from fedbridge.base.errors import ModelError, OptionError, nearest
from fedbridge.base.own_code import import_object, look_here_too
from fedbridge.base.registry import Registry
from fedbridge.models import networks, resnet

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedbridge.models.networks import Builder, TaskShape

    ModelSpec: TypeAlias = str | nn.Module | Callable[..., nn.Module]


BUILT_IN: dict[str, Builder] = {
    "linear": networks.linear,
    "mlp": partial(networks.one_hidden_layer, "mlp", nn.ReLU),
    "sigmoid": partial(networks.one_hidden_layer, "sigmoid", nn.Sigmoid),
    "sigmoid-uniform": partial(
        networks.uniform_start,
        partial(networks.one_hidden_layer, "sigmoid-uniform", nn.Sigmoid),
    ),
    "cnn": networks.cnn,
    "mnist-cnn": networks.mnist_cnn,
    **{name: partial(resnet.residual_network, name) for name in resnet.RESNETS},
}
TRAVELS = re.compile(rf"({'|'.join(BUILT_IN)})(:\d+|:pretrained|:normalised)?", re.ASCII)
"""Names that no message can turn into code or files: built-in networks, sized or pretrained."""

registry: Registry[Builder] = Registry("model", "fedbridge.models")
for _name, _builder in BUILT_IN.items():
    registry.add(_name, _builder)


def is_built_in(name: object) -> bool:
    """Whether every site can build this model from its name alone."""
    return isinstance(name, str) and TRAVELS.fullmatch(name) is not None


def check_built_in(name: object) -> str:
    """Refuse at once a model that the sites would refuse later."""
    if isinstance(name, str) and is_built_in(name):
        return name
    shown = repr(name) if isinstance(name, str) else f"a {type(name).__name__}"
    raise OptionError(
        f"Expected a built-in model, because every site builds it from its name, but got {shown}: "
        f"choose one of {', '.join(BUILT_IN)}, or write a Flower app of your own with "
        f"client_app(model=...).{nearest(shown.strip(chr(39)), BUILT_IN)}"
    )


def build_model(spec: ModelSpec, task: TaskShape) -> nn.Module:
    """The model that ``spec`` names, checked to fit the task.

    Args:
        spec: A built-in name (``"mlp"``, ``"mlp:128"``, ``"resnet18:pretrained"``),
            ``"module:function"`` with a module that Python finds from the current directory, a
            function that is called with the task (or with nothing, when it takes nothing), or a
            ready module, which is copied.
        task: Decides the sizes of inputs and outputs.
    """
    model = _build(spec, task)
    check_fit(model, task)
    return model


def _build(spec: ModelSpec, task: TaskShape) -> nn.Module:
    if isinstance(spec, nn.Module):
        return deepcopy(spec)
    if not isinstance(spec, str):
        return _call_factory(spec, task, getattr(spec, "__name__", type(spec).__name__))
    name, colon, rest = spec.partition(":")
    if colon and rest.isidentifier() and not _is_ours(name, rest):
        return _call_factory(_import_factory(spec), task, spec)
    return registry.get(name)(task, rest if colon else None)


def _is_ours(name: str, rest: str) -> bool:
    """Whether ``name:rest`` means a network of ours: by its variant, or for want of such a module.

    A user's own module may have the name of one.
    """
    if resnet.is_variant(name, rest):
        return True
    look_here_too()
    return name in registry.names() and importlib.util.find_spec(name) is None


def _import_factory(spec: str) -> Callable[..., nn.Module]:
    factory, where = import_object(spec, "model", ModelError)
    if not callable(factory):
        module, _, function = spec.partition(":")
        raise ModelError(
            f"Expected {module!r} ({where}) to have a function {function!r} that returns a model, "
            f"but it has none."
        )
    return cast("Callable[..., nn.Module]", factory)


def _call_factory(factory: Callable[..., nn.Module], task: TaskShape, name: str) -> nn.Module:
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


def check_fit(model: nn.Module, task: TaskShape) -> None:
    """Run two samples through the model; nothing of the model or the random state changes."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError("Expected a model with parameters to train, but it has none.")
    output = try_out(model, task)
    allowed: list[tuple[int, ...]] = [(2, task.outputs)]
    if task.n_classes is None and not task.label_shape:
        allowed.append((2,))
    found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if found not in allowed:
        needed = (
            f"{task.outputs} outputs, one per class"
            if task.n_classes is not None
            else f"{task.outputs} output(s)"
        )
        raise ModelError(
            f"Expected {needed}, so an output of shape {allowed[0]} for two samples of task "
            f"{task.name!r}, but the model returned {found}: size its last layer with "
            f"task.outputs."
        )


def try_out(model: nn.Module, task: TaskShape) -> object:
    """What a model, or a part that takes its inputs, returns for two samples; it stays as it is."""
    samples = task.two_samples()
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
