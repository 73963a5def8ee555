"""Networks that train on a CPU in seconds, sized from the data."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from torch import nn

from fedbridge.models.parts import AsImages, LinearModel, SplitModel
from fedbridge.models.shapes import hidden_units, image_shape, refuse_size

if TYPE_CHECKING:
    from fedbridge.data.task import FederatedTask

HIDDEN = 64
LARGEST_MAP = 8
SMALLEST_FOR_5X5 = 20
MNIST_CNN_LAYERS = ((64, 1), (128, 2), (128, 1), (128, 1))
"""Channels and stride of its four convolutions."""
GROUPS = 8


def linear(task: FederatedTask, size: str | None = None) -> nn.Module:
    """Logistic regression, or linear regression for values."""
    refuse_size("linear", size)
    return LinearModel(prod(task.input_shape), task.outputs)


def mlp(task: FederatedTask, size: str | None = None) -> nn.Module:
    """One hidden layer of ReLU units, 64 unless ``mlp:128`` says otherwise."""
    return _one_hidden_layer(task, hidden_units("mlp", size, HIDDEN), nn.ReLU())


def sigmoid(task: FederatedTask, size: str | None = None) -> nn.Module:
    """One hidden layer of sigmoid units, 64 unless ``sigmoid:100`` says otherwise."""
    return _one_hidden_layer(task, hidden_units("sigmoid", size, HIDDEN), nn.Sigmoid())


def cnn(task: FederatedTask, size: str | None = None) -> nn.Module:
    """The paper's network of two convolutions, its first full layer sized from the images.

    For 28x28x1 it has the paper's 44,426 parameters. Images under 20 pixels get padded 3x3
    convolutions, because two 5x5 ones would leave next to nothing of them; large ones are pooled
    further until the map is at most 8x8.
    """
    refuse_size("cnn", size)
    channels, height, width = image_shape(task, "cnn")
    kernel, padding = (5, 0) if min(height, width) >= SMALLEST_FOR_5X5 else (3, 1)
    layers = _channel_first(task)
    for inputs, outputs in ((channels, 6), (6, 16)):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        height, width = ((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
    while max(height, width) > LARGEST_MAP and min(height, width) > 1:
        layers.append(nn.MaxPool2d(2))
        height, width = height // 2, width // 2
    layers += [nn.Flatten(), nn.Linear(16 * height * width, 120), nn.ReLU()]
    layers += [nn.Linear(120, 84), nn.ReLU()]
    return SplitModel(nn.Sequential(*layers), nn.Linear(84, task.outputs))


def mnist_cnn(task: FederatedTask, size: str | None = None) -> nn.Module:
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


def _one_hidden_layer(task: FederatedTask, units: int, activation: nn.Module) -> nn.Module:
    features = nn.Sequential(nn.Flatten(), nn.Linear(prod(task.input_shape), units), activation)
    return SplitModel(features, nn.Linear(units, task.outputs))


def _channel_first(task: FederatedTask) -> list[nn.Module]:
    """The step that grey images without a channel need before the first convolution."""
    return [AsImages()] if len(task.input_shape) == 2 else []
