"""One update out of many: right on every input, of any type, layout and scale."""

import inspect

import numpy as np
import pytest
import torch
from helpers import (
    NOISE_AWARE,
    RULES,
    SHARES_COUNT,
    Round,
    assert_close,
    assert_near,
    degenerate,
    random_round,
    reference,
    rounds,
    tensor,
)
from hypothesis import given
from hypothesis import strategies as st

import fedbridge as fb
from fedbridge import Blocks
from fedbridge.base.errors import NoiseUndefinedError
from fedbridge.core.aggregate import SLICE
from fedbridge.core.gram import SHORT
from fedbridge.core.theory import Problem

every_rule = pytest.mark.parametrize("rule", RULES)
both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
PRECISION = {torch.float32: 2e-6, torch.float64: 1e-9}


def test_the_contract():
    assert list(inspect.signature(fb.aggregate).parameters) == [
        "rule",
        "target",
        "sources",
        "batches",
        "sigma2",
        "weights",
        "blocks",
        "options",
    ]


def test_the_example_of_the_documentation():
    target, sources = torch.tensor([1.0, 0.0]), torch.tensor([[1.0, 1.0], [-1.0, 0.0]])
    found = fb.aggregate("fedgp", target=target, sources=sources, beta=0.5)
    assert_close(found, [0.625, 0.125])


# Degenerate rounds.


@every_rule
@both_precisions
@pytest.mark.parametrize("kind", ["duplicate", "zero source", "opposed", "parallel", "zero target"])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 6), (3, 1), (4, 6)])
def test_degenerate_rounds_are_right(rule, dtype, kind, n, m):
    drawn = degenerate(random_round(n * m, n, m), kind)
    target, sources = drawn.target.to(dtype), drawn.sources.to(dtype)
    found = fb.aggregate(rule, target, sources, sigma2=0.3)
    expected = reference(rule, target, sources, 0.3)
    assert bool(found.isfinite().all())
    assert_close(found, expected, rtol=0, atol=PRECISION[dtype] * drawn.largest)


@every_rule
@both_precisions
def test_all_sources_identical(rule, dtype):
    drawn = random_round(5, n=1)
    sources = drawn.sources.to(dtype).expand(6, -1)
    target = drawn.target.to(dtype)
    found = fb.aggregate(rule, target, sources, sigma2=0.3)
    assert_near(found, reference(rule, target, sources, 0.3), PRECISION[dtype])


@every_rule
@pytest.mark.parametrize("sigma2", [0.0, 0.3])
def test_nothing_but_zeros_gives_zero(rule, sigma2):
    zeros = torch.zeros(3, 4)
    assert fb.aggregate(rule, zeros[0], zeros, sigma2=sigma2).tolist() == [0.0] * 4


@every_rule
def test_sources_equal_to_the_target_give_the_target(rule):
    target = random_round(6).target
    found = fb.aggregate(rule, target, target.expand(3, -1), sigma2=0.3)
    assert_near(found, target)


# Scales.


@every_rule
@both_precisions
@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("noise", ["batches", "sigma2"])
def test_one_scale_for_all_comes_out_again(rule, dtype, scale, noise):
    drawn = random_round(7, n=4, m=9)

    def found(factor):
        batches = (factor * drawn.batches).to(dtype)
        given = {"batches": batches} if noise == "batches" else {"sigma2": 0.8 * factor**2}
        target = batches.to(torch.float64).mean(0).to(dtype)
        return fb.aggregate(rule, target, (factor * drawn.sources).to(dtype), **given)

    assert_near(found(scale).to(torch.float64) / scale, found(1.0), PRECISION[dtype])


# Target t·(3, 4), sources s·(1, 0) and s·(0, -2), noise t²; every result in units of t and s.
TINY_TARGET_HUGE_SOURCES = {
    "source-only": ("s", [0.5, -1.0]),
    "target-only": ("t", [3.0, 4.0]),
    "fedavg": ("s", [1 / 3, -2 / 3]),
    "fedda": ("s", [0.25, -0.5]),
    "fedgp": ("t", [(3 + 1.5) / 2, (2 + 2) / 2]),
    "fedda-auto": ("t", [3.0, 4.0]),
    "fedgp-auto": ("t", [(3 + 3 * 8 / 9) / 2, (4 * 15 / 16 + 4 * 8 / 9) / 2]),
    "fedda-joint": ("t", [3.0, 4.0]),
    "fedgp-joint": ("t", [3.0, 4 * 15 / 16]),
    "fltrust": ("t", [5.0, 0.0]),
    "median": ("s", [0.5, -1.0]),
    "trimmed-mean": ("s", [0.5, -1.0]),
    "zeno": ("s", [1.0, 0.0]),
}
HUGE_TARGET_TINY_SOURCES = TINY_TARGET_HUGE_SOURCES | {
    "fedavg": ("t", [1.0, 4 / 3]),
    "fedda": ("t", [1.5, 2.0]),
    "fedda-auto": ("t", [3 * 24 / 25, 4 * 24 / 25]),
    "fedda-joint": ("t", [3 * 24 / 25, 4 * 24 / 25]),
}


@every_rule
@both_precisions
@pytest.mark.parametrize(
    ("t", "s", "expected"),
    [(1e-30, 1e30, TINY_TARGET_HUGE_SOURCES), (1e30, 1e-30, HUGE_TARGET_TINY_SOURCES)],
    ids=["tiny target, huge sources", "huge target, tiny sources"],
)
@pytest.mark.parametrize("zeros", [0, SHORT], ids=["short", "long"])
def test_target_and_sources_of_opposite_extremes(rule, dtype, t, s, expected, zeros):
    def padded(rows):
        return torch.nn.functional.pad(rows, (0, zeros)).to(dtype)

    target, sources = padded(t * tensor(3.0, 4.0)), padded(s * tensor([1.0, 0.0], [0.0, -2.0]))
    found = fb.aggregate(rule, target, sources, sigma2=t * t)
    unit, values = expected[rule]
    assert_near(found[:2], {"t": t, "s": s}[unit] * tensor(*values), PRECISION[dtype])
    assert not bool(found[2:].any())


@pytest.mark.parametrize("rule", ["fedgp", "fedgp-auto", "fedgp-joint", "fltrust"])
@both_precisions
def test_sources_of_different_extremes_among_each_other(rule, dtype):
    drawn = random_round(8, n=3)
    scale = tensor([1e-30], [1.0], [1e30])
    plain, scaled = (
        fb.aggregate(rule, drawn.target.to(dtype), sources.to(dtype), sigma2=0.5)
        for sources in (drawn.sources, scale * drawn.sources)
    )
    assert_near(scaled, plain, PRECISION[dtype])


@pytest.fixture(scope="module")
def long_round():
    drawn = random_round(9, n=4, m=SHORT + 1000, b=2)
    return Round(drawn.batches.to(torch.float32), drawn.sources.to(torch.float32))


@every_rule
def test_float32_is_as_right_as_its_digits(rule, long_round):
    target, sources, batches = long_round.target, long_round.sources, long_round.batches
    found = fb.aggregate(rule, target, sources, batches)
    expected = fb.aggregate(rule, target.double(), sources.double(), batches.double())
    assert found.dtype == torch.float32
    assert_near(found, expected, 1e-6)


# Blocks.

PER_BLOCK = {rule: {"scope": "block"} for rule in ("fedda-auto", "fedgp-auto")}
"""What makes rules work on every block as on a model of its own, where that is not the default."""


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in ("zeno", "fltrust")])
@given(drawn=rounds(), cut=st.integers(1, 7))
def test_blocks_are_aggregated_as_if_they_were_models_of_their_own(rule, drawn, cut):
    m = drawn.sources.shape[1]
    if cut >= m:
        return
    given = (rule, drawn.target, drawn.sources, drawn.batches)
    whole = fb.aggregate(*given, blocks=[cut, m - cut], **PER_BLOCK.get(rule, {}))
    parts = [
        fb.aggregate(rule, drawn.target[part], drawn.sources[:, part], drawn.batches[:, part])
        for part in (slice(0, cut), slice(cut, m))
    ]
    assert_close(whole, torch.cat(parts), rtol=1e-9, atol=1e-11 * drawn.largest)


@every_rule
@given(drawn=rounds())
def test_one_block_is_the_whole_model(rule, drawn):
    m = drawn.sources.shape[1]
    one, whole = (
        fb.aggregate(rule, drawn.target, drawn.sources, drawn.batches, blocks=blocks)
        for blocks in ([m], None)
    )
    assert torch.equal(one, whole)


def test_named_blocks_do_as_well_as_sizes():
    drawn = random_round(11)
    named, sizes = (
        fb.aggregate("fedgp", drawn.target, drawn.sources, blocks=blocks)
        for blocks in (Blocks(("a", "b"), (2, 4)), (2, 4))
    )
    assert torch.equal(named, sizes)


@pytest.mark.parametrize("rule", NOISE_AWARE)
def test_a_known_noise_is_shared_out_by_block_size_or_given_per_block(rule):
    drawn = random_round(12, n=2, m=8)
    parts = [
        fb.aggregate(rule, drawn.target[part], drawn.sources[:, part], sigma2=sigma2)
        for part, sigma2 in ((slice(0, 2), 0.5), (slice(2, 8), 1.5))
    ]
    for sigma2 in (2.0, [0.5, 1.5], torch.tensor([0.5, 1.5])):
        given = {"sigma2": sigma2, "blocks": [2, 6], **PER_BLOCK.get(rule, {})}
        found = fb.aggregate(rule, drawn.target, drawn.sources, **given)
        assert_close(found, torch.cat(parts), rtol=1e-11)


# Noise.


@pytest.mark.parametrize("rule", ["fedda-auto", "fedda-joint", "fedgp-joint"])
def test_batches_and_the_noise_they_show_are_the_same_thing(rule):
    drawn = random_round(13)
    sigma2 = fb.estimate(drawn.batches, drawn.sources).sigma2
    measured = fb.aggregate(rule, drawn.target, drawn.sources, drawn.batches)
    assert_close(
        fb.aggregate(rule, drawn.target, drawn.sources, sigma2=sigma2), measured, rtol=1e-11
    )


@pytest.mark.parametrize("rule", NOISE_AWARE)
def test_a_single_batch_needs_a_known_noise(rule):
    drawn = random_round(13, b=1)
    with pytest.raises(NoiseUndefinedError, match="B = 1"):
        fb.aggregate(rule, drawn.target, drawn.sources, drawn.batches)
    found = fb.aggregate(rule, drawn.target, drawn.sources, drawn.batches, sigma2=0.4)
    assert_close(found, reference(rule, drawn.target, drawn.sources, 0.4), rtol=1e-9)


@pytest.mark.parametrize("rule", sorted(set(RULES) - set(NOISE_AWARE)))
def test_rules_that_do_not_weigh_noise_do_not_ask_for_it(rule):
    drawn = random_round(13, b=1)
    without = fb.aggregate(rule, drawn.target, drawn.sources)
    assert torch.equal(fb.aggregate(rule, drawn.target, drawn.sources, drawn.batches), without)


# Types and layouts.


@every_rule
@pytest.mark.parametrize(
    ("target_type", "source_type", "result_type"),
    [
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16, torch.float16),
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.float16, torch.float64, torch.float64),
        (torch.float64, torch.float32, torch.float64),
        (torch.int64, torch.float32, torch.float32),
        (torch.float32, torch.int32, torch.float32),
    ],
    ids=str,
)
def test_types_may_be_short_or_mixed(rule, target_type, source_type, result_type):
    drawn = random_round(14, n=3, m=20)
    target, sources = (4 * drawn.target).to(target_type), (4 * drawn.sources).to(source_type)
    found = fb.aggregate(rule, target, sources, sigma2=1.0)
    assert found.dtype == result_type
    expected = fb.aggregate(rule, target.double(), sources.double(), sigma2=1.0)
    assert_near(found, expected, 4 * torch.finfo(result_type).eps)


LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "strided": lambda x: torch.stack((x, x + 1), -1)[..., 0],
    "offset": lambda x: torch.nn.functional.pad(x, (3, 2))[:, 3:-2],
    "expanded": lambda x: x[:1].expand(x.shape),
    "constant": lambda x: x[:, :1].expand(x.shape),
}


@every_rule
@both_precisions
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layout_does_not_matter(rule, dtype, layout):
    drawn = random_round(15, n=3, m=700)
    lay_out = LAYOUTS[layout]
    sources = lay_out(drawn.sources.to(dtype))
    target = lay_out(drawn.target.to(dtype)[None])[0]
    found = fb.aggregate(rule, target, sources, sigma2=5.0, blocks=[300, 400])
    dense = fb.aggregate(
        rule, target.contiguous(), sources.contiguous(), sigma2=5.0, blocks=[300, 400]
    )
    assert_near(found, dense.double(), PRECISION[dtype])


@every_rule
def test_vectors_longer_than_a_stretch(rule, long_round):
    assert len(long_round.target) > SLICE
    target, sources = long_round.target.to(torch.float16), long_round.sources
    found = fb.aggregate(rule, target, sources, sigma2=100.0)
    expected = reference(rule, target.double(), sources.double(), 100.0)
    assert_near(found, expected, 1e-5)


@every_rule
def test_inputs_are_not_changed_and_the_result_is_new(rule):
    drawn = random_round(17)
    given = [drawn.target, drawn.sources, drawn.batches]
    before = [x.clone() for x in given]
    found = fb.aggregate(rule, *given, blocks=[2, 4])
    found.fill_(7.0)
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))


@every_rule
def test_gradients_are_not_tracked(rule):
    drawn = random_round(18)
    sources = drawn.sources.requires_grad_()
    assert not fb.aggregate(rule, drawn.target.requires_grad_(), sources, sigma2=1.0).requires_grad


def test_arrays_and_lists_do_as_well():
    found = fb.aggregate("fedda", np.array([2.0, 0.0]), [[0.0, 2.0]], beta=0.5)
    assert_close(found, [1.0, 1.0])


@pytest.mark.parametrize("rule", SHARES_COUNT)
def test_a_source_of_weight_0_plays_no_part(rule):
    drawn = random_round(19, n=3)
    weighted = fb.aggregate(rule, drawn.target, drawn.sources, sigma2=1.0, weights=[2, 0, 1])
    kept = fb.aggregate(rule, drawn.target, drawn.sources[[0, 2]], sigma2=1.0, weights=[2, 1])
    assert_close(weighted, kept, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("rule", SHARES_COUNT)
def test_weights_may_name_the_target_first_where_only_sources_count(rule):
    drawn = random_round(20, n=2)
    both = (
        fb.aggregate(rule, drawn.target, drawn.sources, sigma2=1.0, weights=weights)
        for weights in ([1, 3], [50, 1, 3])
    )
    assert torch.equal(*both)


def test_the_true_noise_gives_the_true_weights():
    problem = Problem(tensor(1.0, 0.0, 2.0), tensor([0.0, 1.0, 1.0], [1.0, 1.0, 1.0]), 1.5)
    mix = fb.rules.fedda_auto(problem.geometry())
    assert_close(mix.beta[0], 1.5 / (1.5 + problem.d2))
