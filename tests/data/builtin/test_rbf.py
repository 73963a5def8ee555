"""The synthetic regression: its formula, its distances, its options."""

import numpy as np
import pytest
import torch

from fedbridge.base.errors import DataError, OptionError, UnknownNameError
from fedbridge.data.builtin.rbf import _World
from fedbridge.data.load import load_task, possible_targets
from fedbridge.data.split import generator
from fedbridge.models import build_model


def test_values_follow_the_formula():
    world = _World.draw(generator(0, "functions"))
    x = np.random.default_rng(0).normal(size=(3, 50))
    for row, value in zip(x, world.values(x), strict=True):
        features = [
            np.exp(-np.sum((row - middle) ** 2) / width)
            for middle, width in zip(world.middles, world.widths, strict=True)
        ]
        expected = [np.dot(features, weights) for weights in world.weights.T] + world.offset
        np.testing.assert_allclose(value, expected, rtol=1e-10)


def test_sizes_and_roles():
    task = load_task("rbf")
    assert (task.input_shape, task.outputs, task.kind) == ((50,), 10, "regression")
    assert [len(site) for site in task.sources] == [5000]
    assert (len(task.target), len(task.unlabelled), len(task.test)) == (50, 4950, 5000)
    assert not torch.equal(task.test.x, task.target_pool.x)
    assert possible_targets("rbf") == ("target",)


def test_the_papers_protocol_shares_the_points_and_tests_on_the_others():
    task = load_task("rbf", protocol="paper", n_target=30, diff=[0.0, 0.4])
    own = torch.cat((task.target.x, task.test.x))
    for source in task.sources:
        assert torch.equal(own.sort(0).values, source.x.sort(0).values)
    assert (len(task.target), len(task.test), task.unlabelled) == (30, 4970, None)
    near, far = task.sources
    rows = task.manifest["target"]
    assert torch.equal(near.y[rows], task.target.y)
    assert not torch.equal(far.y[rows], task.target.y)
    fraction = load_task("rbf", protocol="paper", target_fraction=0.006)
    assert fraction.manifest["target"] == rows
    more = load_task("rbf", protocol="paper", n_target=60)
    assert {*rows} < {*more.manifest["target"]}


def test_the_papers_protocol_starts_in_a_cube():
    task = load_task("rbf", protocol="paper")
    model = build_model(task.model, task)
    drawn = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert len(drawn) == 6110
    assert float(drawn.abs().max()) < 0.5
    assert float(drawn.var()) == pytest.approx(1 / 12, rel=0.05)
    assert all(float(p.detach().abs().max()) > 0.35 for p in model.parameters())
    assert task.defaults["server_momentum"] == 0.9


def test_a_source_at_no_distance_has_the_targets_functions():
    world = _World.draw(generator(0, "functions"))
    x = np.random.default_rng(0).normal(size=(100, 50))
    apart = [
        np.abs(world.moved(d, generator(0, "m")).values(x) - world.values(x)).mean()
        for d in (0.0, 0.3, 1.0)
    ]
    assert apart[0] == 0
    assert 0 < apart[1] < apart[2]


def test_moved_functions_stay_within_the_distance():
    world = _World.draw(generator(0, "functions"))
    moved = world.moved(0.3, generator(0, "m"))
    by = (moved.middles - world.middles) / 0.3, (moved.widths - world.widths) / 30
    assert all(((part >= 0) & (part <= 1)).all() for part in by)
    assert by[0].mean() == pytest.approx(0.5, abs=0.02)


def test_sources_are_counted_or_listed():
    assert len(load_task("rbf", n_sources=3).sources) == 3
    listed = load_task("rbf", diff=[0.0, 0.7])
    assert listed.source_names == ("source 1", "source 2")
    alone = load_task("rbf", diff=0.7, n_sources=2)
    assert torch.equal(listed.sources[1].y, alone.sources[1].y)
    assert not torch.equal(alone.sources[0].x, alone.sources[1].x)


def test_the_target_does_not_depend_on_the_sources():
    near, far = load_task("rbf", diff=0.1), load_task("rbf", diff=0.9, n_sources=2)
    assert torch.equal(near.test.y, far.test.y)
    assert torch.equal(near.target.x, far.target.x)


def test_the_seed_decides():
    one, same, other = (load_task("rbf", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.test.y, same.test.y)
    assert not torch.equal(one.test.y, other.test.y)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"diff": -0.1}, OptionError, r"`diff` in \[0, 1\], but got -0.1"),
        ({"diff": [0.5, 2]}, OptionError, "`diff`.*but got 2"),
        ({"diff": "far"}, OptionError, "`diff`.*but got 'far'"),
        ({"diff": [0.1, 0.2], "n_sources": 3}, OptionError, "got 2 for 3 sources"),
        ({"diff": []}, OptionError, "one per source, but got 0"),
        ({"n_sources": 0}, OptionError, "`n_sources`.*from 1 to 1000"),
        ({"n_target": 5001}, DataError, "5000 training rows"),
        ({"n_target": 5000, "protocol": "paper"}, DataError, "fewer than all 5000"),
        ({"protocol": "papr"}, OptionError, "one of fair, paper, but got 'papr'"),
        ({"target": "source 1"}, UnknownNameError, "leave `target` out"),
    ],
)
def test_options_out_of_range_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        load_task("rbf", **options)
