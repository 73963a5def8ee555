"""Residual networks of 18 and 50 layers, with the parameter names of torchvision.

The names (``conv1``, ``bn1``, ``layer1.0.conv1``, ..., ``fc``) are what makes the usual checkpoint
files load. Initial parameters are drawn in the usual way as well: convolutions normal with the
variance 2 / fan-out, the last layer as PyTorch does it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

STEM = 64
STAGES = (64, 128, 256, 512)


class ResidualBlock(nn.Module):
    """Adds what some convolutions find in ``x`` to ``x`` itself."""

    expansion: int
    relu: nn.Module
    downsample: nn.Module

    def residual(self, x: Tensor) -> Tensor:
        """What is added."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """The sum, cut off at zero; ``downsample`` brings ``x`` to the size of the residual."""
        return cast("Tensor", self.relu(self.residual(x) + self.downsample(x)))


class BasicBlock(ResidualBlock):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def residual(self, x: Tensor) -> Tensor:
        """Of two layers."""
        hidden = self.relu(self.bn1(self.conv1(x)))
        return cast("Tensor", self.bn2(self.conv2(hidden)))


class Bottleneck(ResidualBlock):
    """A 3x3 convolution of few channels between two 1x1 ones; the 3x3 one takes the stride."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def residual(self, x: Tensor) -> Tensor:
        """Of three layers."""
        narrow = self.relu(self.bn1(self.conv1(x)))
        narrow = self.relu(self.bn2(self.conv2(narrow)))
        return cast("Tensor", self.bn3(self.conv3(narrow)))


class ResNet(nn.Sequential):
    """A stem that shrinks images fourfold, four stages of blocks, the mean over the map, ``fc``.

    Args:
        block: What the stages are made of.
        depths: Number of blocks in each stage.
        outputs: Number of classes or values.
        channels: Of the images.
        first: What images go through before the stem; it has no parameters of its own.
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
