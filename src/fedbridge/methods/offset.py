"""``offset``: the sources' last layer, moved as far as the target's labels have a case for.

The last layer ``θ = (W, b)`` of the source-led model is refitted on the target's features, shrunk
towards where the sources left it, ``θ_s``:

    argmin over θ of (1/n) Σ_i ℓ(θ φ_i, y_i) + (λ m / 2) ‖θ − θ_s‖² ,

a convex problem. ``φ`` ends in a 1 for the bias, which is shrunk too; ``m`` is the mean square of
the entries of ``φ``, so that the strength ``λ`` has no unit. ``λ = ∞`` is the sources' model, ``λ =
0`` plain logistic regression on its features; in between comes a grid, and cross-validated log loss
chooses (``refit``), anew every ``choose_every`` rounds.

The idea is penalised model revision: Steyerberg et al., Statistics in Medicine 23, 2004 (shrinkage
of re-estimated coefficients towards their recalibrated values); Van Calster et al., Diagnostic and
Prognostic Research 1, 2017 (method 4: penalised refitting with the old model as offset). As a
normal prior around the old model it is in Chelba, Acero: Adaptation of maximum entropy capitalizer:
little data can help a lot, EMNLP 2004; as biased regularisation in Kuzborskij, Orabona: Stability
and hypothesis transfer learning, ICML 2013, who choose its strength by leave-one-out.

Differences: the centre is the sources' head itself, not a recalibrated one (recalibration in the
large is cheap for the penalty as it is); the penalty is a ridge whose strength is cross-validated,
where Steyerberg et al. take a heuristic factor; and the linear predictors are a network's features.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.nn import functional

from fedbridge.base.options import check_whole
from fedbridge.methods.refit import Head, Refit, SourceLed
from fedbridge.models.heads import with_ones

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from fedbridge.federation.federation import Federation

STRENGTHS = (math.inf, 100.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001, 0.0001)
CHOOSE_EVERY = 5


def shrunken_head(features: Tensor, labels: Tensor, head: Head, strength: float) -> Head:
    """The last layer fitted to the labels, shrunk towards ``head``.

    What moves lies in the span of the rows: in their principal axes the problem has at most as
    many dimensions as there are rows, and the same solution.
    """
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    if math.isinf(strength) or not len(labels):
        return head
    inputs = with_ones(features)
    start = torch.cat((head[0], head[1][:, None]), 1)
    outputs = inputs @ start.T
    left, sizes, axes = torch.linalg.svd(inputs, full_matrices=False)
    reduced = left * sizes
    pull = strength * float(inputs.square().mean()) / 2

    truth = functional.one_hot(labels, len(start)).double()

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """The loss of a change of the last layer, and its gradient."""
        change = torch.from_numpy(flat).reshape(len(start), -1)
        moved = outputs + reduced @ change.T
        value = functional.cross_entropy(moved, labels) + pull * change.square().sum()
        wrong = (functional.softmax(moved, 1) - truth) / len(labels)
        return float(value), (wrong.T @ reduced + 2 * pull * change).reshape(-1).numpy()

    origin = np.zeros(len(start) * len(sizes))
    stop = {"maxiter": 500, "ftol": 1e-12, "gtol": 1e-6}
    found = minimize(loss, origin, jac=True, method="L-BFGS-B", options=stop).x
    moved = start + torch.from_numpy(found).reshape(len(start), -1) @ axes
    return moved[:, :-1], moved[:, -1]


class OffsetSide(Refit):
    """The last layer at every strength."""

    names: ClassVar[tuple[str, ...]] = tuple(f"strength {value:g}" for value in STRENGTHS)

    def fit(self, choice: int, features: Tensor, labels: Tensor, head: Head) -> Head:
        """At one strength."""
        return shrunken_head(features, labels, head, STRENGTHS[choice])


class Offset(SourceLed):
    """The sources' model, its last layer refitted and shrunk towards where they left it.

    Options:
        folds: parts of the target's rows for cross-validation (5).
        choose_every: rounds from one choice of the strength to the next (5).
    """

    options: ClassVar[tuple[str, ...]] = ("folds", "choose_every")
    refit: ClassVar[type[Refit]] = OffsetSide

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.choose_every = check_whole(
            "choose_every", options.get("choose_every", CHOOSE_EVERY), least=1
        )
