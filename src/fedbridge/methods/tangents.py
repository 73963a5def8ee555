"""A network that moves a little in all its layers: ``z + J δ``, linear in the change ``δ``.

With ``J_i`` the Jacobian of the outputs of row ``i`` in all parameters ``θ``, a fit

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

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.func import functional_call, jacrev, vmap

from fedbridge.methods.ridge import Axes

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedbridge.training.state import State

FLAT = 1e-6
"""Axes whose squared length is a smaller part of the longest one's are none."""

STEP = 0.01
"""Length of the step of a secant, as a part of the parameters' own."""

AT_ONCE = 16
"""Rows whose Jacobians are computed together."""


def jacobians(model: nn.Module, x: Tensor) -> Tensor:
    """(n, K, m) derivatives of a model's outputs for some rows in all parameters that train."""
    parameters = {
        name: value.detach() for name, value in model.named_parameters() if value.requires_grad
    }
    fixed = dict(model.named_buffers())

    def outputs(held: dict[str, Tensor], row: Tensor) -> Tensor:
        found: Tensor = functional_call(model, ({**held}, fixed), (row[None],))
        return found[0].flatten()

    found = vmap(jacrev(outputs), in_dims=(None, 0), chunk_size=AT_ONCE)(parameters, x)
    return torch.cat([of.flatten(2) for of in found.values()], 2)


@dataclass(frozen=True)
class Tangents(Axes):
    """Rows of Jacobians in their principal axes; ``rows`` has one per row and output, (n K, r).

    Attributes:
        outputs: K, the outputs of a row, which share the unknowns.
    """

    outputs: int = 1

    @classmethod
    def at(cls, slopes: Tensor) -> Tangents:
        """The axes of (n, K, m) Jacobians."""
        flat = slopes.flatten(0, 1)
        length = flat.square().sum(1).mean().sqrt().clamp(min=torch.finfo(flat.dtype).tiny)
        flat = flat / length
        squares, vectors = torch.linalg.eigh((flat @ flat.T).double())
        there = squares > FLAT * squares[-1]
        sizes, vectors = squares[there].sqrt(), vectors[:, there]
        return cls(vectors * sizes, sizes, flat.T / length, outputs=slopes.shape[1])

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
        pulled = self.pulls(fitted)[..., 0].to(self.back.dtype)
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
