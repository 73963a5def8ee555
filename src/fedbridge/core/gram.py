"""Inner products of long vectors: one pass over memory, sums in float64.

A float32 matrix product over millions of entries loses digits: with 11.7 million entries the
plain ``S @ S.T`` is off by parts in a thousand. Here the vectors are read in *panels*: short
runs of ``RUN`` columns are multiplied in float32 (a run is too short to lose anything) and the
results are added up in float64. That is as fast as the plain product and, since the rounding of
many runs averages out, right to about 1e-8 of the vectors' lengths. Where that could mislead
(nearly parallel vectors, whose small difference matters; values whose squares leave the range of
float32) the block is measured again with float64 products. Short blocks, which have few runs to
average over, always are: it costs next to nothing.

Products among N vectors take N² m multiplications. Most rules compare every source with the
target only: ``star`` measures that much and no more, in N m, a tile that fits into the cache at a
time, and measures again in float64 only the sources for which that matters.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RUN = 512
"""Columns that are multiplied before the result is added up in float64."""

WORKSPACE = 2**20
"""Entries of the workspace that holds a panel: 4 MB in float32, whatever the model."""

BAND = 64
"""Rows of many whose products are taken at a time, since half of the products are the others."""

SHORT = 2**16
"""Columns below which a block is measured in float64 throughout."""

TILE = 2**17
"""Entries that are converted and measured at a time: a megabyte of float64 stays in the cache."""

COLUMNS = 2**13
"""Columns of a tile of many rows: long reads are quick ones."""

FEW = 16
"""Rows up to which all products of a short block are taken: they cost no more than the calls."""

SAFE_RMS = (1e-13, 1e16)
"""Root mean square of a vector whose products float32 holds without loss that matters."""

NEARLY_PARALLEL = 1e-4
"""Squared sine below which two vectors are measured in float64, since differences matter."""


def accumulation_device(device: torch.device) -> torch.device:
    """Where float64 sums live: the vectors' own device, unless (MPS) it has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


class Workspace:
    """Memory that panels are copied into: a few megabytes, used again and again."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def shaped(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Room of this shape; its old content is lost."""
        size = prod(shape)
        memory = self._memory
        if memory.dtype != dtype or memory.device != device or len(memory) < size:
            self._memory = torch.empty(size, dtype=dtype, device=device)
        return self._memory[:size].view(shape)


def _panels(
    matrices: tuple[Tensor, ...], columns: slice, dtype: torch.dtype, room: Workspace
) -> Iterator[Tensor]:
    """Cut the columns of matrices, stacked on each other, into panels of (runs, rows, run).

    The panels are views of one small workspace that is filled again for every panel: the
    matrices themselves are neither copied nor converted. What is left over behind the last
    whole run comes as a last panel of one shorter run.
    """
    rows = sum(matrix.shape[0] for matrix in matrices)
    start, stop = columns.start, columns.stop
    most = max(1, min((stop - start) // RUN, WORKSPACE // (rows * RUN)))
    device = accumulation_device(matrices[0].device)
    while start < stop:
        left = stop - start
        runs, run = (min(most, left // RUN), RUN) if left >= RUN else (1, left)
        end = start + runs * run
        panel = room.shaped((runs, rows, run), dtype, device)
        row = 0
        for matrix in matrices:
            below = row + matrix.shape[0]
            piece = matrix[:, start:end].view(-1, runs, run)
            panel[:, row:below].copy_(piece.transpose(0, 1))
            row = below
        yield panel
        start = end


def gram(
    matrices: tuple[Tensor, ...],
    columns: slice,
    dtype: torch.dtype = torch.float64,
    workspace: Workspace | None = None,
) -> Tensor:
    """Gram matrix, in float64, of the rows of all ``matrices`` over ``columns``.

    Products inside a run are taken in ``dtype``, sums over runs always in float64. Of many rows
    those below the diagonal are taken, and mirrored.
    """
    panels = _panels(matrices, columns, dtype, workspace or Workspace())
    rows = sum(matrix.shape[0] for matrix in matrices)
    if rows <= BAND:
        return _sum(torch.bmm(panel, panel.mT) for panel in panels)
    total = torch.zeros((rows, rows), dtype=torch.float64)
    for panel in panels:
        for first in range(0, rows, BAND):
            end = min(first + BAND, rows)
            products = torch.bmm(panel[:, first:end], panel[:, :end].mT)
            total[first:end, :end] += products.sum(0, dtype=torch.float64).cpu()
    return total.tril_().add_(total.tril(-1).T)


def inner(left: Tensor, right: Tensor, columns: slice) -> Tensor:
    """Inner products of every row of ``left`` with every row of ``right``, all in float64."""
    cut = left.shape[0]
    panels = _panels((left, right), columns, torch.float64, Workspace())
    return _sum(torch.bmm(panel[:, :cut], panel[:, cut:].mT) for panel in panels)


def _sum(products: Iterable[Tensor]) -> Tensor:
    """Add up the products of all runs of all panels, in float64, on the CPU."""
    sums = (product.sum(0, dtype=torch.float64) for product in products)
    total = next(sums)
    for more in sums:
        total += more
    return total.cpu()


def reliable_gram(
    matrices: tuple[Tensor, ...], columns: slice, workspace: Workspace | None = None
) -> Tensor:
    """Gram matrix with products in float32 where that is safe, else in float64."""
    single = all(matrix.dtype == torch.float32 for matrix in matrices)
    if single and columns.stop - columns.start >= SHORT:
        fast = gram(matrices, columns, torch.float32, workspace)
        nonzero = fast.diagonal() != 0
        if _float32_was_enough(fast[nonzero][:, nonzero], columns.stop - columns.start):
            rows = [row for matrix in matrices for row in matrix]
            seen_as_zero = torch.nonzero(~nonzero).flatten().tolist()
            if not any(bool(rows[index][columns].any()) for index in seen_as_zero):
                return fast
    return gram(matrices, columns, torch.float64, workspace)


def star(
    target: Tensor, sources: Tensor, columns: slice, workspace: Workspace | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """``‖t‖²``, ``⟨t, g_i⟩`` (N,) and ``‖g_i‖²`` (N,) over ``columns``, in one pass and float64.

    Few and short vectors are measured as in ``reliable_gram``, to the same bits.
    """
    rows, width = len(sources) + 1, columns.stop - columns.start
    if rows <= FEW and width < SHORT:
        measured = reliable_gram((target[None], sources), columns, workspace)
        return measured[0, 0], measured[0, 1:], measured.diagonal()[1:]
    own, theirs = target[columns], sources[:, columns]
    target2 = _square(own)
    if not (own.dtype == theirs.dtype == torch.float32 and rows * width >= WORKSPACE):
        return target2, *_against(own, theirs, torch.float64)
    inner, squares = _against(own, theirs, torch.float32)
    again = torch.nonzero(_doubtful(target2, inner, squares, width)).flatten().tolist()
    if 2 * len(again) > len(theirs):
        return target2, *_against(own, theirs, torch.float64)
    for row in again:
        inner[row], squares[row] = _against(own, theirs[row : row + 1], torch.float64)
    return target2, inner, squares


def _square(vector: Tensor) -> Tensor:
    """Squared length in float64."""
    device = accumulation_device(vector.device)
    parts = (part.to(device, torch.float64) for part in vector.split(TILE))
    return torch.stack([torch.dot(part, part) for part in parts]).sum().cpu()


def _against(target: Tensor, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inner products (N,) of the rows with the target and their squared lengths (N,).

    Products inside a run are taken in ``dtype``, sums over runs always in float64.
    """
    inner = torch.zeros(len(rows), dtype=torch.float64)
    squares = torch.zeros_like(inner)
    device = accumulation_device(rows.device)
    size = 8 * TILE if rows.dtype == dtype else TILE  # where they lie, or converted
    for columns, run in _cuts(len(target), max(COLUMNS, size // len(rows))):
        own = target[columns].to(device, dtype).view(-1, run)
        few = max(1, size // own.numel())
        for first in range(0, len(rows), few):
            part = slice(first, first + few)
            tile = rows[part, columns].to(device, dtype).view(-1, *own.shape)
            inner[part] += _dots(tile, own).sum(1, dtype=torch.float64)
            squares[part] += _dots(tile, tile).sum(1, dtype=torch.float64)
    return inner, squares


def _dots(left: Tensor, right: Tensor) -> Tensor:
    """Inner products over the last axis; numpy's need no room for the entries' products."""
    if left.device.type == "cpu" and hasattr(np, "vecdot"):  # numpy 2
        with np.errstate(all="ignore"):  # what is not finite is looked at again, or named
            return torch.from_numpy(np.vecdot(left.numpy(), right.numpy()))
    products: Tensor = torch.linalg.vecdot(left, right)
    return products.cpu()


def _cuts(width: int, most: int) -> Iterator[tuple[slice, int]]:
    """At most so many columns at a time and the length of their runs; a rest is a run itself."""
    whole = width // RUN * RUN
    step = most // RUN * RUN
    for start in range(0, whole, step):
        yield slice(start, min(start + step, whole)), RUN
    if whole < width:
        yield slice(whole, width), width - whole


def _doubtful(target2: Tensor, inner: Tensor, squares: Tensor, size: int) -> Tensor:
    """(N,) whether products in float32 may mislead: out of range, or nearly parallel."""
    low, high = (limit**2 * size for limit in SAFE_RMS)
    safe = (squares >= low) & (squares <= high) & (target2 >= low) & (target2 <= high)
    return ~(safe & (inner.square() <= (1.0 - NEARLY_PARALLEL) * squares * target2))


def _float32_was_enough(measured: Tensor, size: int) -> bool:
    """Whether no product can have left float32's range and no two vectors nearly agree."""
    squares = measured.diagonal()
    rms = (squares / size).sqrt()
    if not bool(((rms >= SAFE_RMS[0]) & (rms <= SAFE_RMS[1])).all()):  # NaN fails as well
        return False
    cosine2 = measured.square() / torch.outer(squares, squares)
    cosine2.fill_diagonal_(0.0)
    return bool((1.0 - cosine2 >= NEARLY_PARALLEL).all())
