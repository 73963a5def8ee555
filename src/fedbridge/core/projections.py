"""Nearest points: of a cone and of a convex hull, given nothing but inner products.

The joint rules ask which mixture of the sources comes nearest to the target's update. Both
questions are small convex problems in N unknowns (N is the number of sources), solved exactly by
an active-set method, whatever the size of the model. Letting in one source after the other takes
seconds for a thousand; there, block principal pivoting finds the sources in use in a few steps
and the active-set method only confirms them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from fedbridge.core.sketch import TILE, JointAngles

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

NEARLY, SETTLED = 1e-9, 1e-12
"""The gain that counts where angles are sketched, and the residual at which solutions are exact."""

REFINED = 20
"""Corrections after which a solution in few digits is given up; three are usual."""


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
    guessed = _pivoted(_Dense(gram), cross, TOLERANCE) if len(cross) >= MANY else None
    solution = np.zeros_like(cross) if guessed is None else guessed
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


class _Matrix(Protocol):
    """A positive definite matrix of unit diagonal."""

    def solve(self, inside: NDArray[np.intp], cross: Array) -> tuple[Array, Array] | None:
        """The solution with only these coefficients, and the matrix times it; None if it fails."""


def _pivoted(matrix: _Matrix, cross: Array, tolerance: float) -> Array | None:
    """The same problem by block principal pivoting: all of the wrong sign change sides at once.

    With the backup rule of Júdice and Pires (only the last one, when their number does not fall)
    it ends; None if rounding keeps it from that.

    Portugal, Júdice, Vicente: A comparison of block pivoting and interior-point algorithms for
    linear least squares problems with nonnegative variables, Mathematics of Computation 1994.
    """
    active = cross > 0
    fewest, patience = len(cross) + 1, 3
    for _ in range(PIVOTS):
        solved = matrix.solve(np.flatnonzero(active), cross)
        if solved is None:
            return None
        solution, image = solved
        wrong = np.where(active, solution <= 0, cross - image > tolerance)
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
    return None


def _factored(part: Tensor) -> bool:
    """Put the Cholesky factor of a matrix in its place; whether there is one."""
    failed = torch.empty((), dtype=torch.int32)
    torch.linalg.cholesky_ex(part.mT, out=(part.mT, failed))
    return not failed


class _Dense:
    """A matrix as it is."""

    def __init__(self, gram: Array) -> None:
        self.gram = gram

    def solve(self, inside: NDArray[np.intp], cross: Array) -> tuple[Array, Array] | None:
        """By its Cholesky factor."""
        gram, solution = self.gram, np.zeros_like(cross)
        part = torch.from_numpy(
            gram.copy() if len(inside) == len(gram) else gram[np.ix_(inside, inside)]
        )
        if not _factored(part):
            return None
        wanted = torch.from_numpy(cross[inside, None])
        solution[inside] = torch.cholesky_solve(wanted, part.mT)[:, 0].numpy()
        return solution, gram @ solution


class _Sketched:
    """``diag(s) C diag(s) + V Vᵀ`` with cosines C, which is never built but for its factor.

    That is taken in float32, in the one matrix that is needed besides C, and solutions are refined
    with residuals in float64. (torch would copy the factor for every solution, scipy does not.)
    """

    def __init__(self, angles: JointAngles, scale: Tensor, base: Tensor) -> None:
        self.angles, self.scale, self.base = angles, scale, base
        self.room = torch.empty(angles.cosines.numel())

    def solve(self, inside: NDArray[np.intp], cross: Array) -> tuple[Array, Array] | None:
        """By a factor of few digits, corrected until the residual is rounding."""
        from scipy.linalg import cho_solve  # type: ignore[import-untyped]

        part = self._part(torch.from_numpy(inside))
        if not _factored(part):
            return None
        solution, image = torch.zeros_like(self.scale), torch.zeros_like(self.scale)
        wanted = torch.from_numpy(cross[inside])
        before = math.inf
        for _ in range(REFINED):
            residual = wanted - image[inside]
            error = float(residual.abs().max()) if len(residual) else 0.0
            if error <= SETTLED:
                return solution.numpy(), image.numpy()
            if not error < before / 2:
                return None
            before = error
            right = (residual / error).float().numpy()
            more = cho_solve((part.numpy().T, True), right, check_finite=False)
            solution[inside] += error * torch.from_numpy(more).double()
            image = self._times(solution)
        return None

    def _times(self, vector: Tensor) -> Tensor:
        beside = self.scale * self.angles.times(self.scale * vector)
        return beside + self.base @ (self.base.T @ vector)

    def _part(self, inside: Tensor) -> Tensor:
        """Rows and columns of the matrix, in float32."""
        count = len(inside)
        part = self.room[: count * count].view(count, count)
        scale, base = self.scale[inside].float(), self.base[inside].float()
        room = torch.empty((TILE, len(self.scale)))
        for rows, out in zip(inside.split(TILE), part.split(TILE), strict=True):
            of_rows = torch.index_select(self.angles.cosines, 0, rows, out=room[: len(rows)])
            torch.index_select(of_rows, 1, inside, out=out)
        part.mul_(scale).mul_(scale[:, None]).addmm_(base, base.T)
        part.fill_diagonal_(1.0)
        return part


def _in_sketched_cone(
    angles: JointAngles, beside: Tensor, base: Tensor, cross: Tensor
) -> Tensor | None:
    """``argmin_{c ≥ 0} cᵀ M c − 2 crossᵀ c`` of ``M = diag(beside) C diag(beside) + base baseᵀ``.

    None where few digits do not do.
    """
    lengths = (beside.square() + base.square().sum(1)).sqrt()
    usable = lengths > 0
    scale = torch.where(usable, lengths, 1.0)
    height = (cross / scale).abs().max().clamp(min=torch.finfo(torch.float64).tiny)
    wanted = torch.where(usable, cross / scale / height, -1.0)
    matrix = _Sketched(angles, beside / scale, base / scale[:, None])
    solution = _pivoted(matrix, wanted.numpy(), NEARLY)
    return None if solution is None else torch.from_numpy(solution) * height / scale


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


def cone_point(seen: Tensor | JointAngles) -> tuple[Tensor, Tensor]:
    """Coefficients of the cone's point nearest to the target, and the squared distance to it.

    ``seen`` holds all products (N+1, N+1), the target's first, or sketched angles.
    """
    if isinstance(seen, JointAngles):
        along, beside = seen.along, seen.beside
        found = _in_sketched_cone(seen, beside, along[:, None], seen.inner)
        if found is None:
            return cone_point(seen.gram())
        short = found * beside
        return found, (seen.length - along @ found).square() + short @ seen.times(short)
    inner = seen[0, 1:]
    cone = nearest_in_cone(seen[1:, 1:], inner)
    apart = seen[0, 0] - 2.0 * (cone * inner).sum() + _quadratic(seen[1:, 1:], cone)
    return cone, apart.clamp(min=0.0)


def hull_point(seen: Tensor | JointAngles) -> tuple[Tensor, Tensor]:
    """Shares of the hull's point nearest to the target, and the squared distance to it.

    ``seen`` as for ``cone_point``.
    """
    if isinstance(seen, JointAngles):
        beside, ahead = seen.beside, seen.along - seen.length
        nearest = (ahead.square() + beside.square()).min().sqrt()
        found = None
        if bool(nearest > 0):
            base = torch.stack((ahead / nearest, torch.ones_like(ahead)), dim=1)
            found = _in_sketched_cone(seen, beside / nearest, base, torch.ones_like(ahead))
        if found is None:
            return hull_point(seen.gram())
        shares = found / found.sum()
        short = shares * beside
        return shares, (ahead @ shares).square() + short @ seen.times(short)
    inner = seen[0, 1:]
    difference = (seen[1:, 1:] - inner[:, None]).sub_(inner).add_(seen[0, 0])
    shares = nearest_in_hull(difference)
    return shares, _quadratic(difference, shares).clamp(min=0.0)


def _quadratic(gram: Tensor, vector: Tensor) -> Tensor:
    """``vᵀ G v``."""
    found: Tensor = torch.einsum("n,nm,m->", vector, gram, vector)
    return found
