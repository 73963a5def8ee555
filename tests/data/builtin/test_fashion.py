"""The three Fashion-MNIST tasks: who holds what, and what the target sees."""

import pytest
import torch
from real_data import needs

from fedbridge.base.errors import DataError, OptionError, UnknownNameError
from fedbridge.data.load import load_task, possible_targets
from fedbridge.data.preparing import AddNoise, InTurn, PixelsToUnit

TASKS = ("fashion-noise", "fashion-labels", "fashion-sources")
FEW = {"n_target": 20}


def placed(task):
    manifest = task.manifest
    held = [row for rows in manifest["sources"].values() for row in rows]
    return sorted([*held, *manifest["target"], *manifest["unlabelled"]])


@pytest.mark.parametrize("name", TASKS)
def test_every_training_image_has_one_place(tiny, name):
    assert placed(load_task(name, **FEW)) == list(range(1100))


@pytest.mark.parametrize("name", TASKS)
def test_the_same_seed_gives_the_same_task_and_another_another(tiny, name):
    one, same, other = (load_task(name, seed=seed, **FEW) for seed in (0, 0, 1))
    assert one.manifest == same.manifest
    assert torch.equal(one.target.x, same.target.x)
    assert one.manifest["target"] != other.manifest["target"]
    assert one.manifest["sources"] != other.manifest["sources"]


@pytest.mark.parametrize("name", TASKS)
def test_rows_are_what_the_manifest_says(tiny, name):
    task = load_task(name, **FEW)
    for site in task.sources:
        rows = torch.tensor(task.manifest["sources"][site.name])
        assert torch.equal(site.y, rows % 10)
        assert torch.equal(site.x[:, 0, 0, 0], (rows % 10).to(torch.uint8))
    assert torch.equal(task.test.y, torch.tensor(task.manifest["test"]) % 10)


@pytest.mark.parametrize("name", TASKS)
def test_images_stay_bytes_and_the_only_target_is_known(tiny, name):
    task = load_task(name, **FEW)
    assert all(site.x.dtype == torch.uint8 for site in (*task.sources, task.target, task.test))
    assert task.sources[0].prepare == PixelsToUnit()
    assert (task.model, len(task.sources), task.n_classes) == ("cnn", 9, 10)
    assert possible_targets(name, **FEW) == ("target",)
    with pytest.raises(UnknownNameError, match=r"the target 'target'.*leave `target` out"):
        load_task(name, target="source 1")


def test_noise_is_redrawn_unless_it_is_fixed(tiny):
    task = load_task("fashion-noise", noise=0.2, **FEW)
    noisy = InTurn((PixelsToUnit(), AddNoise(0.2)))
    assert task.target.prepare == task.test.prepare == task.target_pool.prepare == noisy
    fixed = load_task("fashion-noise", noise=0.2, noise_draw="fixed", **FEW)
    assert fixed.target.prepare is None
    for part in ("target", "test", "target_pool"):
        clean = getattr(task, part).x.to(torch.float32) / 255
        assert (getattr(fixed, part).x - clean).std().item() == pytest.approx(0.2, rel=0.02)


def test_fixed_noise_does_not_depend_on_how_many_are_labelled(tiny):
    few, many = (load_task("fashion-noise", noise_draw="fixed", n_target=n) for n in (20, 60))
    assert torch.equal(few.target_pool.x, many.target_pool.x)


def test_the_shift_of_labels_is_a_portion_of_either_group(tiny):
    for eta, at_target in ((0.0, [0, 110]), (0.3, [33, 77]), (0.5, [55, 55])):
        task = load_task("fashion-labels", eta=eta, **FEW)
        counts = task.target_pool.y.bincount(minlength=10)
        assert counts[[0, 6]].tolist() == at_target
        assert counts[[1, 2, 3, 4, 5, 7]].unique().tolist() == [at_target[0]]
        assert counts[[8, 9]].unique().tolist() == [at_target[1]]
        tested = task.test.y.bincount(minlength=10).double() / len(task.test)
        torch.testing.assert_close(tested, counts.double() / len(task.target_pool))


def test_each_source_holds_as_many_labels_as_asked_and_the_target_all(tiny):
    for number in (2, 3, 9, 10):
        task = load_task("fashion-sources", labels_per_source=number, **FEW)
        assert {len(site.y.unique()) for site in task.sources} == {number}
        assert len(task.target.y.unique()) == 10
        assert task.manifest["target"] == load_task("fashion-noise", **FEW).manifest["target"]


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("fashion-noise", {"noise": 1.5}, OptionError, r"`noise` in \[0, 1\], but got 1.5"),
        ("fashion-noise", {"noise_draw": "once"}, OptionError, "fixed, redrawn"),
        ("fashion-noise", {"n_target": 111}, DataError, "110 training rows, but got 111"),
        ("fashion-noise", {"n_target": 5, "target_fraction": 0.1}, OptionError, "got both"),
        ("fashion-labels", {"eta": -0.1}, OptionError, r"`eta` in \[0, 0.5\], but got -0.1"),
        ("fashion-labels", {"eta": 0.6}, OptionError, r"`eta` in \[0, 0.5\]"),
        ("fashion-labels", {"eta": "half"}, OptionError, "`eta`.*but got 'half'"),
        ("fashion-sources", {"labels_per_source": 1}, OptionError, "from 2 to 10, but got 1"),
        ("fashion-sources", {"labels_per_source": 11}, OptionError, "from 2 to 10"),
        ("fashion-sources", {"labels_per_source": 2.5}, OptionError, "whole number"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(tiny, name, options, error, message):
    with pytest.raises(error, match=message):
        load_task(name, **options)


@needs("fashion-mnist")
class TestRealData:
    def test_noise_has_the_papers_sizes(self):
        task = load_task("fashion-noise")
        assert [len(site) for site in task.sources] == [6000] * 9
        assert task.target.y.bincount().tolist() == [10] * 10
        assert (len(task.unlabelled), len(task.target_pool), len(task.test)) == (5900, 6000, 10000)
        assert placed(task) == list(range(60000))

    @pytest.mark.parametrize(("eta", "held"), [(0.0, 18000), (0.05, 19200), (0.45, 28800)])
    def test_labels_has_portions_of_both_groups(self, eta, held):
        task = load_task("fashion-labels", eta=eta)
        assert len(task.target_pool) == held
        assert len(task.target) == 0.15 * held
        assert len(task.test) == held / 6
        assert sum(map(len, task.sources)) == 60000 - held

    def test_sources_share_all_images_that_the_target_has_not(self):
        task = load_task("fashion-sources", labels_per_source=5)
        assert sum(map(len, task.sources)) == 54000
        assert {len(site.y.unique()) for site in task.sources} == {5}
