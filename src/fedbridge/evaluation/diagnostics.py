"""What a model's outputs on a test set show beyond one number; pure functions, plain results.

Shares are in percent, as accuracies are everywhere; rates of a ROC curve and thresholds lie in
[0, 1], as probabilities do. Of two classes one is ``positive``: class 1 unless another is named.
Which one it is changes nothing about the model, nor its accuracy or area under the ROC curve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedbridge.evaluation.intervals import (
    Evidence,
    WithInterval,
    auc_estimate,
    bootstrap_mean,
    evidence,
    evidence_of_error,
    mean_of_shares,
    share,
)
from fedbridge.evaluation.metrics import area_under_roc

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

BINS = 10
THRESHOLD = 0.5
"""The operating point that tables and summaries tell of."""


@dataclass(frozen=True)
class ClassMeasures:
    """How one class fares: of its rows, how many were found; of those named so, how many are it."""

    label: int
    rows: int
    recall: WithInterval | None
    precision: WithInterval | None


@dataclass(frozen=True)
class Roc:
    """A ROC curve from (0, 0) to (1, 1); a point stands for all scores of at least its threshold.

    ``thresholds`` are probabilities of the positive class; the first is None: nobody is positive.
    """

    false_positive_rate: list[float]
    sensitivity: list[float]
    thresholds: list[float | None]
    auc: float


@dataclass(frozen=True)
class OperatingPoint:
    """Two classes told apart at a threshold on the positive one's probability."""

    threshold: float
    sensitivity: WithInterval | None
    specificity: WithInterval | None
    precision: WithInterval | None

    @property
    def shares(self) -> dict[str, WithInterval | None]:
        """What it has to tell, by name; None where no row tells it."""
        return {
            "sensitivity": self.sensitivity,
            "specificity": self.specificity,
            "precision": self.precision,
        }


@dataclass(frozen=True)
class CalibrationBin:
    """Rows whose probability lies in (low, high]: what was predicted, and what was so; percent."""

    low: float
    high: float
    count: int
    predicted: float
    observed: WithInterval


@dataclass(frozen=True)
class Calibration:
    """Whether probabilities mean what they say.

    Attributes:
        of: the ``positive`` class's probability for two classes; for more the ``confidence``, the
            probability of the class that was named.
        bins: those that hold rows.
        expected_error: mean distance between predicted and observed over rows, in points.
    """

    of: Literal["positive", "confidence"]
    bins: list[CalibrationBin]
    expected_error: float


@dataclass(frozen=True)
class Diagnosis:
    """Everything that a test set shows of a model.

    Attributes:
        count: test rows.
        measures: by name: ``accuracy``, ``balanced_accuracy`` and ``auc``, or for regression
            ``squared_error`` and ``absolute_error``; each with an interval.
        evidence: how much a test set of this size can say.
        confusion: rows by true class (lines) and by predicted class (columns).
        classes: one entry per class.
        roc: for two classes that both occur.
        calibration: for classes.
    """

    count: int
    measures: dict[str, WithInterval]
    evidence: Evidence
    confusion: list[list[int]] | None = None
    classes: list[ClassMeasures] | None = None
    roc: Roc | None = None
    calibration: Calibration | None = None


def diagnose(
    outputs: Tensor, labels: Tensor, n_classes: int | None, positive: int = 1
) -> Diagnosis:
    """Everything at once; ``n_classes`` is None for regression."""
    if n_classes is None:
        return _diagnose_values(outputs, labels)
    confusion = confusion_matrix(outputs, labels, n_classes)
    counts = np.array(confusion)
    accuracy = share(int(counts.trace()), int(counts.sum()))
    assert accuracy is not None
    classes = class_measures(confusion)
    recalls = [of.recall for of in classes if of.recall is not None]
    measures = {"accuracy": accuracy, "balanced_accuracy": mean_of_shares(recalls)}
    roc = roc_curve(outputs, labels, positive) if n_classes == 2 else None
    if roc is not None:
        negatives, positives = counts.sum(1).tolist()
        measures["auc"] = auc_estimate(roc.auc, positives, negatives)
    honest = calibration(outputs, labels, positive)
    return Diagnosis(len(labels), measures, evidence(accuracy), confusion, classes, roc, honest)


def _diagnose_values(outputs: Tensor, labels: Tensor) -> Diagnosis:
    apart = (outputs.double() - labels.double().view_as(outputs)).numpy()
    squared = bootstrap_mean((apart**2).sum(1))
    absolute = bootstrap_mean(np.abs(apart).sum(1))
    measures = {"squared_error": squared, "absolute_error": absolute}
    return Diagnosis(len(labels), measures, evidence_of_error(squared))


def confusion_matrix(outputs: Tensor, labels: Tensor, n_classes: int) -> list[list[int]]:
    """Counts of rows by true class (lines) and predicted class (columns)."""
    from sklearn import metrics  # type: ignore[import-untyped]

    named = outputs.argmax(1).numpy()
    counts: list[list[int]] = metrics.confusion_matrix(
        labels.numpy(), named, labels=range(n_classes)
    ).tolist()
    return counts


def class_measures(confusion: list[list[int]]) -> list[ClassMeasures]:
    """Recall and precision of every class; None where it never occurs, or is never named."""
    counts = np.array(confusion)
    each = np.stack((counts.diagonal(), counts.sum(1), counts.sum(0)), axis=1).tolist()
    return [
        ClassMeasures(k, true, share(hits, true), share(hits, named))
        for k, (hits, true, named) in enumerate(each)
    ]


def margin(outputs: Tensor, positive: int = 1) -> NDArray[np.float64]:
    """Log odds of the positive of two classes: finer than its probability, which rounds to 1."""
    values: NDArray[np.float64] = (outputs[:, positive] - outputs[:, 1 - positive]).double().numpy()
    return values


def positive_probability(outputs: Tensor, positive: int = 1) -> NDArray[np.float64]:
    """Probability of the positive of two classes."""
    return _chances(margin(outputs, positive))


def _chances(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    values: NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(log_odds, -700, None)))
    return values


def roc_curve(outputs: Tensor, labels: Tensor, positive: int = 1) -> Roc | None:
    """The ROC curve of two classes, at its corners only; None unless both classes occur."""
    from sklearn import metrics

    truth = labels.numpy() == positive
    auc = area_under_roc(outputs[:, 1] - outputs[:, 0], labels)
    if auc is None:
        return None
    alarms, hits, thresholds = metrics.roc_curve(
        truth, margin(outputs, positive), drop_intermediate=False
    )
    corner = np.ones(len(hits), dtype=bool)
    positives = int(truth.sum())
    up = np.diff(np.rint(hits * positives))
    right = np.diff(np.rint(alarms * (len(labels) - positives)))
    corner[1:-1] = up[:-1] * right[1:] != up[1:] * right[:-1]
    return Roc(
        alarms[corner].tolist(),
        hits[corner].tolist(),
        [None, *_chances(thresholds[corner][1:]).tolist()],
        auc,
    )


def at_threshold(
    outputs: Tensor, labels: Tensor, threshold: float = THRESHOLD, positive: int = 1
) -> OperatingPoint:
    """What follows when a probability of at least ``threshold`` is positive."""
    named, truth = positive_probability(outputs, positive) >= threshold, labels.numpy() == positive
    hits = int((named & truth).sum())
    return OperatingPoint(
        threshold,
        share(hits, int(truth.sum())),
        share(int((~named & ~truth).sum()), int((~truth).sum())),
        share(hits, int(named.sum())),
    )


def calibration(outputs: Tensor, labels: Tensor, positive: int = 1) -> Calibration:
    """Predicted against observed probabilities in bins of equal width."""
    of: Literal["positive", "confidence"] = "positive" if outputs.shape[1] == 2 else "confidence"
    if of == "positive":
        predicted = positive_probability(outputs, positive)
        happened = labels.numpy() == positive
    else:
        chances, named = outputs.double().softmax(1).max(1)
        predicted, happened = chances.numpy(), (named == labels).numpy()
    place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], predicted)
    found = []
    for k in np.unique(place).tolist():
        inside = place == k
        observed = share(int(happened[inside].sum()), int(inside.sum()))
        assert observed is not None
        mean = 100 * float(predicted[inside].mean())
        low, high = 100 * k / BINS, 100 * (k + 1) / BINS
        found.append(CalibrationBin(low, high, observed.count, mean, observed))
    apart = sum(b.count * abs(b.predicted - b.observed.value) for b in found)
    return Calibration(of, found, apart / len(labels))
