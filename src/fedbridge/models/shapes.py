"""What a model knows of a task: the shape of samples and answers, and whether it fits them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from fedbridge.base.errors import ModelError

SMALLEST_IMAGE = 4


class TaskShape(Protocol):
    """The shape of samples and answers: all that a model is sized from. A task is one."""

    @property
    def name(self) -> str:
        """What messages call the data."""
        ...

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        ...

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of one answer: ``()`` for a class or a single value."""
        ...

    @property
    def outputs(self) -> int:
        """How many numbers the model must return per sample."""
        ...

    @property
    def n_classes(self) -> int | None:
        """Number of classes; ``None`` for regression."""
        ...

    def two_samples(self) -> Tensor:
        """A batch of two samples as a model receives it, to try one out."""
        ...


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


def image_shape(task: TaskShape, model: str) -> tuple[int, int, int]:
    """Channels, height and width of the task's samples, or advice when they are no images."""
    shape = task.input_shape
    if len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3:
        raise ModelError(
            f"Expected images of shape (channels, height, width) for {model!r}, but samples of "
            f"task {task.name!r} have shape {task.input_shape}: use 'mlp' or 'linear'."
        )
    if min(shape[1:]) < SMALLEST_IMAGE:
        hint = " Put the channels first." if shape[2] in (1, 3) else ""
        raise ModelError(
            f"Expected images of at least {SMALLEST_IMAGE}x{SMALLEST_IMAGE} pixels as (channels, "
            f"height, width) for {model!r}, but samples have shape {task.input_shape}.{hint}"
        )
    return shape[0], shape[1], shape[2]


def refuse_size(model: str, size: str | None) -> None:
    """An error for a size after the name of a model that has only one."""
    if size is not None:
        raise ModelError(f"Expected {model!r} without a size, but got '{model}:{size}'.")


def hidden_units(model: str, size: str | None, usual: int) -> int:
    """The number of hidden units that ``size`` says, or the usual one."""
    if size is None:
        return usual
    if not (size.isascii() and size.isdigit()) or int(size) < 1:
        raise ModelError(
            f"Expected a number of hidden units above 0, such as '{model}:64', but got "
            f"'{model}:{size}'."
        )
    return int(size)
