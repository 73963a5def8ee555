"""All that an aggregation rule may see: a few inner products and the target's noise.

A rule mixes the target's update ``ḡ`` and the sources' updates ``g_1 .. g_N``. How good a
mixture is depends only on lengths and angles, so a rule never sees the vectors (millions of
numbers), only their Gram matrix (a hundred numbers), once per block or once for the whole model,
and the variance of ``ḡ``. Measuring costs one pass over memory; everything after that is free.

A rule says how much of the Gram matrix it reads (``Reads``), and no more is measured. Products with
the target cost N m; those among N sources N² m, which is why rules that weigh sources jointly
get them from sketches where there are more than ``EXACT`` of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedbridge.base.errors import NoiseUndefinedError, NonFiniteError, OptionError, ShapeError
from fedbridge.core.blocks import Blocks
from fedbridge.core.gram import Workspace, reliable_gram, star
from fedbridge.core.sketch import Columns, JointAngles, joint_block

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Reads = Literal["shares", "target", "sketched", "all"]
"""What a rule reads of a round: nothing but the sources' shares; how long every source is and how
it lies to the target; angles among sources too, sketched beyond ``EXACT`` of them; or all of the
Gram matrix, exactly, however many sources there are."""

EXACT = 256
"""Sources up to which products among them are never sketched."""


@dataclass(frozen=True)
class Star:
    """The target's squared length (K,), and every source's with its inner product (K, N)."""

    target2: Tensor
    inner: Tensor
    source2: Tensor

    def rescaled(self, factors: Tensor) -> Star:
        """With every source multiplied by its factor (N,)."""
        return Star(self.target2, self.inner * factors, self.source2 * factors * factors)

    def whole(self) -> Star:
        """All blocks as one."""
        return Star(*(part.sum(0, keepdim=True) for part in vars(self).values()))

    @staticmethod
    def joined(parts: Sequence[Star]) -> Star:
        """The sources of several, which were measured against the same target."""
        inner, source2 = (
            torch.cat([getattr(part, name) for part in parts], dim=1)
            for name in ("inner", "source2")
        )
        return Star(parts[0].target2, inner, source2)


@dataclass(frozen=True)
class Joint:
    """The same, and for each of K blocks what stands for the products among very many sources."""

    star: Star
    blocks: tuple[JointAngles | Columns, ...]

    def rescaled(self, factors: Tensor) -> Joint:
        """With every source multiplied by its factor (N,)."""
        scaled = (block.rescaled(factors) for block in self.blocks)
        return Joint(self.star.rescaled(factors), tuple(scaled))

    def whole(self) -> Tensor:
        """(1, N+1, N+1) all blocks as one: their products simply add up."""
        first, *others = self.blocks
        total = first.gram()
        for block in others:
            total += block.gram()
        return total[None]


@dataclass(frozen=True)
class Noise:
    """How uncertain the target's mean update is; per block, in float64.

    Attributes:
        sigma2: (K,) ``σ̂²``, the expected squared error of ``ḡ``.
        covariance: (K, N, N) covariance of the inner products ``⟨ḡ, g_i⟩``, or (K, N) its diagonal
            alone for rules that read no more; None when nobody measured it. The diagonal over
            ``‖g_i‖²`` is ``v_i``, the noise along source i.
        whole_covariance: (1, N, N) or (1, N) the same over the whole model. Noise in one block
            goes along with noise in another, so it is not the sum over blocks.
        agreement: (K, N) share of the target's batches with ``⟨g^j, g_i⟩ > 0``; None when
            nobody counted.
        whole_agreement: (1, N) the same with inner products over the whole model.
        batches: B, how many batches the estimate stands on; 0 for a noise that was given.
    """

    sigma2: Tensor
    covariance: Tensor | None = None
    agreement: Tensor | None = None
    batches: int = 0
    whole_covariance: Tensor | None = None
    whole_agreement: Tensor | None = None

    def scaled_to(self, sigma2: Tensor) -> Noise:
        """The same noise with another size: its shape (directions, agreement) is kept."""
        return replace(
            self,
            sigma2=sigma2,
            covariance=_scaled(self.covariance, sigma2, self.sigma2),
            whole_covariance=_scaled(self.whole_covariance, sigma2.sum(0), self.sigma2.sum(0)),
        )

    def whole(self) -> Noise:
        """The noise of all blocks as one.

        Where nobody measured the covariance over the whole model, the noise of one block is taken
        as uncorrelated with that of another.
        """
        covariance = self.whole_covariance
        if covariance is None and self.covariance is not None:
            covariance = self.covariance.sum(0, keepdim=True)
        sigma2 = self.sigma2.sum(0, keepdim=True)
        return Noise(sigma2, covariance, self.whole_agreement, self.batches)


@dataclass(frozen=True)
class Geometry:
    """Lengths and angles of the updates of one round, block by block (K blocks, N sources).

    Attributes:
        blocks: the blocks that were measured; one for the whole model.
        products: (K, N+1, N+1) inner products in float64, the target first; what stands for them
            of very many sources; those with the target alone; or None where nothing was measured.
        weights: (N,) share of each source in a mean over sources; adds up to 1.
        samples: the sample counts as given, (N,) or (N+1,) with the target first; None for none.
        noise: the target's noise, None when undefined.
        batches: how many target batches were seen; 1 leaves the noise undefined.
    """

    blocks: Blocks
    products: Tensor | Joint | Star | None
    weights: Tensor
    samples: Tensor | None = None
    noise: Noise | None = None
    batches: int = 0

    @property
    def n_sources(self) -> int:
        """N."""
        return len(self.weights)

    @property
    def gram(self) -> Tensor:
        """(K, N+1, N+1) all inner products, the target first."""
        if isinstance(self.products, Tensor):
            return self.products
        return torch.stack([block.gram() for block in self._joint.blocks])

    @property
    def _joint(self) -> Joint:
        if not isinstance(self.products, Joint):
            raise _not_measured("products among sources")
        return self.products

    def pairs(self) -> Iterator[Tensor | JointAngles]:
        """Block by block what a joint rule works on: products (N+1, N+1), or sketched angles."""
        if isinstance(self.products, Tensor):
            yield from self.products
            return
        for block in self._joint.blocks:
            yield block if isinstance(block, JointAngles) else block.gram()

    @property
    def star(self) -> Star:
        """Lengths, and products with the target."""
        if self.products is None:
            raise _not_measured("lengths and products with the target")
        if isinstance(self.products, Star):
            return self.products
        if isinstance(self.products, Joint):
            return self.products.star
        gram = self.products
        return Star(gram[:, 0, 0], gram[:, 0, 1:], gram.diagonal(dim1=1, dim2=2)[:, 1:])

    @property
    def target2(self) -> Tensor:
        """(K,) ``‖ḡ‖²``."""
        return self.star.target2

    @property
    def source2(self) -> Tensor:
        """(K, N) ``‖g_i‖²``."""
        return self.star.source2

    @property
    def source_gram(self) -> Tensor:
        """(K, N, N) ``⟨g_i, g_j⟩``."""
        return self.gram[:, 1:, 1:]

    @property
    def inner(self) -> Tensor:
        """(K, N) ``⟨ḡ, g_i⟩``."""
        return self.star.inner

    @property
    def cosine(self) -> Tensor:
        """(K, N) cosine between the target and each source; 0 for a zero vector."""
        lengths = self.target2.sqrt()[:, None] * self.source2.sqrt()
        return divide(self.inner, lengths).clamp(-1.0, 1.0)

    @property
    def difference_gram(self) -> Tensor:
        """(K, N, N) ``⟨g_i − ḡ, g_j − ḡ⟩``."""
        inner = self.inner
        shifted = self.source_gram - inner[:, :, None]
        return shifted.sub_(inner[:, None, :]).add_(self.target2[:, None, None])

    @property
    def distance2(self) -> Tensor:
        """(K, N) ``‖g_i − ḡ‖²``."""
        apart = self.source2 - self.inner - self.inner + self.target2[:, None]
        return apart.clamp(min=0.0)

    @property
    def line2(self) -> Tensor:
        """(K, N) ``‖ḡ − P_i ḡ‖²``: squared distance of ``ḡ`` from the line through ``g_i``."""
        along = divide(self.inner.square(), self.source2)
        return (self.target2[:, None] - along).clamp(min=0.0)

    def require_noise(self) -> Noise:
        """The target's noise, or an error that says how to get one."""
        if self.noise is not None:
            return self.noise
        if self.batches == 1:
            raise NoiseUndefinedError(
                "Expected at least two target batches to measure the target's noise, but got "
                "one (B = 1): make the target's batch size (`batch_size_target`, or "
                "`probe_batch_size` if that is given) smaller so that it has two or more, borrow "
                "the noise from the sources (`noise_from=borrowed`), or pass a known `sigma2`."
            )
        raise NoiseUndefinedError(
            "Expected the target's noise, which this rule weighs against the distance of the "
            "sources, but got none: pass `batches`, the target's batch updates, or a known "
            "`sigma2`."
        )

    def along(self) -> Tensor:
        """(K, N) ``v_i``: the part of ``σ̂²`` that lies along source i; 0 when not measured."""
        covariance = self.require_noise().covariance
        if covariance is None:
            return torch.zeros_like(self.source2)
        own = covariance if covariance.ndim == 2 else covariance.diagonal(dim1=1, dim2=2)
        return divide(own, self.source2).clamp(min=0.0)

    def rescaled(self, factors: Tensor) -> Geometry:
        """The same round with every source's update multiplied by its factor (N,)."""
        noise, seen = self.noise, self.products
        if noise is not None:
            noise = replace(
                noise,
                covariance=_rescaled(noise.covariance, factors),
                whole_covariance=_rescaled(noise.whole_covariance, factors),
            )
        if isinstance(seen, Tensor):
            scale = torch.cat((factors.new_ones(1), factors))
            seen = seen * scale[:, None] * scale
        elif seen is not None:
            seen = seen.rescaled(factors)
        return replace(self, products=seen, noise=noise)

    def whole(self) -> Geometry:
        """The same round with all blocks as one: inner products simply add up."""
        if len(self.blocks) == 1:
            return self
        seen = self.products
        if seen is not None:
            seen = seen.sum(0, keepdim=True) if isinstance(seen, Tensor) else seen.whole()
        return replace(
            self,
            blocks=Blocks.whole(self.blocks.total),
            products=seen,
            noise=None if self.noise is None else self.noise.whole(),
        )


def _not_measured(what: str) -> OptionError:
    return OptionError(
        f"Expected a rule that reads {what} to say so, but it was registered with `reads` for "
        f"less: leave `reads` out of its decorator, and all is measured."
    )


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Quotient with 0 where the denominator is 0: a zero vector has no direction."""
    zero = denominator == 0
    return torch.where(zero, 0.0, numerator / torch.where(zero, 1.0, denominator))


def _scaled(covariance: Tensor | None, new: Tensor, old: Tensor) -> Tensor | None:
    """A covariance of noise of size ``old``, brought to the size ``new``."""
    if covariance is None:
        return None
    factor = divide(new, old)
    return covariance * factor.view(*factor.shape, *(1,) * (covariance.ndim - 1))


def _rescaled(covariance: Tensor | None, factors: Tensor) -> Tensor | None:
    """The covariance of inner products with sources that were multiplied by factors."""
    if covariance is None:
        return None
    return covariance * (factors * factors if covariance.ndim == 2 else factors[:, None] * factors)


def measure(
    target: Tensor,
    sources: Tensor,
    blocks: Blocks,
    *,
    weights: Sequence[float] | Tensor | None = None,
    noise: Noise | None = None,
    batches: int = 0,
    reads: Reads = "all",
) -> Geometry:
    """Measure a round: one pass over the updates, which are neither copied nor changed.

    Args:
        target: (m,) the target's update.
        sources: (N, m) the sources' updates, in the target's unit.
        blocks: the slices to measure one by one.
        weights: (N,) sample counts of the sources, or (N+1,) with the target first; None for
            equal shares.
        noise: the target's noise, if it is known.
        batches: how many target batches were seen.
        reads: what of the products anybody will read; no more is measured.

    Raises:
        NonFiniteError: an update holds NaN or Inf; names the client and the block.
    """
    products = _products(target, sources, blocks, reads)
    if not _all_finite(products):
        _name_the_non_finite(target, sources, blocks)
        raise NonFiniteError(
            "Expected updates whose squared length is a finite float64, but they are larger: "
            "divide all updates by a common factor."
        )
    shares, samples = read_weights(weights, sources.shape[0])
    return Geometry(blocks, products, shares, samples, noise, batches)


def _products(
    target: Tensor, sources: Tensor, blocks: Blocks, reads: Reads
) -> Tensor | Joint | Star | None:
    """The inner products that somebody reads, block by block."""
    if reads == "shares":
        check_finite(target, sources, blocks)
        return None
    room = Workspace()
    if reads == "all" or (reads == "sketched" and len(sources) <= EXACT):
        rows = (target[None], sources)
        return torch.stack([reliable_gram(rows, columns, room) for columns in blocks.slices()])
    seen = [star(target, sources, columns, room) for columns in blocks.slices()]
    found = Star(*(torch.stack(part) for part in zip(*seen, strict=True)))
    if reads == "target" or not _all_finite(found):
        return found
    pairs = zip(blocks.slices(), seen, strict=True)
    return Joint(found, tuple(joint_block(target, sources, *pair) for pair in pairs))


def _all_finite(products: Tensor | Joint | Star | None) -> bool:
    if isinstance(products, Joint):
        return True  # lengths were, before anything was made of them
    parts = vars(products).values() if isinstance(products, Star) else (products,)
    return all(bool(part.isfinite().all()) for part in parts if part is not None)


def check_finite(target: Tensor, sources: Tensor, blocks: Blocks) -> None:
    """Refuse NaN and Inf in updates that are not measured: a sum shows them in one pass."""
    if not bool(target.sum().isfinite()) or not bool(sources.sum(1).isfinite().all()):
        _name_the_non_finite(target, sources, blocks)


def _name_the_non_finite(target: Tensor, sources: Tensor, blocks: Blocks) -> None:
    """Raise for the first client and block that hold NaN or Inf, if any does."""
    names = ["the target", *(f"source {k}" for k in range(len(sources)))]
    for client, update in zip(names, (target, *sources), strict=True):
        for name, columns in zip(blocks.names, blocks.slices(), strict=True):
            bad = int((~update[columns].isfinite()).sum())
            if bad:
                raise NonFiniteError(
                    f"Expected finite updates, but the update of {client} has {bad} NaN "
                    f"or Inf in {name!r}: leave this client out of the round, or lower its "
                    f"learning rate."
                )


def read_weights(
    weights: Sequence[float] | Tensor | None, n_sources: int
) -> tuple[Tensor, Tensor | None]:
    """Shares of the sources (N,), which add up to 1, and the counts as they were given."""
    if weights is None:
        return torch.full((n_sources,), 1.0 / n_sources, dtype=torch.float64), None
    counts = torch.as_tensor(weights, dtype=torch.float64).detach().cpu()
    if counts.shape not in {(n_sources,), (n_sources + 1,)}:
        raise ShapeError(
            f"Expected `weights` to hold {n_sources} sample counts, one per source (or "
            f"{n_sources + 1}, the target first), but got shape {tuple(counts.shape)}."
        )
    if not bool((counts.isfinite() & (counts >= 0)).all()):
        raise OptionError(
            f"Expected `weights` to be finite and not negative, but got {counts.tolist()}."
        )
    of_sources = counts[-n_sources:]
    if not bool(of_sources.sum() > 0):
        raise OptionError("Expected at least one source with a weight above 0, but all are 0.")
    return of_sources / of_sources.sum(), counts
