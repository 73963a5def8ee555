"""Eigenvalues of small symmetric matrices of any scale, many at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbridge.geometry import divide

TINY = torch.finfo(torch.float64).tiny
RANK = 1e-10
"""Relative size below which an eigenvalue is taken for 0."""


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
