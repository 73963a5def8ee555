"""Delta errors: how far the update of a rule is, on average, from the target's true gradient.

``Δ² = E ‖g_T − update‖²`` over the draw of the target's few samples. It is what every rule tries
to make small, since one step of size ``μ ≤ 1/γ`` lowers the target's loss by at least
``μ/2 (‖g_T‖² − Δ²)``. This module has the closed forms, the bounds, and a simulation that works
for any rule. A ``Problem`` holds what is true and never seen; ``estimators`` what is seen of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.base.errors import FedbridgeError, OptionError, ShapeError
from fedbridge.base.options import check_number
from fedbridge.core.aggregate import aggregate
from fedbridge.core.blocks import Blocks
from fedbridge.core.checks import check_sources, check_target
from fedbridge.core.geometry import Geometry, Noise, divide, measure
from fedbridge.core.gram import inner
from fedbridge.core.rules import AnyRule, Mix, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Problem:
    """A round whose truth is known: the target's true gradient, its noise, the sources.

    Attributes:
        target: (m,) ``g_T``, the gradient that infinitely many target samples would give.
        sources: (N, m) ``g_i``; sources are rich in data, their noise is left out.
        noise: how the target's mean update errs, as Gaussian noise: a number ``σ²`` spreads it
            evenly over all m directions, a matrix (m, r) gives it the covariance ``noise noiseᵀ``.
    """

    target: Tensor
    sources: Tensor
    noise: float | Tensor

    def __post_init__(self) -> None:
        sources = check_sources(self.sources).to(torch.float64)
        target = check_target(self.target, sources).to(torch.float64)
        object.__setattr__(self, "sources", sources)
        object.__setattr__(self, "target", target)
        if isinstance(self.noise, Tensor):
            if self.noise.ndim != 2 or self.noise.shape[0] != len(target):
                raise ShapeError(
                    f"Expected `noise` to be a number or a matrix of {len(target)} rows, but got "
                    f"shape {tuple(self.noise.shape)}."
                )
            object.__setattr__(self, "noise", self.noise.to(torch.float64))
        elif not (math.isfinite(self.noise) and self.noise >= 0):
            raise OptionError(f"Expected `noise` to be finite and >= 0, but got {self.noise}.")

    @property
    def sigma2(self) -> float:
        """``σ² = E ‖ḡ − g_T‖²``."""
        return float(self.noise.square().sum()) if isinstance(self.noise, Tensor) else self.noise

    @property
    def d2(self) -> Tensor:
        """(N,) ``d_i² = ‖g_i − g_T‖²``."""
        return (self.sources - self.target).square().sum(1)

    @property
    def tau2_d2(self) -> Tensor:
        """(N,) ``τ_i² d_i²``, the squared distance of ``g_T`` from the line of ``g_i``."""
        return measure(self.target, self.sources, Blocks.whole(len(self.target))).line2[0]

    @property
    def tau2(self) -> Tensor:
        """(N,) ``τ_i²``, squared sine of the angle between ``g_i`` and ``g_T − g_i``."""
        return divide(self.tau2_d2, self.d2)

    @property
    def along(self) -> Tensor:
        """(N,) ``v_i = E ⟨ḡ − g_T, u_i⟩²``, the noise along the direction of source i."""
        return self.geometry().along()[0]

    @property
    def delta(self) -> Tensor:
        """(N,) ``δ_i``, the chance that source i is not opposed: ``P(⟨ḡ, g_i⟩ > 0)``."""
        return torch.tensor([kept.passing for _, kept in self.filtered()], dtype=torch.float64)

    def filtered(self) -> list[tuple[float, FilterMoments]]:
        """Of every source ``⟨g_T, u_i⟩``, and what FedGP's filter keeps of the noise along it."""
        means = divide(self.sources @ self.target, self.sources.norm(dim=1)).tolist()
        pairs = zip(means, self.along.tolist(), strict=True)
        return [(mean, FilterMoments.gaussian(mean, variance)) for mean, variance in pairs]

    def draw(self, batches: int, generator: torch.Generator) -> Tensor:
        """(B, m) batch updates of one draw of the target's data; their mean has noise ``σ²``."""
        noise, m = self.noise, len(self.target)
        rank = noise.shape[1] if isinstance(noise, Tensor) else m
        white = torch.randn(batches, rank, dtype=torch.float64, generator=generator)
        spread = white @ noise.T if isinstance(noise, Tensor) else white * math.sqrt(noise / m)
        return self.target + math.sqrt(batches) * spread

    def geometry(
        self,
        blocks: Blocks | Sequence[int] | None = None,
        weights: Sequence[float] | Tensor | None = None,
    ) -> Geometry:
        """What a rule would see with *true* quantities: the expected Gram matrix and noise.

        ``E ‖ḡ‖² = ‖g_T‖² + σ²``; all other inner products are their true values. Rules on this
        geometry use the weights that their formulas would give if nothing had to be estimated.
        """
        cut = Blocks.resolve(blocks, len(self.target))
        seen = measure(self.target, self.sources, cut, weights=weights)
        noise = self._noise_seen(cut, seen)
        gram = seen.gram.clone()
        gram[:, 0, 0] += noise.sigma2
        return Geometry(cut, gram, seen.weights, seen.samples, noise)

    def _noise_seen(self, blocks: Blocks, seen: Geometry) -> Noise:
        """The true noise, with the covariances of ``⟨ḡ, g_i⟩``."""
        if isinstance(self.noise, Tensor):
            rows = self.noise.T.contiguous()
            sigma2 = [self.noise[columns].square().sum() for columns in blocks.slices()]
            products = torch.stack([inner(self.sources, rows, part) for part in blocks.slices()])
            along = products.sum(0, keepdim=True)
            return Noise(
                torch.stack(sigma2), products @ products.mT, whole_covariance=along @ along.mT
            )
        per_entry = self.noise / len(self.target)
        sizes = torch.tensor(blocks.sizes, dtype=torch.float64)
        return Noise(per_entry * sizes, per_entry * seen.source_gram)


@dataclass(frozen=True)
class FilterMoments:
    """What FedGP's filter keeps of the noise ``x = ⟨ḡ − g_T, u⟩`` along a source.

    Attributes:
        passing: ``E δ̂``, the chance that the source passes.
        first: ``E δ̂ x``.
        second: ``E δ̂ x²``.
    """

    passing: float
    first: float
    second: float

    @classmethod
    def gaussian(cls, mean: float, variance: float) -> FilterMoments:
        """Exact, for ``x`` normal with this variance and ``mean = ⟨g_T, u⟩``."""
        if variance <= 0:
            return cls(1.0 if mean > 0 else 0.0, 0.0, 0.0)
        deviation = math.sqrt(variance)
        z = mean / deviation
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        passing = math.erfc(-z / math.sqrt(2)) / 2
        return cls(passing, deviation * density, variance * (passing - z * density))

    @classmethod
    def of_draws(cls, mean: float, errors: Tensor) -> FilterMoments:
        """Averages over observed errors ``x`` of any distribution."""
        passing = (mean + errors > 0).to(torch.float64)
        return cls(
            float(passing.mean()),
            float((passing * errors).mean()),
            float((passing * errors.square()).mean()),
        )


def fedda_delta(beta: float, sigma2: float, d2: float) -> float:
    """FedDA with one source, exact: ``(1 − β)² σ² + β² d²``; β = 0, 1 are the single sides."""
    return (1 - beta) ** 2 * sigma2 + beta**2 * d2


def fedgp_delta_approximation(
    beta: float,
    sigma2: float,
    tau2_d2: float,
    *,
    m: int,
    delta: float = 1.0,
    target2: float = 0.0,
) -> float:
    """FedGP with one source, the paper's approximation for isotropic noise in m dimensions.

    ``((1−β)² + (2β−β²) δ/m) σ² + β² δ τ²d² + β² (1−δ) ‖g_T‖²``; the paper then sets δ = 1. It takes
    the filter as independent of the noise, which is good far from a right angle only.
    """
    spread = (1 - beta) ** 2 + (2 * beta - beta**2) * delta / m
    return spread * sigma2 + beta**2 * (delta * tau2_d2 + (1 - delta) * target2)


def fedgp_delta(
    beta: float, sigma2: float, tau2_d2: float, *, along: float, target2: float, kept: FilterMoments
) -> float:
    """FedGP with one source, exact (the paper's restated theorem).

    ``(1−β)² σ² + β² E[δ̂] τ²d² + (2β−β²) E[δ̂ x²] + 2β(1−β) ⟨g_T,u⟩ E[δ̂ x] + β² (1 − E δ̂) ‖g_T‖²``
    with ``x = ⟨ḡ − g_T, u⟩``. The printed theorem has ``⟨g_T, g_i⟩`` in the cross term; the
    proof, and simulation, need the unit vector there: ``along = ⟨g_T, u⟩``.
    """
    return (
        (1 - beta) ** 2 * sigma2
        + beta**2 * kept.passing * tau2_d2
        + (2 * beta - beta**2) * kept.second
        + 2 * beta * (1 - beta) * along * kept.first
        + beta**2 * (1 - kept.passing) * target2
    )


def fedgp_delta_of(problem: Problem, beta: float | Tensor) -> Tensor:
    """(N,) exact Delta error of FedGP with each source of a problem on its own."""
    betas = torch.as_tensor(beta, dtype=torch.float64).expand(len(problem.sources)).tolist()
    sigma2, target2 = problem.sigma2, float(problem.target.square().sum())
    off_line = problem.tau2_d2.tolist()
    errors = [
        fedgp_delta(b, sigma2, off, along=mean, target2=target2, kept=kept)
        for b, off, (mean, kept) in zip(betas, off_line, problem.filtered(), strict=True)
    ]
    return torch.tensor(errors, dtype=torch.float64)


def mix_delta(mix: Mix, problem: Problem, blocks: Blocks | Sequence[int] | None = None) -> float:
    """Exact Delta error of *fixed* coefficients: ``‖(1−a) g_T − Σ c_i g_i‖² + a² σ²``, over blocks.

    Covers target-only, source-only, fedavg and fedda with any number of sources, and fedda-auto
    and fedda-joint with the weights of ``problem.geometry()``. It is the estimate below, taken
    on true quantities.
    """
    return estimated_delta(mix, problem.geometry(blocks))


def estimated_delta(mix: Mix, geometry: Geometry) -> float:
    """Estimate of the Delta error of a mixture from what is seen: ``Q + σ̂²``, over blocks.

    ``Q(b, c) = ‖b ḡ − Σ c_i g_i‖² − 2 b σ̂²`` with ``b = 1 − target``. Unbiased for coefficients
    that were chosen without looking at ``ḡ``; for coefficients that minimise it, it is optimistic.
    """
    sigma2 = geometry.require_noise().sigma2
    coefficients = torch.cat((mix.target[:, None] - 1.0, mix.sources), dim=1)
    seen = torch.einsum("ka,kab,kb->k", coefficients, geometry.gram, coefficients)
    return float((seen + (2.0 * mix.target - 1.0) * sigma2).sum())


def mean_bound(errors: Tensor, weights: Tensor | None = None) -> float:
    """``Δ² ≤ Σ p_i Δ_i²``: a mean over sources is at most as wrong as they are on average."""
    return float(errors.mean() if weights is None else (weights / weights.sum() * errors).sum())


def decomposition_bound(sigma2: float, d2: float, *, eigenvalues: tuple[float, float]) -> float:
    """Bound for a rule that is affine in the target: ``max λ² σ² + max (1−λ)² d²``.

    Needs ``F[g, g] = g`` and a *symmetric* linear part with its eigenvalues in the given interval:
    FedDA has ``λ = 1−β``, projection without filter ``1−β ≤ λ ≤ 1``. Filtered FedGP, auto and joint
    rules are not affine and the bound does not speak of them.
    """
    low, high = eigenvalues
    if low > high:
        raise OptionError(f"Expected `eigenvalues` as (low, high), but got ({low}, {high}).")
    largest = max(low**2, high**2)
    farthest = max((1 - low) ** 2, (1 - high) ** 2)
    return largest * sigma2 + farthest * d2


def one_step_bound(step: float, target2: float, delta2: float, *, smoothness: float) -> float:
    """Upper bound of the expected change of the target's loss: ``−μ/2 (‖g_T‖² − Δ²)``.

    Holds for a ``smoothness``-smooth loss (γ) and a step size ``μ ≤ 1/γ``.
    """
    _check_step(step, smoothness)
    return -step / 2 * (target2 - delta2)


def path_bound(
    start_loss: float, errors2: float, *, step: float, rounds: float, smoothness: float
) -> float:
    """Upper bound of the mean of ``‖∇ℓ_T(θ^t)‖²`` over T steps: ``2 ℓ_T(θ⁰)/(μT) + mean f̂²``.

    ``f̂(θ) = ‖ĝ(θ) − ∇ℓ_T(θ)‖`` is the error of the step that was taken, ``errors2`` the mean of
    its squares along the path. This is ``one_step_bound`` summed up: it holds for every draw of
    the data, a loss of at least 0 and ``μ ≤ 1/γ``, whether or not the path converges.
    """
    _check_step(step, smoothness)
    return 2 * start_loss / (step * rounds) + errors2


def coverage(masses: Tensor) -> float:
    """``C_ε = E [π(B_ε(θ̂))⁻²]`` over draws of the target's data.

    ``masses`` is how much of ``π`` lies within ``ε`` of where each draw's optimisation ends. It is
    the mean of the squares, as the proof has it; printed it may be read as the square of the mean.
    Infinite where ``π`` misses one of the ends, so for every point mass but on the end itself.
    """
    return float(masses.to(torch.float64).pow(-2).mean())


def convergence_bound(
    delta2: float,
    coverage: float,
    *,
    failure: float,
    radius: float,
    smoothness: float,
    step: float,
    rounds: float = math.inf,
    start_loss: float = 0.0,
    settled: int = 0,
    early2: float = 0.0,
) -> float:
    """The paper's Theorem 1: ``‖∇ℓ_T(θ^T)‖²`` is at most this with chance ``1 − δ`` at least.

    Printed as ``(√(C_ε Δ²) + O(ε))²/δ² + O(1/T) + O(ε)``; with the constants of its proof kept,

        (γε + √(a/(T − T_ε) + f²))² ,  a = 2 ℓ_T(θ⁰)/μ + T_ε F² ,  f = (√(C_ε Δ²) + γε)/δ + γε .

    It takes steps ``θ − μ ĝ(θ)`` that converge, ``μ ≤ 1/γ``, and ``∇ℓ`` and ``ĝ`` that are both
    ``γ/2``-Lipschitz; ``docs/theory.md`` says what that leaves out.

    Args:
        delta2: ``Δ²``, the mean over ``π`` of the Delta error.
        coverage: ``C_ε``.
        failure: ``δ``, the chance that the bound may fail.
        radius: ``ε``.
        smoothness: ``γ``, twice the larger Lipschitz constant.
        step: ``μ``.
        rounds: ``T``; infinite for the limit.
        start_loss: ``ℓ_T(θ⁰)``, of a loss that is never below 0.
        settled: ``T_ε``, the step from which on the path stays within ``ε`` of its end.
        early2: ``F²``, the largest squared error of a step before that.
    """
    _check_step(step, smoothness)
    check_number("failure", failure, above=0, most=1)
    check_number("radius", radius, least=0)
    if rounds <= settled:
        raise OptionError(
            f"Expected more `rounds` than the {settled} in which the path settles, but got "
            f"{rounds}: before that the theorem says nothing."
        )
    slack = smoothness * radius
    error = (math.sqrt(coverage * delta2) + slack) / failure + slack
    run = (2 * start_loss / step + settled * early2) / (rounds - settled)
    return (slack + math.sqrt(run + error**2)) ** 2


def _check_step(step: float, smoothness: float) -> None:
    if not 0 < step * smoothness <= 1 + 1e-12:
        raise OptionError(
            f"Expected a `step` in (0, 1/smoothness], but got {step} for smoothness {smoothness}."
        )


@dataclass(frozen=True)
class Simulated:
    """A simulated expectation: its mean, and the standard error of that mean."""

    mean: float
    standard_error: float
    draws: int


def delta_error(
    rule: str | AnyRule | Callable[..., Mix],
    problem: Problem,
    *,
    batches: int = 10,
    draws: int = 1000,
    seed: int = 0,
    known_noise: bool = False,
    weights: Sequence[float] | Tensor | None = None,
    blocks: Blocks | Sequence[int] | None = None,
    **options: object,
) -> Simulated:
    """Delta error of any rule, registered or not, by simulation.

    The target's data are drawn so many times, each time as B ``batches``; ``known_noise`` gives the
    rule the true ``σ²`` instead of them. Rule, weights, blocks and options as for ``aggregate``.
    """
    if draws < 2 or batches < 1:
        raise FedbridgeError(
            f"Expected at least 2 `draws` and 1 of `batches`, but got {draws} and {batches}."
        )
    chosen = resolve(rule)
    cut = Blocks.resolve(blocks, len(problem.target))
    generator = torch.Generator().manual_seed(seed)
    sigma2 = problem.geometry(cut).require_noise().sigma2 if known_noise else None
    errors = torch.empty(draws, dtype=torch.float64)
    for draw in range(draws):
        seen = problem.draw(batches, generator)
        update = aggregate(
            chosen,
            seen.mean(0),
            problem.sources,
            batches=None if known_noise else seen,
            sigma2=sigma2,
            weights=weights,
            blocks=cut,
            **options,
        )
        errors[draw] = (update - problem.target).square().sum()
    return Simulated(float(errors.mean()), float(errors.std() / math.sqrt(draws)), draws)


def share_off_line(d2: float | None, tau2_d2: float | None) -> float | None:
    """``τ²`` in [0, 1] from raw estimates; None where there is no distance to take a share of."""
    if d2 is None or tau2_d2 is None or d2 <= 0:
        return None
    return min(1.0, max(0.0, tau2_d2 / d2))
