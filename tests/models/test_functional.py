"""A model called with other numbers answers with them and keeps its own."""

import pytest
import torch
from small import blobs
from torch import nn

import fedbridge as fb
from fedbridge.models import called_with


class Twice(nn.Module):
    """A layer that stands in the model under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 4)
        self.features = nn.Sequential(self.first, nn.BatchNorm1d(4), nn.Tanh())
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.features(x))


def test_says_what_a_model_with_these_numbers_says():
    torch.manual_seed(0)
    model, other, x = Twice().eval(), Twice().eval(), torch.randn(5, 2)
    tensors = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    torch.testing.assert_close(called_with(model, tensors, x), other(x))


def test_leaves_the_model_as_it_was():
    model = Twice()
    own, state = (
        dict(model.named_parameters()),
        {k: v.clone() for k, v in model.state_dict().items()},
    )
    given = {name: torch.zeros_like(value) for name, value in own.items()}
    called_with(model.eval(), given, torch.randn(5, 2))
    assert all(value is own[name] for name, value in model.named_parameters())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("method", ["auto", "apfl"])
def test_a_network_with_a_layer_under_two_names_can_be_adapted(method):
    result = fb.run(blobs(), method, 18, workers=1, model=Twice(), lr=0.1)
    assert result.accuracy > 80
