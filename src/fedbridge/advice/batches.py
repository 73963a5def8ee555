"""Batch gradients of all sites as one Gram matrix: estimates, and the bootstrap of them.

Every quantity of the theory (noise, distances, angles, Delta errors) is a quadratic function of the
sites' batch gradients. So their inner products are kept and the gradients are not: a hundred
batches of a large network are a hundred times a hundred numbers per block.

The target's batches come in *strata*, one per class. Its labelled rows usually hold every class in
its due number, and then only the scatter within classes is noise. Rules do not know that: they take
the scatter of all batches for noise, believe in too much of it, and trust sources too far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.base.errors import NoiseUndefinedError, ShapeError
from fedbridge.core.geometry import divide
from fedbridge.evaluation.intervals import Interval

if TYPE_CHECKING:
    from collections.abc import Sequence

TINY = torch.finfo(torch.float64).tiny
RANK = 1e-10
"""Relative size below which an eigenvalue is taken for 0."""

RESAMPLES = 300
"""For numbers that cost nothing."""

TAIL = 0.025
LARGEST_RATIO = 1e9


@dataclass(frozen=True)
class Stratum:
    """Batches that are drawn alike.

    Attributes:
        site: 0 for the target, i + 1 for source i; fixed updates come after the sources.
        count: how many batches there are.
        share: share of the stratum in the mean of its site.
        rows: rows in all these batches; as many as batches where nobody says.
    """

    site: int
    count: int
    share: float = 1.0
    rows: int = 0


@dataclass(frozen=True)
class BatchGram:
    """Inner products of batch gradients at one point.

    Attributes:
        gram: (K, n, n) in float64, block by block; the rows go stratum by stratum.
        strata: what the rows are: the target's, then those of every source.
        fixed: names of updates that are no mixture of the sites' gradients (a median), given
            whole, as a last row each.
    """

    gram: Tensor
    strata: tuple[Stratum, ...]
    fixed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows = sum(stratum.count for stratum in self.all_strata)
        if self.gram.ndim != 3 or self.gram.shape[1:] != (rows, rows):
            raise ShapeError(
                f"Expected inner products of {rows} rows, but got shape {tuple(self.gram.shape)}."
            )

    @property
    def n_sources(self) -> int:
        """N."""
        return max(stratum.site for stratum in self.strata)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the target's noise: batches less strata."""
        return sum(stratum.count - 1 for stratum in self.strata if stratum.site == 0)

    @property
    def target_rows(self) -> int:
        """Rows of the target."""
        return sum(s.rows or s.count for s in self.strata if s.site == 0)

    @cached_property
    def stratum(self) -> Tensor:
        """(n,) number of the stratum that every row is of."""
        return _repeated([*range(len(self.all_strata))], self.all_strata).long()

    @cached_property
    def all_strata(self) -> tuple[Stratum, ...]:
        """The sites' strata, then one for each fixed update."""
        first = self.n_sources + 1
        return (*self.strata, *(Stratum(first + k, 1) for k in range(len(self.fixed))))

    @cached_property
    def site(self) -> Tensor:
        """(n,) number of the site that every row is of."""
        return _repeated([s.site for s in self.all_strata], self.all_strata).long()

    @cached_property
    def count(self) -> Tensor:
        """(n,) how many batches the stratum of every row has."""
        return _repeated([s.count for s in self.all_strata], self.all_strata)

    @cached_property
    def share(self) -> Tensor:
        """(n,) share of the stratum of every row in the mean of its site."""
        return _repeated([s.share for s in self.all_strata], self.all_strata)

    def whole(self) -> BatchGram:
        """All blocks as one."""
        return BatchGram(self.gram.sum(0, keepdim=True), self.strata, self.fixed)

    def as_seen(self) -> Sample:
        """The batches as they are."""
        return Sample(self, 1.0 / self.count, resampled=False)

    @cached_property
    def denoised(self) -> Tensor:
        """(K, sites, n) what turns batches into vectors with the unbiased inner products.

        Resamples must scatter around something that has no noise yet, or they hold it twice. Of all
        linear maps that give the sites' means these inner products, this one moves them least.
        """
        seen = self.as_seen()
        mean = seen.means @ self.gram @ seen.means.T
        root, inverse = roots(mean)
        wanted, _ = roots(root @ positive_part(seen.true_gram) @ root)
        return inverse @ wanted @ inverse @ seen.means

    def resample(self, generator: torch.Generator) -> Sample:
        """A bootstrap draw: every stratum draws as many of its batches, with replacement."""
        weights = []
        for stratum in self.all_strata:
            drawn = torch.randint(stratum.count, (stratum.count,), generator=generator)
            times = torch.bincount(drawn, minlength=stratum.count)
            weights.append(times.to(torch.float64) / stratum.count)
        return Sample(self, torch.cat(weights), resampled=True)


def _repeated(values: Sequence[float], strata: Sequence[Stratum]) -> Tensor:
    """(n,) one value per stratum, for every row of it."""
    each = torch.tensor([stratum.count for stratum in strata])
    return torch.tensor(values, dtype=torch.float64).repeat_interleave(each)


@dataclass(frozen=True)
class Sample:
    """Batches with their weights: as they were seen, or resampled.

    A resample scatters less than what it is drawn from, by ``(B−1)/B``, which is made up for.

    Attributes:
        batches: the inner products.
        weights: (n,) share of every batch in the mean of its stratum.
        resampled: whether this is a bootstrap draw.
    """

    batches: BatchGram
    weights: Tensor
    resampled: bool

    @cached_property
    def means(self) -> Tensor:
        """(sites, n) what turns batches into the mean of every site."""
        return self._members.T * (self.batches.share * self.weights)

    @cached_property
    def noise(self) -> Tensor:
        """(K, sites) ``σ̂²`` of every site's mean."""
        return self._error2 @ self._members

    @cached_property
    def true_gram(self) -> Tensor:
        """(K, sites, sites) unbiased inner products of the true gradients: noise taken off."""
        held = 1.0 - 1.0 / self.batches.count if self.resampled else torch.tensor(1.0)
        seen = self._placed @ self.batches.gram @ self._placed.mT
        return seen - torch.diag_embed((held * self._error2) @ self._members)

    @cached_property
    def _placed(self) -> Tensor:
        """(K or 1, sites, n) what turns batches into the sites' means, as seen or as redrawn."""
        if not self.resampled:
            return self.means[None]
        return self.batches.denoised + (self.means - self.batches.as_seen().means)

    def estimates(self) -> BatchEstimates:
        """Noise, distances and angles over the whole model."""
        self._require_noise()
        true = self.true_gram.sum(0)
        n = self.batches.n_sources
        lengths, inner = true.diagonal()[: n + 1], true[0, 1 : n + 1]
        across = (lengths[0].clamp(min=0.0) * lengths[1:].clamp(min=0.0)).sqrt()
        return BatchEstimates(
            sigma2=float(self.noise.sum(0)[0]),
            target2=float(lengths[0]),
            d2=lengths[0] + lengths[1:] - 2 * inner,
            cosine=torch.where(inner == 0, 0.0, inner / across.clamp(min=TINY)).clamp(-1.0, 1.0),
        )

    def truth(self) -> Truth:
        """Vectors with the unbiased inner products, in as few dimensions as they need.

        Taking noise off a Gram matrix may leave no Gram matrix; its negative part is dropped, and
        the noise brought back to its size.
        """
        self._require_noise()
        own = self.batches.site == 0
        blocks = len(self.batches.gram)
        noise = torch.cat((self._errors[own], self._between)).expand(blocks, -1, -1)
        rows = torch.cat((self._placed.expand(blocks, -1, -1), noise), dim=1)
        joint = rows @ self.batches.gram @ rows.mT
        sites = len(self.means)
        joint[:, :sites, :sites] = self.true_gram
        values, directions = spectrum(joint)
        placed = directions * values.clamp(min=0.0).sqrt()[:, None, :]
        n, end = self.batches.n_sources, sites + int(own.sum())
        return Truth(
            target=placed[:, 0],
            sources=placed[:, 1 : n + 1],
            fixed=placed[:, n + 1 : sites],
            noise=_of_size(placed[:, sites:end], joint[:, sites:end, sites:end]),
            mistaken=_of_size(placed[:, end:], joint[:, end:, end:]),
        )

    @cached_property
    def _errors(self) -> Tensor:
        """(n, n) what turns batches into independent parts of their site's error.

        Row j is ``p √(w_j / (B−1)) (g^j − mean of its stratum)``: the squared lengths of a site's
        rows add up to the unbiased noise of its mean. A stratum of one batch shows no scatter.
        """
        count = self.batches.count
        spread = divide(torch.ones_like(count), count - 1)
        if self.resampled:
            spread = spread * count * spread
        size = self.batches.share * (self.weights * spread).sqrt()
        together = self.batches.stratum[:, None] == self.batches.stratum
        centred = torch.eye(len(count), dtype=torch.float64) - together * self.weights
        return size[:, None] * centred

    @cached_property
    def _error2(self) -> Tensor:
        """(K, n) squared length of every part of the error."""
        return (self._errors @ self.batches.gram * self._errors).sum(2)

    @property
    def _between(self) -> Tensor:
        """(strata, n) what rules take for noise besides: the target's classes differ."""
        own = [(k, s) for k, s in enumerate(self.batches.strata) if s.site == 0]
        rows = [
            (s.share / self.batches.target_rows) ** 0.5
            * ((self.batches.stratum == k) * self.weights - self.means[0])
            for k, s in own
        ]
        return torch.stack(rows)

    @cached_property
    def _members(self) -> Tensor:
        """(n, sites) whether a batch is of a site."""
        sites = torch.arange(int(self.batches.site.max()) + 1)
        return (self.batches.site[:, None] == sites).to(torch.float64)

    def _require_noise(self) -> None:
        if self.batches.freedom < 1:
            raise NoiseUndefinedError(
                "Expected at least two target batches to measure the target's noise, but got one: "
                "label more rows."
            )


def _of_size(rows: Tensor, gram: Tensor) -> Tensor:
    """Rows (K, r, D) scaled to the sum of squares that their Gram matrix (K, r, r) had."""
    wanted = gram.diagonal(dim1=1, dim2=2).sum(1)
    return rows * divide(wanted, rows.square().sum((1, 2))).sqrt()[:, None, None]


@dataclass(frozen=True)
class BatchEstimates:
    """Unbiased, hence possibly negative where the truth is near zero; the cosine is clipped.

    Attributes:
        sigma2: noise of the target's mean gradient.
        target2: squared length of the target's true gradient.
        d2: (N,) squared distance of every source.
        cosine: (N,) of the angle between the true gradients; ±1 where a length is lost in noise.
    """

    sigma2: float
    target2: float
    d2: Tensor
    cosine: Tensor


@dataclass(frozen=True)
class Truth:
    """A guess of what is true, from which rounds can be drawn; block by block, in D dimensions.

    Attributes:
        target: (K, D) the target's true gradient.
        sources: (K, N, D) those of the sources.
        fixed: (K, F, D) updates that no mixture gives.
        noise: (K, r, D) factor of the covariance of the target's mean: ``noiseᵀ noise``.
        mistaken: (K, c, D) the same of what rules take for noise besides.
    """

    target: Tensor
    sources: Tensor
    fixed: Tensor
    noise: Tensor
    mistaken: Tensor

    @property
    def sigma2(self) -> Tensor:
        """(K,) noise of the target's mean."""
        return self.noise.square().sum((1, 2))

    def with_samples(self, factor: float) -> Truth:
        """The same with ``factor`` times as many target samples: noise falls as 1/n."""
        less = factor**-0.5
        return replace(self, noise=self.noise * less, mistaken=self.mistaken * less)


@dataclass(frozen=True)
class Measures:
    """Noise, distances and angles with their intervals.

    Attributes:
        sigma2: noise of the target's gradient.
        d2: squared distance of every source.
        cosine: of the angle of every source.
        ratio: ``d²/σ²`` of every source.
        weight: ``σ²/(σ² + d²)`` of every source.
    """

    sigma2: Interval
    d2: tuple[Interval, ...]
    cosine: tuple[Interval, ...]
    ratio: tuple[Interval, ...]
    weight: tuple[Interval, ...]

    @classmethod
    def of(cls, sigma2: Tensor, d2: Tensor, cosine: Tensor) -> Measures:
        """From noise (R,), distances and cosines (R, N): first as seen, then as resampled.

        The ratio is kept finite for a target without noise.
        """
        own = sigma2[:, None]
        ratio = (d2 / own.clamp(min=TINY)).clamp(-LARGEST_RATIO, LARGEST_RATIO)
        weight = own / (own + d2.clamp(min=0.0)).clamp(min=TINY)
        each = (tuple(map(interval, values.T)) for values in (d2, cosine, ratio, weight))
        return cls(interval(sigma2), *each)


def measures(batches: BatchGram, seed: int) -> Measures:
    """Estimates from all batches, and their bootstrap over the batches of all sites."""
    generator = torch.Generator().manual_seed(seed)
    whole = batches.whole()
    samples = [whole.as_seen(), *(whole.resample(generator) for _ in range(RESAMPLES))]
    found = [sample.estimates() for sample in samples]
    return Measures.of(
        torch.tensor([estimates.sigma2 for estimates in found], dtype=torch.float64),
        torch.stack([estimates.d2 for estimates in found]),
        torch.stack([estimates.cosine for estimates in found]),
    )


def interval(values: Tensor) -> Interval:
    """The first number, with a 95% interval from the draws after it that holds it."""
    tails = torch.tensor([TAIL, 1 - TAIL], dtype=values.dtype)
    point, (low, high) = float(values[0]), values[1:].quantile(tails).tolist()
    return Interval(point, min(low, point), max(high, point))


def spectrum(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (K, s) and eigenvectors (K, s, s) of symmetric matrices of any scale."""
    size = gram.diagonal(dim1=1, dim2=2).abs().amax(1).clamp(min=TINY)
    values, directions = torch.linalg.eigh(gram / size[:, None, None])
    return values * size[:, None], directions


def positive_part(gram: Tensor) -> Tensor:
    """The positive part of symmetric matrices."""
    values, directions = spectrum(gram)
    return directions @ torch.diag_embed(values.clamp(min=0.0)) @ directions.mT


def roots(gram: Tensor) -> tuple[Tensor, Tensor]:
    """The square root of positive semidefinite matrices, and its pseudo-inverse."""
    values, directions = spectrum(gram)
    kept = values > RANK * values.amax(1, keepdim=True).clamp(min=TINY)
    root = torch.where(kept, values.clamp(min=0.0), 0.0).sqrt()
    inverse = divide(torch.ones_like(root), root)
    return (
        directions @ torch.diag_embed(root) @ directions.mT,
        directions @ torch.diag_embed(inverse) @ directions.mT,
    )
