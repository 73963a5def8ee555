"""Options of a run are checked when it is set up, and unknown ones suggest the nearest."""

import pytest
from torch import nn

from fedbridge.base.errors import OptionError, UnknownOptionError
from fedbridge.federation.settings import Settings, split_options


@pytest.mark.parametrize(
    "wrong",
    [
        {"blocks": "layer"},
        {"evidence": "prob"},
        {"weights": "size"},
        {"buffers": "source"},
        {"noise_from": "all"},
        {"participation": 0.0},
        {"participation": 1.5},
        {"dropout": 1.0},
        {"warmup": -1},
        {"lr_factor": 0.0},
        {"early_stopping": 0},
        {"validation_fraction": 1.0},
        {"probe_batches": 0},
        {"probe_batch_size": 0},
        {"server_momentum": 1.0},
    ],
)
def test_values_outside_their_range_are_refused(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Settings(**wrong)


def test_the_target_trains_like_the_sources_unless_said_otherwise():
    settings = Settings(lr=0.3, batch_size=7, epochs=2)
    source, target = settings.source_plan(warm=False), settings.target_plan(warm=False)
    assert (target.lr, target.batch_size, target.epochs) == (0.3, 7, 2)
    assert source.drop_last
    assert not target.drop_last
    own = Settings(lr=0.3, lr_target=0.1, batch_size_target=3, epochs_target=5).target_plan(
        warm=False
    )
    assert (own.lr, own.batch_size, own.epochs) == (0.1, 3, 5)


def test_options_are_sorted_into_run_and_method_and_defaults_give_way():
    settings, own = split_options(
        {"lr": 0.5, "beta": 0.3}, "fedda", ("beta",), {"lr": 0.1, "batch_size": 4, "colour": 1}
    )
    assert (settings.lr, settings.batch_size) == (0.5, 4)
    assert own == {"beta": 0.3}


def test_an_unknown_option_suggests_the_nearest():
    with pytest.raises(UnknownOptionError, match=r"'batch_siz'.*'batch_size'"):
        split_options({"batch_siz": 4}, "fedda", ("beta",), {})
    with pytest.raises(UnknownOptionError, match="beta"):
        split_options({"beta": 0.5}, "fedda-joint", (), {})


@pytest.mark.parametrize(
    ("given", "usual", "policy"),
    [
        ({}, "resnet18:pretrained", "frozen"),
        ({}, "resnet50:pretrained", "frozen"),
        ({"model": "resnet50:weights/mine.pth"}, "cnn", "frozen"),
        ({"model": "resnet18:mine.safetensors"}, None, "frozen"),
        ({}, "resnet18", "target"),
        ({}, "resnet18:normalised", "target"),
        ({"model": "cnn"}, "resnet18:pretrained", "target"),
        ({"buffers": "mean"}, "resnet18:pretrained", "mean"),
        ({"model": nn.Linear(2, 2)}, "resnet18:pretrained", "target"),
    ],
)
def test_pretrained_residual_networks_have_their_statistics_frozen(given, usual, policy):
    settings, _ = split_options(given, "fedda", (), {}, usual)
    assert settings.buffers == policy
    of_task, _ = split_options(given, "fedda", (), {"buffers": "keep"}, usual)
    assert of_task.buffers == given.get("buffers", "keep")
