"""Ridge fits, many at once, of a linear layer or of all layers of a network to first order.

They are logistic for classes and least squares for numbers.

A fit adds ``φ_i B`` to given outputs ``o_i`` of the target's rows,

    argmin over B of Σ_i w_i ℓ(o_i + φ_i B, y_i) + (λ / 2) ‖B‖² ,

with ``ℓ`` the cross-entropy, or half the squared error. Cross-validation wants the same fit for
every fold (rows of weight 0), for several given outputs and for several ``λ``: all of them are one
batch. Features are centred, brought to a mean squared length of 1 and given a constant 1, so that
``λ`` means the same for pixels and for activations. For classes the constant is shrunk like the
rest; for numbers, whose mean may be anything, it is so large that it hardly is. What a fit can move
lies in the span of the rows: in their principal axes ``Φ = U S Vᵀ`` there are at most as many
unknowns as rows.

For classes the curvature of a row's loss is at most ½ (Böhning 1992), so in the principal axes the
diagonal ``max_i w_i S² / 2 + λ`` bounds the curvature of the whole. That is the step size of an
accelerated gradient method with restarts (O'Donoghue, Candès 2015), in float32: outputs are wanted
to three digits. A fit that is done leaves the batch. Where features have moved only a little since
an earlier fit, that is where it starts: ``B = Φᵀ α`` with what every row pulled then (``pulls``).

Böhning: Multinomial logistic regression algorithm, Annals of the Institute of Statistical
Mathematics 44, 1992. O'Donoghue, Candès: Adaptive restart for accelerated gradient schemes,
Foundations of Computational Mathematics 15, 2015.

**All layers of a network.** A network that moves a little in all its layers says ``z + J δ``,
linear in the change ``δ``. With ``J_i`` the Jacobian of the outputs of row ``i`` in all parameters
``θ``, a fit

    argmin over δ of Σ_i w_i ℓ(o_i + J_i δ, y_i) + (λ / 2) ‖δ‖²

is fine-tuning of the whole network with its first-order term alone (Maddox et al. 2021, Achille et
al. 2021): convex, so that all folds and strengths are one batch of ``ridge``, where training a
replica per fold takes hundreds of steps. The last layer's part of ``J`` are the features of a
fitted head; the other parts let layers below it follow a shift of the inputs.

What such a fit can move lies in the span of the rows of ``J``, one per row and output. Its axes are
those of the Gram matrix ``J Jᵀ``, the network's tangent kernel; ``J`` is scaled so that a row's
squared length is 1 on average, as features are in ``ridge``.

A model that needs no derivative says nearly the same: ``J(x) δ = (f(θ + hδ, x) − f(θ − hδ, x)) /
2h``, up to ``h²`` where the network is smooth and up to a few percent at the kinks of a ReLU. That
is two networks more (``secant``).

Maddox, Tang, Moreno, Wilson, Damianou: Fast adaptation with linearized neural networks, AISTATS
2021. Achille, Golatkar, Ravichandran, Polito, Soatto: LQF, linear quadratic fine-tuning, CVPR 2021.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.func import vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedbridge.models.functional import called_with
from fedbridge.models.heads import with_ones

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from fedbridge.training.state import State

MOST_STEPS, MOST_STEPS_FROM_NEAR, STEPS_AFTER = 150, 40, 6
"""From nothing, from the fit to all rows, and after an earlier fit: that is followed, step by step,
from round to round."""

LOOK_EVERY = 5
SETTLED = 1e-3
"""Largest change of an output in a step at which a fit is done."""

FLAT = 1e-9
"""Axes that are shorter than this part of the longest, and columns that vary by less than this part
of their size, are none."""


FLAT_SQUARE = 1e-6
"""Axes whose squared length is a smaller part of the longest one's are none."""

STEP = 0.01
"""Length of the step of a secant, as a part of the parameters' own."""

MOST_AT_ONCE, NUMBERS_AT_ONCE = 64, 4_000_000
"""Rows whose Jacobians are computed together: at most so many, and so many copied parameters."""


@dataclass(frozen=True)
class Axes:
    """Some rows' features in their principal axes, and the way back to the features themselves.

    Attributes:
        rows: (n, r) the rows in these axes, with the constant among their features.
        sizes: (r,) singular values.
        back: (d + 1, r) from a fit in these axes to weights of the features and a bias.
    """

    rows: Tensor
    sizes: Tensor
    back: Tensor

    @classmethod
    def of(cls, features: Tensor, *, standardise: bool = False, constant: float = 1.0) -> Axes:
        """The axes of (n, d) features, in float64; every column to unit variance if asked.

        ``constant`` is the size of the constant: the larger, the less of its part is shrunk.
        """
        centre = features.mean(0)
        moved = features - centre
        scale = torch.ones_like(centre)
        if standardise:
            spread = moved.square().mean(0).sqrt()
            varies = spread > FLAT * features.abs().amax(0)
            scale = torch.where(varies, 1 / spread, torch.zeros_like(spread))
        length = (moved * scale).square().sum(1).mean().sqrt()
        varied = float(length) > FLAT * float((centre * scale).norm())
        scale = scale / length if varied else torch.zeros_like(scale)
        padded = with_ones(moved * scale)
        padded[:, -1] = constant
        left, sizes, axes = torch.linalg.svd(padded, full_matrices=False)
        there = sizes > FLAT * sizes[0]
        left, sizes, axes = left[:, there], sizes[there], axes[there]
        slopes = axes[:, :-1] * scale
        bias = constant * axes[:, -1:] - slopes @ centre[:, None]
        return cls(left * sizes, sizes, torch.cat((slopes, bias), 1).T)

    @classmethod
    def constant(cls, rows: int, constant: float = 1.0) -> Axes:
        """Nothing but the constant."""
        column = torch.full((rows, 1), constant, dtype=torch.float64)
        return cls(column, column.norm()[None], column[:1])

    @property
    def width(self) -> int | None:
        """Of a fit: as many columns as a row has outputs (None), or one that all of them share."""
        return None

    def said(self, fitted: Tensor) -> Tensor:
        """(P, n, K) what fits (P, n, r, K), one for every row, add to its outputs."""
        return torch.einsum("ir,pirk->pik", self.rows, fitted)

    def layer(self, fitted: Tensor) -> Tensor:
        """(…, K, d + 1) weights of the features and a bias from fits (…, r, K) in these axes."""
        return (self.back @ fitted).transpose(-1, -2)

    def pulls(self, fitted: Tensor) -> Tensor:
        """(…, n, K) ``α`` with ``Φᵀ α`` = the fits (…, r, K): what every row has pulled."""
        return self.rows @ (fitted / self.sizes.square()[:, None])

    def pulled(self, pulls: Tensor) -> Tensor:
        """(…, r, K) the fits that rows make which pull like this."""
        return self.rows.T @ pulls


def jacobians(model: nn.Module, x: Tensor) -> Tensor:
    """(n, K, m) derivatives of a model's outputs for some rows in all parameters that train.

    Every row gets a copy of the parameters, so that one pass backwards per output tells all rows
    apart. (``jacrev`` would do as much, but loads a compiler first: a second of every process.)
    """
    parameters = {
        name: value.detach() for name, value in model.named_parameters() if value.requires_grad
    }
    fixed = dict(model.named_buffers())

    def outputs(held: dict[str, Tensor], row: Tensor) -> Tensor:
        return called_with(model, {**held, **fixed}, row[None])[0].flatten()

    def slopes(rows: Tensor) -> Tensor:
        own = {
            name: value.expand(len(rows), *value.shape).clone().requires_grad_()
            for name, value in parameters.items()
        }
        with torch.enable_grad():
            by_output = vmap(outputs)(own, rows).sum(0).unbind()
        found = x.new_empty(len(rows), len(by_output), total)
        for k, one in enumerate(by_output):
            parts = torch.autograd.grad(
                one, [*own.values()], retain_graph=True, materialize_grads=True
            )
            torch.cat([part.flatten(1) for part in parts], 1, out=found[:, k])
        return found

    total = sum(value.numel() for value in parameters.values())
    number = max(1, min(MOST_AT_ONCE, NUMBERS_AT_ONCE // max(1, total)))
    with _plain_attention():
        found = [slopes(rows) for rows in x.split(number)]
    return found[0] if len(found) == 1 else torch.cat(found)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention in steps that have derivatives by rows; torch's fast forms have none."""
    was_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fast)


@dataclass(frozen=True)
class Tangents(Axes):
    """Rows of Jacobians in their principal axes; ``rows`` has one per row and output, (n K, r).

    Attributes:
        outputs: K, the outputs of a row, which share the unknowns.
        unit: mean squared length of the rows of ``J``, which are in units of its root here.
    """

    outputs: int = 1
    unit: float = 1.0

    @classmethod
    def at(cls, slopes: Tensor) -> Tangents:
        """The axes of (n, K, m) Jacobians."""
        flat = slopes.flatten(0, 1)
        gram = (flat @ flat.T).double()
        unit = gram.diagonal().mean().clamp(min=torch.finfo(flat.dtype).tiny)
        squares, vectors = torch.linalg.eigh(gram / unit)
        there = squares > FLAT_SQUARE * squares[-1]
        sizes, vectors = squares[there].sqrt(), vectors[:, there]
        return cls(vectors * sizes, sizes, flat.T, slopes.shape[1], float(unit))

    @property
    def width(self) -> int:
        """All outputs of a row have the same unknowns."""
        return 1

    def said(self, fitted: Tensor) -> Tensor:
        """(P, n, K) what fits (P, n, r, 1), one for every row, add to its outputs."""
        rows = self.rows.unflatten(0, (-1, self.outputs))
        return torch.einsum("ikr,pir->pik", rows, fitted[..., 0])

    def layer(self, fitted: Tensor) -> Tensor:
        """(P, m) the changes ``δ`` of the parameters that fits (P, r, 1) stand for."""
        pulled = (self.pulls(fitted)[..., 0] / self.unit).to(self.back.dtype)
        return (self.back @ pulled.T).T


def secant(state: State, change: Tensor) -> list[tuple[State, float]]:
    """``J δ`` at a model as two models and their factors; none where nothing changes."""
    length = float(change.norm())
    if length == 0:
        return []
    h = STEP * max(float(state.parameters.norm()), 1e-6) / length
    step = (h * change).to(state.parameters.dtype)
    ahead, behind = state.moved(step), state.moved(-step)
    return [(ahead, 1 / (2 * h)), (behind, -1 / (2 * h))]


@dataclass(frozen=True)
class Rows:
    """What fits are judged by: labels, and the weights of rows in every fold.

    Attributes:
        labels: (n,) classes, or (n, K) numbers.
        classes: how many classes; None for numbers.
        weights: (folds, n) of a row in the fits of a fold; 0 where it is held out.
        fold_of: (n,) the fold that holds a row out.
        all: (n,) weights in the fit to all.
        ease: factor of ``λ`` in the fit to all, which has more rows than those without a fold.
    """

    labels: Tensor
    classes: int | None
    weights: Tensor
    fold_of: Tensor
    all: Tensor
    ease: float = 1.0

    @property
    def truth(self) -> Tensor:
        """(n, K) the labels as outputs should be."""
        if self.classes is None:
            return self.labels.double().reshape(len(self.labels), -1)
        return functional.one_hot(self.labels, self.classes).double()


def ridge(
    axes: Axes,
    given: Tensor,
    strengths: Tensor,
    rows: Rows,
    *,
    judge: bool = True,
    near: Tensor | None = None,
    steps: int = MOST_STEPS,
) -> tuple[Tensor, Tensor | None]:
    """Fits to all rows, and what they would say of every row without its fold.

    Args:
        axes: of the rows' features.
        given: (P, n, K) outputs that are there already, one set per fit.
        strengths: (P,) each fit's ``λ``.
        rows: labels and folds.
        judge: whether to fit without every fold too.
        near: (P, r, K) where the fits to all rows may start.
        steps: at most so many from nothing.

    Returns:
        (P, r, K) the fits to all rows, and (P, n, K) held-out outputs, if asked for.
    """
    weights, most = rows.all.expand(len(given), -1), steps if near is None else STEPS_AFTER
    whole = _solve(axes, given, rows.ease * strengths, weights, rows, near, most)
    if not judge:
        return whole, None
    folds = len(rows.weights)
    apart = _solve(
        axes,
        given.repeat_interleave(folds, 0),
        strengths.repeat_interleave(folds),
        rows.weights.repeat(len(given), 1),
        rows,
        whole.repeat_interleave(folds, 0),
        MOST_STEPS_FROM_NEAR,
    ).unflatten(0, (len(given), folds))
    return whole, given + axes.said(apart[:, rows.fold_of])


def _solve(
    axes: Axes,
    given: Tensor,
    strengths: Tensor,
    weights: Tensor,
    rows: Rows,
    near: Tensor | None,
    most: int,
) -> Tensor:
    """(P, r, K) fits with (P, n) weights of the rows: of numbers at once, of classes in steps."""
    if rows.classes is None:
        return _squares(axes, given, strengths, weights, rows.truth)
    width = axes.width or given.shape[2]
    start = given.new_zeros(len(given), len(axes.sizes), width) if near is None else near
    return _logistic(axes, given, strengths, weights, rows.truth, start, most)


def _squares(
    axes: Axes, given: Tensor, strengths: Tensor, weights: Tensor, truth: Tensor
) -> Tensor:
    """Least squares, in closed form."""
    weighted = axes.rows.T * weights[:, None]
    curvature = weighted @ axes.rows
    curvature.diagonal(dim1=1, dim2=2).add_(strengths[:, None])
    solved: Tensor = torch.linalg.solve(curvature, weighted @ (truth - given))
    return solved


def _logistic(
    axes: Axes,
    given: Tensor,
    strengths: Tensor,
    weights: Tensor,
    truth: Tensor,
    start: Tensor,
    most: int,
) -> Tensor:
    """Multinomial logistic regression by accelerated gradient steps.

    Fits lie side by side, (r, K, P), so that a step is two products of matrices for all of them
    and everything else works along long runs of numbers. (In ``Tangents`` they are (r, 1, P).)
    """
    rows, truth = axes.rows.float(), truth.float()[:, :, None]
    across = rows.T.contiguous()
    n, classes = given.shape[1:]
    given = given.float().permute(1, 2, 0).contiguous()
    weights, pull = weights.float().T[:, None].contiguous(), strengths.float()[None, None]
    bound = axes.sizes.float().square()[:, None, None] / 2 * weights.amax(0) + pull
    done = start.float().permute(1, 2, 0).contiguous()
    at = ahead = done
    left, factors = torch.arange(len(start)), _momentum(most)
    age = torch.zeros(1, 1, len(start), dtype=torch.int64)
    for step in range(1, most + 1):
        outputs = (rows @ ahead.flatten(1)).view(n, classes, -1).add_(given)
        wrong = torch.softmax(outputs, 1).sub_(truth).mul_(weights)
        gradient = (across @ wrong.view(len(rows), -1)).view_as(ahead).addcmul_(pull, ahead)
        now = torch.addcdiv(ahead, gradient, bound, value=-1)
        moved = now - at
        uphill = gradient.mul_(moved).sum((0, 1), keepdim=True) > 0
        age.add_(1).masked_fill_(uphill, 0)
        at, ahead = now, torch.addcmul(now, factors[age], moved)
        if step % LOOK_EVERY and step < most:
            continue
        change = (rows @ moved.flatten(1)).view(n, classes, -1).abs().amax((0, 1))
        on = change >= SETTLED if step < most else torch.zeros_like(change, dtype=torch.bool)
        if bool(on.all()):
            continue
        done[..., left[~on]] = at[..., ~on]
        if not bool(on.any()):
            break
        left, at, ahead, age = (of[..., on] for of in (left, at, ahead, age))
        given, weights, pull, bound = (of[..., on] for of in (given, weights, pull, bound))
    return done.permute(2, 0, 1).double()


@cache
def _momentum(most: int) -> Tensor:
    """(most + 1,) ``(t_{k−1} − 1) / t_k`` at the k-th step after a start, 0 at the start itself.

    With ``t_0 = 1`` and ``t_k = (1 + √(1 + 4 t_{k−1}²)) / 2``.
    """
    found, t = [0.0], 1.0
    for _ in range(most):
        following = (1 + (1 + 4 * t * t) ** 0.5) / 2
        found.append((t - 1) / following)
        t = following
    return torch.tensor(found)
