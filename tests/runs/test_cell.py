"""The key of a run: the same for the same run however it is said, another for any other."""

import hashlib
from dataclasses import replace

import pytest
import torch

from fedbridge.base.errors import OptionError
from fedbridge.runs.cell import CellSpec

SPEC = CellSpec(
    "digits-noise",
    "fedgp",
    seed=0,
    rounds=50,
    task_options={"noise": 0.4, "n_target": 30},
    options={"beta": 0.5, "lr": 0.1},
)


def test_the_key_is_of_the_content_and_stays():
    text = (
        '{"data_sha256":null,"generation":1,"method":"fedgp","options":{"beta":0.5,"lr":0.1},'
        '"rounds":50,"seed":0,"target":null,"task":"digits-noise",'
        '"task_options":{"n_target":30,"noise":0.4}}'
    )
    assert SPEC.key == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "same",
    [
        {"options": {"lr": 0.1, "beta": 0.50}},
        {"options": {"beta": torch.tensor(0.5, dtype=torch.float64), "lr": 0.1}},
        {"options": {"beta": 0.5, "lr": 0.1, "workers": 3}},
        {"task_options": {"n_target": 30.0, "noise": 0.4}},
    ],
)
def test_order_spelling_and_workers_do_not_matter(same):
    assert replace(SPEC, **same).key == SPEC.key


def test_a_list_is_a_tuple():
    listed, packed = ({"beta": kind([0.1, 1.0])} for kind in (list, tuple))
    assert replace(SPEC, options=listed).key == replace(SPEC, options=packed).key


@pytest.mark.parametrize(
    "other",
    [
        {"task": "digits-contrast"},
        {"method": "fedda"},
        {"seed": 1},
        {"rounds": 51},
        {"target": "north"},
        {"task_options": {"noise": 0.4}},
        {"task_options": {"noise": 0.2, "n_target": 30}},
        {"options": {"beta": 0.5, "lr": 0.2}},
        {"options": {"beta": 0.5, "lr": 0.1, "align": True}},
        {"options": {"beta": 0.5, "lr": 0.1, "lr_target": None}},
        {"options": {"beta": "0.5", "lr": 0.1}},
        {"data_sha256": "0" * 64},
    ],
)
def test_whatever_decides_a_result_is_in_the_key(other):
    assert replace(SPEC, **other).key != SPEC.key


def test_options_of_the_task_are_not_those_of_the_run():
    one = replace(SPEC, task_options={"noise": 1}, options={})
    assert one.key != replace(SPEC, task_options={}, options={"noise": 1}).key


def test_true_is_not_one():
    assert replace(SPEC, options={"x": True}).key != replace(SPEC, options={"x": 1}).key


def test_an_object_has_no_key():
    with pytest.raises(OptionError, match="model='module:function'"):
        _ = replace(SPEC, options={"model": torch.nn.Linear(1, 1)}).key
