"""Slices of a vector and where a model's head lies in it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import blobs

from fedbridge.core.blocks import parameter_vector
from fedbridge.models import build_model, head_slices
from fedbridge.training.state import complement, entries, overwrite, put


@st.composite
def slices(draw):
    cuts = sorted(draw(st.sets(st.integers(0, 20), max_size=8)))
    return tuple(zip(cuts[::2], cuts[1::2], strict=False))


@given(slices())
def test_a_vector_is_its_stretches_and_the_others(some):
    covered = torch.zeros(20)
    for start, end in (*some, *complement(some, 20)):
        covered[start:end] += 1
    assert bool((covered == 1).all())


def test_overwriting_touches_the_stretches_alone():
    vector = torch.zeros(2, 5)
    overwrite(vector, torch.arange(5.0), ((1, 2), (3, 5)))
    assert vector.tolist() == [[0, 1, 0, 3, 4]] * 2


@given(slices().filter(bool))
def test_entries_are_put_back_where_they_were(some):
    vector, blank = torch.arange(1.0, 21.0), torch.zeros(20)
    put(blank, entries(vector, some), some)
    overwrite(vector, torch.zeros(20), complement(some, 20))
    assert torch.equal(blank, vector)


@pytest.mark.parametrize("name", ["mlp:8"])
def test_the_head_is_where_its_parameters_are(name):
    model = build_model(name, blobs())
    before = parameter_vector(model).clone()
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter += 1
    changed = (parameter_vector(model) != before).nonzero().flatten().tolist()
    expected = [k for start, end in head_slices(model) for k in range(start, end)]
    assert changed == expected
