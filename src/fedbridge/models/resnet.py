"""Residual networks of 18 and 50 layers by name, with random or with pretrained parameters.

``resnet18`` starts at random. ``resnet18:pretrained`` has the parameters trained on ImageNet,
``resnet18:FILE.pth`` those of a file; both take images in [0, 1], normalise them as ImageNet's
were, and get a new last layer for the task. ``resnet18:normalised`` is that network at random.

Parameters have torchvision's names (``conv1``, ``bn1``, ``layer1.0.conv1``, ..., ``fc``), which is
what makes the usual checkpoint files load. Initial ones are drawn in the usual way as well:
convolutions normal with the variance 2 / fan-out, the last layer as PyTorch does it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from fedbridge.base.errors import DataError, ModelError
from fedbridge.base.places import data_root, dataset_folder
from fedbridge.models.networks import AsImages, Normalise, TaskShape, image_shape
from fedbridge.models.weights import SUFFIXES, load_strictly, read_weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


STEM = 64
STAGES = (64, 128, 256, 512)
PRETRAINED = "pretrained"
NORMALISED = "normalised"
CHECKSUM_MARK = "#sha256="
COLOURS = 3
IMAGENET_CLASSES = 1000
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class ResidualBlock(nn.Module):
    """Adds what some convolutions find in ``x`` to ``x`` itself."""

    expansion: int

    def __init__(self, downsample: nn.Module, *convolutions: nn.Conv2d) -> None:
        super().__init__()
        self.depth = len(convolutions)
        for k, convolution in enumerate(convolutions, start=1):
            self.add_module(f"conv{k}", convolution)
            self.add_module(f"bn{k}", nn.BatchNorm2d(convolution.out_channels))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """The sum, cut off at zero; ``downsample`` brings ``x`` to the size of the residual."""
        found = x
        for k in range(1, self.depth + 1):
            found = self.get_submodule(f"bn{k}")(self.get_submodule(f"conv{k}")(found))
            found = self.relu(found) if k < self.depth else found
        return cast("Tensor", self.relu(found + self.downsample(x)))


class BasicBlock(ResidualBlock):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module) -> None:
        super().__init__(downsample, _conv(inputs, width, 3, stride), _conv(width, width, 3))


class Bottleneck(ResidualBlock):
    """A 3x3 convolution of few channels between two 1x1 ones; the 3x3 one takes the stride."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module) -> None:
        narrow = _conv(inputs, width, 1), _conv(width, width, 3, stride)
        super().__init__(downsample, *narrow, _conv(width, width * self.expansion, 1))


class ResNet(nn.Sequential):
    """A stem that shrinks images fourfold, four stages of blocks, the mean over the map, ``fc``.

    Before the stem images go through ``first``, which has no parameters of its own.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: Sequence[int],
        outputs: int,
        *,
        channels: int = 3,
        first: nn.Module | None = None,
    ) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if first is not None:
            layers["first"] = first
        layers["conv1"] = _conv(channels, STEM, 7, 2)
        layers["bn1"] = nn.BatchNorm2d(STEM)
        layers["relu"] = nn.ReLU(inplace=True)
        layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = STEM
        for k, (width, depth) in enumerate(zip(STAGES, depths, strict=True), start=1):
            layers[f"layer{k}"] = _stage(block, inputs, width, depth, stride=1 if k == 1 else 2)
            inputs = width * block.expansion
        layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers["fc"] = nn.Linear(inputs, outputs)
        super().__init__(layers)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def features(self) -> nn.Module:
        """All but the last layer, as a view: the parameters are this network's own."""
        return nn.Sequential(OrderedDict(list(self.named_children())[:-1]))

    @property
    def head(self) -> nn.Linear:
        """The last layer, which the usual checkpoint files call ``fc``."""
        return cast("nn.Linear", self.fc)


def _stage(
    block: type[BasicBlock | Bottleneck], inputs: int, width: int, depth: int, stride: int
) -> nn.Module:
    outputs = width * block.expansion
    downsample = nn.Sequential()  # passes its input on
    if stride != 1 or inputs != outputs:
        downsample = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
    blocks = [block(inputs, width, stride, downsample)]
    blocks += [block(outputs, width, 1, nn.Sequential()) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size but for its stride; BatchNorm follows, so no bias."""
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


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


def imagenet_file(name: str) -> Path:
    """Where the parameters trained on ImageNet are, or an error that says how to get them."""
    file = (dataset_folder(name) or data_root() / name) / RESNETS[name].file
    if not file.is_file():
        raise DataError(
            f"Expected the weights of {name!r} in {str(file)!r}, but there is no such file: run "
            f"`fedbridge data fetch {name}`, or, for images, take a backbone that is installed "
            f"(`backbone` efficientnet-lite0)."
        )
    return file


def is_variant(name: str, rest: str) -> bool:
    """Whether ``name:rest`` is a built-in network rather than ``module:function``."""
    return name in RESNETS and rest in (PRETRAINED, NORMALISED)


def is_pretrained(spec: object) -> bool:
    """Whether a model is named that starts from trained parameters, and so from statistics."""
    name, _, rest = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    return name in RESNETS and (rest == PRETRAINED or _is_file(rest))


def without_weights(spec: str) -> str:
    """The same network with parameters left to chance: what saved ones are loaded into.

    So that a saved model needs no ImageNet weights to be used.
    """
    name, _, rest = spec.partition(":")
    if is_variant(name, rest) or (name in RESNETS and _is_file(rest)):
        return f"{name}:{NORMALISED}"
    return spec


def residual_network(name: str, task: TaskShape, variant: str | None) -> nn.Module:
    """One of ``RESNETS`` for a task, at random or with the parameters that ``variant`` names."""
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
