"""Measures against independent calculations."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score
from torch.nn.functional import softmax

from fedbridge.metrics import area_under_roc, measure_predictions, wilson_interval


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
    chances = softmax(outputs.double(), 1)
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


def test_wilson_interval_of_a_small_test_set_is_wide_and_stays_inside():
    low, high = wilson_interval(100.0, 16)
    assert high == 100.0
    assert 75 < low < 85
    low, high = wilson_interval(50.0, 100)
    assert (low, high) == (pytest.approx(40.38, abs=0.01), pytest.approx(59.62, abs=0.01))
