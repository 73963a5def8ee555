"""A model as one vector with named blocks."""

import pytest
import torch
from torch import nn

from fedbridge.base.errors import ShapeError
from fedbridge.core import blocks as fb
from fedbridge.core.blocks import Blocks


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1, bias=False))


def test_the_whole_model_is_one_block():
    whole = Blocks.whole(7)
    assert (whole.names, whole.sizes, whole.total, len(whole)) == (("model",), (7,), 7, 1)


def test_slices_follow_each_other_and_cover_the_vector():
    assert list(Blocks.of_sizes([2, 1, 4]).slices()) == [slice(0, 2), slice(2, 3), slice(3, 7)]


def test_blocks_known_by_size_are_numbered():
    assert Blocks.of_sizes([2, 1]).names == ("block 0", "block 1")


def test_blocks_of_a_model_are_its_parameter_tensors_in_order(model):
    cut = Blocks.of_model(model)
    assert cut.names == ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight")
    assert cut.sizes == (6, 3, 3, 3, 3)


def test_resolve_takes_none_sizes_and_blocks_alike():
    cut = Blocks(("a", "b"), (2, 3))
    assert Blocks.resolve(None, 5) == Blocks.whole(5)
    assert Blocks.resolve([2, 3], 5).sizes == Blocks.resolve((2, 3), 5).sizes == (2, 3)
    assert Blocks.resolve(cut, 5) is cut


def test_first_without_names_the_block_of_the_first_false_entry():
    cut = Blocks(("head", "tail"), (2, 2))
    assert cut.first_without(torch.tensor([True, True, False, True])) == "tail"
    assert cut.first_without(torch.tensor([True, False, False, True])) == "head"


def test_every_block_of_a_model_finds_its_tensor_in_the_vector(model):
    vector = fb.parameter_vector(model)
    cut = Blocks.of_model(model)
    own = dict(model.named_parameters())
    for name, columns in zip(cut.names, cut.slices(), strict=True):
        assert torch.equal(vector[columns], own[name].detach().reshape(-1))


def test_writing_a_vector_back_gives_the_same_vector(model):
    vector = torch.arange(18.0)
    fb.load_parameter_vector(model, vector)
    assert torch.equal(fb.parameter_vector(model), vector)
    assert model[0].weight.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("build", [lambda: nn.Linear(2, 1, bias=False), lambda: nn.Linear(2, 3)])
def test_the_parameter_vector_is_a_copy(build):
    model = build()
    before = fb.parameter_vector(model)
    fb.parameter_vector(model).zero_()
    assert torch.equal(fb.parameter_vector(model), before)


def test_frozen_parameters_stay_out_of_the_vector_and_stay_put(model):
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    assert Blocks.of_model(model).names == ("1.weight", "1.bias", "2.weight")
    assert len(fb.parameter_vector(model)) == 9
    fb.load_parameter_vector(model, torch.arange(9.0))
    assert torch.equal(model[0].weight, frozen)
    assert model[2].weight.tolist() == [[6.0, 7.0, 8.0]]


def test_a_shared_parameter_appears_once():
    layer = nn.Linear(2, 2, bias=False)
    tied = nn.Sequential(layer, layer)
    assert Blocks.of_model(tied).total == len(fb.parameter_vector(tied)) == 4


def test_buffers_stay_out_of_the_vector_and_travel_apart(model):
    buffers = fb.buffer_copies(model)
    assert set(buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    model(torch.randn(8, 2))
    assert not torch.equal(model[1].running_mean, buffers["1.running_mean"])
    fb.load_buffers(model, buffers)
    assert torch.equal(model[1].running_mean, torch.zeros(3))
    assert int(model[1].num_batches_tracked) == 0


def test_buffers_of_another_model_are_refused(model):
    buffers = fb.buffer_copies(model)
    with pytest.raises(ShapeError, match=r"1\.running_mean.*shape \(3,\).*\(4,\)"):
        fb.load_buffers(model, {**buffers, "1.running_mean": torch.zeros(4)})
    with pytest.raises(ShapeError, match="Expected the model's buffers"):
        fb.load_buffers(model, {"other": torch.zeros(3)})


def test_a_vector_of_the_wrong_length_is_refused_before_anything_is_written(model):
    before = fb.parameter_vector(model)
    with pytest.raises(ShapeError, match=r"model's 18 trainable parameters.*\(17,\)"):
        fb.load_parameter_vector(model, torch.zeros(17))
    assert torch.equal(fb.parameter_vector(model), before)


def test_a_model_without_parameters_has_no_vector():
    with pytest.raises(ShapeError, match="with trainable parameters"):
        fb.parameter_vector(nn.ReLU())
    with pytest.raises(ShapeError, match="at least one block"):
        Blocks.of_model(nn.ReLU())


@pytest.mark.parametrize("sizes", [(0,), (2, -1), (1.5,), (True,)])
def test_a_block_needs_a_whole_number_of_entries(sizes):
    with pytest.raises(ShapeError, match="whole number of entries above 0"):
        Blocks.of_sizes(sizes)


def test_every_block_needs_a_name():
    with pytest.raises(ShapeError, match="one name per block"):
        Blocks(("a",), (1, 2))
