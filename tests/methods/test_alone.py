"""Stand-alone baselines: scikit-learn on the target's rows, as torch modules."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from small import blobs, federation, line, method, random_rows, same_model
from torch.nn import functional

import fedbridge as fb
from fedbridge import methods
from fedbridge.data.preparing import AddNoise
from fedbridge.methods import alone
from fedbridge.methods.alone import FITTING, LEAST_IN_LEAF, PENALTIES, TREES, UNLIKELY
from fedbridge.methods.cross_validation import deal_folds
from fedbridge.training.job import TARGET, seed_of
from fedbridge.training.trainer import Workbench

NAMES = ("alone-logistic", "alone-forest")
QUICK = {"rounds": 1, "workers": 1, "model": "mlp:8"}


def number(choice):
    """The number in what the history says was chosen."""
    return float(next(word for word in choice.split() if word[0].isdigit()))


def standardised(site):
    x = site.x.flatten(1).double().numpy()
    scale = x.std(0)
    return (x - x.mean(0)) / np.where(scale == 0, 1, scale), x


class TestLogistic:
    def test_answers_as_scikit_learns_with_the_chosen_penalty(self):
        task = blobs(target_rows=30, shift=0.5)
        result = fb.run(task, "alone-logistic", **QUICK)
        rows, raw = standardised(task.target)
        penalty = number(result.history[0]["choice"])
        plain = LogisticRegression(C=1 / penalty, max_iter=1000).fit(rows, task.target.y)
        scale = raw.std(0)
        new = (task.test.x.double().numpy() - raw.mean(0)) / scale
        shares = functional.softmax(result.model(task.test.x), 1).detach()
        np.testing.assert_allclose(shares, plain.predict_proba(new), atol=1e-3)

    def test_the_penalty_has_the_smallest_cross_validated_loss(self):
        task = blobs(target_rows=30, shift=0.5)
        rows, _ = standardised(task.target)
        labels = task.target.y.numpy()
        fed = federation(task)
        losses = {}
        for penalty in PENALTIES:
            wrong = []
            for fold in deal_folds(fed, 5):
                rest = np.setdiff1d(np.arange(30), fold)
                fitted = LogisticRegression(C=1 / penalty, max_iter=1000)
                fitted.fit(rows[rest], labels[rest])
                chances = fitted.predict_proba(rows[fold])
                wrong += [-math.log(p[y]) for p, y in zip(chances, labels[fold], strict=True)]
            losses[penalty] = sum(wrong)
        chosen = fb.run(task, "alone-logistic", **QUICK).history[0]["choice"]
        assert number(chosen) == min(losses, key=losses.__getitem__)

    def test_more_inputs_than_rows_and_inputs_that_never_vary(self):
        task = random_rows((6, 7), n_classes=4)
        for site in (task.target, task.test):
            site.x[:, 0, 0] = 3.0
        result = fb.run(task, "alone-logistic", **QUICK)
        rows, _ = standardised(task.target)
        penalty = number(result.history[0]["choice"])
        plain = LogisticRegression(C=1 / penalty, max_iter=1000).fit(rows, task.target.y)
        shares = functional.softmax(result.model(task.target.x), 1).detach()
        np.testing.assert_allclose(shares, plain.predict_proba(rows), atol=1e-3)

    def test_numbers_are_predicted_by_ridge_regression(self):
        task = line()
        result = fb.run(task, "alone-logistic", **{**QUICK, "model": "linear"})
        rows, raw = standardised(task.target)
        plain = Ridge(number(result.history[0]["choice"])).fit(rows, task.target.y)
        new = (task.test.x.double().numpy() - raw.mean(0)) / raw.std(0)
        np.testing.assert_allclose(
            result.model(task.test.x).detach().squeeze(1), plain.predict(new), atol=1e-4
        )


class TestForest:
    def forest(self, task, kind, least, **options):
        seed = seed_of(0, 0, TARGET, FITTING) % 2**32
        leaves = min(256, len(task.target))
        made = kind(
            TREES, min_samples_leaf=least, max_leaf_nodes=leaves, random_state=seed, **options
        )
        return made.fit(task.target.x.numpy(), task.target.y.numpy())

    def test_walks_to_the_same_probabilities_as_scikit_learns(self):
        task = blobs(target_rows=60, shift=0.5)
        result = fb.run(task, "alone-forest", **QUICK)
        least = int(number(result.history[0]["choice"]))
        plain = self.forest(task, RandomForestClassifier, least)
        shares = functional.softmax(result.model(task.test.x), 1).detach()
        np.testing.assert_allclose(shares, plain.predict_proba(task.test.x), atol=3 * UNLIKELY)

    def test_the_leaves_have_the_smallest_loss_out_of_bag(self):
        task = blobs(target_rows=60, shift=0.5)
        losses = {}
        for least in LEAST_IN_LEAF:
            plain = self.forest(task, RandomForestClassifier, least, oob_score=True)
            chances = plain.oob_decision_function_[np.arange(60), task.target.y]
            losses[least] = -np.log(np.maximum(chances, UNLIKELY)).sum()
        chosen = fb.run(task, "alone-forest", **QUICK).history[0]["choice"]
        assert number(chosen) == min(losses, key=losses.__getitem__)

    def test_numbers_are_predicted_by_a_forest_of_values(self):
        task = line()
        result = fb.run(task, "alone-forest", **{**QUICK, "model": "linear"})
        least = int(number(result.history[0]["choice"]))
        plain = self.forest(task, RandomForestRegressor, least)
        np.testing.assert_allclose(
            result.model(task.test.x).detach().squeeze(1), plain.predict(task.test.x), atol=1e-5
        )

    def test_several_numbers_at_once(self):
        x = torch.randn(30, 2)
        y = torch.stack((x[:, 0], x.sum(1)), 1)
        task = fb.FederatedTask.from_arrays([(x, y)], (x, y), (x, y))
        for name in NAMES:
            result = fb.run(task, name, **{**QUICK, "model": "linear"})
            assert result.model(x).shape == (30, 2)
            assert result.history[-1]["loss"] < 0.5 * float(y.var(0).sum())


@pytest.mark.parametrize("name", NAMES)
class TestAlone:
    @pytest.fixture(autouse=True)
    def _small_forests(self, monkeypatch):
        monkeypatch.setattr(alone, "TREES", 20)

    def test_fits_once_and_keeps_that(self, name):
        one, three = (fb.run(blobs(), name, **{**QUICK, "rounds": n}) for n in (1, 3))
        assert same_model(one.model, three.model)
        assert len({line["loss"] for line in three.history}) == 1

    def test_is_measured_in_every_round_only_where_noise_is_redrawn(self, name, monkeypatch):
        plain, measured = Workbench.evaluate, []

        def counted(bench, round, state):
            measured.append(round)
            return plain(bench, round, state)

        monkeypatch.setattr(Workbench, "evaluate", counted)
        task = blobs()
        drawn = replace(task, test=replace(task.test, prepare=AddNoise(1.0)))
        for one, rounds, losses in ((task, [1, 2], 1), (drawn, [1, 2, 3, 4, 5], 5)):
            measured.clear()
            history = fb.run(one, name, **{**QUICK, "rounds": 5}).history
            assert measured == rounds
            assert len({line["loss"] for line in history}) == losses

    def test_asks_no_source_even_for_a_warm_up(self, name):
        lines = fb.run(blobs(), name, **QUICK, warmup=2).history
        assert [line["bytes_up"] + line["bytes_down"] for line in lines] == [0, 0, 0]
        assert lines[0]["loss"] == lines[1]["loss"] != lines[2]["loss"]

    def test_the_model_and_the_steps_of_the_run_are_nothing_to_it(self, name):
        first = fb.run(blobs(), name, **QUICK)
        second = fb.run(blobs(), name, **{**QUICK, "model": "linear"}, lr=3.0, epochs=2, warmup=1)
        assert same_model(first.model, second.model)

    @pytest.mark.parametrize("rows", [2, 3, 4, 5])
    def test_very_few_rows_will_do(self, name, rows):
        result = fb.run(blobs(target_rows=rows), name, **QUICK)
        assert math.isfinite(result.history[-1]["loss"])

    def test_a_class_without_rows_is_never_answered(self, name):
        task = blobs(target_rows=24)
        rows = task.target.y != 1
        task = fb.FederatedTask.from_arrays(
            [(site.x, site.y) for site in task.sources],
            (task.target.x[rows], task.target.y[rows]),
            (task.test.x, task.test.y),
        )
        shares = functional.softmax(fb.run(task, name, **QUICK).model(task.test.x), 1)
        assert float(shares[:, 1].detach().max()) < 1e-5

    def test_rows_of_one_class_have_that_answer(self, name):
        fed = federation(blobs(), method=name)
        made = method(name, fed)
        fed.task.target.y.fill_(2)
        made.run_round(1)
        assert bool((fed.predict(made.state, fed.task.test).argmax(1) == 2).all())

    def test_rows_set_aside_for_validation_have_no_say(self, name):
        fed = federation(blobs(target_rows=20), method=name, early_stopping=2)
        states = []
        for _ in range(2):
            made = method(name, fed)
            made.run_round(1)
            states.append(made.state.parameters)
            aside = torch.ones(20, dtype=torch.bool)
            aside[fed.target_rows] = False
            fed.task.target.y[aside] = 0
        assert torch.equal(*states)

    def test_a_network_has_nothing_to_run(self, name):
        assert not methods.class_of(name).travels

    def test_on_a_real_table_it_beats_guessing(self, name, monkeypatch):
        monkeypatch.setattr(alone, "TREES", TREES)
        task = fb.load_task("digits-none")
        assert fb.run(task, name, **QUICK).accuracy > 60
