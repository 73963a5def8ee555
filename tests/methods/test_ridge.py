"""Ridge fits against scikit-learn and closed forms, and held-out outputs against plain refits."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from fedbridge.methods.ridge import Axes, Rows, ridge


def rows_of(labels, classes, folds):
    """Folds dealt out in turn, every row of weight 1 where it is not held out."""
    fold_of = torch.arange(len(labels)) % folds
    weights = torch.stack([(fold_of != k).double() for k in range(folds)])
    return Rows(labels, classes, weights, fold_of, torch.ones(len(labels)).double())


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    features = 3 + 2 * torch.randn(24, 5, generator=generator, dtype=torch.float64)
    return features, torch.arange(24) % 3


class TestAxes:
    def test_a_fit_in_the_axes_is_a_layer_on_the_features(self, data):
        features, _ = data
        axes = Axes.of(features)
        fitted = torch.randn(axes.rows.shape[1], 3, dtype=torch.float64)
        layer = axes.layer(fitted)
        outputs = features @ layer[:, :-1].T + layer[:, -1]
        torch.testing.assert_close(outputs, axes.rows @ fitted)

    def test_features_are_centred_and_of_mean_squared_length_one(self, data):
        axes = Axes.of(data[0])
        squared = axes.rows.square().sum(1)
        assert float(squared.mean()) == pytest.approx(2.0)  # one of them is the constant's

    @pytest.mark.parametrize("standardise", [True, False])
    def test_units_of_columns_matter_only_without_standardising(self, data, standardise):
        features, _ = data
        other = features * torch.tensor([1.0, 10.0, 0.1, 5.0, 2.0])
        first, second = (Axes.of(x, standardise=standardise).rows for x in (features, other))
        same = torch.allclose(first @ first.T, second @ second.T)
        assert same == standardise

    def test_columns_that_do_not_vary_do_no_harm(self, data):
        features = torch.cat((data[0], torch.full((24, 1), 7.0, dtype=torch.float64)), 1)
        layer = Axes.of(features, standardise=True).layer(torch.ones(6, 2, dtype=torch.float64))
        assert bool(layer.isfinite().all())
        assert float(layer[:, 5].abs().max()) < 1e-9

    def test_a_column_of_huge_numbers_does_not_hide_the_others(self, data):
        features, _ = data
        huge = features * torch.tensor([1.0, 1e12, 1.0, 1.0, 1.0])
        first, second = (Axes.of(x, standardise=True).rows for x in (features, huge))
        torch.testing.assert_close(first @ first.T, second @ second.T)

    def test_rows_that_are_all_alike_have_the_constant_alone(self):
        axes = Axes.of(torch.full((9, 4), 0.1, dtype=torch.float64) + 1e-13 * torch.rand(9, 4))
        assert axes.rows.shape[1] == 1
        layer = axes.layer(torch.ones(1, 2, dtype=torch.float64))
        assert float(layer[:, :-1].abs().max()) < 1e-9

    @pytest.mark.parametrize("size", [1.0, 1000.0])
    def test_the_constant_alone_is_a_bias_of_its_size(self, size):
        axes = Axes.constant(9, size)
        fitted = torch.randn(1, 3, dtype=torch.float64)
        torch.testing.assert_close(axes.rows @ fitted, axes.layer(fitted).T.expand(9, 3))
        torch.testing.assert_close(axes.pulled(axes.pulls(fitted)), fitted)


class TestFollowing:
    def test_pulls_of_the_rows_make_the_fit(self, data):
        axes = Axes.of(data[0])
        fitted = torch.randn(2, axes.rows.shape[1], 3, dtype=torch.float64)
        torch.testing.assert_close(axes.pulled(axes.pulls(fitted)), fitted)

    def test_a_fit_follows_features_that_move_a_little(self, data):
        """Ten steps from an earlier fit come as near as many from nothing."""
        features, labels = data
        rows, given = rows_of(labels, 3, 4), torch.zeros(1, 24, 3, dtype=torch.float64)
        strength = torch.tensor([0.1]).double()
        earlier = Axes.of(features)
        (fitted,), _ = ridge(earlier, given, strength, rows, judge=False)
        axes = Axes.of(features + 0.03 * torch.randn(24, 5, dtype=torch.float64))
        near = axes.pulled(earlier.pulls(fitted))[None]
        (whole,), _ = ridge(axes, given, strength, rows, judge=False)
        (after,), held_out = ridge(axes, given, strength, rows, judge=False, near=near)
        assert held_out is None
        shares, expected = (torch.softmax(axes.rows @ b, 1) for b in (after, whole))
        torch.testing.assert_close(shares, expected, atol=5e-3, rtol=0)


class TestFits:
    @pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
    def test_classes_as_scikit_learn_without_an_intercept(self, data, strength):
        features, labels = data
        axes = Axes.of(features)
        given = torch.zeros(1, 24, 3, dtype=torch.float64)
        (fitted,), _ = ridge(axes, given, torch.tensor([strength]).double(), rows_of(labels, 3, 4))
        rival = LogisticRegression(C=1 / strength, fit_intercept=False, tol=1e-10, max_iter=10000)
        rival.fit(axes.rows.numpy(), labels.numpy())
        expected = torch.from_numpy(rival.predict_proba(axes.rows.numpy()))
        shares = torch.softmax(axes.rows @ fitted, 1)
        torch.testing.assert_close(shares, expected, atol=2e-3, rtol=0)

    def test_numbers_in_closed_form(self, data):
        features, _ = data
        values = features.sum(1) + torch.arange(24).double() / 10
        axes = Axes.of(features)
        given = torch.zeros(1, 24, 1, dtype=torch.float64)
        (fitted,), _ = ridge(axes, given, torch.tensor([0.7]).double(), rows_of(values, None, 4))
        rival = Ridge(alpha=0.7, fit_intercept=False).fit(axes.rows.numpy(), values.numpy())
        np.testing.assert_allclose(fitted[:, 0], rival.coef_, atol=1e-8)

    @pytest.mark.parametrize("strength", [1.0, 100.0])
    def test_with_a_large_constant_the_mean_of_numbers_is_not_shrunk(self, data, strength):
        features, _ = data
        values = 50 + features.sum(1)
        axes = Axes.of(features, constant=10.0)
        given = torch.zeros(1, 24, 1, dtype=torch.float64)
        strengths = torch.tensor([strength]).double()
        (fitted,), _ = ridge(axes, given, strengths, rows_of(values, None, 4))
        centred = features - features.mean(0)
        scaled = (centred / centred.square().sum(1).mean().sqrt()).numpy()
        rival = Ridge(alpha=strength).fit(scaled, values.numpy())
        shrunk = 50 * strength / (100 * 24)  # of the constant's part, as the other features'
        answers = (axes.rows @ fitted)[:, 0].numpy()
        np.testing.assert_allclose(answers, rival.predict(scaled), atol=1.5 * shrunk)
        layer = axes.layer(fitted)
        np.testing.assert_allclose(features @ layer[0, :-1] + layer[0, -1], answers)

    @pytest.mark.parametrize("classes", [3, None])
    def test_held_out_outputs_are_those_of_fits_without_the_fold(self, data, classes):
        features, labels = data
        labels = labels if classes else labels.double()
        outputs = 3 if classes else 1
        axes = Axes.of(features)
        rows = rows_of(labels, classes, 4)
        given = torch.randn(2, 24, outputs, dtype=torch.float64)
        strengths = torch.tensor([0.3, 3.0]).double()
        _, held_out = ridge(axes, given, strengths, rows)
        for k in range(4):
            kept = Rows(labels, classes, rows.weights, rows.fold_of, rows.weights[k])
            whole, _ = ridge(axes, given, strengths, kept, judge=False)
            mine = rows.fold_of == k
            expected = (given + axes.rows @ whole)[:, mine]
            torch.testing.assert_close(held_out[:, mine], expected, atol=2e-2, rtol=0)

    def test_outputs_that_are_given_are_built_upon(self, data):
        """With the truth given, nothing is left to fit; with nothing given, something is."""
        features, labels = data
        axes, rows = Axes.of(features), rows_of(labels, 3, 4)
        sure = 50 * torch.nn.functional.one_hot(labels, 3).double()
        given = torch.stack((sure, torch.zeros_like(sure)))
        whole, _ = ridge(axes, given, torch.ones(2).double(), rows)
        assert float(whole[0].abs().max()) < 1e-6 < float(whole[1].abs().max())

    def test_the_fit_to_all_rows_may_be_eased(self, data):
        features, labels = data
        axes, rows = Axes.of(features), rows_of(labels, 3, 4)
        eased = Rows(labels, 3, rows.weights, rows.fold_of, rows.all, ease=0.1)
        given, strengths = torch.zeros(1, 24, 3).double(), torch.tensor([1.0, 0.1]).double()
        (one, _), (same, _) = (
            ridge(axes, given.repeat(2, 1, 1), strengths * f, r, judge=False)
            for f, r in ((1.0, eased), (0.1, rows))
        )
        torch.testing.assert_close(one, same)

    def test_an_endless_strength_leaves_things_as_they_are(self, data):
        features, labels = data
        given = torch.randn(1, 24, 3, dtype=torch.float64)
        strength = torch.tensor([1e12]).double()
        _, held_out = ridge(Axes.of(features), given, strength, rows_of(labels, 3, 4))
        torch.testing.assert_close(held_out, given)
