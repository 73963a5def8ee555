"""How good predictions are: the losses that training minimises, and what a test set measures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedbridge.base.errors import FedbridgeError

SCORED_ROUNDS = 5
"""The score of a run is the mean over its last so many rounds, never the best one."""


@dataclass(frozen=True)
class Metrics:
    """Measures of a test set; None where a measure does not apply.

    Attributes:
        loss: cross-entropy or squared error; None if it was not measured.
        accuracy: share of right answers in percent; None for regression.
        balanced_accuracy: mean over classes of the share of right answers, in percent.
        auc: area under the ROC curve, for two classes that both occur; the same for either as the
            positive one.
    """

    loss: float | None
    accuracy: float | None = None
    balanced_accuracy: float | None = None
    auc: float | None = None


NOT_MEASURED = Metrics(loss=None)
"""In place of the measures of a model that nobody could be asked about."""


@dataclass(frozen=True)
class Evaluation:
    """What a model is worth to the target.

    Attributes:
        test: on the test split; None if there is none, or the target did not answer.
        validation: loss on rows set aside for early stopping, if there are any.
    """

    test: Metrics | None
    validation: float | None = None


def measure_predictions(outputs: Tensor, truth: Tensor, n_classes: int | None) -> Metrics:
    """Measures of a model's outputs (logits, or values for regression) against the truth."""
    if n_classes is None:
        return Metrics(loss=float(squared_error(outputs, truth)))
    right = outputs.argmax(1) == truth
    recalls = [right[truth == label].double().mean() for label in truth.unique()]
    score = outputs[:, 1] - outputs[:, 0] if n_classes == 2 else None
    return Metrics(
        loss=float(functional.cross_entropy(outputs, truth)),
        accuracy=100 * float(right.double().mean()),
        balanced_accuracy=100 * float(torch.stack(recalls).mean()),
        auc=None if score is None else area_under_roc(score, truth),
    )


def area_under_roc(score: Tensor, truth: Tensor) -> float | None:
    """Chance that a random positive scores above a random negative; ties count half.

    From counts, exactly: it is part of every round's line, and training needs no other library.
    """
    values, group = score.double().unique(return_inverse=True)
    counts = torch.zeros((2, len(values)), dtype=torch.float64)
    counts.index_put_((truth.long(), group), torch.ones(len(score)).double(), accumulate=True)
    negatives, positives = counts
    if not bool(negatives.any()) or not bool(positives.any()):
        return None
    below = negatives.cumsum(0) - negatives / 2
    return float((positives * below).sum() / (positives.sum() * negatives.sum()))


def squared_error(outputs: Tensor, values: Tensor) -> Tensor:
    """Squared error, summed over the outputs of a sample and averaged over samples."""
    squares = (outputs - values.view_as(outputs)).square()
    return squares.reshape(len(outputs), -1).sum(1).mean()


def weighted_cross_entropy(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Mean cross-entropy, each row by the weight of its class; 0 for rows that weigh nothing."""
    if not bool(weight[labels].any()):
        return 0.0 * outputs.sum()
    return functional.cross_entropy(outputs, labels, weight=weight)


def class_weights(
    given: str | tuple[float, ...] | None, labels: Tensor, n_classes: int
) -> tuple[float, ...]:
    """Weight of every class: as given, or (``balanced``) the rarer among the labels the more."""
    if isinstance(given, tuple):
        if len(given) != n_classes:
            raise FedbridgeError(f"Expected {n_classes} class weights, but got {len(given)}.")
        return given
    if given != "balanced":
        raise FedbridgeError(
            f"Expected `class_weights` to be 'balanced' or one number per class, but got {given!r}."
        )
    counts = torch.bincount(labels, minlength=n_classes)
    present = counts > 0
    weights = torch.where(present, counts.sum() / (present.sum() * counts.clamp(min=1)), 0.0)
    return tuple(weights.tolist())
