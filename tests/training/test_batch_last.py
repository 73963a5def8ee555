"""Small convolutions with the batch innermost: torch's numbers, and the same for any workers."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedbridge as fb
from fedbridge.models import build_model
from fedbridge.training.batch_last import (
    MOST_ROWS,
    BatchLastConv2d,
    BatchLastMaxPool2d,
    quicken,
)
from fedbridge.training.record_privacy import clipped_sum
from fedbridge.training.state import State
from fedbridge.training.trainer import Workbench


def images(rows: int, channels: int, height: int, width: int) -> Tensor:
    """The same images every time."""
    generator = torch.Generator().manual_seed(rows)
    return torch.rand(rows, channels, height, width, generator=generator)


def quick(model: nn.Module) -> nn.Module:
    """A quicker copy."""
    other = deepcopy(model)
    quicken(other)
    return other


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Outputs, and gradients of a sum of their squares by parameters and input."""
    x = x.detach().requires_grad_()
    found = model(x)
    return [found, *torch.autograd.grad(found.square().sum(), [x, *model.parameters()])]


@pytest.mark.parametrize("rows", [8, 64, 100])
@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "padding", "bias"),
    [
        (1, 6, 5, 0, True),
        (6, 16, 5, 0, True),
        (3, 4, (3, 2), 1, False),
        (2, 5, (2, 4), (0, 3), True),
    ],
)
def test_a_convolution_is_torchs(
    rows: int,
    channels: int,
    outputs: int,
    kernel: int | tuple[int, int],
    padding: int | tuple[int, int],
    bias: bool,
) -> None:
    plain = nn.Conv2d(channels, outputs, kernel, padding=padding, bias=bias)
    x = images(rows, channels, 9, 12)
    other = quick(plain)
    assert type(other) is BatchLastConv2d
    for expected, found in zip(gradients(plain, x), gradients(other, x), strict=True):
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert other(x).stride(0) == 1


@pytest.mark.parametrize("shape", [(6, 24, 24), (3, 9, 7), (1, 2, 3)])
def test_pooling_is_torchs_to_the_bit_where_pixels_are_equal_too(
    shape: tuple[int, int, int],
) -> None:
    channels, height, width = shape
    last = (3 * images(16, channels, height, width)).floor().permute(1, 2, 3, 0).contiguous()
    x = last.permute(3, 0, 1, 2)
    plain, other = nn.MaxPool2d(2), quick(nn.MaxPool2d(2))
    assert type(other) is BatchLastMaxPool2d
    for expected, found in zip(gradients(plain, x), gradients(other, x), strict=True):
        assert torch.equal(found, expected)


def test_gradients_have_gradients() -> None:
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Tanh())
    x = images(8, 1, 8, 8)

    def second(model: nn.Module) -> list[Tensor]:
        weights = list(model.parameters())
        slopes = torch.autograd.grad(model(x).square().sum(), weights, create_graph=True)
        return list(torch.autograd.grad(sum(s.square().sum() for s in slopes), weights))

    for expected, found in zip(second(plain), second(quick(plain)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(9, 4, 3),
        nn.Conv2d(3, 17, 3),
        nn.Conv2d(2, 4, 3, stride=2),
        nn.Conv2d(2, 4, 3, dilation=2),
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 3, padding="same"),
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.Conv1d(2, 4, 3),
    ],
    ids=str,
)
def test_other_layers_stay_as_they_are(layer: nn.Module) -> None:
    kind = type(layer)
    assert not quicken(layer)
    assert type(layer) is kind


@pytest.mark.parametrize("rows", [1, 7, MOST_ROWS + 1])
def test_other_batches_go_torchs_way(rows: int) -> None:
    plain = nn.Sequential(nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU())
    x = images(rows, 1, 12, 12)
    assert torch.equal(quick(plain)(x), plain(x))


def small_task() -> fb.FederatedTask:
    """Images of 28 x 28, few of them."""
    sources = {f"s{k}": (images(40 + k, 1, 28, 28), torch.arange(40 + k) % 3) for k in range(3)}
    target = images(20, 1, 28, 28), torch.arange(20) % 3
    test = images(MOST_ROWS + 44, 1, 28, 28), torch.arange(MOST_ROWS + 44) % 3
    return fb.FederatedTask.from_arrays(sources=sources, target=target, test=test)


def test_any_number_of_workers_gives_the_same_bits_and_a_plain_model() -> None:
    found = [
        fb.run(small_task(), "fedgp-auto", rounds=2, model="cnn", optimizer="adam", workers=count)
        for count in (1, 2, 3)
    ]
    first, *others = (result.model.state_dict() for result in found)
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)
    assert {type(part) for part in found[0].model.modules()} & {nn.Conv2d, nn.MaxPool2d}
    assert not any(isinstance(part, BatchLastConv2d) for part in found[0].model.modules())


def test_a_workbench_asks_its_model_about_so_many_rows_that_they_are_quick() -> None:
    task = small_task()
    model = build_model("cnn", task)
    plain = deepcopy(model)
    bench = Workbench(model, task)
    seen: list[int] = []

    def answer(net: nn.Module, x: Tensor) -> Tensor:
        seen.append(len(x))
        found: Tensor = net(x)
        return found

    flat = nn.utils.parameters_to_vector(plain.parameters()).detach()
    outputs = bench.predict(State(flat, {}), task.test, answer)
    assert max(seen) == MOST_ROWS
    torch.testing.assert_close(outputs, plain(task.test.x[:]), rtol=1e-4, atol=1e-5)


def test_gradients_of_single_rows_are_the_same() -> None:
    plain = build_model("cnn", small_task())
    x, y = images(9, 1, 28, 28), torch.arange(9) % 3
    sums = [
        clipped_sum(model, functional.cross_entropy, x, y, 1.0) for model in (plain, quick(plain))
    ]
    assert torch.equal(*sums)
