"""Nearest points: of a cone and of a convex hull, given nothing but inner products.

The joint rules ask which mixture of the sources comes nearest to the target's update. Both
questions are small convex problems in N unknowns (N is the number of sources), solved exactly by
an active-set method, whatever the size of the model. Letting in one source after the other takes
seconds for a thousand; there, block principal pivoting finds the sources in use in a few steps
and the active-set method only confirms them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

RIDGE = 1e-12
"""Relative weight that makes equal sources share equally instead of the first one taking all."""

TOLERANCE = 1e-13
"""Gain, for unit vectors, below which letting one more source in is only rounding."""

MANY = 64
"""Sources from which the set of those in use is guessed at once, and not built one by one."""

PIVOTS = 100
"""Steps after which a guess that does not settle is given up; a dozen is much."""


def nearest_in_cone(gram: Tensor, cross: Tensor) -> Tensor:
    """Coefficients ``c ≥ 0`` of the point ``Σ c_i g_i`` nearest to ``t``.

    Non-negative least squares in Gram form, ``argmin cᵀ G c − 2 hᵀ c`` with ``G_ij = ⟨g_i, g_j⟩``
    and ``h_i = ⟨g_i, t⟩``, by the active-set method of Lawson and Hanson. The vectors are first
    scaled to unit length, so that sources of any size are treated alike.
    """
    return _in_cone(gram.clone(), cross)


def _in_cone(gram: Tensor, cross: Tensor) -> Tensor:
    """``nearest_in_cone`` in the memory of the matrix, which for a thousand sources is much."""
    lengths = gram.diagonal().clamp(min=0.0).sqrt()
    usable = lengths > 0
    scale = torch.where(usable, lengths, 1.0)
    height = (cross / scale).abs().max().clamp(min=torch.finfo(torch.float64).tiny)
    unit = gram.div_(scale[:, None]).div_(scale)
    unit.diagonal().add_(RIDGE)
    wanted = torch.where(usable, cross / scale / height, -1.0)
    solution = torch.from_numpy(_active_set(unit.numpy(), wanted.numpy()))
    return solution * height / scale


def _active_set(gram: Array, cross: Array) -> Array:
    """``argmin_{c ≥ 0} cᵀ gram c − 2 crossᵀ c`` for a positive definite, unit-diagonal gram.

    A coefficient enters as long as that lowers the objective; one that would turn negative
    leaves. The bound on the rounds only matters to rounding: every round is a feasible point and
    none is worse than the one before. In numpy, whose overhead on tiny arrays is far smaller.
    """
    solution = _pivoted(gram, cross) if len(cross) >= MANY else np.zeros_like(cross)
    active = solution > 0
    for _ in range(3 * len(cross)):
        gain = np.where(active, -np.inf, cross - gram @ solution)
        entering = int(gain.argmax())
        if not gain[entering] > TOLERANCE:
            break
        active[entering] = True
        candidate = _solve(gram, cross, active)
        if not candidate[entering] > 0:  # a gain that is only rounding
            break
        while (candidate[active] <= 0).any():
            blocking = np.flatnonzero(active & (candidate <= 0))
            steps = solution[blocking] / (solution[blocking] - candidate[blocking])
            solution = solution + steps.min() * (candidate - solution)
            solution[blocking[steps.argmin()]] = 0.0
            active &= solution > 0
            solution[~active] = 0.0
            candidate = _solve(gram, cross, active)
        solution = candidate
    return solution


def _pivoted(gram: Array, cross: Array) -> Array:
    """The same problem by block principal pivoting: all of the wrong sign change sides at once.

    With the backup rule of Júdice and Pires (only the last one, when their number does not fall)
    it ends; zeros if rounding keeps it from that, from where the active set is built one by one.

    Portugal, Júdice, Vicente: A comparison of block pivoting and interior-point algorithms for
    linear least squares problems with nonnegative variables, Mathematics of Computation 1994.
    """
    active = cross > 0
    fewest, patience = len(cross) + 1, 3
    for _ in range(PIVOTS):
        inside = np.flatnonzero(active)
        solution = np.zeros_like(cross)
        part = torch.from_numpy(
            gram.copy() if len(inside) == len(gram) else gram[np.ix_(inside, inside)]
        )
        failed = torch.empty((), dtype=torch.int32)
        torch.linalg.cholesky_ex(part, out=(part, failed))
        if failed:
            break
        wanted = torch.from_numpy(cross[inside, None])
        solution[inside] = torch.cholesky_solve(wanted, part)[:, 0].numpy()
        wrong = np.where(active, solution <= 0, cross - gram @ solution > TOLERANCE)
        count = int(wrong.sum())
        if not count:
            return solution
        if count < fewest:
            fewest, patience = count, 3
        elif patience:
            patience -= 1
        else:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        active ^= wrong
    return np.zeros_like(cross)


def _solve(gram: Array, cross: Array, active: NDArray[np.bool_]) -> Array:
    """The unconstrained solution with only the active coefficients, zero elsewhere."""
    solution = np.zeros_like(cross)
    solution[active] = np.linalg.solve(gram[np.ix_(active, active)], cross[active])
    return solution


def nearest_in_hull(difference_gram: Tensor) -> Tensor:
    """Shares ``p ≥ 0, Σ p = 1`` of the point ``Σ p_i g_i`` nearest to ``t``.

    ``difference_gram`` holds ``A_ij = ⟨g_i − t, g_j − t⟩``, and the answer is the shortest vector
    in the convex hull of the differences, ``argmin pᵀ A p``. Up to its sum it is the solution of
    the cone problem ``(A/s + 1 1ᵀ) y = 1`` for any ``s > 0``; ``s`` is the squared distance of the
    nearest source, which keeps the problem well scaled.
    """
    distance2 = difference_gram.diagonal()
    nearest = distance2.min()
    if not bool(nearest > 0):
        at_target = (distance2 <= 0).to(difference_gram.dtype)
        return at_target / at_target.sum()
    shares = _in_cone((difference_gram / nearest).add_(1.0), torch.ones_like(distance2))
    return shares / shares.sum()
