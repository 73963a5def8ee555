"""Sorting networks sort, whatever the number of vectors."""

import pytest
import torch

from fedbridge.ordering import comparators, sorted_rows


@pytest.mark.parametrize("count", [*range(1, 18), 31, 50])
def test_every_column_is_sorted(count):
    matrix = torch.randn(count, 200, generator=torch.Generator().manual_seed(count))
    assert torch.equal(torch.stack(sorted_rows(matrix)), matrix.sort(dim=0).values)


@pytest.mark.parametrize("count", range(1, 11))
def test_a_network_that_sorts_zeros_and_ones_sorts_everything(count):
    """The zero-one principle: all 2^n lists of zeros and ones are proof enough."""
    matrix = torch.tensor([[int(bit) for bit in f"{n:0{count}b}"] for n in range(2**count)]).T
    assert torch.equal(torch.stack(sorted_rows(matrix)), matrix.sort(dim=0).values)


def test_nothing_to_compare_for_one_vector():
    assert list(comparators(1)) == list(comparators(0)) == []
