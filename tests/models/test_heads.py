"""The last layer of a model: found, fed and replaced."""

import pytest
import torch
from small import Normed, blobs
from torch import nn

from fedbridge.base.errors import ModelError
from fedbridge.core.blocks import load_parameter_vector, parameter_vector
from fedbridge.models import HeadPlace, build_model, head_inputs, linear_head
from fedbridge.training.state import complement, entries


@pytest.mark.parametrize("model", ["linear", "mlp:5", Normed()])
def test_a_model_is_its_last_layer_on_what_goes_into_it(model):
    task = blobs()
    built = build_model(model, task).eval()
    features = head_inputs(built, task.test.x)
    torch.testing.assert_close(linear_head(built)(features), built(task.test.x))


def test_the_features_of_a_linear_model_are_its_inputs():
    task = blobs()
    assert torch.equal(head_inputs(build_model("linear", task), task.test.x), task.test.x)


@pytest.mark.parametrize("model", ["linear", "mlp:5", Normed()])
def test_another_last_layer_is_put_in_place_and_nothing_else_changes(model):
    built = build_model(model, blobs())
    place = HeadPlace.of(built)
    before = parameter_vector(built)
    weight, bias = torch.randn(place.shape).double(), torch.randn(place.shape[0]).double()
    after = place.put(before, weight, bias)
    body = complement(place.slices, len(before))
    assert body == () or torch.equal(entries(before, body), entries(after, body))
    load_parameter_vector(built, after)
    assert torch.equal(linear_head(built).weight, weight.float())
    assert all(
        map(torch.equal, place.read(after), (weight.float().double(), bias.float().double()))
    )


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Linear(2, 3)), nn.ModuleDict({"head": nn.ReLU()})],
    ids=["unnamed", "not linear"],
)
def test_a_model_without_one_is_told_what_is_missing(model):
    with pytest.raises(ModelError, match="named `head` and is linear"):
        linear_head(model)


def test_a_last_layer_without_a_bias_is_none():
    model = build_model("linear", blobs())
    model.head = nn.Linear(2, 3, bias=False)
    with pytest.raises(ModelError, match="linear with a bias"):
        linear_head(model)
