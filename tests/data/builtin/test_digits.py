"""The embedded task: shares, shifts and options."""

import pytest
import torch

from fedbridge.base.errors import DataError, OptionError, UnknownOptionError
from fedbridge.data.load import load_task
from fedbridge.data.preparing import AddNoise


def test_every_image_has_one_place():
    task = load_task("digits-noise")
    manifest = task.manifest
    places = [
        *(row for rows in manifest["sources"].values() for row in rows),
        *manifest["target"],
        *manifest["unlabelled"],
        *manifest["test"],
    ]
    assert sorted(places) == list(range(1797))


def test_the_target_labels_30_and_tests_on_many():
    task = load_task("digits-noise")
    assert [len(site) for site in task.sources] == [270, 270, 269, 269]
    assert task.target.y.bincount().tolist() == [3] * 10
    assert (len(task.unlabelled), len(task.target_pool), len(task.test)) == (258, 288, 431)
    assert (task.input_shape, task.n_classes, task.model) == ((1, 8, 8), 10, "mlp")
    assert task.defaults


def test_a_fraction_may_replace_the_count():
    assert len(load_task("digits-noise", target_fraction=0.5).target) == 144
    assert load_task("digits-noise", n_target=288).unlabelled is None


def test_the_same_seed_gives_the_same_task_and_another_another():
    one, same, other = (load_task("digits-noise", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.test.x, same.test.x)
    assert one.manifest == same.manifest
    assert one.manifest["target"] != other.manifest["target"]


def test_noise_touches_the_target_alone():
    clean, noisy = load_task("digits-none"), load_task("digits-noise", noise=0.5)
    assert torch.equal(clean.sources[0].x, noisy.sources[0].x)
    for part in ("target", "test", "target_pool"):
        difference = getattr(noisy, part).x - getattr(clean, part).x
        assert difference.std().item() == pytest.approx(0.5, rel=0.05)
    assert (noisy.unlabelled - clean.unlabelled).std().item() == pytest.approx(0.5, rel=0.05)


def test_redrawn_noise_is_added_to_each_batch():
    task = load_task("digits-noise", noise=0.3, noise_draw="redrawn")
    assert torch.equal(task.test.x, load_task("digits-none").test.x)
    assert task.target.prepare == task.test.prepare == task.target_pool.prepare == AddNoise(0.3)
    assert task.sources[0].prepare is None


def test_contrast_inverts_and_rotation_turns():
    clean = load_task("digits-none").test.x
    torch.testing.assert_close(load_task("digits-contrast").test.x, 1 - clean)
    half = load_task("digits-contrast", contrast=0.25).test.x
    torch.testing.assert_close(half, 0.25 + 0.5 * clean)
    turned = load_task("digits-rotation", angle=90).test.x
    torch.testing.assert_close(turned, clean.rot90(1, (2, 3)), atol=1e-5, rtol=0)


def test_names_and_shift_option_are_two_ways_to_say_it():
    task = load_task("digits-noise", shift="contrast")
    assert task.name == load_task("digits-contrast").name == "digits-contrast"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"noise": -0.1}, OptionError, "`noise`"),
        ({"noise": float("nan")}, OptionError, "`noise`"),
        ({"shift": "nois"}, OptionError, "Did you mean 'noise'"),
        ({"noise_draw": "once"}, OptionError, "fixed, redrawn"),
        ({"shift": "contrast", "contrast": 2}, OptionError, "`contrast`"),
        ({"shift": "rotation", "angle": float("inf")}, OptionError, "`angle`"),
        ({"n_target": 289}, DataError, "288 training rows"),
        ({"target": "source 1"}, OptionError, "leave `target` out"),
        ({"nosie": 0.4}, UnknownOptionError, "Did you mean 'noise'"),
    ],
)
def test_options_out_of_range_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        load_task("digits-noise", **options)
