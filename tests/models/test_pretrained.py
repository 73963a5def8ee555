"""Residual networks by name: at random, with ImageNet's weights, or with those of a file."""

import sys

import pytest
import torch
from checkpoints import place_resnet18, random_resnet18
from safetensors.torch import save_file
from small import random_rows

import fedbridge as fb
from fedbridge.data.catalogue.weights import RESNET18, RESNET50
from fedbridge.errors import DataError, ModelError
from fedbridge.models import build_model, without_weights
from fedbridge.models.parts import Normalise
from fedbridge.models.pretrained import RESNETS
from fedbridge.predict import load_model

COLOUR = (3, 16, 16)


def test_the_fetched_file_is_the_expected_one():
    fetched = {entry.name: entry.layout.contents[0].path for entry in (RESNET18, RESNET50)}
    assert fetched == {name: architecture.file for name, architecture in RESNETS.items()}


@pytest.mark.parametrize("shape", [COLOUR, (1, 8, 9), (28, 28), (5, 16, 16)])
def test_at_random_it_takes_images_of_any_channels(shape):
    model = build_model("resnet18", random_rows(shape, n_classes=3))
    assert model.head.out_features == 3
    assert not any(isinstance(module, Normalise) for module in model.modules())


def test_imagenets_weights_come_with_its_normalisation_and_a_new_last_layer(tmp_path, monkeypatch):
    imagenet = place_resnet18(tmp_path, monkeypatch)
    task = random_rows(COLOUR, n_classes=3)
    model = build_model("resnet18:pretrained", task).eval()

    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    expected = imagenet.features((task.test.x - mean) / std)
    torch.testing.assert_close(model.features(task.test.x), expected)
    torch.testing.assert_close(model(task.test.x), model.head(expected))
    assert model.head.out_features == 3

    plain = build_model("resnet18", task)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert dict(model.named_buffers()).keys() == dict(plain.named_buffers()).keys()


def test_the_seed_decides_the_new_last_layer(tmp_path, monkeypatch):
    place_resnet18(tmp_path, monkeypatch)
    task = random_rows(COLOUR, n_classes=3)
    heads = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        heads.append(build_model("resnet18:pretrained", task).head.weight)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_weights_that_are_not_there_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path))
    task = random_rows(COLOUR, n_classes=3)
    with pytest.raises(DataError, match="fedbridge data fetch resnet18"):
        build_model("resnet18:pretrained", task)
    (tmp_path / "resnet50").mkdir()
    with pytest.raises(DataError, match=r"resnet50-0676ba61\.pth.*fedbridge data fetch resnet50"):
        build_model("resnet50:pretrained", task)


def test_wrong_weights_in_the_right_place_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path))
    (tmp_path / "resnet18").mkdir()
    (tmp_path / "resnet18" / "resnet18-f37072fd.pth").write_bytes(b"something else")
    with pytest.raises(ModelError, match="begins with f37072fd"):
        build_model("resnet18:pretrained", random_rows(COLOUR, n_classes=3))


def test_weights_of_another_network_are_refused(tmp_path, monkeypatch):
    place_resnet18(tmp_path, monkeypatch)
    file = tmp_path / "resnet18" / RESNETS["resnet18"].file
    with pytest.raises(ModelError, match=r"missing: layer1\.0\.bn3\.bias.*of another shape"):
        build_model(f"resnet50:{file}", random_rows(COLOUR, n_classes=3))


def test_a_file_may_have_any_number_of_classes_and_a_checksum(tmp_path):
    own = random_resnet18(classes=7)
    file = tmp_path / "own weights.safetensors"
    save_file(own.state_dict(), file)
    task = random_rows(COLOUR, n_classes=3)
    model = build_model(f"resnet18:{file}", task)
    assert torch.equal(model.conv1.weight, own.conv1.weight)
    assert model.head.out_features == 3
    with pytest.raises(ModelError, match="begins with 0123456789"):
        build_model(f"resnet18:{file}#sha256=0123456789", task)


def test_a_run_can_be_used_without_the_weights_it_started_from(tmp_path):
    file = tmp_path / "start.safetensors"
    save_file(random_resnet18(classes=2).state_dict(), file)
    task = random_rows(COLOUR, n_classes=3)
    options = {"model": f"resnet18:{file}", "steps": 1, "workers": 1}
    result = fb.run(task, "fedda", rounds=1, out=tmp_path / "run", **options)
    file.unlink()
    saved = load_model(tmp_path / "run")
    assert torch.equal(saved.outputs(task.test.x), result.model.eval()(task.test.x))


@pytest.mark.parametrize(
    ("spec", "architecture"),
    [
        ("resnet18", "resnet18"),
        ("resnet18:pretrained", "resnet18:normalised"),
        ("resnet50:normalised", "resnet50:normalised"),
        ("resnet50:some/file.pth#sha256=01234567", "resnet50:normalised"),
        ("resnet18:make", "resnet18:make"),
        ("own_net:pretrained", "own_net:pretrained"),
        ("mlp:128", "mlp:128"),
    ],
)
def test_the_architecture_of_a_model(spec, architecture):
    assert without_weights(spec) == architecture


def test_the_normalised_network_is_the_pretrained_one_at_random():
    model = build_model("resnet18:normalised", random_rows(COLOUR, n_classes=3))
    assert isinstance(model.first, Normalise)


@pytest.mark.parametrize("variant", ["normalised", "pretrained", "file.pth"])
def test_pretrained_networks_see_colours_only(variant):
    with pytest.raises(ModelError, match=f"3 channels for 'resnet18:{variant}'.*have 1"):
        build_model(f"resnet18:{variant}", random_rows((1, 16, 16), n_classes=3))


@pytest.mark.parametrize("variant", ["", "34.5", "weights.bin"])
def test_anything_else_after_the_colon_is_refused(variant):
    with pytest.raises(ModelError, match="'resnet18:pretrained' or 'resnet18:FILE'"):
        build_model(f"resnet18:{variant}", random_rows(COLOUR, n_classes=3))


def test_a_module_of_ones_own_may_be_called_resnet18(tmp_path, monkeypatch):
    (tmp_path / "resnet18.py").write_text(
        "from torch import nn\n"
        "def make(task):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(4, task.outputs))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    model = build_model("resnet18:make", random_rows((2, 2), n_classes=3))
    assert model[1].out_features == 3
    del sys.modules["resnet18"]
