"""Lengths, angles and noise: what a rule sees."""

from dataclasses import FrozenInstanceError

import pytest
import torch
from helpers import assert_close, random_round, rounds, tensor
from hypothesis import given

from fedbridge import Blocks, Geometry, Noise, measure
from fedbridge.base.errors import NoiseUndefinedError
from fedbridge.core.estimators import measure_noise
from fedbridge.core.geometry import divide


@pytest.fixture
def by_hand() -> Geometry:
    """Target (4, 2), sources (2, 0) and (0, -1), a zero source; noise 2 with 1 along each axis."""
    covariance = tensor([[4.0, -2.0, 0.0], [-2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    return measure(
        tensor(4.0, 2.0),
        tensor([2.0, 0.0], [0.0, -1.0], [0.0, 0.0]),
        Blocks.whole(2),
        noise=Noise(tensor(2.0), covariance),
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("target2", [20.0]),
        ("source2", [[4.0, 1.0, 0.0]]),
        ("inner", [[8.0, -2.0, 0.0]]),
        ("cosine", [[8 / 80**0.5, -2 / 20**0.5, 0.0]]),
        ("distance2", [[8.0, 25.0, 20.0]]),
        ("line2", [[4.0, 16.0, 20.0]]),
        ("difference_gram", [[[8.0, 14.0, 12.0], [14.0, 25.0, 22.0], [12.0, 22.0, 20.0]]]),
    ],
)
def test_lengths_and_angles_by_hand(by_hand, name, expected):
    assert_close(getattr(by_hand, name), expected)


def test_noise_along_a_source_does_not_depend_on_its_length(by_hand):
    assert_close(by_hand.along(), [[1.0, 1.0, 0.0]])


def test_noise_along_the_sources_is_0_when_nobody_measured_it(by_hand):
    blind = Geometry(by_hand.blocks, by_hand.gram, by_hand.weights, noise=Noise(tensor(2.0)))
    assert_close(blind.along(), [[0.0, 0.0, 0.0]])


@given(rounds())
def test_every_quantity_equals_its_meaning_in_vectors(drawn):
    target, sources = drawn.target, drawn.sources
    seen = measure(target, sources, Blocks.whole(len(target)))
    size = drawn.largest**2 * len(target)
    unit = torch.nn.functional.normalize(sources, dim=1)
    projected = (unit @ target)[:, None] * unit
    assert_close(seen.distance2[0], (sources - target).square().sum(1), atol=1e-14 * size)
    assert_close(seen.line2[0], (target - projected).square().sum(1), atol=1e-14 * size)
    assert bool((seen.cosine.abs() <= 1).all())


def test_blocks_are_measured_one_by_one_and_add_up_to_the_whole():
    drawn = random_round(0, n=3, m=7)
    seen = measure(drawn.target, drawn.sources, Blocks.of_sizes([2, 4, 1]))
    rows = torch.cat((drawn.target[None], drawn.sources))
    assert_close(seen.gram[1], rows[:, 2:6] @ rows[:, 2:6].T, atol=1e-13)
    assert_close(seen.whole().gram[0], rows @ rows.T, atol=1e-13)
    assert seen.whole().blocks == Blocks.whole(7)


def test_noise_of_the_whole_is_the_sum_over_blocks():
    seen = Geometry(
        Blocks.of_sizes([1, 1]),
        torch.ones(2, 2, 2, dtype=torch.float64),
        tensor(1.0),
        noise=Noise(tensor(2.0, 3.0), tensor([[1.0]], [[4.0]]), tensor([1.0], [0.0]), batches=3),
    )
    whole = seen.whole().require_noise()
    assert (whole.sigma2.tolist(), whole.covariance.tolist()) == ([5.0], [[[5.0]]])
    assert whole.agreement is None  # a share of batches does not add up over blocks
    assert whole.batches == 3


def test_noise_that_blocks_have_in_common_is_not_their_sum():
    noise = Noise(tensor(2.0, 3.0), tensor([[1.0]], [[4.0]]), whole_covariance=tensor([[9.0]]))
    assert noise.whole().covariance.tolist() == [[[9.0]]]
    scaled = noise.scaled_to(tensor(4.0, 6.0))
    assert scaled.covariance.tolist() == [[[2.0]], [[8.0]]]
    assert scaled.whole().covariance.tolist() == [[[18.0]]]


def test_one_block_is_its_own_whole(by_hand):
    assert by_hand.whole() is by_hand


def test_noise_of_another_size_keeps_its_shape():
    noise = Noise(tensor(2.0), tensor([[4.0]]), tensor([0.5]), batches=4)
    scaled = noise.scaled_to(tensor(6.0))
    assert (scaled.sigma2.item(), scaled.covariance.item()) == (6.0, 12.0)
    assert (scaled.agreement.item(), scaled.batches) == (0.5, 4)
    assert Noise(tensor(1.0)).scaled_to(tensor(3.0)) == Noise(tensor(3.0))


def test_noise_scaled_up_from_nothing_stays_finite():
    flat = Noise(tensor(0.0), tensor([[0.0]]))
    assert flat.scaled_to(tensor(1.0)).covariance.item() == 0.0


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        (None, [1 / 3, 1 / 3, 1 / 3]),
        ([3, 1, 0], [0.75, 0.25, 0.0]),
        (torch.tensor([10, 30, 60]), [0.1, 0.3, 0.6]),
        ([99, 3, 1, 0], [0.75, 0.25, 0.0]),
    ],
    ids=["equal", "counts", "tensor", "target first"],
)
def test_weights_become_shares_of_the_sources(weights, shares):
    drawn = random_round(1, n=3)
    seen = measure(drawn.target, drawn.sources, Blocks.whole(6), weights=weights)
    assert_close(seen.weights, shares)


@pytest.mark.parametrize(
    ("batches", "says"), [(1, r"B = 1.*sigma2"), (0, "pass `batches`.*sigma2")]
)
def test_missing_noise_is_a_named_error_that_says_what_to_do(batches, says):
    drawn = random_round(1)
    seen = measure(drawn.target, drawn.sources, Blocks.whole(6), batches=batches)
    with pytest.raises(NoiseUndefinedError, match=says):
        seen.require_noise()


def test_a_geometry_cannot_be_changed(by_hand):
    with pytest.raises(FrozenInstanceError):
        by_hand.gram = by_hand.gram


def test_division_by_zero_is_zero():
    assert divide(tensor(6.0, 1.0, 0.0), tensor(3.0, 0.0, 0.0)).tolist() == [2.0, 0.0, 0.0]


def test_rescaled_is_measuring_the_scaled_sources():
    drawn = random_round(3, n=3, m=9)
    cut, factors = Blocks.of_sizes([4, 5]), tensor(0.5, 2.0, 3.0)
    scaled = factors[:, None] * drawn.sources
    _, before = measure_noise(drawn.batches, drawn.sources, cut)
    _, after = measure_noise(drawn.batches, scaled, cut)
    found = measure(drawn.target, drawn.sources, cut, noise=before).rescaled(factors)
    expected = measure(drawn.target, scaled, cut, noise=after)
    assert_close(found.gram, expected.gram, rtol=1e-12)
    for name, value in vars(expected.noise).items():
        assert_close(getattr(found.noise, name), value, rtol=1e-10)
