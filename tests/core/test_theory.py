"""Delta errors and bounds, each beside its simulation."""

import math

import pytest
import torch
from helpers import RULES, assert_close, rounds, tensor
from hypothesis import given
from hypothesis import strategies as st

import fedbridge as fb
from fedbridge import Mix, theory
from fedbridge.base.errors import FedbridgeError, OptionError, ShapeError
from fedbridge.core.rules import fedda_auto, fedda_joint
from fedbridge.core.theory import FilterMoments, Problem, delta_error

DRAWS = 200_000

RIGHT_ANGLE = Problem(tensor(1.0, 0.05, 0.0), tensor([0.0, 3.0, 0.0]), 0.9)
"""Source at nearly a right angle, three times as long as a unit vector; isotropic noise."""

SKEWED = Problem(
    tensor(1.0, 0.5, -0.5, 0.2),
    tensor([0.5, 1.0, 0.0, 0.0], [-2.0, 0.5, 1.0, 0.0], [4.0, 2.1, -2.0, 0.8]),
    tensor([1.0, 0.0], [0.8, 0.1], [0.0, 0.3], [-0.2, 0.4]),
)
"""Noise of rank 2, mostly along the first source; one source is opposed, one nearly parallel."""

PROBLEMS = {"right angle": RIGHT_ANGLE, "skewed noise": SKEWED}


def means(problem, draws=DRAWS, seed=1):
    """(draws, m) the target's mean update, drawn over and over."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(problem.noise, torch.Tensor):
        rank = problem.noise.shape[1]
        white = torch.randn(draws, rank, generator=generator, dtype=torch.float64)
        return problem.target + white @ problem.noise.T
    m = len(problem.target)
    white = torch.randn(draws, m, generator=generator, dtype=torch.float64)
    return problem.target + math.sqrt(problem.noise / m) * white


def fedgp_of(seen, source, beta, filter=True):
    """FedGP with one source, on the vectors themselves."""
    unit = source / source.norm()
    along = seen @ unit
    along = along.clamp(min=0) if filter else along
    return (1 - beta) * seen + beta * along[:, None] * unit


def squared_errors(updates, problem):
    return (updates - problem.target).square().sum(1)


def standard_errors(draws, expected):
    """By how many standard errors the mean of the draws misses what was expected."""
    return abs(float(draws.mean() - expected)) / float(draws.std() / len(draws) ** 0.5)


def within(simulated, expected, errors=4.0):
    return abs(simulated.mean - expected) <= errors * simulated.standard_error


# True quantities.


def test_true_quantities_by_hand():
    problem = Problem(tensor(4.0, 2.0), tensor([2.0, 0.0], [0.0, -1.0]), 3.0)
    assert problem.sigma2 == 3.0
    assert_close(problem.d2, [8.0, 25.0])
    assert_close(problem.tau2_d2, [4.0, 16.0])
    assert_close(problem.tau2, [4 / 8, 16 / 25])
    assert_close(problem.along, [1.5, 1.5])


def test_noise_as_a_matrix_by_hand():
    problem = Problem(tensor(4.0, 2.0), tensor([2.0, 0.0], [0.0, -1.0]), tensor([1.0], [2.0]))
    assert problem.sigma2 == 5.0
    assert_close(problem.along, [1.0, 4.0])


def test_tau_is_the_sine_of_the_angle_at_the_source():
    """With ρ between source and target, τ = ‖g_T‖ sin ρ / ‖g_i − g_T‖ as the paper defines it."""
    target, source = tensor(1.0, 2.0, 0.5), tensor(2.0, -0.3, 1.0)
    cosine = target @ source / target.norm() / source.norm()
    paper = target.norm() * (1 - cosine**2).sqrt() / (source - target).norm()
    assert_close(Problem(target, source[None], 1.0).tau2, [paper**2])


@pytest.mark.parametrize("name", PROBLEMS)
def test_delta_is_the_chance_to_pass_the_filter(name):
    problem = PROBLEMS[name]
    passing = (means(problem) @ problem.sources.T > 0).double()
    error = (passing.mean(0) - problem.delta).abs()
    assert bool((error <= 4 * (passing.std(0) / DRAWS**0.5) + 1e-9).all())


@pytest.mark.parametrize("name", PROBLEMS)
def test_draws_have_the_stated_mean_and_noise(name):
    problem = PROBLEMS[name]
    generator = torch.Generator().manual_seed(0)
    seen = torch.stack([problem.draw(5, generator) for _ in range(20_000)])
    assert seen.shape == (20_000, 5, len(problem.target))
    errors = seen.mean(1) - problem.target
    assert bool((errors.mean(0).abs() <= 4 * errors.std(0) / 20_000**0.5 + 1e-12).all())
    assert standard_errors(errors.square().sum(1), problem.sigma2) <= 4
    for source, along in zip(problem.sources, problem.along, strict=True):
        assert standard_errors((errors @ source / source.norm()).square(), along) <= 4


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("blocks", [None, [1, 2]], ids=["whole", "blocks"])
def test_the_true_geometry_is_the_expected_one(name, blocks):
    problem = PROBLEMS[name]
    m = len(problem.target)
    blocks = [1, m - 1] if blocks else None
    seen = problem.geometry(blocks)
    drawn = means(problem)
    for k, part in enumerate(seen.blocks.slices()):
        squares = drawn[:, part].square().sum(1)
        assert standard_errors(squares, seen.target2[k]) <= 4
        errors = (drawn - problem.target)[:, part]
        assert standard_errors(errors.square().sum(1), seen.noise.sigma2[k]) <= 4
        along = errors @ problem.sources[:, part].T
        found = torch.cov(along.T).reshape(seen.noise.covariance[k].shape)
        assert_close(found, seen.noise.covariance[k], rtol=0.02, atol=0.02)
    everywhere = (drawn - problem.target) @ problem.sources.T
    whole = seen.whole().noise.covariance[0]
    assert_close(torch.cov(everywhere.T).reshape(whole.shape), whole, rtol=0.02, atol=0.02)


def test_a_problem_takes_lists_and_refuses_what_does_not_fit():
    assert Problem([1.0, 0.0], [[0.0, 1.0]], 1).sigma2 == 1
    with pytest.raises(ShapeError, match=r"matrix of 2 rows.*\(3, 1\)"):
        Problem([1.0, 0.0], [[0.0, 1.0]], torch.ones(3, 1))
    for noise in (-1.0, float("nan")):
        with pytest.raises(OptionError, match="`noise` to be finite and >= 0"):
            Problem([1.0, 0.0], [[0.0, 1.0]], noise)


# The filter.


@pytest.mark.parametrize("mean", [-2.0, -0.1, 0.0, 0.3, 5.0])
def test_moments_of_the_filter_equal_simulated_ones(mean):
    exact = FilterMoments.gaussian(mean, 2.0)
    x = math.sqrt(2.0) * torch.randn(DRAWS, generator=torch.Generator().manual_seed(3)).double()
    passing = (x > -mean).double()
    for draws, value in (
        (passing, exact.passing),
        (passing * x, exact.first),
        (passing * x * x, exact.second),
    ):
        assert standard_errors(draws + 1e-300, value) <= 4
    observed = FilterMoments.of_draws(mean, x)
    assert_close(observed.passing, passing.mean())
    assert_close(observed.first, (passing * x).mean())
    assert_close(observed.second, (passing * x * x).mean())


def test_without_noise_the_filter_is_a_step():
    assert FilterMoments.gaussian(1.0, 0.0) == FilterMoments(1.0, 0.0, 0.0)
    assert FilterMoments.gaussian(-1.0, 0.0) == FilterMoments(0.0, 0.0, 0.0)
    assert FilterMoments.gaussian(0.0, 0.0) == FilterMoments(0.0, 0.0, 0.0)


# Delta errors.


@given(st.floats(0, 1), st.floats(0, 9), st.floats(0, 9))
def test_fedda_delta_is_the_weighted_sum(beta, sigma2, d2):
    delta = theory.fedda_delta(beta, sigma2, d2)
    assert delta == pytest.approx((1 - beta) * (1 - beta) * sigma2 + beta * beta * d2)
    best = sigma2 / (sigma2 + d2) if sigma2 + d2 > 0 else 0.0
    assert theory.fedda_delta(best, sigma2, d2) <= delta + 1e-12


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", PROBLEMS)
def test_fedda_delta_equals_simulation(name, beta):
    problem = PROBLEMS[name]
    seen = means(problem)
    for source, d2 in zip(problem.sources, problem.d2.tolist(), strict=True):
        errors = squared_errors((1 - beta) * seen + beta * source, problem)
        exact = theory.fedda_delta(beta, problem.sigma2, d2)
        if beta == 1.0:
            assert exact == pytest.approx(d2)
        else:
            assert standard_errors(errors, exact) <= 4


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_exact_fedgp_delta_equals_simulation(name, beta):
    problem = PROBLEMS[name]
    seen = means(problem)
    exact = theory.fedgp_delta_of(problem, beta)
    for source, delta in zip(problem.sources, exact, strict=True):
        assert standard_errors(squared_errors(fedgp_of(seen, source, beta), problem), delta) <= 4


def test_the_cross_term_needs_the_unit_vector_and_not_the_source_as_printed():
    problem, beta = RIGHT_ANGLE, 0.5
    problem = Problem(tensor(1.0, 0.5, 0.0), problem.sources, problem.noise)
    errors = squared_errors(fedgp_of(means(problem), problem.sources[0], beta), problem)
    kept = FilterMoments.gaussian(0.5, 0.3)

    def delta(inner):
        return theory.fedgp_delta(beta, 0.9, 1.0, along=inner, target2=1.25, kept=kept)

    with_unit, with_source = 0.5, float(problem.target @ problem.sources[0])
    assert with_source == 1.5
    assert standard_errors(errors, delta(with_unit)) <= 4
    assert standard_errors(errors, delta(with_source)) > 20


def test_the_filter_matters_near_a_right_angle():
    """The approximation that takes filter and noise as independent is off there, and good else."""
    near, far = RIGHT_ANGLE, Problem(tensor(1.0, 8.0, 0.0), RIGHT_ANGLE.sources, 0.9)
    for problem, good in ((near, False), (far, True)):
        exact = float(theory.fedgp_delta_of(problem, 0.5))
        approximation = theory.fedgp_delta_approximation(
            0.5,
            0.9,
            1.0,
            m=3,
            delta=float(problem.delta),
            target2=float(problem.target @ problem.target),
        )
        assert (abs(approximation / exact - 1) < 1e-6) is good


def test_the_papers_approximation_by_hand():
    delta = theory.fedgp_delta_approximation(0.5, 2.0, 4.0, m=10)
    assert delta == pytest.approx((0.25 + 0.75 / 10) * 2.0 + 0.25 * 4.0)
    filtered = theory.fedgp_delta_approximation(0.5, 2.0, 4.0, m=10, delta=0.8, target2=5.0)
    expected = (0.25 + 0.75 * 0.8 / 10) * 2.0 + 0.25 * 0.8 * 4.0 + 0.25 * 0.2 * 5.0
    assert filtered == pytest.approx(expected)


def test_a_zero_source_never_passes():
    problem = Problem(tensor(1.0, 2.0), torch.zeros(1, 2), 0.5)
    assert problem.delta.tolist() == [0.0]
    assert_close(theory.fedgp_delta_of(problem, 0.4), [0.36 * 0.5 + 0.16 * 5.0])


@given(rounds())
def test_the_delta_error_of_fixed_coefficients_is_bias_plus_noise(drawn):
    problem = Problem(drawn.target, drawn.sources, 0.7)
    a, c = 0.3, torch.full((1, len(drawn.sources)), 0.2, dtype=torch.float64)
    bias = ((1 - a) * drawn.target - c[0] @ drawn.sources).square().sum()
    found = theory.mix_delta(Mix(tensor(a), c, c), problem)
    assert_close(found, bias + a * a * 0.7, rtol=1e-9, atol=1e-12 * drawn.largest**2)


@pytest.mark.parametrize("rule", ["target-only", "source-only", "fedavg", "fedda"])
@pytest.mark.parametrize("blocks", [None, [1, 3]], ids=["whole", "blocks"])
def test_closed_forms_equal_the_simulated_rule(rule, blocks):
    mix = fb.rules.get(rule)(SKEWED.geometry(blocks))
    exact = theory.mix_delta(mix, SKEWED, blocks)
    simulated = delta_error(rule, SKEWED, draws=300, batches=2, blocks=blocks)
    assert within(simulated, exact) or exact == pytest.approx(simulated.mean)


def test_the_estimated_delta_error_of_given_coefficients_is_unbiased():
    mix = Mix(tensor(0.4), tensor([0.3, 0.1, 0.2]), tensor([0.3, 0.1, 0.2]))
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(600):
        batches = SKEWED.draw(4, generator)
        mean, noise = fb.measure_noise(batches, SKEWED.sources, fb.Blocks.whole(4))
        seen = fb.measure(mean, SKEWED.sources, fb.Blocks.whole(4), noise=noise)
        found.append(theory.estimated_delta(mix, seen))
    assert standard_errors(tensor(*found), theory.mix_delta(mix, SKEWED)) <= 4


def test_the_joint_closed_form_is_its_objective_plus_a_constant():
    seen = SKEWED.geometry()
    weights = fedda_joint(seen).sources[0]
    q = weights @ seen.difference_gram[0] @ weights - 2 * SKEWED.sigma2 * weights.sum()
    assert_close(theory.mix_delta(fedda_joint(seen), SKEWED), q + SKEWED.sigma2, rtol=1e-11)


# Bounds.


@given(st.integers(0, 10**6), st.booleans())
def test_a_mean_over_sources_is_at_most_as_wrong_as_they_are_on_average(seed, weighted):
    generator = torch.Generator().manual_seed(seed)
    both = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    weights = tensor(1.0, 2.0, 5.0) if weighted else None
    problem = Problem(both[0], both[1:], 0.8)
    mix = fedda_auto(problem.geometry(weights=weights))
    alone = [
        theory.fedda_delta(b, 0.8, d2)
        for b, d2 in zip(mix.beta[0].tolist(), problem.d2.tolist(), strict=True)
    ]
    assert theory.mix_delta(mix, problem) <= theory.mean_bound(tensor(*alone), weights) + 1e-12


def test_mean_bound_by_hand():
    assert theory.mean_bound(tensor(1.0, 3.0)) == 2.0
    assert theory.mean_bound(tensor(1.0, 3.0), tensor(3.0, 1.0)) == 1.5


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("beta", [0.2, 0.5, 1.0])
def test_the_decomposition_bound_holds_for_rules_that_are_affine_in_the_target(name, beta):
    problem = PROBLEMS[name]
    seen = means(problem)
    for source, d2 in zip(problem.sources, problem.d2.tolist(), strict=True):
        of_fedda = theory.fedda_delta(beta, problem.sigma2, d2)
        bound = theory.decomposition_bound(problem.sigma2, d2, eigenvalues=(1 - beta, 1 - beta))
        assert of_fedda == pytest.approx(bound)
        unfiltered = squared_errors(fedgp_of(seen, source, beta, filter=False), problem)
        bound = theory.decomposition_bound(problem.sigma2, d2, eigenvalues=(1 - beta, 1.0))
        assert bound == pytest.approx(problem.sigma2 + beta**2 * d2)
        assert float(unfiltered.mean()) <= bound


def linear_part(rule, source, **options):
    """The matrix of a rule that is affine in the target, read off on unit vectors."""
    m = len(source)
    at_zero = fb.aggregate(rule, torch.zeros(m).double(), source[None], **options)
    columns = [
        fb.aggregate(rule, unit, source[None], **options) - at_zero
        for unit in torch.eye(m).double()
    ]
    return torch.stack(columns, 1), at_zero


@pytest.mark.parametrize(
    ("rule", "options", "eigenvalues"),
    [
        ("fedda", {}, [0.7, 0.7, 0.7]),
        ("fedgp", {"filter": False}, [0.7, 0.7, 1.0]),
    ],
)
def test_what_the_decomposition_bound_needs_holds_where_it_is_claimed(rule, options, eigenvalues):
    source = tensor(1.0, -2.0, 0.5)
    matrix, offset = linear_part(rule, source, beta=0.3, **options)
    assert_close(matrix, matrix.T, atol=1e-12)
    assert_close(torch.linalg.eigvalsh(matrix), eigenvalues)
    assert_close(matrix @ source + offset, source)
    for target in (tensor(3.0, 1.0, -1.0), tensor(-3.0, 1.0, 1.0)):
        found = fb.aggregate(rule, target, source[None], beta=0.3, **options)
        assert_close(found, matrix @ target + offset)


def test_filtered_fedgp_is_not_affine_so_nothing_is_claimed_for_it():
    source, target = tensor(1.0, -2.0, 0.5), tensor(-3.0, 1.0, 1.0)
    there, back = (fb.aggregate("fedgp", sign * target, source[None]) for sign in (1, -1))
    assert not torch.allclose(there, -back)


def test_the_decomposition_bound_takes_the_worst_eigenvalue():
    bound = theory.decomposition_bound(2.0, 3.0, eigenvalues=(-0.5, 0.25))
    assert bound == pytest.approx(0.25 * 2.0 + 2.25 * 3.0)
    with pytest.raises(OptionError, match="low, high"):
        theory.decomposition_bound(1.0, 1.0, eigenvalues=(1.0, 0.0))


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_one_step_on_a_quadratic_loss_keeps_its_promise(share):
    curvature = tensor(4.0, 1.0, 0.5, 0.1)
    start = tensor(1.0, -1.0, 2.0, 3.0)
    gradient = curvature * start
    problem = Problem(gradient, gradient + tensor([0.5, 0.5, -0.5, 0.2]), 0.6)
    updates = 0.6 * means(problem) + 0.4 * problem.sources[0]
    step = share / 4.0

    def loss(theta):
        return (curvature * theta.square()).sum(-1) / 2

    change = (loss(start - step * updates) - loss(start)).mean()
    delta2 = theory.fedda_delta(0.4, 0.6, float(problem.d2))
    bound = theory.one_step_bound(step, float(gradient @ gradient), delta2, smoothness=4.0)
    assert float(change) <= bound


def test_the_one_step_bound_is_sharp_where_curvature_is_the_same_everywhere():
    start, update, gamma = tensor(1.0, 2.0), tensor(0.5, 3.0), 2.0
    change = gamma / 2 * ((start - update / gamma).square().sum() - start.square().sum())
    delta2 = float((gamma * start - update).square().sum())
    bound = theory.one_step_bound(1 / gamma, 4 * 5.0, delta2, smoothness=gamma)
    assert bound == pytest.approx(float(change))


@pytest.mark.parametrize("step", [0.0, -0.1, 0.6])
def test_the_one_step_bound_speaks_of_steps_up_to_the_inverse_smoothness(step):
    with pytest.raises(OptionError, match="1/smoothness"):
        theory.one_step_bound(step, 1.0, 1.0, smoothness=2.0)


# Simulation of any rule.


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_simulated_delta_error(rule):
    found = delta_error(rule, SKEWED, draws=10, batches=3)
    assert math.isfinite(found.mean)
    assert found.draws == 10
    assert found == delta_error(rule, SKEWED, draws=10, batches=3)


def test_another_seed_draws_otherwise():
    first, second = (delta_error("fedgp", SKEWED, draws=5, seed=seed) for seed in (0, 1))
    assert first.mean != second.mean


def test_simulated_fedgp_meets_its_exact_form():
    single = Problem(SKEWED.target, SKEWED.sources[:1], SKEWED.noise)
    simulated = delta_error("fedgp", single, draws=400, batches=1, beta=0.7)
    assert within(simulated, float(theory.fedgp_delta_of(single, 0.7)))


def test_a_rule_that_nobody_registered_is_simulated_too():
    def half(geometry, *, share=0.5):
        """Shrink the target towards nothing."""
        none = torch.zeros_like(geometry.source2)
        return Mix(torch.full_like(geometry.target2, 1 - share), none, none)

    target2 = float(SKEWED.target @ SKEWED.target)
    simulated = delta_error(half, SKEWED, draws=400, batches=2)
    assert within(simulated, 0.25 * SKEWED.sigma2 + 0.25 * target2)
    simulated = delta_error(half, SKEWED, draws=400, batches=2, share=1.0)
    assert simulated.mean == pytest.approx(target2)


def test_a_rule_by_entries_is_simulated_too():
    simulated = delta_error("median", SKEWED, draws=5)
    expected = (SKEWED.sources.median(0).values - SKEWED.target).square().sum()
    assert simulated.mean == pytest.approx(float(expected))
    assert simulated.standard_error == pytest.approx(0.0, abs=1e-12)


def test_a_known_noise_needs_a_single_batch_only():
    problem = Problem(tensor(1.0, 0.0, 0.0), tensor([1.0, 0.1, 0.0]), 3.0)
    known = delta_error("fedda-auto", problem, draws=300, batches=1, known_noise=True)
    alone = delta_error("target-only", problem, draws=300, batches=1)
    assert known.mean < 0.5 * alone.mean


def test_weights_and_blocks_reach_the_rule():
    exact = theory.mix_delta(
        fb.rules.get("source-only")(SKEWED.geometry(weights=[1, 0, 3])), SKEWED
    )
    found = delta_error("source-only", SKEWED, draws=2, weights=[1, 0, 3], blocks=[2, 2])
    assert found.mean == pytest.approx(exact)


@pytest.mark.parametrize("few", [{"draws": 1}, {"batches": 0}])
def test_a_simulation_needs_draws_and_batches(few):
    with pytest.raises(FedbridgeError, match="at least 2 `draws` and 1 of `batches`"):
        delta_error("fedgp", SKEWED, **few)
