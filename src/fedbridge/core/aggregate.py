"""One update out of many: measure, ask the rule, mix in one pass over memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.core.blocks import Blocks
from fedbridge.core.checks import (
    check_batches,
    check_is_mean,
    check_sigma2,
    check_sources,
    check_target,
)
from fedbridge.core.estimators import measure_noise
from fedbridge.core.geometry import Geometry, Noise, check_finite, measure, read_weights
from fedbridge.core.gram import accumulation_device
from fedbridge.core.rules import AnyRule, CoordinateRule, Mix, Rule, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


SLICE = 2**15
"""Entries that are mixed at a time where the plain product would not do."""


def aggregate(
    rule: str | AnyRule | Callable[..., Mix],
    target: Tensor,
    sources: Tensor,
    batches: Tensor | None = None,
    sigma2: float | Sequence[float] | Tensor | None = None,
    weights: Sequence[float] | Tensor | None = None,
    blocks: Blocks | Sequence[int] | None = None,
    **options: object,
) -> Tensor:
    """Aggregate the updates of one round into the update of the global model.

    Args:
        rule: a registered name (``fedbridge.rules.names()``) or a function of a geometry.
        target: (m,) the target's update.
        sources: (N, m) the sources' updates, in the target's unit.
        batches: (B, m) the target's batch updates in the same unit; ``target`` is their mean.
            Auto and joint rules measure the target's noise on them.
        sigma2: the target's noise, if it is known: one number, or one per block. With ``batches``
            as well, this number is believed and they only tell in which directions it points.
        weights: (N,) sample counts of the sources, None for equal shares; (N+1,) with the target
            first for ``fedavg``.
        blocks: sizes that add up to m, to apply the rule to each slice on its own; None takes
            the whole model as one.
        **options: options of the rule, such as ``beta=0.5``.

    Returns:
        (m,) the update, on the device of the target.

    Example:
        >>> import torch, fedbridge as fb
        >>> t, s = torch.tensor([1.0, 0.0]), torch.tensor([[1.0, 1.0], [-1.0, 0.0]])
        >>> fb.aggregate("fedgp", target=t, sources=s, beta=0.5)
        tensor([0.6250, 0.1250])
    """
    chosen = resolve(rule)
    sources = check_sources(sources)
    target = check_target(target, sources)
    cut = Blocks.resolve(blocks, sources.shape[1])
    if isinstance(chosen, CoordinateRule):
        check_finite(target, sources, cut)
        read_weights(weights, len(sources))
        return apply_by_entries(chosen, target, sources, **options)
    geometry = _geometry(chosen, target, sources, cut, batches, sigma2, weights)
    return combine(chosen(geometry, **options), target, sources, cut)


def _geometry(
    rule: Rule,
    target: Tensor,
    sources: Tensor,
    blocks: Blocks,
    batches: Tensor | None,
    sigma2: float | Sequence[float] | Tensor | None,
    weights: Sequence[float] | Tensor | None,
) -> Geometry:
    """What the rule reads of a round, and no more."""
    noise: Noise | None = None
    count = 0
    if batches is not None:
        batches = check_batches(batches, sources, blocks)
        count = len(batches)
        along = sources if rule.noise == "directions" or rule.reads == "all" else None
        mean, noise = measure_noise(batches, along, blocks, pairs=rule.reads != "target")
        check_is_mean(target, mean, batches)
    if sigma2 is not None:
        known = check_sigma2(sigma2, blocks)
        noise = noise.scaled_to(known) if noise is not None else Noise(known)
    return measure(
        target,
        sources,
        blocks,
        weights=weights,
        noise=noise,
        batches=count,
        reads=rule.reads,
    )


def apply_by_entries(
    rule: CoordinateRule, target: Tensor, sources: Tensor, **options: object
) -> Tensor:
    """The update of a rule that works entry by entry, such as a median."""
    dtype = torch.promote_types(target.dtype, sources.dtype)
    return _by_slices(
        lambda columns: rule(target[columns].to(dtype), sources[:, columns].to(dtype), **options),
        torch.empty_like(target, dtype=dtype),
    )


def combine(mix: Mix, target: Tensor, sources: Tensor, blocks: Blocks) -> Tensor:
    """``target · ḡ + Σ_i sources_i · g_i``, block by block, in one pass over memory."""
    dtype = torch.promote_types(target.dtype, sources.dtype)
    update = torch.empty_like(target, dtype=dtype)
    plain = target.dtype == sources.dtype == dtype and dtype in (torch.float32, torch.float64)
    for index, columns in enumerate(blocks.slices()):
        mine, theirs = mix.target[index], mix.sources[index]
        if plain and _representable(theirs, dtype):
            torch.addmv(
                target[columns],
                sources[:, columns].T,
                theirs.to(sources.device, dtype),
                beta=float(mine),
                out=update[columns],
            )
        else:
            _mix_exactly(mine, theirs, target[columns], sources[:, columns], update[columns])
    return update


def _representable(coefficients: Tensor, dtype: torch.dtype) -> bool:
    """Whether no coefficient is so large or small that ``dtype`` would lose it."""
    size = coefficients[coefficients != 0].abs()
    limits = torch.finfo(dtype)
    return bool(((size > limits.tiny / limits.eps) & (size < limits.max * limits.eps)).all())


def _mix_exactly(
    mine: Tensor, theirs: Tensor, target: Tensor, sources: Tensor, update: Tensor
) -> None:
    """Write the mixture with float64 products: for mixed types and extreme scales."""
    device = accumulation_device(sources.device)
    weights = theirs.to(device)

    def mixed(columns: slice) -> Tensor:
        own = float(mine) * target[columns].to(device, torch.float64)
        return own + weights @ sources[:, columns].to(device, torch.float64)

    _by_slices(mixed, update)


def _by_slices(compute: Callable[[slice], Tensor], update: Tensor) -> Tensor:
    """Fill a vector slice by slice, so that memory does not grow with the model."""
    for start in range(0, len(update), SLICE):
        columns = slice(start, min(start + SLICE, len(update)))
        update[columns] = compute(columns)
    return update
