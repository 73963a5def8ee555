"""What a site sends is looked at before any arithmetic sees it.

A reply comes from outside: from a broken program or from somebody who wants the model spoilt. A
bad one costs the round one site, never the round: ``screen_update`` says in one sentence what is
wrong with it. Which updates stand out among the others is asked wherever sites are, in
``federation``. A target looks in the same way at the model on which it is asked to decide.

What the coordinator knows beforehand is compared exactly, above all steps and learning rate: an
update is rescaled by them, so that a tiny learning rate would turn a short update into a long one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from fedbridge.base.options import check_number
from fedbridge.federation.lengths import length_of

if TYPE_CHECKING:
    from fedbridge.core.blocks import Blocks
    from fedbridge.training.job import ClientResult, Job, Outcome

Shapes: TypeAlias = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Type and shape of tensors, by name."""

MOST = 10**12
"""No count of samples or steps is larger."""

LEARNING_RATES = (1e-9, 1e6)
"""Bounds of a learning rate that the coordinator did not set itself."""

REAL = (torch.float32, torch.float64)
SHOWN = 40


@dataclass(frozen=True)
class Expected:
    """What the coordinator knows of a reply before it comes.

    Attributes:
        size: entries of the update.
        blocks: its number of blocks, K.
        buffers: the model's buffers.
        told: what the objective reports.
        noise: what of the noise was asked for.
        sketch_size: numbers per block and half of a sketch.
        samples, steps, lr, batches: the exact values, or None where only the site knows them.
    """

    size: int
    blocks: int = 1
    buffers: Shapes = field(default_factory=dict)
    told: Shapes = field(default_factory=dict)
    noise: Literal["none", "size", "sketch"] = "none"
    sketch_size: int = 64
    samples: int | None = None
    steps: int | None = None
    lr: float | None = None
    batches: int | None = None

    @classmethod
    def of_job(
        cls,
        job: Job,
        samples: int | None,
        blocks: Blocks,
        *,
        buffers: Mapping[str, Tensor],
        sketch_size: int,
    ) -> Expected:
        """What comes of a job at a site of so many rows; None if only the site knows."""
        asked = job.plan.noise
        expected = cls(
            blocks.total,
            len(blocks),
            types_and_shapes(buffers),
            types_and_shapes(job.objective.reports()),
            noise="size" if job.kind == "probe" and asked == "none" else asked,
            sketch_size=sketch_size,
        )
        if samples is None:
            return expected
        return replace(
            expected,
            samples=samples,
            steps=job.steps(samples),
            lr=job.lr,
            batches=job.noisy_batches(samples),
        )


def types_and_shapes(tensors: Mapping[str, Tensor]) -> Shapes:
    """Types and shapes of tensors."""
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def screen_update(
    result: ClientResult, expected: Expected, norm_bound: float | None = None
) -> str | None:
    """What is wrong with what a site sends; None if nothing is.

    Args:
        result: the update (or probe) and its report as they came: nothing about them, not even the
            types, is certain yet.
        expected: what should have come.
        norm_bound: the longest that an update may be; None for any length.
    """
    if norm_bound is not None:
        check_number("norm_bound", norm_bound, above=0)
    outcome = result.outcome
    return (
        _scalars_complaint(outcome, expected)
        or _tensor_complaint("the update", result.vector, (torch.float32,), (expected.size,))
        or _noise_complaint(outcome, expected)
        or _tensors_complaint("buffer", outcome.buffers, expected.buffers)
        or _tensors_complaint("report", outcome.told, expected.told)
        or _variances_complaint(outcome.buffers)
        or _length_complaint(result.vector, norm_bound)
    )


def screen_news(tensors: Mapping[str, Tensor], expected: Shapes) -> str | None:
    """What is wrong with the model that a coordinator tells a target of; None if nothing is."""
    return _tensors_complaint("array", tensors, expected) or _variances_complaint(tensors)


def _scalars_complaint(report: Outcome, expected: Expected) -> str | None:
    loss, seconds = _number(report.loss), _number(report.seconds)
    if loss is None or math.isinf(loss):
        return f"expected a finite loss or NaN, but got {_shown(report.loss)}"
    if seconds is None or not 0 <= seconds < math.inf:
        return f"expected seconds of at least 0, but got {_shown(report.seconds)}"
    lr = _number(report.lr)
    least, most = LEARNING_RATES if expected.lr is None else (expected.lr, expected.lr)
    if lr is None or not least <= lr <= most:
        known = f"between {least:g} and {most:g}" if expected.lr is None else f"of {least:g}"
        return f"expected a learning rate {known}, but got {_shown(report.lr)}"
    return (
        _count_complaint("samples", report.samples, expected.samples)
        or _count_complaint("steps", report.steps, expected.steps)
        or _count_complaint("batches", report.batches, expected.batches, least=0)
    )


def _count_complaint(name: str, value: object, known: int | None, least: int = 1) -> str | None:
    if type(value) is not int or not least <= value <= MOST:
        return f"expected {name} to be a whole number of at least {least}, but got {_shown(value)}"
    if known is not None and value != known:
        return f"expected {known} {name}, but got {value}"
    return None


def _noise_complaint(report: Outcome, expected: Expected) -> str | None:
    noise, sketches = report.noise, report.sketches
    if noise is not None and expected.noise == "none":
        return "expected no noise of the update, but got some"
    if sketches is not None and expected.noise != "sketch":
        return "expected no sketches of the batches, but got some"
    complaint = None
    for name, squares in (("the noise", noise), ("the noise for privacy", report.added)):
        if complaint is None and squares is not None:
            complaint = _tensor_complaint(name, squares, REAL, (expected.blocks,))
            if complaint is None and bool((squares < 0).any()):
                complaint = f"expected {name} to be at least 0 in every block, but some is negative"
    if complaint is None and sketches is not None:
        shape = (report.batches - 1, expected.blocks, 2, expected.sketch_size)
        complaint = _tensor_complaint("the sketches", sketches, REAL, shape)
    return complaint


def _tensors_complaint(kind: str, tensors: object, layout: Shapes) -> str | None:
    if not isinstance(tensors, Mapping):
        return f"expected {kind}s by name, but got {_shown(tensors)}"
    strange = next((name for name in tensors if name not in layout), None)
    if strange is not None:
        return f"expected no {kind} {_shown(strange)}, but got one"
    for name, (dtype, shape) in layout.items():
        if name not in tensors:
            return f"expected the {kind} {name!r}, but it is missing"
        complaint = _tensor_complaint(f"the {kind} {name!r}", tensors[name], (dtype,), shape)
        if complaint is not None:
            return complaint
    return None


def _tensor_complaint(
    name: str, value: object, dtypes: Sequence[torch.dtype], shape: tuple[int, ...]
) -> str | None:
    """Type, shape (nothing is broadcast) and finite values."""
    wanted = f"{dtypes[-1]} of shape {shape}"
    if not isinstance(value, Tensor):
        return f"expected {name} to be {wanted}, but got {_shown(value)}"
    if value.dtype not in dtypes or value.shape != shape or value.layout != torch.strided:
        found = f"{value.dtype} of shape {_shown(tuple(value.shape))}"
        return f"expected {name} to be {wanted}, but got {found}"
    if not bool(value.isfinite().all()):
        return f"expected {name} to be finite, but it holds NaN or Inf"
    return None


def _variances_complaint(buffers: object) -> str | None:
    """BatchNorm divides by the root of its variances and counts its batches."""
    assert isinstance(buffers, Mapping)
    for name, buffer in buffers.items():
        counted = name.rpartition(".")[2] in ("running_var", "num_batches_tracked")
        if counted and bool((buffer < 0).any()):
            return f"expected the buffer {name!r} to be at least 0, but some of it is negative"
    return None


def _length_complaint(vector: object, bound: float | None) -> str | None:
    assert isinstance(vector, Tensor)
    length = length_of(vector)
    if bound is not None and length > bound:
        return f"expected an update of length {bound:g} at most, but it has {length:.6g}"
    return None


def _number(value: object) -> float | None:
    """A plain number as a float; None for anything else, and for whole numbers beyond floats."""
    if type(value) is float:
        return value
    return float(value) if type(value) is int and abs(value) <= MOST else None


def _shown(value: object) -> str:
    """A short text for anything, however long it is."""
    if isinstance(value, str):
        cut = value[:SHOWN]
        return repr(cut) if cut == value else f"{cut!r}... ({len(value)} characters)"
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= MOST):
        return repr(value)
    if isinstance(value, tuple) and len(value) <= 8:
        return str(value)
    return f"a {type(value).__name__}"
