"""What outputs and labels show, against scikit-learn."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.calibration import calibration_curve

from fedbridge.evaluation.diagnostics import (
    at_threshold,
    calibration,
    confusion_matrix,
    diagnose,
    roc_curve,
)
from fedbridge.evaluation.intervals import auc_estimate, share

SEEDS = st.integers(0, 10**6)


def drawn(seed, classes=2, rows=40):
    """Outputs with ties, and labels in which every class occurs."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(rows, classes, generator=generator).round(decimals=1)
    more = torch.randint(classes, (rows - classes,), generator=generator)
    return outputs, torch.cat((torch.arange(classes), more))


@given(SEEDS, st.integers(2, 5))
def test_confusion_recall_and_precision_agree_with_scikit_learn(seed, classes):
    outputs, labels = drawn(seed, classes)
    named = outputs.argmax(1)
    found = diagnose(outputs, labels, classes)
    pairs = list(zip(labels.tolist(), named.tolist(), strict=True))
    counts = [[pairs.count((i, j)) for j in range(classes)] for i in range(classes)]
    assert found.confusion == counts
    precision, recall, _, rows = metrics.precision_recall_fscore_support(
        labels, named, zero_division=np.nan
    )
    for of in found.classes:
        assert of.rows == rows[of.label]
        assert of.recall.value == pytest.approx(100 * recall[of.label])
        if np.isnan(precision[of.label]):
            assert of.precision is None
        else:
            assert of.precision.value == pytest.approx(100 * precision[of.label])


@given(SEEDS, st.integers(2, 5))
def test_measures_agree_with_scikit_learn_and_lie_in_their_intervals(seed, classes):
    outputs, labels = drawn(seed, classes)
    named = outputs.argmax(1)
    found = diagnose(outputs, labels, classes).measures
    expected = {
        "accuracy": 100 * metrics.accuracy_score(labels, named),
        "balanced_accuracy": 100 * metrics.balanced_accuracy_score(labels, named),
    }
    if classes == 2:
        expected["auc"] = metrics.roc_auc_score(labels, outputs[:, 1] - outputs[:, 0])
    assert {name: estimate.value for name, estimate in found.items()} == pytest.approx(expected)
    for estimate in found.values():
        assert estimate.low <= estimate.value + 1e-9
        assert estimate.value <= estimate.high + 1e-9
        assert estimate.half_width > 0


@given(SEEDS)
def test_the_roc_curve_counts_the_scores_from_every_threshold_on(seed):
    outputs, labels = drawn(seed)
    score = outputs[:, 1] - outputs[:, 0]
    found = roc_curve(outputs, labels)
    points = list(zip(found.false_positive_rate, found.sensitivity, strict=True))
    theirs = {}
    for threshold in score.unique():
        named = score >= threshold
        rates = [float(named[labels == label].double().mean()) for label in (0, 1)]
        theirs[tuple(rates)] = float(threshold.double().sigmoid())
    assert [theirs[point] for point in points[1:]] == pytest.approx(found.thresholds[1:])
    assert found.thresholds[0] is None
    assert points[0] == (0, 0)
    assert points[-1] == (1, 1)
    assert np.trapezoid(found.sensitivity, found.false_positive_rate) == pytest.approx(found.auc)


@given(SEEDS)
def test_either_class_may_be_the_positive_one(seed):
    outputs, labels = drawn(seed)
    usual, other = (diagnose(outputs, labels, 2, positive) for positive in (1, 0))
    swapped = diagnose(outputs.flip(1), 1 - labels, 2)
    assert (other.measures, other.classes) == (usual.measures, usual.classes)
    assert other.calibration == swapped.calibration
    assert other.roc.sensitivity == swapped.roc.sensitivity
    assert other.roc.thresholds == swapped.roc.thresholds
    assert other.roc.auc == usual.roc.auc


def test_a_roc_curve_keeps_no_point_between_two_corners():
    outputs = torch.stack((torch.zeros(6), torch.arange(6.0)), dim=1)
    curve = roc_curve(outputs, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert curve.false_positive_rate == [0, 0, 1]
    assert curve.sensitivity == [0, 1, 1]


def test_scores_whose_probabilities_round_to_one_are_still_told_apart():
    outputs = torch.tensor([[0.0, 50.0], [0.0, 60.0], [0.0, 70.0]])
    assert roc_curve(outputs, torch.tensor([0, 1, 1])).auc == 1.0


def test_a_roc_curve_needs_both_classes():
    outputs, _ = drawn(0)
    assert roc_curve(outputs, torch.ones(40, dtype=torch.int64)) is None
    found = diagnose(outputs, torch.ones(40, dtype=torch.int64), 2)
    assert found.roc is None
    assert "auc" not in found.measures
    assert found.classes[0].recall is None


@given(SEEDS, st.floats(0, 1))
def test_sensitivity_and_specificity_are_the_recalls_at_a_threshold(seed, threshold):
    outputs, labels = drawn(seed)
    named = ((outputs[:, 1] - outputs[:, 0]).double().sigmoid() >= threshold).long()
    recall = metrics.recall_score(labels, named, average=None, labels=[0, 1])
    point = at_threshold(outputs, labels, threshold)
    assert point.specificity.value == pytest.approx(100 * recall[0])
    assert point.sensitivity.value == pytest.approx(100 * recall[1])
    mirrored = at_threshold(outputs.flip(1), 1 - labels, threshold, positive=0)
    assert mirrored == point
    precision = metrics.precision_score(labels, named, zero_division=np.nan)
    told = np.nan if point.precision is None else point.precision.value
    assert told == pytest.approx(100 * precision, nan_ok=True)


def test_points_of_the_roc_curve_are_reached_at_their_thresholds():
    outputs, labels = drawn(3)
    curve = roc_curve(outputs, labels)
    for alarms, hits, threshold in zip(
        curve.false_positive_rate[1:], curve.sensitivity[1:], curve.thresholds[1:], strict=True
    ):
        point = at_threshold(outputs, labels, threshold)
        assert point.sensitivity.value == pytest.approx(100 * hits)
        assert 100 - point.specificity.value == pytest.approx(100 * alarms)


@given(SEEDS)
def test_calibration_of_two_classes_is_that_of_scikit_learn(seed):
    outputs, labels = drawn(seed)
    chances = (outputs[:, 1] - outputs[:, 0]).double().sigmoid().numpy()
    observed, predicted = calibration_curve(labels.numpy(), chances, n_bins=10)
    found = calibration(outputs, labels)
    assert found.of == "positive"
    assert [part.observed.value for part in found.bins] == pytest.approx((100 * observed).tolist())
    assert [part.predicted for part in found.bins] == pytest.approx((100 * predicted).tolist())
    assert sum(part.count for part in found.bins) == len(labels)
    for part in found.bins:
        assert part.low <= part.predicted <= part.high


def test_a_model_that_means_what_it_says_has_no_calibration_error():
    outputs = torch.tensor([[0.25, 0.75]] * 4 + [[0.75, 0.25]] * 4).log()
    labels = torch.tensor([1, 1, 1, 0, 0, 0, 0, 1])
    assert calibration(outputs, labels).expected_error == pytest.approx(0, abs=1e-5)
    assert calibration(outputs, 1 - labels).expected_error == pytest.approx(50, abs=1e-5)


def test_calibration_of_many_classes_is_of_the_class_that_was_named():
    outputs = torch.tensor([[0.6, 0.2, 0.2], [0.2, 0.7, 0.1]]).log()
    found = calibration(outputs, torch.tensor([0, 2]))
    assert found.of == "confidence"
    assert [part.predicted for part in found.bins] == pytest.approx([60, 70], abs=1e-4)
    assert found.expected_error == pytest.approx((40 + 70) / 2, abs=1e-4)


def test_classes_that_never_occur_have_no_recall():
    outputs = torch.eye(3)[[0, 1]]
    found = diagnose(outputs, torch.tensor([0, 1]), 3)
    assert found.classes[2].recall is None
    assert found.classes[2].precision is None
    assert found.measures["balanced_accuracy"].value == 100
    assert confusion_matrix(outputs, torch.tensor([0, 1]), 3)[2] == [0, 0, 0]


def test_values_have_errors_with_intervals():
    generator = torch.Generator().manual_seed(0)
    outputs, labels = (torch.randn(50, 1, generator=generator) for _ in range(2))
    found = diagnose(outputs, labels[:, 0], None)
    assert found.measures["squared_error"].value == pytest.approx(
        metrics.mean_squared_error(labels, outputs), rel=1e-6
    )
    assert found.measures["absolute_error"].value == pytest.approx(
        metrics.mean_absolute_error(labels, outputs), rel=1e-6
    )
    assert found.confusion is None


def test_several_values_of_a_row_add_up():
    found = diagnose(torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [0.0, 2.0]]), None)
    assert found.measures["squared_error"].value == pytest.approx((5 + 4) / 2)


@pytest.mark.parametrize("classes", [2, 3])
def test_everything_goes_to_json(classes):
    found = diagnose(*drawn(1, classes), classes)
    text = json.dumps(asdict(found), allow_nan=False)
    assert json.loads(text)["count"] == 40


def test_intervals_are_those_for_small_samples():
    outputs = torch.eye(2)[[0, 0, 1, 1]]
    found = diagnose(outputs, torch.tensor([0, 0, 1, 1]), 2).measures
    assert found["accuracy"] == share(4, 4)
    assert found["auc"] == auc_estimate(1.0, 2, 2)
    assert found["balanced_accuracy"].low < 80
