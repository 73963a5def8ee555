"""A rule says what it reads of a round; no more is measured, and nothing comes out otherwise."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import RULES, assert_close, assert_near, random_round, tensor

import fedbridge as fb
from fedbridge import Blocks, Mix, measure
from fedbridge.base.errors import NonFiniteError, OptionError
from fedbridge.core import geometry, gram, sketch
from fedbridge.core.geometry import EXACT, Noise
from fedbridge.core.rulebook import Rule

MIXTURES = [name for name in RULES if isinstance(fb.rules.get(name), Rule)]
JOINT = [name for name in MIXTURES if fb.rules.get(name).reads == "sketched"]
LINEAR = [name for name in MIXTURES if name not in JOINT]


def many(n=40, m=700, seed=0):
    """A target, and sources of which each has something of it."""
    drawn = random_round(seed, n=n, m=m)
    return drawn.target, drawn.sources + 0.3 * drawn.target, drawn.batches


def test_the_rules_that_weigh_each_source_against_the_target_are_linear():
    known = {"source-only", "fedavg", "fedda", "fedgp", "fedda-auto", "fedgp-auto"}
    assert known | {"fltrust", "zeno", "target-only"} == set(LINEAR)


@pytest.mark.parametrize("rule", LINEAR)
@pytest.mark.parametrize("blocks", [None, [200, 500]])
def test_a_linear_rule_takes_no_product_among_sources(monkeypatch, rule, blocks):
    target, sources, batches = many()
    noise = {"batches": batches} if "auto" in rule else {}
    given = {"blocks": blocks, **noise}

    def forbidden(*_):
        raise AssertionError("products among sources")

    monkeypatch.setattr(geometry, "reliable_gram", forbidden)
    monkeypatch.setattr(gram, "reliable_gram", forbidden)
    found = fb.aggregate(rule, target, sources, **given)
    monkeypatch.undo()
    function = fb.rules.get(rule).function
    assert_near(found, fb.aggregate(Rule("all", function), target, sources, **given), 1e-12)


@pytest.mark.parametrize("rule", ["source-only", "fedavg", "fedda", "target-only"])
def test_fixed_shares_need_no_measure_but_nan_is_named(monkeypatch, rule):
    target, sources, _ = many()
    monkeypatch.setattr(geometry, "star", None)
    fb.aggregate(rule, target, sources)
    sources[7, 650] = torch.inf
    with pytest.raises(NonFiniteError, match=r"source 7 has 1 NaN or Inf in 'block 1'"):
        fb.aggregate(rule, target, sources, blocks=[200, 500])


@pytest.mark.parametrize("rule", [*LINEAR, *JOINT])
def test_nan_among_many_sources_is_named(rule):
    target, sources, _ = many(n=EXACT + 10, m=60)
    sources[130, 5] = torch.nan
    with pytest.raises(NonFiniteError, match="source 130"):
        fb.aggregate(rule, target, sources, sigma2=1.0)


def test_a_rule_that_reads_more_than_it_says_is_told():
    def pairs(seen):
        return Mix(seen.target2, seen.source_gram[:, 0], seen.inner)

    def lengths(seen):
        return Mix(seen.target2, seen.source2, seen.source2)

    target, sources, _ = many()
    with pytest.raises(OptionError, match="reads products among sources"):
        fb.aggregate(Rule("pairs", pairs, reads="target"), target, sources)
    with pytest.raises(OptionError, match="leave `reads` out"):
        fb.aggregate(Rule("lengths", lengths, reads="shares"), target, sources)


def test_a_rule_of_ones_own_reads_everything_exactly_however_many_sources():
    seen = []

    def own(geometry):
        seen.append(geometry)
        zeros = torch.zeros_like(geometry.inner)
        return Mix(torch.ones(1, dtype=torch.float64), zeros, zeros)

    target, sources, batches = many(n=EXACT + 5, m=3000)
    fb.aggregate(own, target, sources, batches)
    rows = torch.cat((target[None], sources))
    assert_close(seen[0].gram[0], rows @ rows.T, rtol=1e-10, atol=1e-9)
    assert seen[0].noise.covariance.shape == (1, EXACT + 5, EXACT + 5)


def test_the_target_alone_is_rescaled_and_added_up_like_the_whole_matrix():
    target, sources, _ = many(n=20, m=50)
    cut, factors = Blocks.of_sizes([20, 30]), torch.rand(20, dtype=torch.float64) + 0.5
    both = (
        measure(target, sources, cut, reads=reads).rescaled(factors).whole()
        for reads in ("target", "all")
    )
    some, everything = both
    for name in ("target2", "inner", "source2", "distance2", "line2", "cosine"):
        assert_close(getattr(some, name), getattr(everything, name), rtol=1e-10)


def test_noise_along_sources_without_pairs_is_the_diagonal():
    target, sources, batches = many(n=5, m=50)
    cut = Blocks.of_sizes([20, 30])
    _, pairs = fb.measure_noise(batches, sources, cut)
    _, along = fb.measure_noise(batches, sources, cut, pairs=False)
    for name in ("covariance", "whole_covariance"):
        every = getattr(pairs, name).diagonal(dim1=1, dim2=2)
        assert_close(getattr(along, name), every, rtol=1e-12)
    seen = [measure(target, sources, cut, noise=noise) for noise in (pairs, along)]
    factors = torch.rand(5, dtype=torch.float64) + 0.5
    for change in (lambda g: g, lambda g: g.whole(), lambda g: g.rescaled(factors)):
        assert_close(change(seen[0]).along(), change(seen[1]).along(), rtol=1e-12)
    bigger = [noise.scaled_to(3 * noise.sigma2) for noise in (pairs, along)]
    assert_close(bigger[1].covariance, 3 * along.covariance, rtol=1e-12)
    assert_close(bigger[0].whole_covariance, 3 * pairs.whole_covariance, rtol=1e-12)


# Sketches of angles among very many sources.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_sketched_products_are_exact_but_for_angles_among_sources(dtype, scale):
    n, m = EXACT + 20, 3 * sketch.ANGLES + 100
    target, sources, _ = many(n=n, m=m)
    target, sources = (scale * target).to(dtype), (scale * sources).to(dtype)
    found = measure(target, sources, Blocks.whole(m), reads="sketched").gram[0]
    rows = torch.cat((target[None], sources)).double()
    exact = rows @ rows.T
    lengths = exact.diagonal().sqrt()
    error = (found - exact) / torch.outer(lengths, lengths)
    assert float(error[0].abs().max()) < 1e-7
    assert float(error.diagonal().abs().max()) < 1e-7
    assert 0.005 < float(error.square().mean().sqrt()) < 1.5 / sketch.ANGLES**0.5
    assert float(torch.linalg.eigvalsh(found / found.diagonal().max()).min()) > -1e-7
    assert_close(found, found.T, rtol=1e-12)


def test_sketches_of_short_blocks_and_of_not_so_many_sources_are_exact():
    target, sources, _ = many(n=EXACT + 1, m=sketch.ANGLES)
    some, every = (
        measure(target, sources, Blocks.whole(sketch.ANGLES), reads=reads).gram
        for reads in ("sketched", "all")
    )
    assert torch.equal(some, every)
    fewer = many(n=EXACT, m=2 * sketch.ANGLES)[:2]
    some, every = (
        measure(*fewer, Blocks.whole(2 * sketch.ANGLES), reads=reads).gram
        for reads in ("sketched", "all")
    )
    assert torch.equal(some, every)


def test_sketched_cosines_have_no_bias(monkeypatch):
    """Over many widths, hence many draws, the mean error of one product vanishes."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 600, generator=generator, dtype=torch.float64)
    rows[2] += rows[1]
    monkeypatch.setattr(sketch, "ANGLES", 64)
    exact = rows[1] @ rows[2] - (rows[1] @ rows[0]) * (rows[2] @ rows[0]) / rows[0].square().sum()
    found = []
    for width in range(600, 1400):
        wide = torch.nn.functional.pad(rows, (0, width - 600))
        seen = wide[0] @ wide[0], wide[1:] @ wide[0], wide[1:].square().sum(1)
        out = sketch.joint_block(wide[0], wide[1:], slice(0, width), seen).gram()
        found.append(out[1, 2] - out[0, 1] * out[0, 2] / out[0, 0])
    ratio = torch.stack(found) / exact
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / len(found) ** 0.5 + 0.01


def test_short_blocks_beside_sketched_ones_add_up_and_rescale_like_the_exact_matrix():
    """Whatever is sketched, products with the target and lengths are exact, block by block."""
    sizes = [30, 2 * sketch.ANGLES]
    target, sources, _ = many(n=EXACT + 5, m=sum(sizes))
    factors = torch.rand(EXACT + 5, dtype=torch.float64) + 0.5
    some, every = (
        measure(target, sources, Blocks.of_sizes(sizes), reads=reads).rescaled(factors)
        for reads in ("sketched", "all")
    )
    assert_close(some.gram[0], every.gram[0], rtol=1e-9)
    for change in (lambda seen: seen, lambda seen: seen.whole()):
        few, all_ = change(some), change(every)
        assert_close(few.source2, all_.source2, rtol=1e-7)
        assert_close(few.inner, all_.inner, rtol=1e-6, atol=1e-4)
        lengths = all_.source2.sqrt()
        error = (few.source_gram - all_.source_gram) / lengths[:, None] / lengths[:, :, None]
        assert float(error.abs().max()) < 6 / sketch.ANGLES**0.5


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells peaks")
@pytest.mark.parametrize(("n", "m"), [(200, 222_130), (1000, 44_426)])
def test_joint_rules_take_little_more_memory_than_the_updates(n, m):
    """The peak of a process of its own, beyond the resulting vector."""
    told = subprocess.run(
        [sys.executable, "-c", MEMORY.format(n=n, m=m)], capture_output=True, check=True, text=True
    )
    shares = [float(share) for share in told.stdout.split()]
    assert len(shares) == len(JOINT)
    assert max(shares) < 0.05


MEMORY = """
import torch
torch.set_num_threads(1)
from fedbridge.workflows.bench import Updates
updates = Updates({n}, {m})
print(*(updates.extra_memory(rule) for rule in ("fedda-joint", "fedgp-joint")))
"""


@pytest.mark.parametrize("rule", JOINT)
def test_sketched_weights_cost_little_of_what_joint_weights_gain(rule):
    """In expected squared error, of which both rules and ``fedda-auto`` minimise an estimate."""
    n, m, sigma2 = EXACT + 50, 20_000, 4.0 * 20_000
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(m, generator=generator)
    groups = truth + 1.5 * torch.randn(10, m, generator=generator)
    sources = groups[torch.arange(n) % 10] + torch.randn(n, m, generator=generator)
    target = truth + 2 * torch.randn(m, generator=generator)
    noise = Noise(tensor(sigma2))
    exact, found = (
        measure(target, sources, Blocks.whole(m), noise=noise, reads=reads)
        for reads in ("all", "sketched")
    )

    def error(name, seen):
        mix = fb.rules.get(name)(seen)
        return fb.theory.estimated_delta(mix, exact) / sigma2

    best, sketched, alone = error(rule, exact), error(rule, found), error("fedda-auto", exact)
    assert best <= sketched + 1e-9
    assert sketched - best < 0.1 * (alone - best)
