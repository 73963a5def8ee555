"""Networks that train on a CPU in seconds, sized from the data, and how to take one apart.

What they know of a task is ``TaskShape``: the shape of samples and answers.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn

from fedbridge.base.errors import ModelError
from fedbridge.core.blocks import placed_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HIDDEN = 64
LARGEST_MAP = 8
SMALLEST_IMAGE = 4
SMALLEST_FOR_5X5 = 20
MNIST_CNN_LAYERS = ((64, 1), (128, 2), (128, 1), (128, 1))
"""Channels and stride of its four convolutions."""
GROUPS = 8


class TaskShape(Protocol):
    """The shape of samples and answers: all that a model is sized from. A task is one."""

    @property
    def name(self) -> str:
        """What messages call the data."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of one answer: ``()`` for a class or a single value."""

    @property
    def outputs(self) -> int:
        """How many numbers the model must return per sample."""

    @property
    def n_classes(self) -> int | None:
        """Number of classes; ``None`` for regression."""

    def two_samples(self) -> Tensor:
        """A batch of two samples as a model receives it, to try one out."""


Builder: TypeAlias = "Callable[[TaskShape, str | None], nn.Module]"
"""Makes a network from the task's shape and what stands after the colon of its name."""


class SplitModel(nn.Module):
    """A feature extractor and a head, for the methods that treat the two differently."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """The head's answer on the features of ``x``."""
        return cast("Tensor", self.head(self.features(x)))


class LinearModel(SplitModel):
    """Logistic or linear regression: the features are the inputs, and the head is the model."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(inputs, outputs))


class AsImages(nn.Module):
    """Gives grey images ``(n, H, W)`` the channel that convolutions expect."""

    def forward(self, x: Tensor) -> Tensor:
        """The batch as ``(n, 1, H, W)``."""
        return x.unsqueeze(1)


class ChannelsLast(nn.Module):
    """Lays images out pixel by pixel: few channels are convolved and pooled faster like that.

    A step of the paper's network of two convolutions takes 0.7 of the time (`fedbridge bench`).
    """

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers in the other order of memory, where torch can tell it."""
        try:
            return x.to(memory_format=torch.channels_last)
        except RuntimeError:  # one row of many at a time, under torch.func.vmap
            return x


class Normalise(nn.Module):
    """Shifts and scales every channel of images in [0, 1], as a pretrained network expects them.

    The numbers are constants of the network, not state: they are no buffers, so they are neither
    saved nor sent nor averaged.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean = tuple(mean)
        self.std = tuple(std)

    def forward(self, x: Tensor) -> Tensor:
        """``(x - mean) / std``, channel by channel."""
        mean, std = (x.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (x - mean) / std


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


def head_slices(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """Where the model's head lies in its flat parameter vector."""
    _, head = split_model(model)
    return slices_of(model, head)


def slices_of(model: nn.Module, *parts: nn.Module) -> tuple[tuple[int, int], ...]:
    """Where parts of a model lie in its flat parameter vector."""
    own = {id(parameter) for part in parts for parameter in part.parameters()}
    found: list[tuple[int, int]] = []
    for parameter, columns in placed_parameters(model):
        if id(parameter) in own:
            follows = bool(found) and found[-1][1] == columns.start
            start = found.pop()[0] if follows else columns.start
            found.append((start, columns.stop))
    return tuple(found)


def linear(task: TaskShape, size: str | None) -> nn.Module:
    """Logistic regression, or linear regression for values."""
    refuse_size("linear", size)
    return LinearModel(prod(task.input_shape), task.outputs)


def one_hidden_layer(
    name: str, activation: type[nn.Module], task: TaskShape, size: str | None
) -> nn.Module:
    """One hidden layer, of 64 units unless ``mlp:128`` says otherwise."""
    units = HIDDEN
    if size is not None:
        units = int(size) if size.isascii() and size.isdigit() else 0
    if units < 1:
        raise ModelError(
            f"Expected a number of hidden units above 0, such as '{name}:64', but got "
            f"'{name}:{size}'."
        )
    features = nn.Sequential(nn.Flatten(), nn.Linear(prod(task.input_shape), units), activation())
    return SplitModel(features, nn.Linear(units, task.outputs))


def uniform_start(build: Builder, task: TaskShape, size: str | None) -> nn.Module:
    """Another network whose parameters, biases too, are all drawn from U(-0.5, 0.5)."""
    model = build(task, size)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def cnn(task: TaskShape, size: str | None) -> nn.Module:
    """The paper's network of two convolutions, its first full layer sized from the images.

    For 28x28x1 it has the paper's 44,426 parameters. Images under 20 pixels get padded 3x3
    convolutions, because two 5x5 ones would leave next to nothing of them; large ones are pooled
    further until the map is at most 8x8. ReLU and the largest of four commute, gradients too: it
    comes after pooling, where a quarter of the numbers is left.
    """
    refuse_size("cnn", size)
    channels, height, width = image_shape(task, "cnn")
    kernel, padding = (5, 0) if min(height, width) >= SMALLEST_FOR_5X5 else (3, 1)
    layers = [*_channel_first(task), ChannelsLast()]
    for inputs, outputs in ((channels, 6), (6, 16)):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
        height, width = ((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
    while max(height, width) > LARGEST_MAP and min(height, width) > 1:
        layers.append(nn.MaxPool2d(2))
        height, width = height // 2, width // 2
    layers += [nn.Flatten(), nn.Linear(16 * height * width, 120), nn.ReLU()]
    layers += [nn.Linear(120, 84), nn.ReLU()]
    return SplitModel(nn.Sequential(*layers), nn.Linear(84, task.outputs))


def mnist_cnn(task: TaskShape, size: str | None) -> nn.Module:
    """DomainBed's network for digits: four 3x3 convolutions, then the mean over the image.

    Each convolution is followed by ReLU and, in this order, by GroupNorm with 8 groups. Since the
    last map is averaged, images of any size and any number of channels fit the same parameters
    but the first convolution's.
    """
    refuse_size("mnist-cnn", size)
    inputs, _, _ = image_shape(task, "mnist-cnn")
    layers = _channel_first(task)
    for outputs, stride in MNIST_CNN_LAYERS:
        layers += [
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1),
            nn.ReLU(),
            nn.GroupNorm(GROUPS, outputs),
        ]
        inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return SplitModel(nn.Sequential(*layers), nn.Linear(inputs, task.outputs))


def _channel_first(task: TaskShape) -> list[nn.Module]:
    """The step that grey images without a channel need before the first convolution."""
    return [AsImages()] if len(task.input_shape) == 2 else []


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
