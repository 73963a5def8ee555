"""What happens to a batch on its way to the model."""

import pickle

import pytest
import torch

from fedbridge.data.prepare import AddNoise, InTurn, PixelsToUnit


def test_noise_is_drawn_anew_and_decided_by_the_generator():
    x, generator = torch.zeros(1000, 4), torch.Generator().manual_seed(0)
    first, second = AddNoise(0.5)(x, generator), AddNoise(0.5)(x, generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, AddNoise(0.5)(x, torch.Generator().manual_seed(0)))
    assert first.std().item() == pytest.approx(0.5, rel=0.05)


def test_preparations_follow_each_other():
    pixels = torch.full((2, 3), 255, dtype=torch.uint8)
    steps = InTurn((PixelsToUnit(), AddNoise(0.0)))
    assert torch.equal(steps(pixels, torch.Generator()), torch.ones(2, 3))


@pytest.mark.parametrize(
    "prepare", [AddNoise(0.5), PixelsToUnit(), InTurn((PixelsToUnit(), AddNoise(0.5)))]
)
def test_preparations_reach_worker_processes(prepare):
    assert pickle.loads(pickle.dumps(prepare)) == prepare
