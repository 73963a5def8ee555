"""Nearest points of cones and hulls, against SciPy and against brute force."""

import numpy as np
import pytest
import torch
from helpers import assert_close
from helpers import nearest_in_cone as cone_by_scipy
from helpers import nearest_in_hull as hull_by_faces
from hypothesis import given
from hypothesis import strategies as st

from fedbridge.core import projections
from fedbridge.core.gram import star
from fedbridge.core.projections import (
    MANY,
    cone_point,
    hull_point,
    nearest_in_cone,
    nearest_in_hull,
)
from fedbridge.core.sketch import ANGLES, JointAngles, joint_block


def vectors(seed, n, m):
    """A target and n sources of normal entries in m dimensions."""
    both = torch.randn(n + 1, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return both[0], both[1:]


def in_cone(target, sources):
    return nearest_in_cone(sources @ sources.T, sources @ target)


def in_hull(target, sources):
    differences = sources - target
    return nearest_in_hull(differences @ differences.T)


def assert_as_near(target, point, best):
    """The point is as near to the target as the best one known, to 1e-11 of the lengths."""
    best = torch.from_numpy(best)
    size = float(target.square().sum() + best.square().sum())
    excess = float((target - point).square().sum() - (target - best).square().sum())
    assert excess <= 1e-11 * size


def assert_cone_optimal(target, sources, tolerance=1e-9):
    """Coefficients fulfil the KKT conditions of the cone problem and match SciPy's distance."""
    coefficients = in_cone(target, sources)
    assert bool(coefficients.isfinite().all())
    assert bool((coefficients >= 0).all())
    lengths = sources.norm(dim=1)
    lengths[lengths == 0] = 1.0
    point = coefficients @ sources
    gain = sources @ (target - point) / lengths / target.norm()
    assert float(gain.max()) <= tolerance
    assert bool((gain[coefficients > 0].abs() <= tolerance).all())
    assert_as_near(target, point, cone_by_scipy(target.numpy(), sources.numpy()))
    return coefficients


def duplicated(sources):
    return torch.cat((sources, sources))


def nearly_duplicated(sources):
    return torch.cat((sources, sources + 1e-9 * sources.flip(0)))


def wildly_scaled(sources):
    return sources * torch.logspace(-30, 30, len(sources), dtype=torch.float64)[:, None]


def opposed(sources):
    return torch.cat((sources, -sources))


def nearly_opposed(sources):
    return torch.cat((sources, -sources + 1e-3 * sources.flip(0)))


def with_zeros(sources):
    return torch.cat((sources, torch.zeros_like(sources[:2])))


def dependent(sources):
    return torch.cat((sources, sources[:1] + sources[1:2], 2 * sources[:1] + 3 * sources[2:3]))


NASTY = [
    duplicated,
    nearly_duplicated,
    wildly_scaled,
    opposed,
    nearly_opposed,
    with_zeros,
    dependent,
]


@given(seed=st.integers(0, 10**6), n=st.integers(1, 12), m=st.integers(1, 15))
def test_the_cone_point_is_optimal(seed, n, m):
    assert_cone_optimal(*vectors(seed, n, m))


@pytest.mark.parametrize("spoil", NASTY)
@pytest.mark.parametrize("n", [3, 15])
@pytest.mark.parametrize("seed", range(5))
def test_the_cone_point_is_optimal_on_nasty_problems(spoil, n, seed):
    target, sources = vectors(seed, n, 20)
    assert_cone_optimal(target, spoil(sources))


def test_thirty_sources_in_many_dimensions():
    for seed in range(10):
        assert_cone_optimal(*vectors(seed, 30, 200))
        assert_cone_optimal(*vectors(seed, 30, 10))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_target_may_be_of_any_scale(scale):
    target, sources = vectors(0, 5, 9)
    assert_close(in_cone(scale * target, sources) / scale, in_cone(target, sources), rtol=1e-10)


def test_the_coefficient_undoes_the_scale_of_its_source():
    target, sources = vectors(3, 4, 9)
    scales = torch.tensor([1e-30, 1.0, 1e30, 7.0], dtype=torch.float64)
    scaled = in_cone(target, scales[:, None] * sources)
    assert_close(scaled * scales, in_cone(target, sources), rtol=1e-9)


def test_a_single_source_is_the_plain_projection_or_nothing():
    source = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    assert_close(in_cone(torch.tensor([3.0, 1.0], dtype=torch.float64), source), [1.5], rtol=1e-11)
    assert_close(in_cone(torch.tensor([-3.0, 1.0], dtype=torch.float64), source), [0.0])


def test_equal_sources_share_equally():
    target, sources = vectors(0, 1, 6)
    target = target + 3 * sources[0]
    coefficients = in_cone(target, sources.expand(4, -1))
    assert_close(coefficients, coefficients.mean().expand(4), rtol=1e-3)


def test_nothing_is_near_when_all_sources_are_opposed_or_zero_or_the_target_is_zero():
    target, sources = vectors(0, 4, 6)
    signs = -torch.sign(sources @ target)[:, None]
    assert in_cone(target, signs * sources).tolist() == [0.0] * 4
    assert in_cone(target, 0 * sources).tolist() == [0.0] * 4
    assert in_cone(0 * target, sources).tolist() == [0.0] * 4


def assert_hull_optimal(target, sources):
    shares = in_hull(target, sources)
    assert bool(shares.isfinite().all())
    assert bool((shares >= 0).all())
    assert_close(shares.sum(), 1.0)
    assert_as_near(target, shares @ sources, hull_by_faces(target.numpy(), sources.numpy()))
    return shares


@given(seed=st.integers(0, 10**6), n=st.integers(1, 5), m=st.integers(1, 7))
def test_the_hull_point_is_the_best_of_all_faces(seed, n, m):
    assert_hull_optimal(*vectors(seed, n, m))


@pytest.mark.parametrize("spoil", [duplicated, nearly_duplicated, opposed, with_zeros, dependent])
@pytest.mark.parametrize("seed", range(5))
def test_the_hull_point_is_the_best_of_all_faces_on_nasty_problems(spoil, seed):
    target, sources = vectors(seed, 3, 8)
    assert_hull_optimal(target, spoil(sources))


@pytest.mark.parametrize("distance", [1e-6, 1e-3, 1e3, 1e6])
def test_one_source_much_nearer_or_farther_than_the_others(distance):
    target, sources = vectors(4, 4, 6)
    sources[0] = target + distance * sources[0]
    assert_hull_optimal(target, sources)


def test_thirty_sources_fulfil_the_conditions_of_the_nearest_hull_point():
    for seed in range(10):
        target, sources = vectors(seed, 30, 40)
        shares = in_hull(target, sources)
        towards = (sources - target) @ (shares @ sources - target)
        nearest = float((shares @ sources - target).square().sum())
        assert float(towards.min()) >= nearest * (1 - 1e-9)
        assert_close(towards[shares > 0], np.full(int((shares > 0).sum()), nearest), rtol=1e-9)


def test_sources_at_the_target_take_everything():
    target, sources = vectors(5, 4, 6)
    sources[1] = sources[3] = target
    assert in_hull(target, sources).tolist() == [0.0, 0.5, 0.0, 0.5]


@pytest.mark.parametrize("n", [MANY, 150])
@pytest.mark.parametrize("change", [lambda s: s, duplicated, nearly_duplicated])
@pytest.mark.parametrize("m", [40, 400])
def test_many_sources_are_as_near_as_scipy_says(n, change, m):
    target, sources = vectors(n + m, n, m)
    assert_cone_optimal(target, change(sources + 0.2 * target))


@pytest.mark.parametrize("common", [0.0, 2.0])
def test_guessing_all_sources_at_once_finds_what_letting_them_in_one_by_one_does(
    monkeypatch, common
):
    target, sources = vectors(3, 120, 300)
    sources = sources + common * target
    at_once = in_cone(target, sources), in_hull(target, sources)
    monkeypatch.setattr(projections, "MANY", 1000)
    assert_close(at_once[0], in_cone(target, sources), rtol=1e-9, atol=1e-13)
    assert_close(at_once[1], in_hull(target, sources), rtol=1e-9, atol=1e-13)


def test_a_guess_that_does_not_settle_is_given_up(monkeypatch):
    target, sources = vectors(4, 100, 300)
    expected = in_cone(target, sources)
    monkeypatch.setattr(projections, "PIVOTS", 1)
    assert_close(in_cone(target, sources), expected, rtol=1e-9, atol=1e-13)


def test_a_thousand_equal_sources_share_about_equally():
    """To what rounding leaves of the ridge; none takes all, none goes empty."""
    target, sources = vectors(5, 1, 50)
    shares = in_hull(target, sources.expand(1000, -1))
    assert 0.5e-3 < float(shares.min()) <= float(shares.max()) < 2e-3


# Of very many sources only sketched angles are kept.


def with_odd_ones(target, sources):
    """A zero, multiples of the target and a pair of equals among the sources."""
    odd = sources.clone()
    odd[5], odd[7], odd[9], odd[11] = 0, 2 * target, -target, odd[12]
    return target, odd


SEEN = {
    "something of the target": lambda t, s: (t, s + 0.3 * t),
    "groups": lambda t, s: (t, (t + 1.5 * s[:10])[torch.arange(len(s)) % 10] + 0.1 * s),
    "odd ones": with_odd_ones,
    "all equal": lambda t, s: (t, (t + s[:1]).repeat(len(s), 1)),
    "all parallel": lambda t, s: (t, t * torch.linspace(0.1, 3, len(s))[:, None]),
    "no target": lambda t, s: (torch.zeros_like(t), s),
    "nothing": lambda t, s: (t, torch.zeros_like(s)),
    "the target itself": lambda t, s: (t, torch.cat((t[None], s))),
    "opposed": lambda t, s: (t, 0.5 * s - t),
    "20 directions": lambda t, s: (t, torch.randn(len(s), 20) @ s[:20] + 0.3 * t),
    "near": lambda t, s: (t, t + 1e-4 * s),
    "all scales": lambda t, s: (t, s * torch.logspace(-6, 6, len(s))[:, None]),
}


@pytest.mark.parametrize("point", [cone_point, hull_point])
@pytest.mark.parametrize("case", SEEN)
def test_sketched_angles_have_the_nearest_point_of_the_matrix_that_they_stand_for(case, point):
    torch.manual_seed(0)
    drawn = torch.randn(301, ANGLES + 500)
    target, sources = SEEN[case](drawn[0], drawn[1:])
    columns = slice(0, len(target))
    seen = joint_block(target, sources, columns, star(target, sources, columns))
    assert isinstance(seen, JointAngles)
    gram = seen.gram()
    found, apart = point(seen)
    best, distance2 = point(gram)
    assert bool((found >= 0).all())
    if point is hull_point:
        assert_close(found.sum(), 1.0)
    size = float(gram[0, 0] + best @ gram[1:, 1:] @ best)
    assert abs(float(apart - distance2)) <= 1e-9 * size
    mixture = torch.cat((torch.tensor([-1.0], dtype=torch.float64), found))
    assert abs(float(mixture @ gram @ mixture) - float(distance2)) <= 1e-9 * size


def test_sketched_angles_need_one_matrix_besides_their_own(monkeypatch):
    """Where the guess settles, which is the rule, products among sources are never written out."""
    torch.manual_seed(0)
    drawn = torch.randn(401, ANGLES + 500)
    columns = slice(0, drawn.shape[1])
    seen = joint_block(drawn[0], drawn[1:], columns, star(drawn[0], drawn[1:], columns))
    monkeypatch.setattr(JointAngles, "gram", None)
    assert float(hull_point(seen)[1]) > 0
    assert float(cone_point(seen)[1]) > 0
    assert seen.cosines.dtype == torch.float32
