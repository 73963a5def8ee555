"""The convergence theorem beside gradient descent on quadratics, where all in it is known.

A sample z costs ``½ (θ − z)ᵀ A (θ − z)`` at the target and ``½ (θ − s)ᵀ C (θ − s)`` at the source,
so FedDA follows ``ĝ(θ) = (1−β) A (θ − z̄) + β C (θ − s)`` to its only zero ``θ̂``.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from helpers import assert_close, tensor

from fedbridge import theory
from fedbridge.base.errors import OptionError
from fedbridge.core.aggregate import aggregate

DRAWS = 4_000
BEST, START = tensor(1.0, -0.5), tensor(4.0, 3.0)
TARGET_CURVES, SOURCE_CURVES = tensor(1.0, 0.4), tensor(0.7, 0.9)
SOURCE, SPREAD, SAMPLES = tensor(1.4, 0.1), 0.8, 10


@dataclass
class World:
    """FedDA on the two quadratics, over many draws of the target's data at once."""

    beta: float = 0.4
    spread: float = SPREAD
    source: torch.Tensor = SOURCE
    curves: torch.Tensor = SOURCE_CURVES

    def __post_init__(self):
        generator = torch.Generator().manual_seed(0)
        white = torch.randn(DRAWS, 2, generator=generator, dtype=torch.float64)
        self.means = BEST + self.spread / SAMPLES**0.5 * white
        self.both = (1 - self.beta) * TARGET_CURVES + self.beta * self.curves
        pull = (1 - self.beta) * TARGET_CURVES * self.means
        self.ends = (pull + self.beta * self.curves * self.source) / self.both

    @property
    def smoothness(self):
        """γ, twice the larger Lipschitz constant of ∇ℓ and ĝ."""
        return 2 * float(torch.maximum(TARGET_CURVES, self.both).max())

    def step(self, theta):
        """ĝ at one point for every draw."""
        return self.both * (theta - self.ends)

    def gradient(self, theta):
        """∇ℓ_T."""
        return TARGET_CURVES * (theta - BEST)

    def error2(self, theta):
        """f̂²."""
        return (self.step(theta) - self.gradient(theta)).square().sum(-1)

    def loss(self, theta):
        """ℓ_T with the part that no model can do away with."""
        rest = (TARGET_CURVES * self.spread**2).sum() / 2
        return (TARGET_CURVES * (theta - BEST).square()).sum(-1) / 2 + rest

    def path(self, rounds, step):
        """(T+1, draws, 2) gradient descent from one start."""
        points = [START.expand(DRAWS, 2)]
        for _ in range(rounds):
            points.append(points[-1] - step * self.step(points[-1]))
        return torch.stack(points)

    def settles(self, path, radius):
        """T_ε of every draw, and its F²."""
        outside = (path - self.ends).norm(dim=-1) >= radius
        settled = len(path) - outside.flip(0).int().argmax(0)
        settled = torch.where(outside.any(0), settled, 0)
        steps = torch.arange(len(path))[:, None]
        early = torch.where(steps < settled, self.error2(path), 0.0)
        return settled, early.amax(0)


@dataclass
class Disc:
    """π: the uniform distribution on a disc around where the optimisation ends on average."""

    middle: torch.Tensor
    size: float

    def masses(self, ends, radius):
        """Of balls, all inside of the disc."""
        assert bool(((ends - self.middle).norm(dim=-1) + radius <= self.size).all())
        return torch.full((len(ends),), (radius / self.size) ** 2, dtype=torch.float64)

    def delta2(self, world):
        """``E_π E f̂²``: f̂² at the middle, and what the errors' slopes add over the disc."""
        slopes = world.both - TARGET_CURVES
        return float(world.error2(self.middle).mean() + slopes.square().sum() * self.size**2 / 4)


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture(scope="module")
def disc(world):
    return Disc(world.ends.mean(0), 1.6)


def looseness(world, disc, where, *, share=1.0, rounds=200, failure=0.1, radius=0.05):
    """By how much the bound is above what the luckier 1 − δ of all draws come to, π somewhere."""
    step = share / world.smoothness
    path = world.path(rounds, step)
    settled, early2 = world.settles(path, radius)
    assert 0 < int(settled.max()) < rounds
    if where == "disc":
        masses, delta2 = disc.masses(world.ends, radius), disc.delta2(world)
    elif where == "path":
        masses = ((path[1:] - world.ends).norm(dim=-1) < radius).double().mean(0)
        delta2 = float(world.error2(path[1:]).mean())
    else:
        masses, delta2 = torch.ones(DRAWS), float(world.error2(world.ends).mean())
    bound = theory.convergence_bound(
        delta2,
        theory.coverage(masses),
        failure=failure,
        radius=radius,
        smoothness=world.smoothness,
        step=step,
        rounds=rounds,
        start_loss=float(world.loss(START)),
        settled=int(settled.max()),
        early2=float(early2.max()),
    )
    return bound / float(world.gradient(path[-1]).square().sum(-1).quantile(1 - failure))


@pytest.mark.parametrize("share", [1.0, 0.3], ids=["longest step", "shorter step"])
@pytest.mark.parametrize("failure", [0.9, 0.1])
@pytest.mark.parametrize("where", ["disc", "path", "end"])
def test_the_theorem_holds_where_everything_in_it_is_known(world, disc, where, failure, share):
    assert looseness(world, disc, where, share=share, rounds=60, failure=failure) >= 1


@pytest.mark.parametrize(
    ("where", "radius", "failure", "times"),
    [("end", 0.01, 0.5, 14), ("path", 0.01, 0.1, 67), ("disc", 0.05, 0.1, 7e7)],
)
def test_how_loose_it_is(world, disc, where, radius, failure, times):
    found = looseness(world, disc, where, radius=radius, failure=failure)
    assert found == pytest.approx(times, rel=0.1)


def test_over_the_data_the_mean_squared_gradient_at_the_end_is_the_delta_error():
    """With one curvature everywhere f̂ is the same at all θ: then Δ² is what is left, exactly."""
    world = World(curves=TARGET_CURVES)
    sigma2 = float((TARGET_CURVES * SPREAD).square().sum() / SAMPLES)
    d2 = float((TARGET_CURVES * (SOURCE - BEST)).square().sum())
    left = world.gradient(world.ends).square().sum(-1)
    error = 4 * float(left.std()) / DRAWS**0.5
    assert float(left.mean()) == pytest.approx(theory.fedda_delta(0.4, sigma2, d2), abs=error)


def test_at_the_end_of_a_path_the_gradient_is_the_error_of_the_step(world):
    """Since ĝ(θ̂) = 0: so the bound may go without any average over the path."""
    ends = world.ends
    assert_close(world.gradient(ends).square().sum(-1), world.error2(ends))
    late = world.path(40, 1 / world.smoothness)[-1]
    apart = (late - ends).norm(dim=-1)
    reach = world.error2(ends).sqrt() + world.smoothness / 2 * apart
    assert bool((world.gradient(late).norm(dim=-1) <= reach + 1e-12).all())


def test_the_mean_over_the_path_is_bounded_for_every_draw(world):
    for share in (1.0, 0.2):
        step, rounds = share / world.smoothness, 50
        path = world.path(rounds, step)[:-1]
        found = world.gradient(path).square().sum(-1).mean(0)
        errors2 = world.error2(path).mean(0)
        bound = theory.path_bound(
            float(world.loss(START)),
            0.0,
            step=step,
            rounds=rounds,
            smoothness=world.smoothness,
        )
        assert bool((found <= bound + errors2).all())


def test_the_path_bound_is_the_one_step_bound_summed_up():
    one = theory.one_step_bound(0.5, 3.0, 2.0, smoothness=1.0)
    loss = -one  # just enough for one step down to a loss of 0
    assert theory.path_bound(loss, 2.0, step=0.5, rounds=1, smoothness=1.0) == pytest.approx(3.0)


USUAL = {"failure": 0.5, "radius": 0.1, "smoothness": 2.0, "step": 0.25}


def test_the_bound_by_hand():
    found = theory.convergence_bound(
        0.25, 4.0, **USUAL, rounds=12, start_loss=1.5, settled=2, early2=3.0
    )
    error = (1.0 + 0.2) / 0.5 + 0.2
    assert found == pytest.approx((0.2 + math.sqrt((12.0 + 6.0) / 10 + error**2)) ** 2)


def test_more_rounds_lead_to_the_limit_as_one_over_their_number():
    limit = theory.convergence_bound(0.25, 4.0, **USUAL)
    gaps = [
        theory.convergence_bound(0.25, 4.0, **USUAL, rounds=rounds, start_loss=1.5) - limit
        for rounds in (10**4, 10**5, 10**6)
    ]
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=1e-3)
    assert gaps[1] / gaps[2] == pytest.approx(10, rel=1e-3)


def test_a_longer_step_gets_there_sooner_and_the_limit_does_not_depend_on_it():
    def bound(step, rounds):
        given = {**USUAL, "step": step, "rounds": rounds, "start_loss": 1.5}
        return theory.convergence_bound(0.25, 4.0, **given)

    assert bound(0.5, 100) < bound(0.1, 100)
    assert bound(0.5, math.inf) == bound(0.1, math.inf)


def test_without_an_error_what_is_left_goes_with_the_radius():
    """Δ = 0 and C_ε = 1: FedDA of an exact target and a source like it ends at the optimum."""
    bounds = [
        theory.convergence_bound(0.0, 1.0, **{**USUAL, "radius": radius})
        for radius in (0.1, 0.01, 0.0)
    ]
    assert bounds[0] / bounds[1] == pytest.approx(100)
    assert bounds[2] == 0.0
    exact = World(spread=0.0, source=BEST, curves=TARGET_CURVES)
    last = exact.path(200, 1 / exact.smoothness)[-1]
    assert float(exact.gradient(last).abs().max()) < 1e-6


def test_the_chance_to_fail_enters_as_its_square():
    sure, unsure = (
        theory.convergence_bound(0.25, 4.0, **{**USUAL, "radius": 0.0, "failure": failure})
        for failure in (0.05, 0.5)
    )
    assert sure / unsure == pytest.approx(100)


def test_a_lower_bound_of_the_mass_gives_a_far_sharper_theorem(world, disc):
    """Markov's inequality on f̂² instead of f̂: (γε + √(Δ²/(pδ)))² where π(B_ε(θ̂)) ≥ p."""
    radius, failure = 0.05, 0.1
    masses = disc.masses(world.ends, radius)
    sharper = (
        world.smoothness * radius + math.sqrt(disc.delta2(world) / (float(masses.min()) * failure))
    ) ** 2
    left = world.error2(world.ends)
    assert float((left > sharper).double().mean()) <= failure
    printed = theory.convergence_bound(
        disc.delta2(world),
        theory.coverage(masses),
        failure=failure,
        radius=radius,
        smoothness=world.smoothness,
        step=1 / world.smoothness,
    )
    assert printed > 1000 * sharper


def test_along_the_path_itself_the_cover_comes_near_one(world):
    """π the points of a path, as in the paper's real experiments: all but T_ε lie at its end."""
    radius, covers = 0.05, []
    for rounds in (100, 400):
        path = world.path(rounds, 1 / world.smoothness)[1:]
        near = ((path - world.ends).norm(dim=-1) < radius).double().mean(0)
        covers.append(theory.coverage(near))
    assert 1 < covers[1] < covers[0] < 2
    assert covers[1] == pytest.approx(1, abs=0.15)


def test_projected_steps_have_no_lipschitz_constant_where_a_source_is_at_rest():
    """FedGP's direction g_i/‖g_i‖ turns around within any distance of the source's optimum."""
    target = TARGET_CURVES * (SOURCE - BEST)
    for apart in (1e-2, 1e-4, 1e-6):
        aside = apart * torch.eye(2, dtype=torch.float64)
        steps = [aggregate("fedgp", target, (SOURCE_CURVES * move)[None]) for move in aside]
        assert float((steps[0] - steps[1]).norm()) / apart > 0.1 / apart


def test_a_point_mass_elsewhere_covers_nothing():
    """The paper's synthetic experiment has π at the initial parameters: C_ε is infinite there."""
    assert theory.coverage(tensor(1.0, 0.0)) == math.inf
    assert theory.convergence_bound(0.25, math.inf, **USUAL) == math.inf


def test_the_cover_is_the_mean_of_squares():
    """With the square of the mean the proof fails where small masses and large errors meet."""
    masses, errors = tensor(0.01, *[1.0] * 99), tensor(1.0, *[0.0] * 99)
    at_the_end = float((errors / masses).mean())  # as large as the proof allows
    delta2 = float(errors.square().mean())
    assert theory.coverage(masses) == pytest.approx((100**2 + 99) / 100)
    assert at_the_end <= math.sqrt(theory.coverage(masses) * delta2)
    square_of_mean = float((1 / masses).mean()) ** 2
    assert at_the_end > math.sqrt(square_of_mean * delta2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"step": 0.6}, "1/smoothness"),
        ({"failure": 0.0}, "`failure`"),
        ({"radius": -1.0}, "`radius`"),
        ({"rounds": 5, "settled": 5}, "more `rounds` than the 5"),
    ],
)
def test_what_the_theorem_does_not_speak_of_is_refused(wrong, message):
    with pytest.raises(OptionError, match=message):
        theory.convergence_bound(0.25, 4.0, **{**USUAL, **wrong})
    if "step" in wrong:
        with pytest.raises(OptionError, match=message):
            theory.path_bound(1.0, 1.0, step=0.6, rounds=3, smoothness=2.0)
