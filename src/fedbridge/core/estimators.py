"""What the target's batches say: its noise, and how far every source is; all unbiased.

The target passes ``B`` batch updates ``g^1 .. g^B`` once, one after the other, and keeps their
mean and a few sums: memory of one model, where the paper's formulas keep all ``B`` updates. With
``δ_n = g^n − mean(g^1 .. g^{n-1})`` (Welford's recurrence), for every linear map ``L``

    Σ_j (L g^j − L ḡ)(L g^j − L ḡ)ᵀ = Σ_n (n−1)/n · (L δ_n)(L δ_n)ᵀ ,

so one vector ``δ_n`` per batch serves the noise ``σ̂²`` (L the identity), its part along the
sources (L the inner products with them) and a sketch of it (L the sketch).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedbridge.base.errors import FedbridgeError, NonFiniteError, ShapeError
from fedbridge.core.blocks import Blocks
from fedbridge.core.checks import check_batches, check_sources
from fedbridge.core.geometry import Geometry, Noise, measure
from fedbridge.core.gram import inner

if TYPE_CHECKING:
    from fedbridge.core.sketch import Sketch


class NoiseStream:
    """Feed every batch update once; memory does not grow with the number of batches.

    The inner products with the sources are exact when their updates are known beforehand
    (``directions``); without ``pairs`` only the noise along each source is kept, N numbers per
    block instead of N². When they are not, a ``sketch`` keeps a few numbers of every batch, from
    which the holder of the sources' updates finds them later (``noise_from_sketches``).
    """

    def __init__(
        self,
        blocks: Blocks,
        *,
        directions: Tensor | None = None,
        pairs: bool = True,
        sketch: Sketch | None = None,
    ) -> None:
        self.blocks = blocks
        self.count = 0
        self.mean = torch.zeros(blocks.total, dtype=torch.float64)
        self.sketches: list[Tensor] = []
        """(K, 2, size) of every batch but the first: ``√((n−1)/n) · R δ_n``."""
        self._sketch = sketch
        self._squares = torch.zeros(len(blocks), dtype=torch.float64)
        self._directions = directions
        n_sources = 0 if directions is None else len(directions)
        self._squared = _outer if pairs else torch.square
        shape = (n_sources, n_sources) if pairs else (n_sources,)
        self._products = torch.zeros((len(blocks), *shape), dtype=torch.float64)
        self._whole_products = torch.zeros((1, *shape), dtype=torch.float64)
        self._agreeing = torch.zeros((len(blocks), n_sources), dtype=torch.float64)
        self._whole_agreeing = torch.zeros((1, n_sources), dtype=torch.float64)

    def add(self, update: Tensor) -> None:
        """Take in the next batch update."""
        if update.shape != self.mean.shape:
            raise ShapeError(
                f"Expected a batch update of {self.blocks.total} entries, "
                f"but got shape {tuple(update.shape)}."
            )
        new = update.detach().to("cpu", torch.float64)
        difference = new - self.mean
        self.count += 1
        self.mean += difference / self.count
        share = (self.count - 1) / self.count
        parts = difference.split(self.blocks.sizes)
        self._squares += share * torch.stack([torch.dot(part, part) for part in parts])
        if self._directions is not None:
            rows, sources = torch.stack((difference, new)), self._directions
            seen = torch.stack([inner(rows, sources, part) for part in self.blocks.slices()])
            self._products += share * self._squared(seen[:, 0])
            self._whole_products += share * self._squared(seen[:, 0].sum(0, keepdim=True))
            self._agreeing += seen[:, 1] > 0
            self._whole_agreeing += seen[:, 1].sum(0, keepdim=True) > 0
        if self._sketch is not None and self.count > 1:
            self.sketches.append(share**0.5 * self._sketch.press(difference[None])[0])

    def noise(self) -> Noise | None:
        """The noise of the mean update; None for fewer than two batches, which leave it open."""
        if self.count < 2:
            return None
        for name, squares in zip(self.blocks.names, self._squares, strict=True):
            if not bool(squares.isfinite()):
                raise NonFiniteError(
                    f"Expected finite batch updates of the target, but their mean or spread is "
                    f"NaN or Inf in {name!r}: lower the target's learning rate."
                )
        pairs = self.count * (self.count - 1)
        known = self._directions is not None
        return Noise(
            sigma2=self._squares / pairs,
            covariance=self._products / pairs if known else None,
            agreement=self._agreeing / self.count if known else None,
            batches=self.count,
            whole_covariance=self._whole_products / pairs if known else None,
            whole_agreement=self._whole_agreeing / self.count if known else None,
        )


def _outer(rows: Tensor) -> Tensor:
    """(K, N, N) the outer product of every row (K, N) with itself."""
    return rows[:, :, None] * rows[:, None, :]


def noise_from_sketches(
    sketch: Sketch,
    batches: Tensor,
    sources: Tensor,
    inner: Tensor,
    sigma2: Tensor,
    *,
    pairs: bool = True,
) -> Noise:
    """The target's noise of known size, its directions found from the sketches of its batches.

    The covariance of ``⟨ḡ, g_i⟩`` is without bias: each entry is the product of the two
    independent halves of a sketch, no squared one. The share of batches that agree with a source
    comes from going back through Welford's recurrence, ``m_{n−1} = m_n − δ_n/n`` and
    ``g^n = m_{n−1} + δ_n``, in inner products with the sources; the sketch's error can turn the
    sign of a batch that hardly agrees or disagrees.

    Args:
        sketch: the map that the target used.
        batches: (B−1, K, 2, size) ``NoiseStream.sketches`` as they came over the wire.
        sources: (N, m) the sources' updates.
        inner: (K, N) ``⟨ḡ, g_i⟩``, where the way back begins.
        sigma2: (K,) the size of the noise.
        pairs: whether anybody reads more than the covariance's diagonal.
    """
    products = sketch.inner(batches, sketch.press(sources))
    covariance, agreement = _directions(products, inner, pairs)
    whole_covariance, whole_agreement = _directions(
        products.sum(2, keepdim=True), inner.sum(0, keepdim=True), pairs
    )
    count = len(batches) + 1
    return Noise(sigma2, covariance, agreement, count, whole_covariance, whole_agreement)


def _directions(products: Tensor, inner: Tensor, pairs: bool) -> tuple[Tensor, Tensor]:
    """Covariance (K, N, N) and agreement (K, N) from ``√((n−1)/n) ⟨δ_n, g_i⟩``, by halves.

    Without ``pairs`` of sources only the covariance's diagonal (K, N).
    """
    count = len(products) + 1
    first, second = products.unbind(-1)
    if pairs:
        across = torch.einsum("jak,jbk->kab", first, second)
        across = across + across.mT
    else:
        across = 2 * (first * second).sum(0).T
    mean, agreeing = inner, torch.zeros_like(inner)
    for n, halves in zip(range(count, 1, -1), products.flip(0), strict=True):
        step = (n / (n - 1)) ** 0.5 * halves.mean(-1).T
        mean = mean - step / n
        agreeing += mean + step > 0
    agreeing += mean > 0
    return across / (2 * count * (count - 1)), agreeing / count


@dataclass(frozen=True)
class Estimate:
    """Raw and unbiased, hence possibly negative where the truth is near zero.

    Attributes:
        sigma2: ``σ̂²``, the noise of the target's mean update.
        d2: (N,) squared distance of every source from the target.
        tau2_d2: (N,) ``τ²d²``, what is left of the target off the line of every source.
        along: (N,) ``v_i``, the part of ``σ̂²`` along every source.
    """

    sigma2: float
    d2: Tensor
    tau2_d2: Tensor
    along: Tensor

    @classmethod
    def of(cls, geometry: Geometry) -> Estimate:
        """The whole-model estimates of a measured round.

        d̂_i²     = ‖g_i − ḡ‖² − σ̂²
        τ̂_i²d̂_i² = ‖ḡ − P_i ḡ‖² − (σ̂² − v_i)
        """
        whole = geometry.whole()
        sigma2 = whole.require_noise().sigma2[0]
        along = whole.along()[0]
        return cls(
            sigma2=float(sigma2),
            d2=whole.distance2[0] - sigma2,
            tau2_d2=whole.line2[0] - (sigma2 - along),
            along=along,
        )


def estimate(batches: Tensor, sources: Tensor) -> Estimate:
    """Estimate noise and distances from the target's batch updates and the sources' updates.

    Args:
        batches: (B, m) the target's batch updates; their plain mean is its update.
        sources: (N, m) the sources' updates, in the same unit.

    Raises:
        NoiseUndefinedError: there is only one batch.
    """
    sources = check_sources(sources)
    blocks = Blocks.whole(sources.shape[1])
    batches = check_batches(batches, sources, blocks)
    mean, noise = measure_noise(batches, sources, blocks)
    at_least_single = torch.promote_types(batches.dtype, torch.float32)
    geometry = measure(mean.to(at_least_single), sources, blocks, noise=noise, batches=len(batches))
    return Estimate.of(geometry)


def measure_noise(
    batches: Tensor, sources: Tensor | None, blocks: Blocks, *, pairs: bool = True
) -> tuple[Tensor, Noise | None]:
    """Mean and noise of batch updates that are all at hand, by the streaming estimator.

    Without ``sources`` only its size is measured, without ``pairs`` no more than the noise along
    each of them.
    """
    stream = NoiseStream(blocks, directions=sources, pairs=pairs)
    for update in batches:
        stream.add(update)
    return stream.mean, stream.noise()


def auto_beta(rule: Literal["fedda", "fedgp"], estimate: Estimate) -> Tensor:
    """The paper's weights, ``σ̂² / (σ̂² + distance²)`` with the distance clipped at 0.

    The distance is ``d²`` for ``"fedda"`` and ``τ²d²`` for ``"fedgp"``. A target without noise
    needs no source: ``σ̂² = 0`` gives 0.
    """
    if rule not in ("fedda", "fedgp"):
        raise FedbridgeError(f"Expected `rule` to be 'fedda' or 'fedgp', but got {rule!r}.")
    raw = estimate.d2 if rule == "fedda" else estimate.tau2_d2
    distance2 = torch.as_tensor(raw, dtype=torch.float64).clamp(min=0.0)
    sigma2 = max(float(estimate.sigma2), 0.0)
    if sigma2 == 0.0:
        return torch.zeros_like(distance2)
    return sigma2 / (sigma2 + distance2)
