"""Coloured MNIST: domains, colours and label noise."""

from math import sqrt

import pytest
import torch
from real_data import needs

from fedbridge.base.errors import TargetNeededError, UnknownNameError
from fedbridge.data.builtin.image_sets import mnist
from fedbridge.data.load import load_task, possible_targets

DOMAINS = ("+90%", "+80%", "-90%")
FEW = {"n_target": 10}


def colour(images):
    """1 where only the second channel is lit, 0 where only the first is."""
    lit = images.flatten(2).sum(2) > 0
    assert (lit.sum(1) == 1).all()
    return lit[:, 1].long()


@pytest.mark.parametrize("name", ["colored-mnist", "colored-mnist-14"])
def test_three_domains_each_of_which_can_be_the_target(tiny, name):
    assert possible_targets(name) == DOMAINS
    with pytest.raises(TargetNeededError, match=r"'\+90%', '\+80%', '-90%'"):
        load_task(name)
    with pytest.raises(UnknownNameError, match=r"Sites: '\+90%', '\+80%', '-90%'"):
        load_task(name, target="90")


@pytest.mark.parametrize(
    ("alias", "name"), [("plus90", "+90%"), ("plus80", "+80%"), ("minus90", "-90%")]
)
def test_names_that_a_shell_likes_mean_the_same(tiny, alias, name):
    task = load_task("colored-mnist-14", target=alias, **FEW)
    assert task.target.name == name
    assert task.source_names == tuple(domain for domain in DOMAINS if domain != name)
    assert task.test.name == f"{name} (test)"


def test_a_domain_is_split_in_the_same_way_in_either_role(tiny):
    as_target = load_task("colored-mnist-14", target="+90%", **FEW)
    as_source = load_task("colored-mnist-14", target="-90%", **FEW)
    training = sorted([*as_target.manifest["target"], *as_target.manifest["unlabelled"]])
    assert as_source.manifest["sources"]["+90%"] == training
    assert torch.equal(as_source.sources[0].x, as_target.target_pool.x)
    assert torch.equal(as_source.sources[0].y, as_target.target_pool.y)


def test_every_digit_is_in_one_domain_and_a_fifth_of_each_tests(tiny):
    tasks = [load_task("colored-mnist-14", target=name, **FEW).manifest for name in DOMAINS]
    rows = [[*m["target"], *m["unlabelled"], *m["test"]] for m in tasks]
    assert sorted(row for domain in rows for row in domain) == list(range(1300))
    assert [len(m["test"]) for m in tasks] == [87, 87, 87]


def test_the_fast_version_takes_every_second_pixel(tiny):
    large, small = (
        load_task(name, target="-90%", **FEW) for name in ("colored-mnist", "colored-mnist-14")
    )
    assert (large.input_shape, large.model) == ((2, 28, 28), "mnist-cnn")
    assert (small.input_shape, small.model) == ((2, 14, 14), "mlp:256")
    assert torch.equal(large.test.x[:, :, ::2, ::2], small.test.x)
    assert torch.equal(large.test.y, small.test.y)


def test_the_seed_decides(tiny):
    one, same, other = (
        load_task("colored-mnist-14", target="+80%", seed=seed, **FEW) for seed in (0, 0, 1)
    )
    assert torch.equal(one.test.x, same.test.x)
    assert one.manifest == same.manifest
    assert one.manifest["test"] != other.manifest["test"]


@needs("mnist")
class TestRealData:
    @pytest.mark.parametrize(("name", "agree"), [("+90%", 0.9), ("+80%", 0.8), ("-90%", 0.1)])
    def test_colours_agree_with_labels_as_often_as_they_should(self, name, agree):
        task = load_task("colored-mnist", target=name)
        rows = torch.cat((task.target_pool.x, task.test.x))
        labels = torch.cat((task.target_pool.y, task.test.y))
        found = (colour(rows) == labels).double().mean().item()
        assert abs(found - agree) < 4 * sqrt(agree * (1 - agree) / len(labels))

    def test_a_quarter_of_the_labels_is_wrong(self):
        task = load_task("colored-mnist", target="+90%")
        rows = [row for row in task.manifest["test"] if row < 60000]
        labels = task.test.y[: len(rows)].numpy()
        wrong = (labels != (mnist().train.labels[rows] < 5)).mean()
        assert abs(wrong - 0.25) < 4 * sqrt(0.25 * 0.75 / len(rows))

    def test_sizes_are_domainbeds(self):
        task = load_task("colored-mnist", target="+90%")
        assert (len(task.target_pool), len(task.test), len(task.target)) == (18667, 4667, 19)
        # the paper's scripts round down
        assert len(load_task("colored-mnist", target="-90%", n_target=18).target) == 18
        assert [len(site) for site in task.sources] == [18666, 18666]
