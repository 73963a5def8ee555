"""Random sketches keep inner products, on average and about as well as documented."""

import pytest
import torch
from helpers import assert_close

from fedbridge import Blocks, Sketch
from fedbridge.base.errors import OptionError, ShapeError
from fedbridge.core.sketch import CHUNK

SEEDS = 400


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inner_over_seeds(left, right, size, seeds=SEEDS):
    """(seeds, 2) sketched inner products of two vectors, one row per seed."""
    blocks = Blocks.whole(len(left))
    found = []
    for seed in range(seeds):
        sketch = Sketch(blocks, size, seed)
        found.append(sketch.inner(sketch.press(left[None]), sketch.press(right[None]))[0, 0, 0])
    return torch.stack(found)


def assert_mean(draws, expected):
    """The mean of the draws is the expected value, within 4 standard errors."""
    standard_error = float(draws.std() / len(draws) ** 0.5)
    assert abs(float(draws.mean()) - expected) <= 4 * standard_error


@pytest.fixture(scope="module")
def pair():
    left = normal(500)
    return left, 0.3 * left + normal(500, seed=1)


def test_inner_products_are_right_on_average(pair):
    left, right = pair
    found = inner_over_seeds(left, right, size=32)
    assert_mean(found[:, 0], float(left @ right))
    assert_mean(found[:, 1], float(left @ right))


def test_the_product_of_both_halves_is_the_square_on_average_and_one_half_squared_is_not(pair):
    left, right = pair
    found = inner_over_seeds(left, right, size=8, seeds=1500)
    assert_mean(found.prod(1), float(left @ right) ** 2)
    squared = found[:, 0].square()
    excess = float(squared.mean()) - float(left @ right) ** 2
    assert excess > 8 * float(squared.std() / len(squared) ** 0.5)


@pytest.mark.parametrize("size", [16, 64, 256])
def test_the_error_shrinks_with_the_root_of_the_size(size):
    left, right = normal(2000), normal(2000, seed=1)
    found = inner_over_seeds(left, right, size, seeds=300).flatten()
    documented = float(left.norm() * right.norm()) / size**0.5
    assert 0.85 < float(found.std()) / documented < 1.15


def test_blocks_of_at_most_the_size_are_exact():
    rows = normal(3, 12)
    sketch = Sketch(Blocks.of_sizes([4, 1, 7]), size=7)
    inner = sketch.inner(sketch.press(rows), sketch.press(rows))
    expected = [rows[:, part] @ rows[:, part].T for part in sketch.blocks.slices()]
    for half in range(2):
        assert_close(inner[..., half], torch.stack(expected, -1), atol=1e-13)


def test_both_sides_press_alike_with_the_same_seed_and_types_do_not_matter():
    rows = normal(2, CHUNK + 100).to(torch.float32)
    blocks = Blocks.of_sizes([50, CHUNK + 50])
    here, there = (Sketch(blocks, 16, seed=3).press(x) for x in (rows, rows.to(torch.float64)))
    assert torch.equal(here, there)


@pytest.mark.parametrize("seeds", [(0, 1), (0, -1), (5, 2**40 + 5)])
def test_another_seed_presses_otherwise(seeds):
    rows = normal(1, 300)
    first, second = (Sketch(Blocks.whole(300), 16, seed).press(rows) for seed in seeds)
    assert not torch.equal(first, second)


def test_halves_and_blocks_use_different_randomness():
    row = normal(100).repeat(2)[None]
    pressed = Sketch(Blocks.of_sizes([100, 100]), 16).press(row)[0].reshape(4, 16)
    for one in range(4):
        for other in range(one):
            assert not torch.equal(pressed[one], pressed[other])


def test_pressing_is_linear_and_row_by_row():
    rows = normal(2, CHUNK + 100)
    sketch = Sketch(Blocks.whole(CHUNK + 100), 16)
    pressed = sketch.press(rows)
    mixed = sketch.press((2 * rows[0] - 3 * rows[1])[None])[0]
    assert_close(mixed, 2 * pressed[0] - 3 * pressed[1], atol=1e-9)
    assert torch.equal(sketch.press(rows[1:])[0], pressed[1])


def test_every_entry_of_a_long_block_lands_once():
    columns = CHUNK + 100
    pressed = Sketch(Blocks.whole(columns), 16).press(torch.ones(1, columns))[0, 0]
    for index in (0, CHUNK - 1, CHUNK, columns - 1):
        unit = torch.zeros(1, columns)
        unit[0, index] = 1.0
        assert Sketch(Blocks.whole(columns), 16).press(unit).abs().sum().item() == 2.0
    assert bool((pressed.sum(1).abs() < 6 * columns**0.5).all())


def test_a_sketch_is_a_few_kilobytes():
    pressed = Sketch(Blocks.whole(100_000)).press(torch.zeros(1, 100_000))
    assert pressed.shape == (1, 1, 2, 64)


def test_bad_sizes_and_rows_are_refused():
    with pytest.raises(OptionError, match="at least 1, but got 0"):
        Sketch(Blocks.whole(3), size=0)
    with pytest.raises(ShapeError, match=r"rows of 3 entries.*\(1, 4\)"):
        Sketch(Blocks.whole(3)).press(torch.zeros(1, 4))
    with pytest.raises(ShapeError, match="rows of 3 entries"):
        Sketch(Blocks.whole(3)).press(torch.zeros(3))
