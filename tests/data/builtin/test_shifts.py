"""Every shift works on floats and on pixels alike."""

import numpy as np
import pytest
import torch

from fedbridge.base.errors import OptionError
from fedbridge.data.builtin.shifts import Contrast, NoShift, RedrawnNoise, Rotation, noise_shift
from fedbridge.data.preparing import AddNoise
from fedbridge.data.split import generator

PIXELS = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (700, 1, 6, 6), np.uint8))
UNIT = PIXELS.to(torch.float32) / 255


def rng(seed=0):
    return generator(seed, "noise")


def prepared(shift, images):
    stored = shift.stored(images, rng())
    prepare = shift.prepare(stored)
    return stored if prepare is None else prepare(stored, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "shift",
    [
        noise_shift(0.3, "fixed"),
        noise_shift(0.3, "redrawn"),
        Contrast(0.5),
        Contrast(1.0),
        Rotation(30.0),
    ],
    ids=str,
)
def test_pixels_and_floats_end_alike(shift):
    torch.testing.assert_close(prepared(shift, PIXELS), prepared(shift, UNIT))


def test_fixed_noise_has_its_size_and_is_one_draw():
    shift = noise_shift(0.5, "fixed")
    noise = shift.stored(UNIT, rng()) - UNIT
    assert noise.std().item() == pytest.approx(0.5, rel=0.02)
    assert noise.mean().item() == pytest.approx(0, abs=0.02)
    assert torch.equal(shift.stored(UNIT, rng()), shift.stored(UNIT, rng()))
    assert not torch.equal(shift.stored(UNIT, rng()), shift.stored(UNIT, rng(1)))


def test_the_noise_of_a_row_does_not_depend_on_the_rows_after_it():
    shift = noise_shift(0.5, "fixed")
    torch.testing.assert_close(shift.stored(UNIT, rng())[:600], shift.stored(UNIT[:600], rng()))


def test_the_images_that_come_in_are_left_alone():
    before = UNIT.clone()
    noise_shift(0.5, "fixed").stored(UNIT, rng())
    assert torch.equal(UNIT, before)


def test_redrawn_noise_stores_pixels_and_works_by_batch():
    shift = RedrawnNoise(0.3)
    assert shift.stored(PIXELS, rng()) is PIXELS
    assert shift.prepare(UNIT) == AddNoise(0.3)
    batch = shift.prepare(PIXELS)(PIXELS, torch.Generator().manual_seed(0))
    assert (batch - UNIT).std().item() == pytest.approx(0.3, rel=0.02)


def test_no_shift_leaves_everything():
    assert NoShift().stored(PIXELS, rng()) is PIXELS
    assert NoShift().prepare(PIXELS) is None


@pytest.mark.parametrize("noise", [-0.1, 1.01, float("nan"), float("inf"), "0.4", True, None])
def test_noise_out_of_range_is_refused(noise):
    with pytest.raises(OptionError, match=r"`noise` in \[0, 1\], but got"):
        noise_shift(noise, "fixed")


def test_a_way_to_draw_that_does_not_exist_is_refused():
    with pytest.raises(OptionError, match="fixed, redrawn"):
        noise_shift(0.4, "sometimes")
