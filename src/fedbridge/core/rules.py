"""Aggregation rules: each a small pure function from the round's geometry to a mixture.

Notation: ``ḡ`` is the target's update with noise ``σ²``, ``g_i`` the update of source i with share
``p_i`` (1/N unless sample counts are given), ``β_i`` always the weight of the *source's* side.

The rules differ in the set ``K`` of updates that the sources offer, and in how much of the way
from ``ḡ`` to its nearest point ``p`` in ``K`` they go: ``(1 − b) ḡ + b p``. With a fixed ``b``
these are FedDA and FedGP; the ``b`` that minimises the expected squared error is James-Stein's,

    b = min(1, σ² / ‖ḡ − p‖²) .

=============  =======================  ==========================================
rule           K                        then
=============  =======================  ==========================================
fedda-auto     the point ``g_i``        mean over i
fedgp-auto     the line of ``g_i``      mean over i (see there for two details)
fedda-joint    convex hull of all       nothing
fedgp-joint    cone of all              nothing
=============  =======================  ==========================================

A new rule is a function of about ten lines with ``@rule("name")``; ``docs/new-rule.md`` shows one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedbridge.base.errors import NoiseUndefinedError, OptionError, ShapeError
from fedbridge.base.options import check_choice, check_flag, check_number
from fedbridge.core.checks import check_beta
from fedbridge.core.geometry import Geometry, divide
from fedbridge.core.projections import RIDGE, cone_point, hull_point
from fedbridge.core.rulebook import (
    AnyRule,
    CoordinateRule,
    Mix,
    Rule,
    coordinate_rule,
    get,
    names,
    registry,
    resolve,
    rule,
)

if TYPE_CHECKING:
    from fedbridge.core.sketch import JointAngles

__all__ = [
    "AnyRule",
    "CoordinateRule",
    "Mix",
    "Rule",
    "coordinate_rule",
    "get",
    "names",
    "registry",
    "resolve",
    "rule",
    "shrinkage",
]

Beta = float | Sequence[float] | Tensor
EQUAL = 1e-12
"""Scores of updates that differ by less, beside the lengths that they come from, are equal."""


@rule("source-only", noise="none", reads="shares", own_unit=True, without_target=True)
def source_only(geometry: Geometry) -> Mix:
    """Σ_i p_i g_i: the sources' mean update, as if the target had no data."""
    return _constant_mix(geometry, 0.0, geometry.weights)


@rule("target-only", noise="none", reads="shares", alone=True)
def target_only(geometry: Geometry) -> Mix:
    """ḡ: the target's own update, as if it were alone."""
    return _constant_mix(geometry, 1.0, torch.zeros_like(geometry.weights))


@rule("fedavg", noise="none", reads="shares", own_unit=True, by_samples=True)
def fedavg(geometry: Geometry) -> Mix:
    """(n_T ḡ + Σ_i n_i g_i) / (n_T + Σ_i n_i): every client by its number of samples.

    Without sample counts all clients count the same.
    """
    n_clients = geometry.n_sources + 1
    counts = geometry.samples
    if counts is None:
        counts = torch.ones(n_clients, dtype=torch.float64)
    if len(counts) != n_clients:
        raise ShapeError(
            f"Expected `weights` of 'fedavg' to hold the sample counts of all {n_clients} "
            f"clients, the target first, but got {len(counts)}."
        )
    shares = counts / counts.sum()
    return _constant_mix(geometry, float(shares[0]), shares[1:])


@rule("fedda", noise="none", reads="shares")
def fedda(geometry: Geometry, *, beta: Beta = 0.5) -> Mix:
    """Σ_i p_i [(1 − β_i) ḡ + β_i g_i]: go the share β_i of the way to every source.

    Options:
        beta: the weight of the source's side, one or one per source.
    """
    beta = check_beta(beta, geometry.n_sources, len(geometry.blocks))
    return _mean_over_sources(geometry, beta, reach=None)


@rule("fedgp", noise="none", reads="target")
def fedgp(
    geometry: Geometry,
    *,
    beta: Beta = 0.5,
    filter: bool = True,
    projection: Literal["exact", "aligned-cosine"] = "exact",
) -> Mix:
    """Σ_i p_i [(1 − β_i) ḡ + β_i Proj₊(ḡ | g_i)]: keep what every source confirms.

    ``Proj₊(ḡ | g_i) = max(⟨ḡ, g_i⟩, 0) g_i / ‖g_i‖²`` is nothing for an opposed source.

    Options:
        beta: the weight of the source's side, one or one per source.
        filter: False projects on the whole line, opposed sources included (an ablation).
        projection: "aligned-cosine" is ``max(cos(ḡ, g_i), 0) g_i``, what the paper's scripts
            compute: the same direction, but a length that depends on the source's.
    """
    beta = check_beta(beta, geometry.n_sources, len(geometry.blocks))
    return _mean_over_sources(geometry, beta, _reach(geometry, filter, projection))


@rule("fedda-auto", reads="target", fixed=fedda)
def fedda_auto(geometry: Geometry, *, scope: Literal["model", "block"] = "model") -> Mix:
    """FedDA with β_i = σ̂² / (σ̂² + max(d̂_i², 0)) = min(1, σ̂² / ‖g_i − ḡ‖²).

    Options:
        scope: "model" takes β_i from the whole model for all blocks, as the paper's Algorithm 1
            and its scripts do; "block" takes one per block.
    """
    seen = _scoped(geometry, scope)
    beta = shrinkage(seen.require_noise().sigma2[:, None], seen.distance2)
    return _mean_over_sources(geometry, beta, reach=None)


@rule("fedgp-auto", noise="directions", reads="target", fixed=fedgp)
def fedgp_auto(
    geometry: Geometry,
    *,
    filter: bool = True,
    projection: Literal["exact", "aligned-cosine"] = "exact",
    half_line: bool = False,
    delta: float | Literal["batches", "scripts"] = 1.0,
    scope: Literal["model", "block"] = "model",
) -> Mix:
    """FedGP with β_i = σ̂² / (σ̂² + max(τ̂_i²d̂_i², 0)) = min(1, σ̂² / (‖ḡ − P_i ḡ‖² + v_i)).

    This is the paper's weight. It measures the distance to the *line* of ``g_i``: for an opposed
    source, whose filtered projection is zero, β_i may come near 1 and wipe out that source's
    share of the target.

    Options:
        filter: as in ``fedgp``.
        projection: as in ``fedgp``.
        half_line: measure the distance to what the filtered projection can reach: for an opposed
            source ``‖ḡ‖²``, hence β_i = min(1, σ̂² / ‖ḡ‖²).
        delta: δ_i, the chance that source i survives the filter, in
            β_i = σ̂² / (σ̂² + δ_i τ_i²d_i² + (1 − δ_i) ‖g_T‖²). The paper sets 1; "batches" takes
            the share of the target's batches that agree with the source, "scripts" the value
            1 − (1 − share)/B of the paper's scripts.
        scope: "model" takes β_i from the whole model for all blocks, as the paper's Algorithm 1
            and its scripts do; "block" takes one per block.
    """
    seen = _scoped(geometry, scope)
    sigma2 = seen.require_noise().sigma2[:, None]
    off_line = (seen.line2 + seen.along() - sigma2).clamp(min=0.0)
    off_zero = (seen.target2[:, None] - sigma2).clamp(min=0.0)
    surviving = _delta(seen, delta)
    distance2 = surviving * off_line + (1.0 - surviving) * off_zero
    if check_flag("half_line", half_line):
        distance2 = torch.where(seen.inner > 0, distance2, off_zero)
    beta = shrinkage(sigma2, sigma2 + distance2)
    return _mean_over_sources(geometry, beta, _reach(geometry, filter, projection))


@rule("fedda-joint", reads="sketched")
def fedda_joint(geometry: Geometry) -> Mix:
    """(1 − b) ḡ + b p with p the point of the sources' convex hull nearest to ḡ.

    ``b = min(1, σ̂² / ‖ḡ − p‖²)``. With ``w = b · shares`` this is the exact minimiser of
    ``wᵀ A w − 2 σ̂² Σ w`` over ``w ≥ 0, Σ w ≤ 1`` with ``A_ij = ⟨g_i − ḡ, g_j − ḡ⟩``, since for any
    b the best point of the hull is the nearest one. ``weights`` play no part.
    """
    shares, apart = _of_blocks(hull_point, geometry)
    b = shrinkage(geometry.require_noise().sigma2, apart)
    return Mix(1.0 - b, b[:, None] * shares, b[:, None] * shares)


@rule("fedgp-joint", noise="directions", reads="sketched")
def fedgp_joint(geometry: Geometry, *, correct_noise: bool = False) -> Mix:
    """(1 − b) ḡ + b p with p the projection of ḡ on the cone of the sources.

    ``p = Σ c_i g_i`` with ``c ≥ 0`` by non-negative least squares and
    ``b = min(1, σ̂² / ‖ḡ − p‖²)``, which minimises ``‖b ḡ − Σ c_i g_i‖² − 2 b σ̂²`` exactly.
    ``weights`` play no part. The reported ``beta`` shares b among the sources by their part in p.

    Options:
        correct_noise: p moves with ḡ and inherits the noise v inside the span of the sources in
            use; b = min(1, (σ̂² − v) / ‖ḡ − p‖²) takes that into account.
    """
    cone, apart = _of_blocks(cone_point, geometry)
    sigma2 = geometry.require_noise().sigma2
    if correct_noise:
        sigma2 = (sigma2 - _noise_in_span(geometry, cone > 0)).clamp(min=0.0)
    b = shrinkage(sigma2, apart)
    parts = cone * geometry.inner.clamp(min=0.0)
    beta = b[:, None] * divide(parts, parts.sum(1, keepdim=True))
    return Mix(1.0 - b, b[:, None] * cone, beta)


@rule("fltrust", noise="none", reads="target")
def fltrust(geometry: Geometry) -> Mix:
    """Σ_i s_i (‖ḡ‖/‖g_i‖) g_i / Σ_i s_i with s_i = p_i max(cos(ḡ, g_i), 0).

    Sources vote by their agreement with the target, all brought to the target's length; cosine
    and lengths are those of the whole model. When no source agrees there is nothing to trust and
    the model stays. The paper has no shares ``p_i`` (they are equal unless ``weights`` says else),
    and its server has a small clean set of its own where ours has the target.

    Cao, Fang, Liu, Gong: FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping,
    NDSS 2021.
    """
    whole = geometry.whole()
    score = geometry.weights * whole.cosine[0].clamp(min=0.0)
    trust = divide(score, score.sum())
    length = divide(whole.target2.sqrt(), whole.source2[0].sqrt())
    mix = _constant_mix(geometry, 0.0, trust * length)
    return replace(mix, beta=trust.expand_as(mix.beta))


@coordinate_rule("median")
def median(target: Tensor, sources: Tensor) -> Tensor:
    """Entry-wise median of the sources: one hostile source among three moves nothing.

    See ``trimmed_mean``.
    """
    return trimmed_mean(target, sources, trim=0.5)


@coordinate_rule("trimmed-mean")
def trimmed_mean(target: Tensor, sources: Tensor, *, trim: float = 0.2) -> Tensor:
    """Entry-wise mean of the sources without the largest and smallest share ``trim`` of values.

    Options:
        trim: 0 is the mean, 0.5 the median.

    Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates, ICML 2018.
    """
    check_number("trim", trim, least=0, most=0.5)
    n_sources = sources.shape[0]
    cut = min(_share_of(n_sources, trim), (n_sources - 1) // 2)
    middle = sorted_rows(sources)[cut : n_sources - cut]
    return sum(middle[1:], start=middle[0]) / len(middle)


@rule("zeno", noise="none", reads="target")
def zeno(geometry: Geometry, *, rho: float = 0.005, drop: float = 1) -> Mix:
    """Σ_i p_i g_i / Σ_i p_i over the sources that score best in s_i = ⟨ḡ, g_i⟩ − ρ ‖g_i‖².

    A score says how much a step along the source's update would lower the target's loss, less a
    penalty on its length. Zeno computes that loss; this is its first-order form, as in Zeno++,
    with the target's rows as the trusted data. A source has one score for the whole model, not
    one per block. At the edge, sources of equal score share the places that are left.

    Options:
        rho: ρ, which is the paper's over the learning rate; the default is that of its
            experiments. 1/2 drops the sources farthest from the target, since
            2⟨ḡ, g_i⟩ − ‖g_i‖² = ‖ḡ‖² − ‖g_i − ḡ‖².
        drop: how many sources to drop, or below 1 the share of them, rounded down. One source
            always stays.

    Xie, Koyejo, Gupta: Zeno: Distributed Stochastic Gradient Descent with Suspicion-based
    Fault-tolerance, ICML 2019, and Zeno++: Robust Fully Asynchronous SGD, ICML 2020.
    """
    rho = check_number("rho", rho, least=0)
    whole = geometry.whole()
    score = (whole.inner - rho * whole.source2)[0]
    lengths = whole.target2.sqrt()[:, None] * whole.source2.sqrt()
    rounding = EQUAL * (lengths + rho * whole.source2)[0]
    places = geometry.n_sources - _dropped(drop, geometry.n_sources)
    shares = geometry.weights * _places(score, rounding, places)
    return _constant_mix(geometry, 0.0, divide(shares, shares.sum()))


def sorted_rows(matrix: Tensor) -> list[Tensor]:
    """The rows of a matrix (without NaN) with every column sorted: the smallest entries first.

    ``torch.sort`` along a short axis handles one tiny list after the other. A sorting network does
    the same comparisons for all entries at once, each a pair of vector operations: about twenty
    times faster for ten vectors.
    """
    rows = list(matrix)
    for low, high in comparators(len(rows)):
        first, second = rows[low], rows[high]
        rows[low], rows[high] = torch.minimum(first, second), torch.maximum(first, second)
    return rows


def comparators(count: int) -> Iterator[tuple[int, int]]:
    """Pairs to compare and swap, in order, that sort any list: Batcher's merge exchange network."""
    largest = 1 << max(count - 1, 0).bit_length() >> 1
    stride = largest
    while stride:
        reach, rest, apart = largest, 0, stride
        while True:
            yield from ((i, i + apart) for i in range(count - apart) if i & stride == rest)
            if reach == stride:
                break
            apart, reach, rest = reach - stride, reach >> 1, stride
        stride >>= 1


def shrinkage(sigma2: Tensor, distance2: Tensor) -> Tensor:
    """``b = min(1, σ²/D)``; 0 without noise, 1 for a noisy target at distance 0."""
    ratio = sigma2 / torch.where(distance2 > 0, distance2, torch.finfo(torch.float64).tiny)
    return ratio.clamp(max=1.0)


def _of_blocks(
    point: Callable[[Tensor | JointAngles], tuple[Tensor, Tensor]], geometry: Geometry
) -> tuple[Tensor, Tensor]:
    """(K, N) the mixture of sources that is nearest in every block, and (K,) how far it is."""
    mixtures, apart = zip(*(point(block) for block in geometry.pairs()), strict=True)
    return torch.stack(mixtures), torch.stack(apart)


def _scoped(geometry: Geometry, scope: str) -> Geometry:
    """What weights are taken from: every block on its own, or the whole model."""
    check_choice("scope", scope, ("block", "model"))
    return geometry.whole() if scope == "model" else geometry


def _share_of(count: int, share: float) -> int:
    """A share of a count, rounded down, but 0.29 of 100 is 29."""
    return int(share * count + 1e-9)


def _dropped(drop: float, n_sources: int) -> int:
    """How many sources ``drop`` speaks of; one always stays."""
    number = check_number("drop", drop, least=0)
    if number >= 1 and not number.is_integer():
        raise OptionError(
            f"Expected `drop` to be a share below 1 or a whole number, but got {drop!r}."
        )
    count = _share_of(n_sources, number) if number < 1 else int(number)
    return min(count, n_sources - 1)


def _places(score: Tensor, rounding: Tensor, places: int) -> Tensor:
    """(N,) 1 for the best scores, 0 for the rest; equals at the edge share the places left."""
    over = score - score.sort(descending=True).values[places - 1]
    above, edge = over > rounding, over.abs() <= rounding
    left = (places - above.sum()) / edge.sum(dtype=torch.float64)
    return torch.where(edge, left, above.to(torch.float64))


def _constant_mix(geometry: Geometry, target: float, sources: Tensor) -> Mix:
    """The same coefficients for every block."""
    n_blocks = len(geometry.blocks)
    spread = sources.expand(n_blocks, -1)
    return Mix(torch.full((n_blocks,), target, dtype=torch.float64), spread, spread)


def _mean_over_sources(geometry: Geometry, beta: Tensor, reach: Tensor | None) -> Mix:
    """Σ_i p_i [(1 − β_i) ḡ + β_i r_i g_i]; ``reach`` r_i is 1 for FedDA, None for short."""
    beta = beta.expand(len(geometry.blocks), geometry.n_sources)
    share = geometry.weights * beta
    target = (geometry.weights * (1.0 - beta)).sum(1)
    return Mix(target, share if reach is None else share * reach, beta)


def _reach(geometry: Geometry, filter: bool, projection: str) -> Tensor:
    """(K, N) the multiple of ``g_i`` that stands for the projection of ``ḡ`` on it."""
    check_flag("filter", filter)
    check_choice("projection", projection, ("exact", "aligned-cosine"))
    exact = projection == "exact"
    reach = divide(geometry.inner, geometry.source2) if exact else geometry.cosine
    return reach.clamp(min=0.0) if filter else reach


def _delta(geometry: Geometry, delta: float | str) -> Tensor:
    """(K, N) the chance that each source survives the filter."""
    if isinstance(delta, str):
        if delta not in ("batches", "scripts"):
            raise OptionError(
                f"Expected `delta` in [0, 1], 'batches' or 'scripts', but got {delta!r}."
            )
        noise = geometry.require_noise()
        if noise.agreement is None:
            raise NoiseUndefinedError(
                f"Expected the target's `batches` for `delta={delta!r}`, which counts how many "
                f"agree with each source, but got none: pass `batches`, or give `delta` as a "
                f"number."
            )
        share = noise.agreement
        return share if delta == "batches" else 1.0 - (1.0 - share) / noise.batches
    check_number("delta", delta, least=0, most=1)
    return torch.full_like(geometry.source2, delta)


def _noise_in_span(geometry: Geometry, used: Tensor) -> Tensor:
    """(K,) ``v = tr(G_AA⁻¹ C_AA)``: the noise of ``ḡ`` inside the span of the sources in use.

    Sources are brought to unit length first: v does not depend on their lengths, but a
    pseudo-inverse would drop short ones beside long ones.
    """
    covariance = geometry.require_noise().covariance
    if covariance is None:
        return torch.zeros_like(geometry.target2)
    per_length = divide(torch.ones_like(geometry.source2), geometry.source2.sqrt()) * used
    scale = per_length[:, :, None] * per_length[:, None, :]
    unit = geometry.source_gram * scale
    inverse: Tensor = torch.linalg.pinv(unit, rtol=RIDGE, hermitian=True)
    return (inverse * (covariance * scale)).sum((1, 2)).clamp(min=0.0)
