"""Augmentation of a batch: each step is what Pillow and plain Python make of one image."""

import colorsys
from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import TINY, register_tiny_backbone
from PIL import Image, ImageEnhance
from scipy import stats
from small import federation, same_but_for_seconds, same_model

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.data.images import augmentation as own
from fedbridge.data.load import load_task
from fedbridge.data.preparing import Augment, InTurn, PixelsToUnit, RowChance, row_seeds
from fedbridge.data.site_package import load_site, save_site, sites_of

BYTE = 1 / 255


def pictures(n=6, channels=3, height=24, width=32, seed=0):
    """Images of bytes, smooth enough that a pixel aside would be seen, and what Pillow has."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (n, height // 4, width // 4, 3), np.uint8)
    large = [
        Image.fromarray(one).resize((width, height), Image.Resampling.BICUBIC) for one in coarse
    ]
    large = [one.convert("L" if channels == 1 else "RGB") for one in large]
    return large, torch.stack([as_tensor(one) for one in large])


def as_tensor(image):
    pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255)
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def same(ours, theirs, within):
    """As bytes are rounded between the steps there and not here."""
    assert torch.stack([as_tensor(one) for one in theirs]).sub(ours).abs().max().item() <= within


def test_a_crop_is_pillows_resized_box():
    images, batch = pictures()
    boxes = torch.tensor(
        [
            [0, 0, 24, 32],
            [3, 5, 20, 21],
            [1, 0, 17, 32],
            [0, 7, 24, 19],
            [10, 12, 1, 1],
            [4, 4, 9, 2],
        ]
    )
    flip = torch.tensor([False, False, True, True, False, True])
    expected = []
    for image, (top, left, h, w), mirrored in zip(images, boxes.tolist(), flip, strict=True):
        part = image.crop((left, top, left + w, top + h))
        part = part.resize(image.size, Image.Resampling.BILINEAR)
        expected.append(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else part)
    result = own.resized_crop(batch, boxes.double(), flip)
    same(result, expected, 1.1 * BYTE)
    torch.testing.assert_close(result[0], batch[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (own.brighten, ImageEnhance.Brightness),
        (own.change_contrast, ImageEnhance.Contrast),
        (own.saturate, ImageEnhance.Color),
    ],
)
def test_brightness_contrast_and_saturation_are_pillows(ours, theirs, channels):
    images, batch = pictures(channels=channels)
    factors = [0.7, 0.85, 1.0, 1.1, 1.2, 1.3]
    expected = [theirs(image).enhance(f) for image, f in zip(images, factors, strict=True)]
    same(ours(batch, torch.tensor(factors)), expected, 1.6 * BYTE)


def test_hue_is_turned_as_colorsys_turns_it():
    _, batch = pictures(height=8, width=8)
    batch[0] = 0.4  # grey has no hue
    batch[1, :, 0, :6] = torch.eye(3).repeat(1, 2) * 0.8
    turns = torch.tensor([0.1, -0.3, 0.3, 0.0, 0.17, -0.05])
    expected = torch.empty_like(batch)
    for k, turn in enumerate(turns.tolist()):
        for y in range(8):
            for x in range(8):
                h, s, v = colorsys.rgb_to_hsv(*batch[k, :, y, x].tolist())
                turned = colorsys.hsv_to_rgb((h + turn) % 1, s, v)
                expected[k, :, y, x] = torch.tensor(turned)
    torch.testing.assert_close(own.turn_hue(batch, turns), expected, atol=1e-5, rtol=0)
    grey = batch[:, :1]
    assert torch.equal(own.turn_hue(grey, turns), grey)


def test_grey_is_pillows():
    images, batch = pictures()
    same(own.in_grey(batch), [image.convert("L").convert("RGB") for image in images], 0.6 * BYTE)


def test_the_four_changes_follow_the_order_of_each_image():
    _, batch = pictures(n=4)
    changes = torch.tensor([[0.3, -0.2, 0.1, 0.2]] * 4)
    order = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]])
    steps = [own.brighten, own.change_contrast, own.saturate, own.turn_hue]
    amounts = [1.3, 0.8, 1.1, 0.2]
    result = own.jitter(batch, changes, order)
    for k, turns in enumerate(order.tolist()):
        one = batch[k : k + 1]
        for step in turns:
            one = steps[step](one, torch.tensor([amounts[step]]))
        torch.testing.assert_close(result[k : k + 1], one)
    assert not torch.allclose(result[0], own.jitter(batch[:1], changes[:1], order[1:2])[0])


def test_crops_are_distributed_as_torchvision_draws_them():
    generator = torch.Generator().manual_seed(0)
    chance = torch.rand(20_000, 2 * own.ATTEMPTS + 2, generator=generator, dtype=torch.float64)
    top, left, h, w = own.crop_boxes(chance, 224, 224).T
    assert bool(((top >= 0) & (left >= 0) & (top + h <= 224) & (left + w <= 224)).all())
    # the same draws image by image: tried until one fits
    rng = np.random.default_rng(1)
    areas, ratios = [], []
    while len(areas) < 20_000:
        area = rng.uniform(0.7, 1.0) * 224 * 224
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        wide, tall = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if wide <= 224 and tall <= 224:
            areas.append(wide * tall)
            ratios.append(wide / tall)
    assert stats.ks_2samp((h * w).numpy(), areas).statistic < 0.02
    assert stats.ks_2samp((w / h).numpy(), ratios).statistic < 0.02
    place = (left / (224 - w).clamp(min=1)).numpy()[(w < 180).numpy()]
    assert stats.kstest(place, "uniform").statistic < 0.05


def test_a_crop_that_never_fits_leaves_the_image_whole():
    chance = torch.zeros(1, 2 * own.ATTEMPTS + 2)
    chance[:, : own.ATTEMPTS] = 0.999  # the largest area at the most extreme ratio
    assert own.crop_boxes(chance, 224, 224).tolist() == [[0, 0, 224, 224]]


def test_half_are_flipped_a_tenth_are_grey_and_factors_are_uniform():
    n = 4000
    batch = torch.zeros(n, 3, 4, 4)
    batch[:, :, :, 2:] = torch.tensor([0.5, 0.4, 0.3])[:, None, None]
    chance = RowChance(row_seeds(0, torch.arange(n)), training=True).uniform(own.DRAWS)
    result = own.augment(batch, chance)
    assert bool(((result >= 0) & (result <= 1)).all())
    bright = result.mean(dim=(1, 2))
    flipped = (bright[:, 0] > bright[:, -1]).double().mean().item()
    assert flipped == pytest.approx(0.5, abs=0.03)
    grey = (result.amax(1) - result.amin(1)).amax(dim=(1, 2)) < 1e-6
    assert grey.double().mean().item() == pytest.approx(0.1, abs=0.02)
    for column in chance.T:
        assert stats.kstest(column.numpy(), "uniform").statistic < 0.035
    orders = {tuple(order) for order in chance[:, -5:-1].argsort(dim=1).tolist()}
    assert len(orders) == 24


def test_an_image_does_not_depend_on_its_batch():
    _, batch = pictures(n=6)
    seeds = row_seeds(7, torch.arange(6))
    whole = Augment().by_row(batch, RowChance(seeds, training=True))
    some = Augment().by_row(batch[[5, 2]], RowChance(seeds[[5, 2]], training=True))
    torch.testing.assert_close(some, whole[[5, 2]], atol=1e-6, rtol=0)
    assert not torch.allclose(whole[5], batch[5])


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for domain in ("photo", "sketch"):
        for label, level in (("cat", 60), ("dog", 180)):
            place = tmp_path / "pets" / domain / label
            place.mkdir(parents=True)
            for k in range(6):
                pixels = rng.integers(level - 50, level + 50, (20, 20, 3), np.uint8)
                Image.fromarray(pixels).save(place / f"{k}.png")
    return tmp_path / "pets"


def test_training_rows_are_augmented_and_no_others(folder):
    plain = load_task(folder, target="photo", n_target=4, cache=False)
    task = load_task(folder, target="photo", n_target=4, cache=False, augment=True)
    chances = InTurn((PixelsToUnit(), Augment()))
    assert task.sources[0].prepare == task.target.prepare == task.target_pool.prepare == chances
    assert task.test.prepare == plain.test.prepare == PixelsToUnit()
    assert torch.equal(task.target.x, plain.target.x)
    assert task.manifest["options"]["augment"] is True
    assert any("cropped, flipped and recoloured" in note for note in task.notes)
    theirs = load_task(folder, target="photo", n_target=4, cache=False, augment="sources")
    assert theirs.sources[0].prepare == chances
    assert theirs.target.prepare == theirs.target_pool.prepare == PixelsToUnit()


def test_what_is_held_out_or_set_aside_is_not_augmented(folder):
    task = load_task(folder, target="photo", cache=False, augment=True)
    made = federation(task, model="cnn", early_stopping=1, validation_fraction=0.5)
    unit = task.target.x.float() / 255
    rows = torch.tensor([3, 1])
    assert torch.equal(made.predict(made.initial, task.target, lambda _, x: x, rows), unit[rows])
    aside = made.predict(made.initial, made.validation, lambda _, x: x)
    assert torch.equal(aside, made.validation.x.float() / 255)


def test_it_trains_to_the_same_bits_for_any_workers_and_after_a_resume(folder, tmp_path):
    task = load_task(folder, target="photo", cache=False, augment=True)
    few = {"model": "cnn", "batch_size": 4}
    one = fb.run(task, "fedda", rounds=2, workers=1, **few)
    several = fb.run(task, "fedda", rounds=2, workers=2, **few)
    fb.run(task, "fedda", rounds=1, workers=1, out=tmp_path / "parts", **few)
    resumed = fb.run(task, "fedda", rounds=2, workers=1, out=tmp_path / "parts", resume=True, **few)
    for other in (several, resumed):
        assert same_model(one.model, other.model)
        assert same_but_for_seconds(one.history, other.history)
    plain = load_task(folder, target="photo", cache=False)
    assert not same_model(one.model, fb.run(plain, "fedda", rounds=2, workers=1, **few).model)


def test_a_sites_file_remembers_it(folder, tmp_path):
    task = load_task(folder, target="photo", cache=False, augment=True, grayscale=True)
    for part in sites_of(task):
        save_site(tmp_path / "site", part)
        assert load_site(tmp_path / "site").train.prepare == part.train.prepare
    fb.run(replace(task, model="cnn"), "fedda", rounds=1, workers=1)  # grey images too


def test_features_of_a_frozen_backbone_cannot_be_augmented(folder, monkeypatch):
    register_tiny_backbone(monkeypatch)
    with pytest.raises(OptionError, match=f"pixels to augment, but the backbone '{TINY}'.*leave"):
        load_task(folder, target="photo", backbone=TINY, augment=True)
    with pytest.raises(
        OptionError, match="`augment` to be one of False, True, sources, but got 'yes'"
    ):
        load_task(folder, target="photo", augment="yes")
