"""Measures against independent calculations."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score
from torch.nn import functional

from fedbridge.evaluation.metrics import (
    area_under_roc,
    measure_predictions,
    squared_error,
    weighted_cross_entropy,
)


@given(st.integers(0, 10**6), st.integers(2, 4))
def test_measures_agree_with_scikit_learn(seed, classes):
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(30, classes, generator=generator).round(decimals=1)
    truth = torch.cat(
        (torch.arange(classes), torch.randint(classes, (30 - classes,), generator=generator))
    )
    measured = measure_predictions(outputs, truth, classes)
    answers = outputs.argmax(1)
    assert measured.accuracy == pytest.approx(100 * float((answers == truth).double().mean()))
    assert measured.balanced_accuracy == pytest.approx(
        100 * balanced_accuracy_score(truth, answers)
    )
    chances = functional.softmax(outputs.double(), 1)
    assert measured.loss == pytest.approx(log_loss(truth, chances, labels=range(classes)), rel=1e-5)
    if classes == 2:
        margin = outputs[:, 1] - outputs[:, 0]
        assert measured.auc == pytest.approx(roc_auc_score(truth, margin))
    else:
        assert measured.auc is None


def test_regression_has_a_loss_and_no_accuracy():
    measured = measure_predictions(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 4.0]), None)
    assert measured.loss == pytest.approx(2.5)
    assert measured.accuracy is None


def test_auc_needs_both_classes():
    assert area_under_roc(torch.tensor([0.1, 0.9]), torch.tensor([1, 1])) is None


def test_weighted_cross_entropy_is_pytorchs_where_something_counts():
    torch.manual_seed(0)
    outputs, labels = torch.randn(9, 3), torch.arange(9) % 3
    weight = torch.tensor([0.5, 2.0, 0.0])
    expected = functional.cross_entropy(outputs, labels, weight=weight)
    torch.testing.assert_close(weighted_cross_entropy(outputs, labels, weight), expected)
    assert float(weighted_cross_entropy(outputs[2:3], labels[2:3], weight)) == 0


def test_values_may_come_without_a_second_dimension():
    outputs, values = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 5.0])
    assert float(squared_error(outputs, values)) == float(squared_error(outputs[:, None], values))
    assert float(squared_error(outputs, values)) == 2.5
