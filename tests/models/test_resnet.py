"""The residual networks: torchvision's names and sizes, at random or with pretrained weights."""

import math
import sys

import pytest
import torch
from checkpoints import place_resnet18, random_resnet18
from safetensors.torch import save_file
from small import random_rows
from torch import nn
from torch.nn import functional

import fedbridge as fb
from fedbridge.base.errors import DataError, ModelError
from fedbridge.base.files import sha256
from fedbridge.data.store.catalogue import CATALOGUE
from fedbridge.models import build_model, split_model, without_weights
from fedbridge.models.networks import Normalise
from fedbridge.models.resnet import RESNETS, ResNet
from fedbridge.runs.record import read_run
from fedbridge.workflows.predict import load_model

LAYERS_OF_A_BLOCK = {"resnet18": 2, "resnet50": 3}

COLOUR = (3, 16, 16)


def network(name: str, outputs: int = 1000) -> ResNet:
    torch.manual_seed(0)
    return ResNet(RESNETS[name].block, RESNETS[name].depths, outputs)


def by_hand(name: str, state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The network in evaluation mode as a formula over its named tensors."""

    def layer(x, conv, norm, stride):
        weight = state[f"{conv}.weight"]
        x = functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        mean, var, scale, shift = (
            state[f"{norm}.{what}"].view(-1, 1, 1)
            for what in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * scale + shift

    layers = LAYERS_OF_A_BLOCK[name]
    x = layer(x, "conv1", "bn1", 2).relu()
    x = functional.max_pool2d(x, 3, stride=2, padding=1)
    for stage, depth in enumerate(RESNETS[name].depths, start=1):
        for k in range(depth):
            block, stride = f"layer{stage}.{k}", 2 if stage > 1 and k == 0 else 1
            strided = layers - 1  # the first of two 3x3 convolutions, or the one in the middle
            y = x
            for n in range(1, layers + 1):
                y = layer(y, f"{block}.conv{n}", f"{block}.bn{n}", stride if n == strided else 1)
                y = y.relu() if n < layers else y
            if f"{block}.downsample.0.weight" in state:
                x = layer(x, f"{block}.downsample.0", f"{block}.downsample.1", stride)
            x = (x + y).relu()
    return x.mean(dim=(2, 3)) @ state["fc.weight"].T + state["fc.bias"]


@pytest.mark.parametrize(
    ("name", "parameters", "tensors", "layout"),
    [
        ("resnet18", 11_689_512, 62, "84fb10d9c6905a1c"),
        ("resnet50", 25_557_032, 161, "d7e4f8bb0a536344"),
    ],
)
def test_names_and_shapes_are_those_of_torchvisions_files(name, parameters, tensors, layout):
    model = network(name)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(list(model.parameters())) == tensors
    listed = "\n".join(f"{key} {tuple(value.shape)}" for key, value in model.state_dict().items())
    assert sha256(listed.encode())[:16] == layout


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_the_output_is_that_of_the_formula(name):
    model = network(name, outputs=4).eval()
    for key, buffer in model.named_buffers():
        if key.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.5, 1.5)
    x = torch.rand(2, 3, 40, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            model(x), by_hand(name, model.state_dict(), x), rtol=1e-4, atol=1e-4
        )


def test_convolutions_start_with_variance_two_over_fan_out():
    for module in network("resnet50").modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 50_000:
            fan_out = module.out_channels * math.prod(module.kernel_size)
            assert module.weight.var().item() == pytest.approx(2 / fan_out, rel=0.05)


def test_it_comes_apart_without_other_names():
    model = network("resnet18", outputs=4).eval()
    features, head = split_model(model)
    x = torch.rand(2, 3, 32, 32)
    assert features(x).shape == (2, 512)
    assert torch.equal(head(features(x)), model(x))
    together = {*map(id, features.parameters()), *map(id, head.parameters())}
    assert together == {*map(id, model.parameters())}
    assert not any(name.startswith(("features", "head")) for name in model.state_dict())


def test_the_fetched_file_is_the_expected_one():
    fetched = {name: CATALOGUE[name].layout.contents[0].path for name in ("resnet18", "resnet50")}
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
    start = random_resnet18(classes=2).state_dict()
    save_file(start, file)
    task = random_rows(COLOUR, n_classes=3)
    options = {"model": f"resnet18:{file}", "steps": 1, "workers": 1}
    result = fb.run(task, "fedda", rounds=1, out=tmp_path / "run", **options)
    file.unlink()
    assert read_run(tmp_path / "run").config["settings"]["buffers"] == "frozen"
    last = "layer4.1.bn2"
    found = result.model.state_dict()
    assert torch.equal(found[f"{last}.running_var"], start[f"{last}.running_var"])
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
