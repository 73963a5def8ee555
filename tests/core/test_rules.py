"""Every rule by hand, its limits, and what is guaranteed of it."""

import pytest
import torch
from helpers import (
    NOISE_AWARE,
    RULES,
    SHARES_COUNT,
    assert_close,
    assert_near,
    random_round,
    reference,
    rounds,
    tensor,
)
from hypothesis import given
from hypothesis import strategies as st

import fedbridge as fb
from fedbridge import Blocks, Geometry, Mix, Noise, measure
from fedbridge.base.errors import NoiseUndefinedError, OptionError, ShapeError
from fedbridge.core.rules import (
    CoordinateRule,
    Rule,
    comparators,
    fedda_auto,
    fedda_joint,
    fedgp_auto,
    fedgp_joint,
    sorted_rows,
    zeno,
)
from fedbridge.core.theory import Problem, estimated_delta, mix_delta

T = tensor(4.0, 2.0)
S = tensor([2.0, 0.0], [0.0, -1.0])  # the second is opposed: ⟨T, S_2⟩ = −2
BATCHES = tensor([5.0, 3.0], [3.0, 1.0])  # mean T, sigma2 = 2, and 1 along each axis

BY_HAND = [
    ("source-only", {}, [1.0, -0.5]),
    ("source-only", {"weights": [3, 1]}, [1.5, -0.25]),
    ("target-only", {}, [4.0, 2.0]),
    ("fedavg", {}, [2.0, 1 / 3]),
    ("fedavg", {"weights": [2, 1, 1]}, [2.5, 0.75]),
    ("fedda", {}, [2.5, 0.75]),
    ("fedda", {"beta": [0.25, 0.75]}, [2.25, 0.625]),
    ("fedda", {"weights": [3, 1]}, [0.75 * 3 + 0.25 * 2, 0.75 * 1 + 0.25 * 0.5]),
    # onto S_1: (4, 0); S_2 is filtered out, or without filter (0, 2)
    ("fedgp", {}, [(4 + 2) / 2, (1 + 1) / 2]),
    ("fedgp", {"beta": [1.0, 0.5]}, [(4 + 2) / 2, (0 + 1) / 2]),
    ("fedgp", {"filter": False}, [(4 + 2) / 2, (1 + 2) / 2]),
    ("fedgp", {"weights": [1, 3]}, [0.25 * 4 + 0.75 * 2, 0.25 * 1 + 0.75 * 1]),
    # cos(T, S_1) = 2/√5, cos(T, S_2) = −1/√5
    ("fedgp", {"projection": "aligned-cosine"}, [(2 + 2 / 5**0.5 + 2) / 2, 1.0]),
    (
        "fedgp",
        {"projection": "aligned-cosine", "filter": False},
        [(2 + 2 / 5**0.5 + 2) / 2, (1 + 1 + 0.5 / 5**0.5) / 2],
    ),
    # distances² 8 and 25: beta 1/4 and 2/25
    ("fedda-auto", {"sigma2": 2.0}, [(3.5 + 3.68) / 2, (1.5 + 1.76) / 2]),
    ("fedda-auto", {"batches": BATCHES}, [(3.5 + 3.68) / 2, (1.5 + 1.76) / 2]),
    ("fedda-auto", {"sigma2": 100.0}, [1.0, -0.5]),
    ("fedda-auto", {"batches": BATCHES, "sigma2": 4.0}, [(3 + 3.36) / 2, (1 + 1.52) / 2]),
    # distances² to the lines 4 and 16: beta 1/4 and 1/16
    ("fedgp-auto", {"sigma2": 1.0}, [(4 + 3.75) / 2, (1.5 + 1.875) / 2]),
    # plus 1 along each: beta 2/5 and 2/17
    ("fedgp-auto", {"batches": BATCHES}, [(4 + 60 / 17) / 2, (1.2 + 30 / 17) / 2]),
    # sigma2 believed to be 1, so 1/2 along each: beta 1/4.5 and 1/16.5
    (
        "fedgp-auto",
        {"batches": BATCHES, "sigma2": 1.0},
        [(4 + 4 * 15.5 / 16.5) / 2, (2 * 3.5 / 4.5 + 2 * 15.5 / 16.5) / 2],
    ),
    # the opposed source is measured from zero: beta 1/20
    ("fedgp-auto", {"sigma2": 1.0, "half_line": True}, [(4 + 3.8) / 2, (1.5 + 1.9) / 2]),
    # delta: 1/(1 + 0.5·3 + 0.5·19) = 1/12 and 1/(1 + 0.5·15 + 0.5·19) = 1/18
    (
        "fedgp-auto",
        {"sigma2": 1.0, "delta": 0.5},
        [(4 + 4 * 17 / 18) / 2, (2 * 11 / 12 + 2 * 17 / 18) / 2],
    ),
    # both batches agree with S_1, none with S_2: delta 1 and 0; beta 2/5 and 2/20
    ("fedgp-auto", {"batches": BATCHES, "delta": "batches"}, [(4 + 3.6) / 2, (1.2 + 1.8) / 2]),
    # delta 1 and 1 − 1/2: beta 2/5 and 2/(2 + 0.5·15 + 0.5·18) = 4/37
    (
        "fedgp-auto",
        {"batches": BATCHES, "delta": "scripts"},
        [(4 + 4 * 33 / 37) / 2, (1.2 + 2 * 33 / 37) / 2],
    ),
    (
        "fedgp-auto",
        {"sigma2": 1.0, "filter": False},
        [(4 + 3.75) / 2, (1.5 + 1.875 + 2 / 16) / 2],
    ),
    # nearest point of the hull is S_1, at distance² 8
    ("fedda-joint", {"sigma2": 2.0}, [3.5, 1.5]),
    ("fedda-joint", {"batches": BATCHES}, [3.5, 1.5]),
    ("fedda-joint", {"sigma2": 9.0}, [2.0, 0.0]),
    # nearest point of the cone is (4, 0), at distance² 4
    ("fedgp-joint", {"sigma2": 1.0}, [4.0, 1.5]),
    ("fedgp-joint", {"batches": BATCHES}, [4.0, 1.0]),
    ("fedgp-joint", {"batches": BATCHES, "correct_noise": True}, [4.0, 1.5]),
    ("fltrust", {}, [20**0.5, 0.0]),
    ("median", {}, [1.0, -0.5]),
    ("trimmed-mean", {}, [1.0, -0.5]),
    ("zeno", {}, [2.0, 0.0]),
    ("zeno", {"drop": 0, "weights": [3, 1]}, [1.5, -0.25]),
]


@pytest.mark.parametrize(("rule", "given", "expected"), BY_HAND)
def test_two_dimensions_by_hand(rule, given, expected):
    assert_close(fb.aggregate(rule, target=T, sources=S, **given), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("rule", "target", "sources", "sigma2", "expected"),
    [
        # the hull's nearest point (1.5, 0.5) lies between the sources, at distance² 1/2
        ("fedda-joint", [2.0, 1.0], [[2.0, 0.0], [0.0, 2.0]], 0.25, [1.75, 0.75]),
        ("fedda-joint", [2.0, 1.0], [[2.0, 0.0], [0.0, 2.0]], 0.75, [1.5, 0.5]),
        # inside the hull: nothing to gain from leaving the target
        ("fedda-joint", [0.5, 0.5], [[2.0, 0.0], [0.0, 2.0], [-1.0, -1.0]], 1.0, [0.5, 0.5]),
        # the cone's nearest point (1.5, 1.5) lies on the second source's ray, at distance² 1/2
        ("fedgp-joint", [1.0, 2.0], [[2.0, 0.0], [1.0, 1.0]], 0.25, [1.25, 1.75]),
        # inside the cone
        ("fedgp-joint", [3.0, 1.0], [[2.0, 0.0], [1.0, 1.0]], 0.25, [3.0, 1.0]),
        # all opposed: shrink towards zero by sigma2/‖target‖² = 1/4
        ("fedgp-joint", [2.0, 0.0], [[-1.0, 1.0], [-1.0, -1.0]], 1.0, [1.5, 0.0]),
        # trust 3/7 and 4/7, lengths 5
        ("fltrust", [3.0, 4.0], [[2.0, 0.0], [0.0, 1.0]], None, [15 / 7, 20 / 7]),
        ("fltrust", [3.0, 4.0], [[-2.0, 0.0], [0.0, -1.0]], None, [0.0, 0.0]),
        ("median", [0.0, 0.0], [[1.0, 5.0], [2.0, -7.0], [9.0, 0.0]], None, [2.0, 0.0]),
        ("median", [0.0, 0.0], [[1.0, 5.0], [2.0, -7.0], [9.0, 0.0], [4.0, 2.0]], None, [3.0, 1.0]),
        ("trimmed-mean", [9.0], [[100.0], [1.0], [2.0], [6.0], [-100.0]], None, [3.0]),
        # scores 2 − 0.005·4, 1 − 0.005 and 3 − 0.005·909: the last is too long
        ("zeno", [1.0, 0.0], [[2.0, 0.0], [1.0, 0.0], [3.0, 30.0]], None, [1.5, 0.0]),
    ],
)
def test_small_cases_by_hand(rule, target, sources, sigma2, expected):
    found = fb.aggregate(rule, tensor(*target), tensor(*sources), sigma2=sigma2)
    assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("n", "trim", "kept"),
    [
        (5, 0.0, slice(0, 5)),
        (5, 0.2, slice(1, 4)),
        (5, 0.5, slice(2, 3)),
        (100, 0.29, slice(29, 71)),
    ],
)
def test_trimmed_mean_drops_the_stated_share_on_both_sides(n, trim, kept):
    values = torch.arange(n, dtype=torch.float64).square()
    found = fb.aggregate("trimmed-mean", tensor(0.0), values.flip(0)[:, None], trim=trim)
    assert_close(found, values[kept].mean()[None])


def test_the_mixture_tells_coefficients_and_trust():
    seen = measure(T, S, Blocks.whole(2), noise=Noise(tensor(1.0)))
    mix = fedgp_auto(seen)
    assert_close(mix.beta, [[1 / 4, 1 / 16]])
    assert_close(mix.target, [(3 / 4 + 15 / 16) / 2])
    assert_close(mix.sources, [[1 / 2 * 1 / 4 * 2, 0.0]])
    joint = fedgp_joint(seen)
    assert_close(joint.beta, [[1 / 4, 0.0]], rtol=1e-11)
    assert_close(joint.sources, [[1 / 4 * 2, 0.0]], rtol=1e-11)


def sigma2_of(drawn):
    return float(fb.estimate(drawn.batches, drawn.sources).sigma2)


@pytest.mark.parametrize("rule", RULES)
@given(drawn=rounds())
def test_every_rule_equals_its_naive_form_on_vectors(rule, drawn):
    sigma2 = sigma2_of(drawn)
    found = fb.aggregate(rule, drawn.target, drawn.sources, sigma2=sigma2)
    expected = reference(rule, drawn.target, drawn.sources, sigma2)
    assert bool(found.isfinite().all())
    assert_close(found, expected, rtol=1e-8, atol=1e-8 * drawn.largest)


# Limits.


@pytest.mark.parametrize("rule", ["fedda", "fedgp"])
@given(drawn=rounds())
def test_beta_0_is_target_only(rule, drawn):
    found = fb.aggregate(rule, drawn.target, drawn.sources, beta=0.0)
    assert torch.equal(found, drawn.target)


@given(drawn=rounds())
def test_beta_1_of_fedda_is_source_only(drawn):
    found = fb.aggregate("fedda", drawn.target, drawn.sources, beta=1)
    assert torch.equal(found, fb.aggregate("source-only", drawn.target, drawn.sources))


@pytest.mark.parametrize("rule", ["fedgp", "fedgp-auto", "fedgp-joint", "fltrust"])
@pytest.mark.parametrize("options", [{}, {"correct_noise": True}], ids=["plain", "corrected"])
@given(drawn=rounds(), powers=st.lists(st.integers(-20, 20), min_size=5, max_size=5))
def test_projections_ignore_the_scale_of_sources(rule, options, drawn, powers):
    if options and rule != "fedgp-joint":
        return
    scale = 10.0 ** tensor(*map(float, powers[: len(drawn.sources)]))[:, None]
    found, scaled = (
        fb.aggregate(rule, drawn.target, sources, drawn.batches, **options)
        for sources in (drawn.sources, scale * drawn.sources)
    )
    assert_close(scaled, found, rtol=0, atol=1e-8 * float(drawn.target.norm()))


@given(drawn=rounds(), beta=st.floats(0, 1))
def test_an_opposed_source_leaves_only_the_rest_of_the_target(drawn, beta):
    opposed = -3.0 * drawn.target[None]
    found = fb.aggregate("fedgp", drawn.target, opposed, beta=beta)
    assert_close(found, (1 - beta) * drawn.target)


@pytest.mark.parametrize("projection", ["exact", "aligned-cosine"])
def test_a_zero_source_contributes_nothing_to_a_projection(projection):
    sources = torch.zeros(1, 2, dtype=torch.float64)
    for filtered in (True, False):
        found = fb.aggregate("fedgp", T, sources, filter=filtered, projection=projection)
        assert_close(found, T / 2)


def test_aligned_cosine_is_exact_projection_for_a_source_as_long_as_the_target():
    drawn = random_round(3, n=1)
    source = drawn.sources / drawn.sources.norm() * drawn.target.norm()
    source = source * torch.sign(source @ drawn.target)
    exact = fb.aggregate("fedgp", drawn.target, source)
    assert_close(fb.aggregate("fedgp", drawn.target, source, projection="aligned-cosine"), exact)


@pytest.mark.parametrize("rule", NOISE_AWARE)
@given(drawn=rounds())
def test_without_noise_the_target_is_right(rule, drawn):
    found = fb.aggregate(rule, drawn.target, drawn.sources, sigma2=0.0)
    assert_close(found, drawn.target, atol=1e-12)


@pytest.mark.parametrize(
    ("rule", "limit"),
    [("fedda-auto", "source-only"), ("fedgp-auto", "fedgp")],
)
@given(drawn=rounds())
def test_with_endless_noise_only_the_sources_count(rule, limit, drawn):
    options = {"beta": 1.0} if limit == "fedgp" else {}
    found = fb.aggregate(rule, drawn.target, drawn.sources, sigma2=1e9)
    expected = fb.aggregate(limit, drawn.target, drawn.sources, **options)
    assert_close(found, expected, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@given(drawn=rounds(), seed=st.integers(0, 100))
def test_the_order_of_sources_does_not_matter(rule, drawn, seed):
    n = len(drawn.sources)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    counts = torch.arange(1.0, n + 1)
    weights = {"weights": counts} if rule in SHARES_COUNT else {}
    shuffled = {"weights": counts[order]} if weights else {}
    noise = {"sigma2": sigma2_of(drawn)}
    found = fb.aggregate(rule, drawn.target, drawn.sources, **noise, **weights)
    other = fb.aggregate(rule, drawn.target, drawn.sources[order], **noise, **shuffled)
    assert_close(other, found, rtol=0, atol=1e-9 * drawn.largest)


@pytest.mark.parametrize("function", [fedda_auto, fedgp_auto, fedda_joint, fedgp_joint])
def test_permuting_sources_permutes_weights(function):
    drawn = random_round(8, n=4)
    order = torch.tensor([2, 0, 3, 1])
    cut, noise = Blocks.whole(6), Noise(tensor(1.5))
    mix = function(measure(drawn.target, drawn.sources, cut, noise=noise))
    other = function(measure(drawn.target, drawn.sources[order], cut, noise=noise))
    assert_close(other.sources, mix.sources[:, order], rtol=1e-9, atol=1e-12)
    assert_close(other.beta, mix.beta[:, order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", ["fedda", "fedda-auto", "fedgp-auto", "source-only", "fltrust"])
def test_a_weight_of_2_is_the_source_twice(rule):
    drawn = random_round(9, n=2)
    noise = {"sigma2": 0.7}
    weighted = fb.aggregate(rule, drawn.target, drawn.sources, weights=[2, 1], **noise)
    repeated = fb.aggregate(rule, drawn.target, drawn.sources[[0, 0, 1]], **noise)
    assert_close(weighted, repeated, rtol=1e-11)


@pytest.mark.parametrize("rule", ["fedda-joint", "fedgp-joint"])
def test_joint_rules_find_the_weights_themselves(rule):
    drawn = random_round(9, n=3)
    plain = fb.aggregate(rule, drawn.target, drawn.sources, sigma2=0.7)
    assert torch.equal(
        fb.aggregate(rule, drawn.target, drawn.sources, sigma2=0.7, weights=[1, 5, 9]), plain
    )


# Zeno.


@given(drawn=rounds())
def test_zeno_that_drops_nobody_is_the_mean_of_the_sources(drawn):
    for rho in (0, 3):
        found = fb.aggregate("zeno", drawn.target, drawn.sources, rho=rho, drop=0)
        assert torch.equal(found, fb.aggregate("source-only", drawn.target, drawn.sources))


@pytest.mark.parametrize("size", [0.1, 1.0, 1e6])
def test_zeno_drops_a_hostile_source_of_any_size(size):
    drawn = random_round(14, n=4)
    friends = drawn.target + 0.1 * drawn.sources
    sources = torch.cat((friends[:2], -size * drawn.target[None], friends[2:]))
    assert_close(fb.aggregate("zeno", drawn.target, sources), friends.mean(0))


def test_zeno_drops_a_source_that_is_far_too_long():
    drawn = random_round(14, n=4)
    friends = drawn.target + 0.1 * drawn.sources
    sources = torch.cat((friends, 1000 * drawn.target[None]))
    assert_close(fb.aggregate("zeno", drawn.target, sources), friends.mean(0))


@given(drawn=rounds())
def test_zeno_with_half_a_penalty_drops_the_farthest(drawn):
    apart = (drawn.sources - drawn.target).square().sum(1)
    found = fb.aggregate("zeno", drawn.target, drawn.sources, rho=0.5)
    order = apart.argsort()[: max(1, len(apart) - 1)]
    assert_close(found, drawn.sources[order].mean(0), rtol=1e-9, atol=1e-12 * drawn.largest)


@pytest.mark.parametrize(
    ("n", "drop", "kept"), [(5, 0.2, 4), (5, 0.39, 4), (100, 0.29, 71), (5, 3, 2), (5, 9, 1)]
)
def test_zeno_drops_a_count_or_a_share_but_never_everybody(n, drop, kept):
    values = torch.arange(1.0, n + 1, dtype=torch.float64)
    found = fb.aggregate("zeno", tensor(1.0), values[:, None], rho=0, drop=drop)
    assert_close(found, values[n - kept :].mean()[None])


def test_zeno_shares_the_last_places_among_equals():
    sources = tensor([3.0, 0.0], [1.0, 1.0], [1.0, -1.0], [1.0, 1.0])
    mix = zeno(measure(tensor(1.0, 0.0), sources, Blocks.whole(2)), rho=0, drop=2)
    assert_close(mix.sources, [[1 / 2, 1 / 6, 1 / 6, 1 / 6]])
    assert_close(mix.beta, mix.sources)


@pytest.mark.parametrize("seed", range(20))
def test_zeno_knows_equal_sources_in_spite_of_rounding(seed):
    drawn = random_round(seed, n=2, m=30)
    sources = -drawn.target + 0.1 * drawn.sources[[0, 1, 0]]
    rest = zeno(measure(drawn.target, sources, Blocks.whole(30)), drop=2).sources[0]
    assert_close(rest[0], rest[2])


def test_zeno_scores_the_whole_model_and_mixes_all_blocks_alike():
    target, sources = tensor(1.0, 3.0), tensor([2.0, -1.0], [-1.0, 2.0])
    for blocks in (None, [1, 1]):  # the first source is better in the first block alone
        found = fb.aggregate("zeno", target, sources, blocks=blocks)
        assert found.tolist() == [-1.0, 2.0]


# The paper's weights.


@given(drawn=rounds())
def test_fedda_auto_is_fedda_with_the_estimated_weights(drawn):
    found = fb.estimate(drawn.batches, drawn.sources)
    apart = (drawn.sources - drawn.target).square().sum(1)
    beta = (found.sigma2 / apart).clamp(max=1.0)
    auto = fb.aggregate("fedda-auto", drawn.target, drawn.sources, drawn.batches)
    fixed = fb.aggregate("fedda", drawn.target, drawn.sources, beta=beta)
    assert_close(auto, fixed, rtol=1e-9, atol=1e-12 * drawn.largest)


@given(drawn=rounds())
def test_fedgp_auto_is_fedgp_with_the_estimated_weights(drawn):
    beta = fb.auto_beta("fedgp", fb.estimate(drawn.batches, drawn.sources))
    auto = fb.aggregate("fedgp-auto", drawn.target, drawn.sources, drawn.batches)
    fixed = fb.aggregate("fedgp", drawn.target, drawn.sources, beta=beta)
    assert_close(auto, fixed, rtol=1e-9, atol=1e-12 * drawn.largest)


@pytest.mark.parametrize("rule", ["fedda-auto", "fedgp-auto"])
def test_scope_model_takes_one_weight_for_all_blocks(rule):
    drawn = random_round(10, n=3, m=8)
    found = fb.estimate(drawn.batches, drawn.sources)
    beta = fb.auto_beta(rule.removesuffix("-auto"), found)
    fixed = fb.aggregate(
        rule.removesuffix("-auto"), drawn.target, drawn.sources, blocks=[3, 5], beta=beta
    )
    auto = fb.aggregate(
        rule, drawn.target, drawn.sources, drawn.batches, blocks=[3, 5], scope="model"
    )
    assert_close(auto, fixed, rtol=1e-10)


@pytest.mark.parametrize("rule", ["fedda-auto", "fedgp-auto"])
def test_the_whole_model_is_the_default_scope(rule):
    drawn = random_round(10, n=3, m=8)
    given = (rule, drawn.target, drawn.sources, drawn.batches)
    plain = fb.aggregate(*given, blocks=[3, 5])
    assert torch.equal(plain, fb.aggregate(*given, blocks=[3, 5], scope="model"))
    assert not torch.allclose(plain, fb.aggregate(*given, blocks=[3, 5], scope="block"))


@pytest.mark.parametrize("delta", ["batches", "scripts"])
def test_delta_counts_batches_over_the_whole_model_or_per_block(delta):
    drawn = random_round(10, n=3, m=8)
    cut = Blocks.of_sizes([3, 5])
    given = ("fedgp-auto", drawn.target, drawn.sources, drawn.batches)
    agree = drawn.batches @ drawn.sources.T > 0
    share = agree.to(torch.float64).mean(0)
    if delta == "scripts":
        share = 1 - (1 - share) / len(drawn.batches)
    found = fb.estimate(drawn.batches, drawn.sources)
    length2 = (drawn.target.square().sum() - found.sigma2).clamp(min=0)
    far = share * found.tau2_d2.clamp(min=0) + (1 - share) * length2
    beta = found.sigma2 / (found.sigma2 + far)
    fixed = fb.aggregate("fedgp", drawn.target, drawn.sources, blocks=cut, beta=beta)
    assert_close(fb.aggregate(*given, blocks=cut, delta=delta), fixed, rtol=1e-10)
    by_block = torch.cat(
        [
            fb.aggregate(
                "fedgp-auto",
                drawn.target[part],
                drawn.sources[:, part],
                drawn.batches[:, part],
                delta=delta,
            )
            for part in cut.slices()
        ]
    )
    assert_close(fb.aggregate(*given, blocks=cut, delta=delta, scope="block"), by_block, rtol=1e-10)


def test_fltrust_takes_cosine_and_lengths_from_the_whole_model():
    drawn = random_round(12, n=3, m=8)
    given = ("fltrust", drawn.target, drawn.sources)
    assert_close(fb.aggregate(*given, blocks=[3, 5]), fb.aggregate(*given), rtol=1e-10)


def test_the_lines_weight_wipes_out_an_opposed_source_and_the_half_lines_does_not():
    opposed, sigma2 = -T[None], 0.5
    assert_close(fb.aggregate("fedgp-auto", T, opposed, sigma2=sigma2), [0.0, 0.0], atol=1e-12)
    kept = fb.aggregate("fedgp-auto", T, opposed, sigma2=sigma2, half_line=True)
    assert_close(kept, (1 - 0.5 / 20) * T)


# Joint rules.


def seen_in(drawn, **noise):
    cut = Blocks.whole(drawn.sources.shape[1])
    return measure(drawn.target, drawn.sources, cut, noise=Noise(tensor(sigma2_of(drawn))))


@given(rounds())
def test_fedda_joint_fulfils_the_kkt_conditions(drawn):
    seen = seen_in(drawn)
    sigma2 = float(seen.require_noise().sigma2)
    weights = fedda_joint(seen).sources[0]
    slope = seen.difference_gram[0] @ weights - sigma2
    tolerance = 1e-9 * (float(seen.distance2.max()) + sigma2)
    assert bool((weights >= 0).all())
    assert float(weights.sum()) <= 1 + 1e-12
    multiplier = 0.0 if weights.sum() < 1 - 1e-12 else float(-(weights * slope).sum())
    assert multiplier >= -tolerance
    assert bool((slope + multiplier >= -tolerance).all())
    assert float((weights * (slope + multiplier)).abs().max()) <= tolerance


@given(rounds())
def test_fedgp_joint_fulfils_the_kkt_conditions(drawn):
    seen = seen_in(drawn)
    sigma2 = float(seen.require_noise().sigma2)
    mix = fedgp_joint(seen)
    b, c = 1.0 - mix.target[0], mix.sources[0]
    rest = b * drawn.target - c @ drawn.sources
    tolerance = 1e-9 * (float(drawn.target.square().sum()) + sigma2)
    slopes = -drawn.sources @ rest
    lengths = drawn.sources.norm(dim=1)
    assert bool((c >= 0).all())
    assert bool((slopes >= -tolerance * lengths).all())
    assert float((c * slopes).abs().max()) <= tolerance
    slope_of_b = float(drawn.target @ rest) - sigma2
    assert 0 <= b <= 1
    assert slope_of_b <= tolerance if b == 1 else abs(slope_of_b) <= tolerance


def alone(function, seen, index, **options):
    """The mixture that a rule finds with one source only, as coefficients of all sources."""
    kept = [0, index + 1]
    single = Geometry(seen.blocks, seen.gram[:, kept][:, :, kept], tensor(1.0), noise=seen.noise)
    mix = function(single, **options)
    sources = torch.zeros_like(seen.source2)
    sources[:, index] = mix.sources[:, 0]
    return Mix(mix.target, sources, sources)


@given(rounds())
def test_joint_rules_are_never_above_single_or_averaged_solutions(drawn):
    seen = seen_in(drawn)
    singles = range(seen.n_sources)
    of_fedda = [fedda_auto(seen), *(alone(fedda_auto, seen, i) for i in singles)]
    of_fedgp = [
        fedgp_auto(seen, half_line=True),
        fedgp_auto(seen),
        *(alone(fedgp_auto, seen, i, half_line=True) for i in singles),
    ]
    slack = 1e-10 * (float(seen.gram.abs().max()) + float(seen.require_noise().sigma2))
    hull, cone = estimated_delta(fedda_joint(seen), seen), estimated_delta(fedgp_joint(seen), seen)
    assert all(hull <= estimated_delta(mix, seen) + slack for mix in of_fedda)
    assert all(cone <= estimated_delta(mix, seen) + slack for mix in of_fedda + of_fedgp)
    assert cone <= hull + slack


@given(rounds(), st.integers(0, 10**6))
def test_joint_rules_are_never_above_random_feasible_points(drawn, seed):
    seen = seen_in(drawn)
    generator = torch.Generator().manual_seed(seed)
    slack = 1e-10 * (float(seen.gram.abs().max()) + float(seen.require_noise().sigma2))
    hull, cone = estimated_delta(fedda_joint(seen), seen), estimated_delta(fedgp_joint(seen), seen)
    for _ in range(20):
        free = torch.rand(1, seen.n_sources + 1, generator=generator, dtype=torch.float64)
        w = (free / free.sum())[:, 1:]
        assert hull <= estimated_delta(Mix(1 - w.sum(1), w, w), seen) + slack
        c = free[:, 1:] / seen.source2.clamp(min=1e-3).sqrt()
        assert cone <= estimated_delta(Mix(1 - free[:, 0], c, c), seen) + slack


def random_problem(seed):
    generator = torch.Generator().manual_seed(seed)
    n, m = 1 + seed % 6, 1 + (7 * seed) % 11
    spread, sigma2 = 10.0 ** (2 * torch.rand(2, generator=generator, dtype=torch.float64) - 1)
    both = torch.randn(n + 1, m, generator=generator, dtype=torch.float64)
    return Problem(both[0], both[0] + spread * both[1:], float(sigma2)), generator


@pytest.mark.parametrize("weighted", [False, True], ids=["equal shares", "any shares"])
def test_fedda_joint_with_true_quantities_has_no_larger_delta_error_than_fedda_auto(weighted):
    ratios = []
    for seed in range(200):
        problem, generator = random_problem(seed)
        n = len(problem.sources)
        weights = torch.rand(n, generator=generator, dtype=torch.float64) if weighted else None
        joint = mix_delta(fedda_joint(problem.geometry()), problem)
        auto = mix_delta(fedda_auto(problem.geometry(weights=weights)), problem)
        assert joint <= auto * (1 + 1e-10)
        ratios.append(joint / auto)
    assert min(ratios) < 0.9  # and it is not merely the same rule


def test_correct_noise_takes_off_what_the_span_of_the_sources_in_use_holds():
    drawn = random_round(12, n=2, m=7, b=6)
    sources = drawn.sources.abs()
    batches = drawn.batches + 2 * sources.sum(0)  # well inside the cone's span: both in use
    target = batches.mean(0)
    basis = torch.linalg.qr(sources.T).Q
    deviations = batches - target
    sigma2 = deviations.square().sum() / 30
    v = (deviations @ basis).square().sum() / 30
    apart = (target - basis @ (basis.T @ target)).square().sum()
    b = ((sigma2 - v) / apart).clamp(max=1.0)
    assert 0.01 < b < 0.99
    expected = (1 - b) * target + b * (basis @ (basis.T @ target))
    for scale in (1.0, 1e-9, 1e30):
        sized = sources * tensor([1.0], [scale])
        found = fb.aggregate("fedgp-joint", target, sized, batches, correct_noise=True)
        assert_near(found, expected)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("m", [9, 3000])
def test_correct_noise_counts_what_dependent_sources_have_in_common_once(seed, m):
    drawn = random_round(seed, n=2, m=m, b=6, noise=3.0)
    first, second = drawn.sources
    batches = drawn.batches + 2 * first + 2 * second
    two, more = (
        fb.aggregate("fedgp-joint", batches.mean(0), sources, batches, correct_noise=True)
        for sources in (
            drawn.sources,
            torch.stack((first, second, first, first + second, first / 3 + 2 * second)),
        )
    )
    assert_near(more, two)


# Options.


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("fedda", {"beta": 1.4}),
        ("fedda", {"beta": -0.1}),
        ("fedda", {"beta": float("nan")}),
        ("fedgp", {"beta": [0.5, 2.0]}),
        ("fedgp", {"projection": "cosine"}),
        ("fedgp-auto", {"projection": "cosine"}),
        ("fedgp-auto", {"delta": 1.5}),
        ("fedgp-auto", {"delta": "batch"}),
        ("fedda-auto", {"scope": "blocks"}),
        ("fedgp-auto", {"scope": "whole"}),
        ("trimmed-mean", {"trim": 0.6}),
        ("trimmed-mean", {"trim": -0.1}),
        ("zeno", {"rho": -0.1}),
        ("zeno", {"rho": float("inf")}),
        ("zeno", {"drop": -1}),
        ("zeno", {"drop": 1.5}),
        ("zeno", {"drop": "one"}),
    ],
)
def test_an_option_outside_its_range_is_refused(rule, options):
    (option,) = options
    with pytest.raises(OptionError, match=f"Expected `{option}`.*but got"):
        fb.aggregate(rule, T, S, sigma2=1.0, **options)


def test_beta_is_one_number_or_one_per_source():
    with pytest.raises(ShapeError, match=r"one per source \(2\), but got shape \(3,\)"):
        fb.aggregate("fedda", T, S, beta=[0.1, 0.2, 0.3])


@pytest.mark.parametrize("rule", ["fedda", "fedgp"])
def test_beta_may_be_one_row_per_block(rule):
    drawn = random_round(21, n=2, m=5)
    beta = tensor([0.1, 0.9], [0.6, 0.3])
    parts = [
        fb.aggregate(rule, drawn.target[part], drawn.sources[:, part], beta=row)
        for part, row in zip((slice(0, 2), slice(2, 5)), beta, strict=True)
    ]
    found = fb.aggregate(rule, drawn.target, drawn.sources, blocks=[2, 3], beta=beta)
    assert_close(found, torch.cat(parts))


def test_counting_agreement_needs_batches():
    with pytest.raises(NoiseUndefinedError, match="`batches` for `delta='scripts'`"):
        fb.aggregate("fedgp-auto", T, S, sigma2=1.0, delta="scripts")


def test_rules_tell_their_options():
    assert fb.rules.get("fedda").options == ("beta",)
    assert set(fb.rules.get("fedgp").options) == {"beta", "filter", "projection"}
    assert fb.rules.get("trimmed-mean").options == ("trim",)
    assert fb.rules.get("target-only").options == ()


def test_names_of_the_contract():
    assert fb.rules.names()[: len(RULES)] == list(RULES)
    assert all(isinstance(fb.rules.get(name), Rule | CoordinateRule) for name in RULES)


def test_every_rule_states_its_equation():
    assert all(fb.rules.get(name).function.__doc__ for name in RULES)


def test_a_new_rule_is_registered_by_a_decorator(monkeypatch):
    monkeypatch.setattr(fb.rules.registry, "_entries", dict(fb.rules.registry._entries))

    @fb.rules.rule("nearest-source")
    def nearest_source(geometry, *, share=0.5):
        """Go part of the way to the nearest source."""
        best = torch.nn.functional.one_hot(geometry.distance2.argmin(1), geometry.n_sources)
        return Mix(torch.full_like(geometry.target2, 1 - share), share * best, best)

    assert "nearest-source" in fb.rules.names()
    assert fb.aggregate("nearest-source", T, S).tolist() == [3.0, 1.0]
    assert fb.aggregate(nearest_source, T, S, share=1.0).tolist() == [2.0, 0.0]

    @fb.rules.coordinate_rule("smallest")
    def smallest(target, sources):
        return sources.amin(0)

    assert fb.aggregate("smallest", T, S).tolist() == [0.0, -1.0]


@pytest.mark.parametrize("name", RULES)
def test_the_function_of_a_rule_stands_for_the_rule(name):
    assert fb.rules.resolve(fb.rules.get(name).function) is fb.rules.get(name)


class TestSortingNetwork:
    """Sorting networks sort, whatever the number of vectors."""

    @pytest.mark.parametrize("count", [*range(1, 18), 31, 50])
    def test_every_column_is_sorted(self, count):
        matrix = torch.randn(count, 200, generator=torch.Generator().manual_seed(count))
        assert torch.equal(torch.stack(sorted_rows(matrix)), matrix.sort(dim=0).values)

    @pytest.mark.parametrize("count", range(1, 11))
    def test_a_network_that_sorts_zeros_and_ones_sorts_everything(self, count):
        """The zero-one principle: all 2^n lists of zeros and ones are proof enough."""
        matrix = torch.tensor([[int(bit) for bit in f"{n:0{count}b}"] for n in range(2**count)]).T
        assert torch.equal(torch.stack(sorted_rows(matrix)), matrix.sort(dim=0).values)

    def test_nothing_to_compare_for_one_vector(self):
        assert list(comparators(1)) == list(comparators(0)) == []


@pytest.mark.parametrize(
    ("rule", "option"), [("fedgp", "filter"), ("fedgp-auto", "filter"), ("fedgp-auto", "half_line")]
)
def test_a_switch_is_true_or_false(rule, option):
    with pytest.raises(OptionError, match=f"`{option}` to be true or false"):
        fb.aggregate(rule, T, S, sigma2=1.0, **{option: 3})
