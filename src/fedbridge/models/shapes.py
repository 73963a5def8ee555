"""Whether a task's samples and the size after a model's name are what the model can take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.errors import ModelError

if TYPE_CHECKING:
    from fedbridge.data.task import FederatedTask

SMALLEST_IMAGE = 4


def image_shape(task: FederatedTask, model: str) -> tuple[int, int, int]:
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
