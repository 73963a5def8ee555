"""The residual networks: torchvision's names and sizes, and the sums they compute."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedbridge.files import sha256
from fedbridge.models import split_model
from fedbridge.models.pretrained import RESNETS
from fedbridge.models.resnet import ResNet

LAYERS_OF_A_BLOCK = {"resnet18": 2, "resnet50": 3}


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
