"""CIFAR-10 with few classes at each site."""

import pytest
import torch
from real_data import needs

from fedbridge.base.errors import OptionError, UnknownNameError
from fedbridge.data.load import load_task

FEW = {"n_target": 20}


def test_each_site_holds_four_classes_and_the_target_tests_on_its_own(tiny):
    task = load_task("cifar10-noise", **FEW)
    assert {len(site.y.unique()) for site in (*task.sources, task.target_pool)} == {4}
    assert task.test.y.unique().tolist() == task.target_pool.y.unique().tolist()
    assert (task.input_shape, task.n_classes, len(task.test)) == ((3, 32, 32), 10, 40)
    assert sum(map(len, task.sources)) + len(task.target_pool) == 500


def test_ten_classes_give_everybody_all(tiny):
    task = load_task("cifar10-noise", labels_per_site=10, **FEW)
    assert {len(site.y.unique()) for site in task.sources} == {10}
    assert len(task.test) == 100


def test_the_seed_decides(tiny):
    one, same, other = (load_task("cifar10-noise", seed=seed, **FEW) for seed in (0, 0, 1))
    assert one.manifest == same.manifest
    assert one.manifest["sources"] != other.manifest["sources"]


def test_rows_are_numbered_over_all_batches(tiny):
    task = load_task("cifar10-noise", **FEW)
    rows = torch.tensor(task.manifest["sources"]["source 9"])
    assert rows.max() >= 400
    assert torch.equal(task.sources[8].y, rows % 10)


@pytest.mark.parametrize("number", [1, 11, True, "4"])
def test_a_number_of_classes_out_of_range_is_refused(tiny, number):
    with pytest.raises(OptionError, match=r"`labels_per_site`.*from 2 to 10"):
        load_task("cifar10-noise", labels_per_site=number)


def test_the_paper_lets_chance_deal_the_classes(tiny):
    task = load_task("cifar10-noise", protocol="paper", **FEW)
    asked = load_task("cifar10-noise", deal="random", augment=True, **FEW)
    assert task.manifest["sources"] == asked.manifest["sources"]
    assert len({len(site) for site in task.sources}) > 1
    assert 9 in task.target_pool.y.unique().tolist()
    with pytest.raises(OptionError, match=r"`deal`.*'even'"):
        load_task("cifar10-noise", deal="free")


def test_another_target_is_refused(tiny):
    with pytest.raises(UnknownNameError, match="'target'"):
        load_task("cifar10-noise", target="client 3")


@pytest.mark.parametrize("draw", ["redrawn", "fixed"])
def test_training_images_can_be_moved_and_mirrored_before_the_noise(tiny, draw):
    task = load_task("cifar10-noise", augment=True, noise_draw=draw, **FEW)
    kinds = [type(step).__name__ for step in task.target.prepare.steps]
    noisy = ["PixelsToUnit", "ShiftAndFlip", "AddNoise"]
    assert kinds == (noisy if draw == "redrawn" else ["ShiftAndFlip"])
    assert type(task.sources[0].prepare.steps[-1]).__name__ == "ShiftAndFlip"
    assert "mirrored" in task.notes[-1]
    plain = load_task("cifar10-noise", noise_draw=draw, **FEW)
    assert task.test.prepare == plain.test.prepare


@needs("cifar10")
def test_the_real_task_has_the_papers_sizes():
    task = load_task("cifar10-noise")
    assert [len(site) for site in task.sources] == [5000] * 9
    assert (len(task.target), len(task.target_pool), len(task.test)) == (500, 5000, 4000)
    assert task.target.y.bincount()[task.target.y.unique()].tolist() == [125] * 4
