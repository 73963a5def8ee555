"""Evidence: what a rule's weights are computed from, kept apart from the updates that it mixes.

``path`` measures the training steps themselves, as the paper does. ``probe`` measures plain
gradients taken at the round's starting point, which is the theory's own setting: one point,
independent batches. ``init`` keeps the weights of the first round (a method's business, since
it needs memory). ``borrowed`` noise does not let the target's noise fall below what the sources'
samples show, because a small target soon fits its few samples and looks noiseless.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.core.estimators import noise_from_sketches
from fedbridge.core.geometry import Geometry, Noise, Reads, measure
from fedbridge.core.gram import FEW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbridge.core.blocks import Blocks
    from fedbridge.core.sketch import Sketch
    from fedbridge.training.job import Outcome


@dataclass(frozen=True)
class Vectors:
    """What the clients of a round returned, in one unit, with the target's and sources' reports.

    Attributes:
        target: (m,) the target's vector.
        sources: (N, m) the sources' vectors.
        report: the target's outcome.
        reports: the sources' outcomes, in the order of the rows.
        scale: (N,) what the sources' vectors were multiplied with to come into the target's unit.
    """

    target: Tensor
    sources: Tensor
    report: Outcome
    reports: Sequence[Outcome]
    scale: Tensor


@dataclass(frozen=True)
class Gathered:
    """What came back in a round.

    Attributes:
        rows: (clients, m) the vectors that came back: the target's first, if it is there.
        target: the target's outcome; None if it dropped out.
        sources: index (from 0) and outcome of every source that came back.
        failures: name of every client that did not, and why.
        own: the target's vector, where it is not the first of the rows.
    """

    rows: Tensor
    target: Outcome | None
    sources: tuple[tuple[int, Outcome], ...]
    failures: Mapping[str, str]
    own: Tensor | None = None

    @property
    def samples(self) -> Tensor:
        """(n+1,) rows that the target (0 if it is missing) and the sources have trained on."""
        own = 0 if self.target is None else self.target.samples
        return torch.tensor(
            [own, *(outcome.samples for _, outcome in self.sources)], dtype=torch.float64
        )

    @property
    def source_indices(self) -> list[int]:
        """Indices of the sources that came back."""
        return [index for index, _ in self.sources]

    @property
    def alignment(self) -> Tensor:
        """(n,) what brings the sources' updates into the target's unit, steps x learning rate."""
        assert self.target is not None
        times = [outcome.time for _, outcome in self.sources]
        return self.target.time / torch.tensor(times, dtype=torch.float64)

    def vectors(self, *, align: bool) -> Vectors:
        """The vectors in one unit: the only place where updates are rescaled.

        A source's update over (its steps x its learning rate), times the target's.
        """
        assert self.target is not None
        reports = [outcome for _, outcome in self.sources]
        factors = self.alignment if align else torch.ones(len(reports), dtype=torch.float64)
        mine, theirs = (self.rows[0], self.rows[1:]) if self.own is None else (self.own, self.rows)
        if align:
            theirs.mul_(factors.to(theirs.dtype)[:, None])
        return Vectors(mine, theirs, self.target, reports, factors)


def measure_evidence(
    vectors: Vectors,
    blocks: Blocks,
    sketch: Sketch,
    *,
    weights: Tensor | None = None,
    borrowed: bool = False,
    updates: Gathered | None = None,
    reads: Reads = "all",
) -> Geometry:
    """The geometry of some vectors and the target's noise.

    Noise that private sources put into the very vectors that are mixed belongs to their distance
    from the target: whoever takes the update takes its noise.

    Args:
        vectors: updates, or probes.
        blocks: the blocks that the rule treats one by one; the model's tensors or their sum.
        sketch: the sketch that clients used.
        weights: (N+1,) sample counts, target first.
        borrowed: do not believe in less noise than the sources' samples show.
        updates: what is mixed, where the vectors are probes: the sources' own noise, since probes
            stand on a few batches, is taken off their squared lengths, and that which the updates
            got for privacy is put on. What is left is repaired as a whole, so that products among
            sources are measured whatever the rule reads.
        reads: what the rule reads; lengths and products with the target are always measured, for
            the record of the round.
    """
    if reads == "shares":
        reads = "target"
    if reads == "target" and updates is not None:
        reads = "sketched"
    plain = measure(
        vectors.target,
        vectors.sources,
        sketch.blocks,
        weights=weights,
        batches=vectors.report.batches,
        reads=reads,
    )
    pairs = reads != "target" or len(vectors.sources) < FEW
    noise = target_noise(vectors, sketch, plain.inner, borrowed=borrowed, pairs=pairs)
    geometry = replace(plain, noise=noise)
    if len(blocks) == 1:
        geometry = geometry.whole()
    if updates is None:
        return geometry
    return with_added_noise(without_source_noise(geometry, vectors, blocks), updates)


def target_noise(
    vectors: Vectors, sketch: Sketch, inner: Tensor, *, borrowed: bool, pairs: bool = True
) -> Noise | None:
    """The target's noise from its own report, and from the sources' if borrowed.

    ``inner`` (K, N) are the inner products of its vector with the sources'; ``pairs`` as in
    ``noise_from_sketches``.
    """
    own, sketches = vectors.report.noise, vectors.report.sketches
    lent = _noise_lent(vectors) if borrowed else None
    if own is None:
        return None if lent is None else Noise(lent)
    noise = Noise(own, batches=vectors.report.batches)
    if sketches is not None:
        noise = noise_from_sketches(sketch, sketches, vectors.sources, inner, own, pairs=pairs)
    return noise if lent is None else noise.scaled_to(torch.maximum(own, lent))


def _noise_lent(vectors: Vectors) -> Tensor | None:
    """(K,) mean over sources of their variance per sample, over the target's sample count."""
    per_sample = [
        _of_samples(report.noise, report.added) * factor.square() * report.samples
        for report, factor in zip(vectors.reports, vectors.scale, strict=True)
        if report.noise is not None
    ]
    if not per_sample:
        return None
    return torch.stack(per_sample).mean(0) / vectors.report.samples


def without_source_noise(geometry: Geometry, vectors: Vectors, blocks: Blocks) -> Geometry:
    """Take the sources' noise off the diagonal of the Gram matrix and keep it a Gram matrix.

    ``E‖g_i‖²`` of a noisy source is too large by its noise ``σ_i²``, and so is its distance from
    everything. What is left may not be positive semidefinite; its negative part is dropped.
    """
    noise = torch.stack(
        [
            torch.zeros(len(geometry.blocks), dtype=torch.float64)
            if report.noise is None
            else _summed(report.noise * factor.square(), len(blocks))
            for report, factor in zip(vectors.reports, vectors.scale, strict=True)
        ],
        dim=1,
    )
    gram = geometry.gram.clone()
    gram[:, 1:, 1:] -= torch.diag_embed(noise)
    size = gram.diagonal(dim1=1, dim2=2).abs().amax(1).clamp(min=torch.finfo(gram.dtype).tiny)
    values, directions = torch.linalg.eigh(gram / size[:, None, None])
    repaired = directions @ torch.diag_embed(values.clamp(min=0.0)) @ directions.mT
    return replace(geometry, products=repaired * size[:, None, None])


def with_added_noise(geometry: Geometry, updates: Gathered) -> Geometry:
    """Put the noise of private updates, per step and learning rate, on the Gram matrix of probes.

    A probe is a gradient; the update that is mixed in its place has noise of its own.
    """
    gram = geometry.gram.clone()
    for place, (_, outcome) in enumerate(updates.sources, start=1):
        if outcome.added is not None:
            gram[:, place, place] += _summed(outcome.added, len(gram)) / outcome.time**2
    return replace(geometry, products=gram)


def _of_samples(noise: Tensor, added: Tensor | None) -> Tensor:
    """The part of a client's noise that comes of its samples."""
    return noise if added is None else (noise - added).clamp(min=0.0)


def _summed(per_tensor: Tensor, n_blocks: int) -> Tensor:
    return per_tensor if len(per_tensor) == n_blocks else per_tensor.sum(0, keepdim=True)
