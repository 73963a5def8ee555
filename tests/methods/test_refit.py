"""``recalibrate`` and ``offset``: the sources' model, mended by the target's labels."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from small import blobs, federation, line, method, same_model
from torch.nn import functional

import fedbridge as fb
from fedbridge.federation.method import Record
from fedbridge.federation.needs import UnmetNeedError
from fedbridge.methods.cross_validation import deal_folds, labelled_rows, without
from fedbridge.methods.offset import STRENGTHS, shrunken_head
from fedbridge.methods.recalibrate import INTERCEPT, NONE, PRIOR, SLOPE, recalibration
from fedbridge.training.target_side import Decision

QUICK = {"workers": 1, "model": "linear", "lr": 0.5, "batch_size": 50}


def outputs_and_labels(n=60, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    outputs = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    noisy = outputs + 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return outputs, (noisy + torch.arange(classes)).argmax(1)


def binary(intercept, slope, target_rows, seed=0):
    """Sources with ``logit p = x·w``; at the target ``intercept + slope · x·w``."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.tensor([2.0, -1.0, 1.0])

    def site(count, a=0.0, b=1.0):
        x = torch.randn(count, 3, generator=generator)
        chance = torch.sigmoid(a + b * (x @ weights))
        return x, (torch.rand(count, generator=generator) < chance).long()

    return fb.FederatedTask.from_arrays(
        sources=[site(300), site(300)],
        target=site(target_rows, intercept, slope),
        test=site(2000, intercept, slope),
    )


class TestRecalibration:
    @pytest.mark.parametrize("slopes", [False, True])
    @pytest.mark.parametrize("classes", [2, 3, 5])
    def test_is_the_optimum_that_scipy_finds(self, classes, slopes):
        outputs, labels = outputs_and_labels(classes=classes)
        centred = (outputs - outputs.mean(1, keepdim=True)).numpy()

        def loss(flat):
            a, b = flat[:classes], flat[classes:] if slopes else np.ones(classes)
            z = a + b * centred
            chosen = z[np.arange(len(z)), labels.numpy()]
            wrong = np.log(np.exp(z).sum(1)) - chosen
            return wrong.sum() + PRIOR / 2 * ((a**2).sum() + ((b - 1) ** 2).sum())

        start = np.concatenate((np.zeros(classes), np.ones(classes if slopes else 0)))
        expected = minimize(loss, start, tol=1e-12, method="BFGS").x
        a, b = recalibration(outputs, labels, slopes=slopes)
        found = torch.cat((a, b)) if slopes else a
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)
        assert slopes or torch.equal(b, torch.ones_like(b))

    def test_of_two_classes_is_the_textbooks_intercept_and_slope(self):
        outputs, labels = outputs_and_labels(n=400, classes=2)
        predictor = outputs[:, 1] - outputs[:, 0]
        plain = LogisticRegression(C=np.inf, tol=1e-10).fit(predictor[:, None].numpy(), labels)
        a, b = recalibration(outputs, labels, slopes=True)
        assert float(a[1] - a[0]) == pytest.approx(plain.intercept_[0], rel=1e-2)
        assert float(b.mean()) == pytest.approx(plain.coef_[0, 0], rel=1e-2)

    @pytest.mark.parametrize("labels", [[1, 1, 1, 1], [0, 1, 2, 0]])
    def test_is_finite_where_maximum_likelihood_is_not(self, labels):
        outputs = functional.one_hot(torch.tensor([0, 1, 2, 0]), 3).double()
        for slopes in (False, True):
            found = recalibration(outputs, torch.tensor(labels), slopes=slopes)
            assert all(bool(part.isfinite().all()) for part in found)

    def test_mends_another_share_of_the_ill_and_answers_too_sure_of_themselves(self):
        task = binary(intercept=1.5, slope=0.4, target_rows=150)
        led, mended = (
            fb.run(task, name, rounds=8, **QUICK).history[-1]
            for name in ("source-only", "recalibrate")
        )
        lp = task.test.x @ torch.tensor([2.0, -1.0, 1.0])
        best = functional.binary_cross_entropy_with_logits(1.5 + 0.4 * lp, task.test.y.float())
        assert mended["choice"] == SLOPE
        assert mended["loss"] < float(best) + 0.03
        assert led["loss"] > float(best) + 0.25

    def test_takes_the_intercept_alone_where_that_is_all_that_is_wrong(self):
        task = binary(intercept=2.0, slope=1.0, target_rows=40)
        chosen = fb.run(task, "recalibrate", rounds=8, **QUICK).history[-1]
        assert chosen["choice"] == INTERCEPT
        assert [*chosen["cv_loss"]] == [NONE, INTERCEPT, SLOPE]

    def test_leaves_a_model_alone_that_suits_the_target(self):
        task = binary(intercept=0.0, slope=1.0, target_rows=40, seed=6)
        led, mended = (
            fb.run(task, name, rounds=5, **QUICK) for name in ("source-only", "recalibrate")
        )
        assert mended.history[-1]["choice"] == NONE
        assert same_model(led.model, mended.model)

    def test_held_out_losses_are_of_rows_that_the_fit_has_not_seen(self):
        fed = federation(binary(1.5, 0.4, 30), method="recalibrate")
        made = method("recalibrate", fed)
        record = made.run_round(1)
        site, rows = fed.task.target, labelled_rows(fed)
        outputs = fed.predict(made.shared, site).double()
        total = 0.0
        for fold in deal_folds(fed, 5):
            rest = without(rows, fold)
            a, _ = recalibration(outputs[rest], site.y[rest], slopes=False)
            total += float(
                functional.cross_entropy(outputs[fold] + a, site.y[fold], reduction="sum")
            )
        assert record.extra["cv_loss"][INTERCEPT] == pytest.approx(total / 30, rel=1e-5)


class TestShrunkenHead:
    def rows(self, n=50, width=4, classes=3, seed=0):
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(n, width, generator=generator, dtype=torch.float64)
        weight = torch.randn(classes, width, generator=generator, dtype=torch.float64)
        noise = torch.randn(n, classes, generator=generator, dtype=torch.float64)
        labels = (features @ weight.T + 2 * noise).argmax(1)
        return features, labels, (weight + 1, torch.randn(classes, generator=generator).double())

    def test_an_endless_strength_is_the_sources_head(self):
        features, labels, head = self.rows()
        assert shrunken_head(features, labels, head, math.inf) is head
        for found, start in zip(shrunken_head(features, labels, head, 1e9), head, strict=True):
            torch.testing.assert_close(found, start, atol=1e-6, rtol=0)

    def test_no_strength_is_plain_logistic_regression(self):
        features, labels, head = self.rows()
        weight, bias = shrunken_head(features, labels, head, 0.0)
        plain = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10000).fit(features, labels)
        shares = functional.softmax(features @ weight.T + bias, 1)
        np.testing.assert_allclose(shares, plain.predict_proba(features), atol=1e-4)

    @pytest.mark.parametrize("n", [5, 50])
    @pytest.mark.parametrize("strength", [0.03, 1.0])
    def test_in_between_is_the_optimum_that_scipy_finds(self, strength, n):
        features, labels, head = self.rows(n=n, width=8)
        inputs = np.hstack((features.numpy(), np.ones((n, 1))))
        start = np.hstack((head[0].numpy(), head[1].numpy()[:, None]))
        unit = (inputs**2).mean()

        def loss(flat):
            theta = flat.reshape(start.shape)
            z = inputs @ theta.T
            wrong = np.log(np.exp(z).sum(1)) - z[np.arange(n), labels.numpy()]
            return wrong.mean() + strength * unit / 2 * ((theta - start) ** 2).sum()

        best = minimize(loss, start.ravel(), tol=1e-12, method="BFGS").x.reshape(start.shape)
        weight, bias = shrunken_head(features, labels, head, strength)
        found = np.hstack((weight.numpy(), bias.numpy()[:, None]))
        np.testing.assert_allclose(found, best, atol=1e-4)


def nearly_alike(seed, target_rows=60, width=24):
    """The target's labels follow the sources' weights but for two of twenty-four."""
    generator = torch.Generator().manual_seed(seed)
    theirs = torch.randn(width, generator=generator)
    ours = theirs.clone()
    ours[:2] *= -1.5

    def site(count, weights):
        x = torch.randn(count, width, generator=generator)
        chance = torch.sigmoid(1.5 * (x @ weights))
        return x, (torch.rand(count, generator=generator) < chance).long()

    return fb.FederatedTask.from_arrays(
        sources=[site(400, theirs), site(400, theirs)],
        target=site(target_rows, ours),
        test=site(1500, ours),
    )


def test_offset_beats_the_sources_head_and_the_target_alone_when_labels_are_few():
    losses = {
        name: np.mean(
            [
                fb.run(nearly_alike(seed), name, rounds=5, seed=seed, **QUICK).history[-1]["loss"]
                for seed in range(4)
            ]
        )
        for name in ("source-only", "offset", "alone-logistic")
    }
    assert losses["offset"] < 0.8 * losses["source-only"]
    assert losses["offset"] < 0.95 * losses["alone-logistic"]


def test_offset_keeps_its_strength_between_two_choices():
    result = fb.run(nearly_alike(0), "offset", rounds=4, choose_every=3, **QUICK)
    chosen = [line["choice"] for line in result.history]
    assert ["cv_loss" in line for line in result.history] == [True, False, False, True]
    assert chosen[0] == chosen[1] == chosen[2]
    assert len(result.history[0]["cv_loss"]) == len(STRENGTHS)


@pytest.mark.parametrize("name", ["recalibrate", "offset"])
def test_the_sources_part_is_source_only_by_samples(name):
    fed = federation(blobs(), model="mlp:8", method=name)
    made = method(name, fed)
    expected, _ = fed.warm_up(1, fed.initial)
    made.run_round(1)
    assert torch.equal(made.shared.parameters, expected.parameters)


@pytest.mark.parametrize("name", ["recalibrate", "offset"])
@pytest.mark.parametrize("rows", [2, 3, 4])
def test_very_few_rows_will_do(name, rows):
    result = fb.run(blobs(target_rows=rows), name, rounds=1, **QUICK)
    assert math.isfinite(result.history[-1]["loss"])


@pytest.mark.parametrize("name", ["recalibrate", "offset", "pfedfda"])
def test_numbers_to_predict_are_refused(name):
    with pytest.raises(UnmetNeedError, match="a task with classes"):
        fb.run(line(), name, rounds=1, workers=1, model="linear")


@pytest.mark.parametrize("name", ["recalibrate", "offset"])
def test_rows_set_aside_for_validation_have_no_say(name):
    fed = federation(blobs(target_rows=20), method=name, early_stopping=2)
    made = method(name, fed)
    made.run_round(1)
    fed.task.target.y[without(torch.arange(20), fed.target_rows)] = 0
    again = method(name, fed)
    again.run_round(1)
    assert torch.equal(made.state.parameters, again.state.parameters)


def test_a_target_that_keeps_its_model_to_itself_leaves_the_sources_model_and_chooses_again():
    fed = federation(blobs(), method="offset")
    made = method("offset", fed)
    made.run_round(1)
    assert made.choice is not None
    made.take(Decision(None, {"choice": "withheld", "losses": {}}), Record())
    assert torch.equal(made.state.parameters, made.shared.parameters)
    assert made.choice is None
