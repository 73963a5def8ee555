"""All that an aggregation rule may see: a few inner products and the target's noise.

A rule mixes the target's update ``ḡ`` and the sources' updates ``g_1 .. g_N``. How good a
mixture is depends only on lengths and angles, so a rule never sees the vectors (millions of
numbers), only their Gram matrix (a hundred numbers), once per block or once for the whole model,
and the variance of ``ḡ``. Measuring costs one pass over memory; everything after that is free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.base.errors import NoiseUndefinedError, NonFiniteError, OptionError, ShapeError
from fedbridge.core.blocks import Blocks
from fedbridge.core.gram import Workspace, reliable_gram

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Noise:
    """How uncertain the target's mean update is; per block, in float64.

    Attributes:
        sigma2: (K,) ``σ̂²``, the expected squared error of ``ḡ``.
        covariance: (K, N, N) covariance of the inner products ``⟨ḡ, g_i⟩``; None when nobody
            measured it. Its diagonal over ``‖g_i‖²`` is ``v_i``, the noise along source i.
        whole_covariance: (1, N, N) the same over the whole model. Noise in one block goes along
            with noise in another, so it is not the sum over blocks.
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
        gram: (K, N+1, N+1) inner products in float64, the target first.
        weights: (N,) share of each source in a mean over sources; adds up to 1.
        samples: the sample counts as given, (N,) or (N+1,) with the target first; None for none.
        noise: the target's noise, None when undefined.
        batches: how many target batches were seen; 1 leaves the noise undefined.
    """

    blocks: Blocks
    gram: Tensor
    weights: Tensor
    samples: Tensor | None = None
    noise: Noise | None = None
    batches: int = 0

    @property
    def n_sources(self) -> int:
        """N."""
        return int(self.gram.shape[-1]) - 1

    @property
    def target2(self) -> Tensor:
        """(K,) ``‖ḡ‖²``."""
        return self.gram[:, 0, 0]

    @property
    def source2(self) -> Tensor:
        """(K, N) ``‖g_i‖²``."""
        return self.source_gram.diagonal(dim1=1, dim2=2)

    @property
    def source_gram(self) -> Tensor:
        """(K, N, N) ``⟨g_i, g_j⟩``."""
        return self.gram[:, 1:, 1:]

    @property
    def inner(self) -> Tensor:
        """(K, N) ``⟨ḡ, g_i⟩``."""
        return self.gram[:, 0, 1:]

    @property
    def cosine(self) -> Tensor:
        """(K, N) cosine between the target and each source; 0 for a zero vector."""
        lengths = self.target2.sqrt()[:, None] * self.source2.sqrt()
        return divide(self.inner, lengths).clamp(-1.0, 1.0)

    @property
    def difference_gram(self) -> Tensor:
        """(K, N, N) ``⟨g_i − ḡ, g_j − ḡ⟩``."""
        inner = self.inner
        shifted = self.source_gram - inner[:, :, None] - inner[:, None, :]
        return shifted + self.target2[:, None, None]

    @property
    def distance2(self) -> Tensor:
        """(K, N) ``‖g_i − ḡ‖²``."""
        return self.difference_gram.diagonal(dim1=1, dim2=2).clamp(min=0.0)

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
        return divide(covariance.diagonal(dim1=1, dim2=2), self.source2).clamp(min=0.0)

    def rescaled(self, factors: Tensor) -> Geometry:
        """The same round with every source's update multiplied by its factor (N,)."""
        scale = torch.cat((factors.new_ones(1), factors))
        noise = self.noise
        if noise is not None:
            pairs = factors[:, None] * factors
            noise = replace(
                noise,
                covariance=None if noise.covariance is None else noise.covariance * pairs,
                whole_covariance=(
                    None if noise.whole_covariance is None else noise.whole_covariance * pairs
                ),
            )
        return replace(self, gram=self.gram * scale[:, None] * scale, noise=noise)

    def whole(self) -> Geometry:
        """The same round with all blocks as one: inner products simply add up."""
        if len(self.blocks) == 1:
            return self
        return replace(
            self,
            blocks=Blocks.whole(self.blocks.total),
            gram=self.gram.sum(0, keepdim=True),
            noise=None if self.noise is None else self.noise.whole(),
        )


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Quotient with 0 where the denominator is 0: a zero vector has no direction."""
    zero = denominator == 0
    return torch.where(zero, 0.0, numerator / torch.where(zero, 1.0, denominator))


def _scaled(covariance: Tensor | None, new: Tensor, old: Tensor) -> Tensor | None:
    """A covariance of noise of size ``old``, brought to the size ``new``."""
    return None if covariance is None else covariance * divide(new, old)[..., None, None]


def measure(
    target: Tensor,
    sources: Tensor,
    blocks: Blocks,
    *,
    weights: Sequence[float] | Tensor | None = None,
    noise: Noise | None = None,
    batches: int = 0,
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

    Raises:
        NonFiniteError: an update holds NaN or Inf; names the client and the block.
    """
    rows = (target[None], sources)
    workspace = Workspace()
    gram = torch.stack([reliable_gram(rows, columns, workspace) for columns in blocks.slices()])
    if not bool(gram.isfinite().all()):
        _name_the_non_finite(target, sources, blocks)
        raise NonFiniteError(
            "Expected updates whose squared length is a finite float64, but they are larger: "
            "divide all updates by a common factor."
        )
    shares, samples = read_weights(weights, sources.shape[0])
    return Geometry(blocks, gram, shares, samples, noise, batches)


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
