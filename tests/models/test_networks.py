"""The small networks: the paper's sizes, other images, and how they come apart."""

import pytest
import torch
from small import random_rows
from torch import nn
from torch.nn import functional

from fedbridge.base.errors import ModelError
from fedbridge.models import build_model, split_model


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_cnn_for_28x28_is_the_papers():
    model = build_model("cnn", random_rows((1, 28, 28)))
    assert parameters(model) == 44_426
    assert [tuple(p.shape) for p in model.parameters() if p.ndim > 1] == [
        (6, 1, 5, 5),
        (16, 6, 5, 5),
        (120, 256),
        (84, 120),
        (10, 84),
    ]


def test_the_cnn_for_32x32x3_has_the_papers_full_layer():
    model = build_model("cnn", random_rows((3, 32, 32)))
    assert (120, 400) in [tuple(p.shape) for p in model.parameters()]


@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 8, 8), (3, 16, 21), (28, 28), (3, 64, 224)])
def test_the_cnn_adapts_to_other_sizes_and_stays_small(shape):
    model = build_model("cnn", random_rows(shape, n_classes=3))
    assert parameters(model) < 200_000


def test_the_mlp_has_64_hidden_units_unless_told():
    task = random_rows((1, 8, 8))
    assert parameters(build_model("mlp", task)) == 64 * 64 + 64 + 64 * 10 + 10
    assert parameters(build_model("mlp:5", task)) == 64 * 5 + 5 + 5 * 10 + 10


def test_sigmoid_is_an_mlp_with_other_units():
    task = random_rows((5,), n_classes=3)
    model = build_model("sigmoid:100", task)
    first, last = model.features[1], model.head
    hidden = 1 / (1 + (-(task.test.x @ first.weight.T + first.bias)).exp())
    assert hidden.shape[1] == 100
    torch.testing.assert_close(model(task.test.x), hidden @ last.weight.T + last.bias)


def test_the_mnist_cnn_is_domainbeds():
    task = random_rows((2, 28, 28), n_classes=2)
    model = build_model("mnist-cnn", task)
    assert parameters(model) == 371_394
    named = list(model.parameters())
    x = task.test.x
    for k, stride in enumerate((1, 2, 1, 1)):
        weight, bias, scale, shift = named[4 * k : 4 * k + 4]
        x = functional.conv2d(x, weight, bias, stride=stride, padding=1).relu()
        groups = x.view(len(x), 8, -1)
        variance, mean = torch.var_mean(groups, dim=2, keepdim=True, correction=0)
        normal = ((groups - mean) / (variance + 1e-5).sqrt()).view_as(x)
        x = normal * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)
    expected = x.mean(dim=(2, 3)) @ named[-2].T + named[-1]
    torch.testing.assert_close(model(task.test.x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 14, 14), (1, 28, 28), (28, 28), (3, 5, 40)])
def test_the_mnist_cnn_takes_images_of_any_size_and_channels(shape):
    channels = shape[0] if len(shape) == 3 else 1
    model = build_model("mnist-cnn", random_rows(shape, n_classes=2))
    assert parameters(model) == 371_394 + (channels - 2) * 64 * 9


def test_linear_is_logistic_regression_on_flat_inputs():
    assert parameters(build_model("linear", random_rows((2, 3), n_classes=4))) == 6 * 4 + 4


@pytest.mark.parametrize("name", ["mlp", "sigmoid", "cnn", "mnist-cnn"])
def test_features_then_head_is_the_whole_model(name):
    task = random_rows((1, 8, 8))
    model = build_model(name, task)
    features, head = split_model(model)
    torch.testing.assert_close(head(features(task.test.x)), model(task.test.x))
    assert parameters(features) + parameters(head) == parameters(model)


@pytest.mark.parametrize(
    "spec", ["mlp:0", "mlp:-3", "mlp:", "cnn:3", "linear:2", "mnist-cnn:2", "sigmoid:x.y"]
)
def test_a_size_that_makes_no_sense_is_refused(spec):
    with pytest.raises(ModelError, match="Expected"):
        build_model(spec, random_rows((1, 8, 8)))


@pytest.mark.parametrize("name", ["cnn", "mnist-cnn", "resnet18"])
@pytest.mark.parametrize(
    ("shape", "message"), [((5,), "use 'mlp' or 'linear'"), ((28, 28, 3), "channels first")]
)
def test_networks_of_convolutions_want_images(name, shape, message):
    with pytest.raises(ModelError, match=f"for '{name}'.*{message}"):
        build_model(name, random_rows(shape))
