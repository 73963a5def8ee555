"""``recalibrate``: the sources' model with intercept and slope per class from the target's labels.

The standard update of a clinical prediction model at a new hospital: what the model ranks right but
sizes wrong (another share of the ill, answers too sure of themselves) needs few numbers to mend.
With ``z`` the outputs of the source-led model, centred over the classes,

    none                 z_k
    intercept            a_k + z_k               recalibration in the large
    intercept and slope  a_k + b_k z_k           logistic recalibration

fitted by maximum likelihood, and chosen among by cross-validated log loss (``refit``). For two
classes that is the textbook's ``logit p = a + b · lp``, since centred outputs are ``∓ lp / 2``.

Steyerberg, Borsboom, van Houwelingen, Eijkemans, Habbema: Validation and updating of predictive
logistic regression models: a study on sample size and shrinkage, Statistics in Medicine 23, 2004.
Janssen, Moons, Kalkman, Grobbee, Vergouwe: Updating methods improved the performance of a clinical
prediction model in new patients, Journal of Clinical Epidemiology 61, 2008. Vergouwe et al.: A
closed testing procedure to select an appropriate method for updating prediction models, Statistics
in Medicine 36, 2017. Van Calster et al.: Validation and updating of risk models based on
multinomial logistic regression, Diagnostic and Prognostic Research 1, 2017.

Differences: the choice is by cross-validation, not by likelihood ratio tests, and refitting all
coefficients is not among the choices (that is ``offset``). For more than two classes each has one
slope, on its own output; Van Calster et al. give each equation a slope on every linear predictor,
k(k−1) numbers, too many for a few rows. A weak normal prior (precision 0.01, against one per row of
data) keeps the numbers finite where the labels can be told apart without error or are all alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn import functional

from fedbridge.methods.refit import Head, Refit, SourceLed

if TYPE_CHECKING:
    from torch import Tensor

PRIOR, MOST_STEPS, FLAT = 0.01, 100, 1e-9
NONE, INTERCEPT, SLOPE = "none", "intercept", "intercept and slope"


def recalibration(outputs: Tensor, labels: Tensor, *, slopes: bool) -> tuple[Tensor, Tensor]:
    """Intercepts ``a`` and slopes ``b`` of the classes that suit the labels best.

    They minimise ``−Σ log softmax(a + b z)_y + (0.01 / 2) (‖a‖² + ‖b − 1‖²)``.

    Args:
        outputs: (n, K) of the model.
        labels: (n,) classes.
        slopes: False leaves all slopes at 1.
    """
    centred = outputs - outputs.mean(1, keepdim=True)
    design = torch.stack((torch.ones_like(centred), centred), 2)[:, :, : 2 if slopes else 1]
    change = _newton(centred, design, labels)
    ones = torch.ones_like(change[:, 0])
    return change[:, 0], ones + change[:, 1] if slopes else ones


def _newton(outputs: Tensor, design: Tensor, labels: Tensor) -> Tensor:
    """(K, q) the numbers ``c`` that suit outputs ``z_k + Σ_q X_kq c_kq`` best, with the prior.

    The problem is convex and has few numbers: Newton's steps, halved until they go down.
    """
    n, classes, own = design.shape
    truth = functional.one_hot(labels, classes).to(design.dtype)

    def loss(at: Tensor) -> Tensor:
        fit = functional.cross_entropy(outputs + (design * at).sum(2), labels, reduction="sum")
        return fit + PRIOR / 2 * at.square().sum()

    at = design.new_zeros(classes, own)
    for _ in range(MOST_STEPS):
        shares = functional.softmax(outputs + (design * at).sum(2), 1)
        gradient = ((shares - truth)[:, :, None] * design).sum(0) + PRIOR * at
        if float(gradient.abs().max()) < FLAT:
            break
        weighted = shares[:, :, None] * design
        mixed = weighted.reshape(n, -1)
        curvature = PRIOR * torch.eye(classes * own, dtype=at.dtype) - mixed.T @ mixed
        inside = torch.einsum("ikq,ikr->kqr", weighted, design)
        curvature += torch.block_diag(*inside)
        step = torch.linalg.solve(curvature, gradient.reshape(-1)).reshape(at.shape)
        before, length = float(loss(at)), 1.0
        while float(loss(at - length * step)) > before and length > FLAT:
            length /= 2
        at = at - length * step
    return at


class RecalibrateSide(Refit):
    """Intercepts and slopes, folded into the last layer."""

    names: ClassVar[tuple[str, ...]] = (NONE, INTERCEPT, SLOPE)

    def fit(self, choice: int, features: Tensor, labels: Tensor, head: Head) -> Head:
        """Nothing, intercepts, or intercepts and slopes."""
        weight, bias = head
        if self.names[choice] == NONE:
            return head
        slopes = self.names[choice] == SLOPE
        intercept, slope = recalibration(features @ weight.T + bias, labels, slopes=slopes)
        return slope[:, None] * (weight - weight.mean(0)), slope * (bias - bias.mean()) + intercept


class Recalibrate(SourceLed):
    """The sources' model, then intercept and slope per class as the target's labels say.

    Options:
        folds: parts of the target's rows for cross-validation (5).
    """

    options: ClassVar[tuple[str, ...]] = ("folds",)
    refit: ClassVar[type[Refit]] = RecalibrateSide
