"""The residual networks by name, with random or with pretrained parameters.

``resnet18`` starts at random. ``resnet18:pretrained`` has the parameters trained on ImageNet,
``resnet18:FILE.pth`` those of a file; both take images in [0, 1], normalise them as ImageNet's
were, and get a new last layer for the task. ``resnet18:normalised`` is that network at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from fedbridge.data.store import data_root, dataset_folder
from fedbridge.errors import DataError, ModelError
from fedbridge.models.parts import AsImages, Normalise
from fedbridge.models.resnet import BasicBlock, Bottleneck, ResNet
from fedbridge.models.shapes import image_shape
from fedbridge.models.weights import SUFFIXES, kept_copy, load_strictly, read_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.data.task import FederatedTask

PRETRAINED = "pretrained"
NORMALISED = "normalised"
CHECKSUM_MARK = "#sha256="
COLOURS = 3
IMAGENET_CLASSES = 1000
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Architecture:
    """A residual network, and the file that holds its parameters trained on ImageNet."""

    block: type[BasicBlock | Bottleneck]
    depths: tuple[int, ...]
    file: str

    def normalised(self, outputs: int) -> ResNet:
        """The network for colour images in [0, 1], with random parameters."""
        first = Normalise(IMAGENET_MEAN, IMAGENET_STD)
        return ResNet(self.block, self.depths, outputs, first=first)

    def with_weights(self, tensors: Mapping[str, Tensor], origin: str) -> ResNet:
        """The network with these parameters, for as many classes as they were trained on."""
        last = tensors.get("fc.bias")
        network = self.normalised(IMAGENET_CLASSES if last is None else last.numel())
        load_strictly(network, tensors, origin)
        return network


RESNETS = {
    "resnet18": Architecture(BasicBlock, (2, 2, 2, 2), "resnet18-f37072fd.pth"),
    "resnet50": Architecture(Bottleneck, (3, 4, 6, 3), "resnet50-0676ba61.pth"),
}


def resnet18(task: FederatedTask, variant: str | None = None) -> nn.Module:
    """A residual network of 18 layers and 11 million parameters."""
    return _resnet("resnet18", task, variant)


def resnet50(task: FederatedTask, variant: str | None = None) -> nn.Module:
    """A residual network of 50 layers and 24 million parameters."""
    return _resnet("resnet50", task, variant)


def imagenet_file(name: str) -> Path:
    """Where the parameters trained on ImageNet are, or an error that says how to get them."""
    file = (dataset_folder(name) or data_root() / name) / RESNETS[name].file
    if not file.is_file() and not kept_copy(file).is_file():
        raise DataError(
            f"Expected the weights of {name!r} in {str(file)!r}, but there is no such file: run "
            f"`fedbridge data fetch {name}`, or, for images, take a backbone that is installed "
            f"(`backbone` efficientnet-lite0)."
        )
    return file


def is_variant(name: str, rest: str) -> bool:
    """Whether ``name:rest`` is a built-in network rather than ``module:function``."""
    return name in RESNETS and rest in (PRETRAINED, NORMALISED)


def without_weights(spec: str) -> str:
    """The same network with parameters left to chance: what saved ones are loaded into.

    So that a saved model needs no ImageNet weights to be used.
    """
    name, _, rest = spec.partition(":")
    if is_variant(name, rest) or (name in RESNETS and _is_file(rest)):
        return f"{name}:{NORMALISED}"
    return spec


def _resnet(name: str, task: FederatedTask, variant: str | None) -> nn.Module:
    architecture = RESNETS[name]
    channels, _, _ = image_shape(task, name)
    if variant is None:
        first = AsImages() if len(task.input_shape) == 2 else None
        return ResNet(
            architecture.block, architecture.depths, task.outputs, channels=channels, first=first
        )
    if channels != COLOURS:
        raise ModelError(
            f"Expected colour images of {COLOURS} channels for '{name}:{variant}', but samples of "
            f"task {task.name!r} have {channels}: use {name!r}, or repeat the channel."
        )
    if variant == NORMALISED:
        return architecture.normalised(task.outputs)
    file, checksum = _file_and_checksum(name, variant)
    network = architecture.with_weights(read_weights(file, checksum), str(file))
    network.fc = nn.Linear(network.head.in_features, task.outputs)
    return network


def _file_and_checksum(name: str, variant: str) -> tuple[Path, str | None]:
    if variant == PRETRAINED:
        return imagenet_file(name), None
    if not _is_file(variant):
        raise ModelError(
            f"Expected '{name}', '{name}:{PRETRAINED}' or '{name}:FILE' with a file that ends in "
            f"{', '.join(SUFFIXES)}, but got '{name}:{variant}'."
        )
    file, mark, checksum = variant.partition(CHECKSUM_MARK)
    return Path(file).expanduser(), checksum if mark else None


def _is_file(variant: str) -> bool:
    return Path(variant.partition(CHECKSUM_MARK)[0]).suffix in SUFFIXES
