"""Inner products of long vectors, to the digits that are promised."""

import pytest
import torch
from helpers import assert_close
from hypothesis import given
from hypothesis import strategies as st

from fedbridge.core import gram as module
from fedbridge.core.gram import FEW, RUN, SHORT, WORKSPACE, gram, inner, reliable_gram, star


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def relative_error(measured, rows):
    """Largest error of an inner product beside the product of the two lengths."""
    exact = rows.to(torch.float64) @ rows.to(torch.float64).T
    lengths = exact.diagonal().sqrt()
    return float(((measured - exact) / torch.outer(lengths, lengths)).abs().max())


@pytest.mark.parametrize("m", [1, RUN - 1, RUN, RUN + 1, 2 * RUN, 5 * RUN + 7])
@pytest.mark.parametrize("workspace", [1, 8 * RUN, 2**20])
def test_gram_adds_up_all_columns_however_they_are_cut(monkeypatch, m, workspace):
    monkeypatch.setattr(module, "WORKSPACE", workspace)
    rows = normal(4, m)
    assert_close(gram((rows[:1], rows[1:]), slice(0, m)), rows @ rows.T, atol=1e-11)


@given(start=st.integers(0, 1200), width=st.integers(1, 1200))
def test_gram_sees_only_its_columns(start, width):
    rows = normal(3, 2400)
    part = rows[:, start : start + width]
    assert_close(gram((rows,), slice(start, start + width)), part @ part.T, atol=1e-11)


def test_inner_products_of_two_sets():
    left, right = normal(2, 700), normal(3, 700, seed=1, dtype=torch.float32)
    expected = left[:, 5:] @ right.to(torch.float64)[:, 5:].T
    assert_close(inner(left, right, slice(5, 700)), expected, atol=1e-11)


@pytest.mark.parametrize("positive", [False, True])
def test_long_float32_vectors_are_measured_to_1e8(positive):
    rows = normal(6, 4 * SHORT, dtype=torch.float32)
    rows = rows.abs() if positive else rows
    fast = gram((rows,), slice(0, rows.shape[1]), torch.float32)
    reliable = reliable_gram((rows,), slice(0, rows.shape[1]))
    assert relative_error(reliable, rows) < 2e-8
    assert torch.equal(reliable, fast)


@pytest.mark.parametrize("m", [2, 100, RUN, 20_000])
def test_short_float32_vectors_are_measured_in_float64(m):
    rows = normal(6, m, dtype=torch.float32)
    assert relative_error(reliable_gram((rows,), slice(0, m)), rows) < 1e-12


def test_the_difference_of_nearly_equal_float32_vectors_survives():
    first = normal(SHORT, dtype=torch.float32)
    rows = torch.stack((first, first + 1e-4 * normal(SHORT, seed=1, dtype=torch.float32)))
    measured = reliable_gram((rows,), slice(0, SHORT))
    difference = (rows[1].double() - rows[0].double()).square().sum()
    assert_close(measured[0, 0] + measured[1, 1] - 2 * measured[0, 1], difference, rtol=1e-6)


@pytest.mark.parametrize(
    "scales", [(1e30, 1e30), (1e-30, 1e-30), (1e30, 1e-30), (1.0, 1e-25), (1e-22, 1.0)]
)
@pytest.mark.parametrize("m", [10, SHORT])
def test_float32_scales_whose_squares_leave_float32(scales, m):
    rows = normal(2, m, dtype=torch.float32) * torch.tensor(scales)[:, None]
    measured = reliable_gram((rows,), slice(0, m))
    assert bool((measured.diagonal() > 0).all())
    assert relative_error(measured, rows) < 2e-8


def test_one_huge_entry_among_small_ones():
    rows = normal(2, SHORT, dtype=torch.float32)
    rows[0, 17] = 1e25
    assert relative_error(reliable_gram((rows,), slice(0, SHORT)), rows) < 2e-8


def test_a_zero_vector_does_not_disturb_the_others():
    rows = normal(3, SHORT, dtype=torch.float32)
    rows[1] = 0
    measured = reliable_gram((rows[:1], rows[1:]), slice(0, SHORT))
    assert bool((measured[1] == 0).all())
    assert bool((measured[:, 1] == 0).all())
    kept = rows[[0, 2]]
    assert relative_error(measured[[0, 2]][:, [0, 2]], kept) < 2e-8


@pytest.mark.parametrize(
    "lay_out",
    [
        lambda rows: rows.T.contiguous().T,
        lambda rows: torch.stack((rows, rows), -1)[..., 1],
        lambda rows: rows[:1].expand(3, -1),
        lambda rows: rows[:, :1].expand(-1, 1300),
    ],
    ids=["transposed", "strided", "expanded rows", "expanded columns"],
)
def test_memory_layout_does_not_matter(lay_out):
    rows = lay_out(normal(3, 1300))
    dense = rows.contiguous()
    assert torch.equal(gram((rows,), slice(0, 1300)), gram((dense,), slice(0, 1300)))


def test_types_may_differ_and_inputs_are_not_changed():
    halves, doubles = normal(2, 900, dtype=torch.float16), normal(1, 900, seed=1)
    before = halves.clone(), doubles.clone()
    together = torch.cat((doubles, halves.to(torch.float64)))
    assert_close(reliable_gram((doubles, halves), slice(0, 900)), together @ together.T, atol=1e-11)
    assert torch.equal(halves, before[0])
    assert torch.equal(doubles, before[1])


# Each source against the target.


def star_error(target, sources, columns=None):
    """Largest error of a squared length or inner product beside the lengths."""
    part = columns or slice(0, len(target))
    target2, products, squares = star(target, sources, part)
    t, s = target[part].double(), sources[:, part].double()
    lengths = t.norm() * s.norm(dim=1)
    errors = [
        (target2 - t @ t).abs() / (t @ t),
        ((products - s @ t).abs() / lengths).max(),
        ((squares - s.square().sum(1)).abs() / s.square().sum(1)).max(),
    ]
    return max(float(error) for error in errors)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize(("n", "m"), [(10, 4 * SHORT + 77), (60, 20_011), (300, 5000)])
def test_sources_against_the_target_in_float32_to_1e8(positive, n, m):
    rows = normal(n + 1, m, dtype=torch.float32)
    rows = rows.abs() if positive else rows
    assert (n + 1) * m >= WORKSPACE
    assert 0 < star_error(rows[0], rows[1:]) < 6e-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("m", [1, 10, RUN + 3, 9000])
def test_many_short_sources_against_the_target_in_float64(dtype, m):
    rows = normal(3 * FEW, m).to(dtype)
    assert star_error(rows[0], rows[1:]) < 1e-13


def test_few_short_sources_have_the_bits_of_the_whole_matrix():
    rows = normal(FEW, 3000, dtype=torch.float32)
    target2, products, squares = star(rows[0], rows[1:], slice(5, 2900))
    whole = reliable_gram((rows,), slice(5, 2900))
    assert torch.equal(target2, whole[0, 0])
    assert torch.equal(products, whole[0, 1:])
    assert torch.equal(squares, whole.diagonal()[1:])


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_sources_that_float32_cannot_tell_are_measured_again(share):
    """Nearly parallel ones, and lengths whose squares leave its range, one or all of them."""
    rows = normal(41, 30_000, dtype=torch.float32)
    hard = max(1, int(share * 40))
    for kind in (lambda row: rows[0] + 1e-4 * row, lambda row: 1e-28 * row, lambda row: 1e25 * row):
        sources = rows[1:].clone()
        sources[:hard] = torch.stack([kind(row) for row in sources[:hard]])
        target2, products, squares = star(rows[0], sources, slice(0, 30_000))
        t, s = rows[0].double(), sources.double()
        assert bool((squares[:hard] > 0).all())
        found = target2 - products.square() / squares
        expected = (t - (s @ t / s.square().sum(1))[:, None] * s).square().sum(1)
        assert_close(found[:hard], expected[:hard], rtol=1e-6)
        assert star_error(rows[0], sources) < 6e-8


def test_a_source_of_zeros_has_no_length():
    rows = normal(41, 30_000, dtype=torch.float32)
    rows[3] = 0
    _, products, squares = star(rows[0], rows[1:], slice(0, 30_000))
    assert (float(products[2]), float(squares[2])) == (0.0, 0.0)


@pytest.mark.parametrize("lay_out", [lambda x: x.T.contiguous().T, lambda x: x[:1].expand(41, -1)])
def test_many_sources_in_any_layout(lay_out):
    rows = lay_out(normal(41, 30_000, dtype=torch.float32))
    target = normal(30_000, seed=9, dtype=torch.float32)
    assert star_error(target, rows, slice(100, 29_000)) < 6e-8
