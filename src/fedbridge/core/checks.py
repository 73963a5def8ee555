"""What comes in from outside is checked once, here, before any arithmetic sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbridge.base.errors import NonFiniteError, OptionError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.core.blocks import Blocks


def _floating(values: Tensor, name: str) -> Tensor:
    """A detached floating-point tensor; whole numbers become the default float type."""
    if isinstance(values, list | tuple) and values and isinstance(values[0], Tensor):
        try:
            values = torch.stack([*values])
        except (RuntimeError, TypeError) as error:
            raise ShapeError(f"Expected `{name}` to be rows of one length: {error}.") from error
    tensor = torch.as_tensor(values).detach()
    if tensor.is_complex():
        raise ShapeError(f"Expected `{name}` to hold real numbers, but got {tensor.dtype}.")
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


def check_sources(sources: Tensor) -> Tensor:
    """The sources' updates as a matrix (N, m) with N and m at least 1."""
    matrix = _floating(sources, "sources")
    if matrix.ndim != 2:
        raise ShapeError(
            f"Expected `sources` of shape (N, m), one row per source, but got "
            f"{tuple(matrix.shape)}; a single source is a matrix of one row."
        )
    if matrix.shape[0] == 0:
        raise ShapeError("Expected at least one source, but `sources` is empty.")
    if matrix.shape[1] == 0:
        raise ShapeError("Expected updates of at least one entry, but `sources` has none.")
    return matrix


def check_target(target: Tensor, sources: Tensor) -> Tensor:
    """The target's update as a vector (m,) on the sources' device."""
    vector = _floating(target, "target")
    if vector.shape != (sources.shape[1],):
        raise ShapeError(
            f"Expected `target` of shape ({sources.shape[1]},), as long as the sources' updates, "
            f"but got {tuple(vector.shape)}."
        )
    return _same_device(vector, sources, "target")


def check_batches(batches: Tensor, sources: Tensor, blocks: Blocks) -> Tensor:
    """The target's batch updates as a matrix (B, m) with B at least 1, all finite."""
    matrix = _floating(batches, "batches")
    if matrix.ndim != 2 or matrix.shape[1] != sources.shape[1] or matrix.shape[0] == 0:
        raise ShapeError(
            f"Expected `batches` of shape (B, {sources.shape[1]}), one row per batch of the "
            f"target, but got {tuple(matrix.shape)}."
        )
    for index, update in enumerate(matrix):
        finite = update.isfinite()
        if not bool(finite.all()):
            raise NonFiniteError(
                f"Expected finite batch updates, but batch {index} of the target holds NaN or "
                f"Inf in {blocks.first_without(finite)!r}: leave it out, or lower the target's "
                f"learning rate."
            )
    return _same_device(matrix, sources, "batches")


def check_is_mean(target: Tensor, mean: Tensor, batches: Tensor) -> None:
    """The target's update must be the plain mean of its batch updates: one unit for both."""
    mean = mean.to(torch.float64)
    error = (target.to("cpu", torch.float64) - mean).norm()
    spread = batches.to("cpu", torch.float64).norm() / len(batches) ** 0.5
    allowed = max(1e-3, 8 * torch.finfo(target.dtype).eps)
    if bool(error > allowed * (mean.norm() + spread)):
        raise ShapeError(
            "Expected `target` to be the plain mean of `batches`, but it is not: multiply each "
            "batch update by the number of batches if `target` is their sum, so that both are "
            "in one unit."
        )


def _same_device(tensor: Tensor, sources: Tensor, name: str) -> Tensor:
    if tensor.device != sources.device:
        raise ShapeError(
            f"Expected `{name}` and `sources` on one device, but got {tensor.device} and "
            f"{sources.device}."
        )
    return tensor


def check_sigma2(sigma2: float | Sequence[float] | Tensor, blocks: Blocks) -> Tensor:
    """A known noise per block (K,). One number is shared out by size, as isotropic noise is."""
    values = torch.as_tensor(sigma2, dtype=torch.float64).detach().cpu()
    if not bool((values.isfinite() & (values >= 0)).all()):
        raise OptionError(
            f"Expected `sigma2` to be finite and not negative, but got {values.tolist()}."
        )
    if values.numel() == 1:
        sizes = torch.tensor(blocks.sizes, dtype=torch.float64)
        return values.reshape(()) * sizes / blocks.total
    if values.shape != (len(blocks),):
        raise ShapeError(
            f"Expected `sigma2` to be one number, or one per block ({len(blocks)}), but got "
            f"shape {tuple(values.shape)}."
        )
    return values


def check_beta(beta: float | Sequence[float] | Tensor, n_sources: int, n_blocks: int = 1) -> Tensor:
    """The weight of each source's side (N,), or one row per block (K, N), each in [0, 1]."""
    try:
        values = torch.as_tensor(beta, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError) as error:
        raise OptionError(f"Expected `beta` to be numbers in [0, 1], but got {beta!r}.") from error
    if values.ndim and values.shape not in {(n_sources,), (n_blocks, n_sources)}:
        raise ShapeError(
            f"Expected `beta` to be one number, or one per source ({n_sources}), but got shape "
            f"{tuple(values.shape)}."
        )
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise OptionError(f"Expected `beta` in [0, 1], but got {values.tolist()}.")
    return values if values.ndim else values.expand(n_sources)
