"""The estimators: scikit-learn's own checks, whose rows are whose, tables, and what is left."""

import pickle
import re
import sys

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedbridge as fb
from fedbridge.base.errors import DataError, EmptyColumnError, OptionError
from fedbridge.cli.main import main

QUICK = {"rounds": 2, "model": "linear"}


@pytest.fixture
def table():
    """Three hospitals: numbers, words, codes, truth values, and cells that are missing."""
    rng = np.random.default_rng(0)
    n = 90
    sites = np.array(["east", "west", "north"])[np.arange(n) % 3]
    x = pd.DataFrame(
        {
            "age": rng.normal(60, 10, n),
            "sex": rng.choice(["f", "m"], n),
            "stage": pd.Categorical(rng.integers(1, 4, n)),
            "smoker": rng.random(n) < 0.4,
        }
    )
    risk = (x["age"] - 60) / 10 + (x["sex"] == "m") + rng.normal(0, 0.3, n)
    y = pd.Series(np.where(risk > 0.5, "ill", "well"), name="disease")
    x.loc[::7, "age"] = np.nan
    x.loc[3::11, "sex"] = None
    return x, y, sites


def classifier(**more):
    return fb.FederatedClassifier(**{**QUICK, "target": "north", **more})


@parametrize_with_checks(
    [
        fb.FederatedClassifier(**QUICK),
        fb.FederatedClassifier("target-only", rounds=10, model="mlp:8"),
        fb.FederatedRegressor(**QUICK),
    ]
)
def test_scikit_learns_own_checks(estimator, check):
    """All of them: none is expected to fail; that of array APIs skips without SCIPY_ARRAY_API."""
    check(estimator)


class TestWhoseRows:
    def test_sources_train_and_the_target_gets_the_model(self, table):
        x, y, sites = table
        model = classifier().fit(x, y, sites=sites)
        assert model.run_.summary["target"] == model.target_ == "north"
        assert model.run_.summary["n_sources"] == {"east": 30, "west": 30}
        assert model.run_.summary["n_target"] == 30
        assert list(model.classes_) == ["ill", "well"]

    def test_the_rows_of_other_sites_change_the_model(self, table):
        x, y, sites = table
        model = classifier(method="fedavg")
        joined = model.fit(x, y, sites=sites).predict_proba(x)
        other = model.fit(x, y, sites=np.where(sites == "east", "west", sites)).predict_proba(x)
        assert not np.allclose(joined, other)

    def test_all_rows_are_the_targets_where_nobody_says_whose(self, table):
        x, y, _ = table
        model = fb.FederatedClassifier(**QUICK).fit(x, y)
        assert model.run_.summary["method"] == "alone-auto"
        assert (model.run_.summary["n_target"], model.run_.summary["sources"]) == (90, [])
        assert model.score(x, y) > 0.8

    def test_a_single_site_is_the_target_alone(self, table):
        x, y, sites = table
        north = sites == "north"
        given = classifier().fit(x[north], y[north], sites=sites[north])
        assert given.run_.summary["method"] == "alone-auto"

    def test_a_method_that_needs_sources_is_refused_without(self, table):
        x, y, _ = table
        with pytest.raises(OptionError, match="rows of other sites for the method 'fedda'"):
            classifier(method="fedda").fit(x, y)

    @pytest.mark.parametrize(
        ("target", "change", "said"),
        [
            (None, lambda s: s, "Expected `target` to name the site that adapts: one of 'east'"),
            ("nroth", lambda s: s, "Did you mean 'north'"),
            ("north", lambda s: s[:5], "inconsistent numbers of samples"),
            ("north", lambda s: pd.Series(s).where(s != "east"), "30 have none, first row 0"),
        ],
    )
    def test_sites_that_cannot_be_meant(self, table, target, change, said):
        x, y, sites = table
        with pytest.raises(ValueError, match=re.escape(said)):
            classifier(target=target).fit(x, y, sites=change(sites))

    def test_a_target_of_one_class_is_refused(self, table):
        x, y, sites = table
        only = (sites != "north") | (y == "ill")
        with pytest.raises(DataError, match="two classes at the target 'north'"):
            classifier().fit(x[only], y[only], sites=sites[only])

    def test_score_counts_the_targets_rows_only(self, table):
        x, y, sites = table
        model = classifier().fit(x, y, sites=sites)
        right = model.predict(x) == y
        assert model.score(x, y, sites=sites) == right[sites == "north"].mean()
        assert model.score(x, y) == right.mean()
        weight = np.arange(90)
        own = weight[sites == "north"]
        weighted = (right[sites == "north"] * own).sum() / own.sum()
        assert model.score(x, y, sample_weight=weight, sites=sites) == pytest.approx(weighted)
        with pytest.raises(DataError, match="rows of the target 'north' to score"):
            model.score(x[:2], y[:2], sites=["east", "west"])


class TestTables:
    def test_categories_and_missing_values_are_treated_as_in_a_csv(self, table, tmp_path):
        x, y, sites = table
        model = classifier(standardise="joint").fit(x, y, sites=sites)
        x.assign(disease=y, site=sites).to_csv(tmp_path / "all.csv", index=False)
        task = fb.load_task(
            tmp_path / "all.csv",
            "north",
            label_column="disease",
            categorical="stage",
            standardise="joint",
            keep_columns="age",
        )
        ours, theirs = model.preprocessing_, task.preprocessing
        assert [c.name for c in ours.columns] == [c.name for c in theirs.columns]
        assert [getattr(c, "levels", None) for c in ours.columns] == [
            getattr(c, "levels", None) for c in theirs.columns
        ]
        assert (ours.label_column, ours.class_names) == ("disease", ("ill", "well"))
        assert any("imputed" in note for note in model.run_.summary["notes"])

    def test_imputation_and_scale_are_the_targets_own(self, table):
        x, y, sites = table
        age = classifier().fit(x, y, sites=sites).preprocessing_.columns[0]
        assert age.fill == pytest.approx(x["age"][sites == "north"].median())

    def test_columns_of_codes(self, table):
        x, y, sites = table
        coded = x.assign(stage=x["stage"].astype(int))
        by_name = classifier(categorical="stage").fit(coded, y, sites=sites)
        by_type = classifier().fit(x, y, sites=sites)
        as_number = classifier().fit(coded, y, sites=sites)
        assert (by_name.predict_proba(coded) == by_type.predict_proba(x)).all()
        assert as_number.run_.input_shape < by_name.run_.input_shape

    def test_an_array_of_the_same_numbers_gives_the_same(self, table):
        x, y, sites = table
        numbers = x.assign(sex=x["sex"] == "m", stage=x["stage"].astype(int)).astype(float)
        framed = classifier().fit(numbers, y, sites=sites)
        plain = classifier().fit(numbers.to_numpy(), y.to_numpy(), sites=list(sites))
        assert np.allclose(framed.predict_proba(numbers), plain.predict_proba(numbers.to_numpy()))

    def test_an_array_for_a_model_of_codes_holds_the_codes(self, table):
        x, y, sites = table
        coded = x.assign(sex=x["sex"] == "m", stage=x["stage"].astype(int)).astype(float)
        model = classifier(categorical=["stage"]).fit(coded, y, sites=sites)
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            assert (model.predict(coded.to_numpy()) == model.predict(coded)).all()

    @pytest.mark.parametrize(
        ("change", "kind", "said"),
        [
            (lambda x: x.assign(name=[f"p{k}" for k in x.index]), DataError, "leave it out of X"),
            (lambda x: x.assign(age=np.nan), EmptyColumnError, "'age', but it is empty"),
            (lambda x: x.assign(age=np.inf), DataError, "column 'age'"),
        ],
    )
    def test_columns_that_say_nothing(self, table, change, kind, said):
        x, y, sites = table
        with pytest.raises(kind, match=said):
            classifier().fit(change(x), y, sites=sites)

    def test_new_rows_have_the_columns_of_training(self, table):
        x, y, sites = table
        model = classifier().fit(x, y, sites=sites)
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(x.drop(columns="age"))
        with pytest.warns(UserWarning, match="categories that training never saw"):
            model.predict(x.assign(sex="x"))

    def test_a_column_without_a_name_is_left_out(self, table):
        x, y, sites = table
        read = x.assign(**{"Unnamed: 0": np.arange(90)})
        model = classifier().fit(read, y, sites=sites)
        assert (model.predict_proba(read) == classifier().fit(x, y, sites).predict_proba(x)).all()

    def test_labels_may_be_called_like_a_column(self, table):
        x, y, sites = table
        named = x.rename(columns={"age": "disease", "sex": "y"})
        model = classifier().fit(named, y, sites=sites)
        assert model.preprocessing_.label_column == "y_"

    def test_images_stay_images(self):
        rng = np.random.default_rng(0)
        y = np.arange(40) % 2
        x = rng.integers(0, 100, (40, 6, 6)).astype(np.uint8)
        x[y == 1, :3] += 120
        model = fb.FederatedClassifier("target-only", rounds=15, model="mlp:8").fit(x, y)
        assert model.preprocessing_ is None
        assert model.run_.input_shape == (6, 6)
        assert model.score(x, y) > 0.9


class TestScikitLearnsTools:
    def test_parameters(self):
        model = fb.FederatedClassifier("fedda", target="T", beta=0.3)
        assert clone(model).get_params() == model.get_params()
        assert model.set_params(lr=0.1, rounds=3, beta=0.4) is model
        assert {"beta": 0.4, "lr": 0.1, "rounds": 3}.items() <= model.get_params().items()
        assert repr(model) == (
            "FederatedClassifier(beta=0.4, lr=0.1, method='fedda', rounds=3, target='T')"
        )

    def test_an_unknown_option_is_told_by_fit(self, table):
        x, y, _ = table
        with pytest.raises(OptionError, match="Did you mean 'lr'"):
            classifier(lrr=0.1).fit(x, y)
        with pytest.raises(OptionError, match="`standardise`"):
            classifier(standardise="no").fit(x, y)
        with pytest.raises(OptionError, match="`engine`"):
            classifier(engine="flower").fit(x, y)

    def test_the_options_of_a_run_are_options_here(self, table, tmp_path):
        x, y, sites = table
        model = classifier(method="fedda", out=tmp_path / "run", protocol="paper")
        model.fit(x, y, sites=sites)
        assert model.run_.config["settings"]["weights"] == "samples"
        found = fb.predict(tmp_path / "run", x)
        assert (found["prediction"] == model.predict(x)).all()
        later = model.save(tmp_path / "later")
        assert (later / "config.toml").read_text() == (tmp_path / "run/config.toml").read_text()

    def test_cross_validation_with_routing_scores_the_target(self, table):
        x, y, sites = table
        with sklearn.config_context(enable_metadata_routing=True):
            model = classifier().set_fit_request(sites=True).set_score_request(sites=True)
            scores = cross_val_score(model, x, y, cv=StratifiedKFold(2), params={"sites": sites})
        for score, (train, test) in zip(scores, StratifiedKFold(2).split(x, y), strict=True):
            own = test[sites[test] == "north"]
            fitted = classifier().fit(x.loc[train], y[train], sites=sites[train])
            assert score == accuracy_score(y[own], fitted.predict(x.loc[own]))

    def test_a_pipeline_in_a_grid_with_routing(self, table):
        x, y, sites = table
        ages = x[["age"]].fillna(60)
        with sklearn.config_context(enable_metadata_routing=True):
            model = classifier(method="fedda").set_fit_request(sites=True)
            pipe = make_pipeline(StandardScaler(), model.set_score_request(sites=True))
            choices = {"federatedclassifier__beta": [0.1, 0.9]}
            grid = GridSearchCV(pipe, choices, cv=3).fit(ages, y, sites=sites)
        assert not np.isnan(grid.cv_results_["mean_test_score"]).any()
        assert grid.best_estimator_[-1].run_.config["options"] == grid_choice(grid)

    def test_folds_of_the_target_suit_any_scorer_without_routing(self, table):
        x, y, sites = table
        folds = fb.target_folds(sites, "north", y, n_splits=3)
        tested = np.concatenate([test for _, test in folds])
        assert sorted(tested) == list(np.flatnonzero(sites == "north"))
        for train, test in folds:
            assert set(np.flatnonzero(sites != "north")) <= set(train)
            assert not set(train) & set(test)
            assert 0.2 < (y[test] == "ill").mean() < 0.8
        scores = cross_val_score(
            classifier(), x, y, cv=folds, params={"sites": sites}, scoring="roc_auc"
        )
        assert scores.min() > 0.5

    def test_folds_of_values_are_shuffled(self):
        folds = fb.target_folds(["T"] * 9, "T", np.linspace(0, 1, 9), n_splits=3)
        assert [len(test) for _, test in folds] == [3, 3, 3]

    def test_values_of_any_size(self, tmp_path):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(60, 3))
        y = 3e5 + 1e5 * x @ [1, 2, 0]
        sites = np.array(["A", "T"])[np.arange(60) % 2]
        model = fb.FederatedRegressor("fedda", rounds=20, model="linear", target="T")
        own = sites == "T"
        assert model.fit(x, y, sites=sites).score(x[own], y[own]) > 0.8
        found = fb.predict(
            model.save(tmp_path / "run"), pd.DataFrame(x, columns=["x0", "x1", "x2"])
        )
        np.testing.assert_allclose(found["prediction"], model.predict(x), rtol=1e-5)
        scaled = TransformedTargetRegressor(model, transformer=StandardScaler())
        scaled.fit(x, y, sites=sites)
        assert scaled.regressor_.run_.summary["n_target"] == own.sum()
        assert scaled.score(x[own], y[own]) > 0.8

    def test_a_regressor_scores_the_target(self):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(60, 3))
        y = np.stack([x[:, 0], x[:, 1] - x[:, 2]], axis=1)
        sites = np.array(["A", "T"])[np.arange(60) % 2]
        model = fb.FederatedRegressor(**QUICK, target="T").fit(x, y, sites=sites)
        own = sites == "T"
        assert model.predict(x).shape == (60, 2)
        assert model.score(x, y, sites=sites) == r2_score(y[own], model.predict(x[own]))

    def test_a_bar_in_a_terminal_or_if_it_is_asked_for(self, table, capfd, monkeypatch):
        x, y, sites = table
        monkeypatch.setenv("FORCE_COLOR", "1")
        classifier().fit(x, y, sites=sites)
        assert capfd.readouterr() == ("", "")
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        classifier(verbose=False).fit(x, y, sites=sites)
        assert capfd.readouterr() == ("", "")
        classifier().fit(x, y, sites=sites)
        assert "FederatedClassifier: rounds" in capfd.readouterr().err
        monkeypatch.undo()
        monkeypatch.setenv("FORCE_COLOR", "1")
        classifier(verbose=True).fit(x, y, sites=sites)
        shown = capfd.readouterr()
        assert shown.out == ""
        assert "FederatedClassifier: rounds" in shown.err


class TestWhatIsLeft:
    def test_a_fitted_one_pickles_without_rows(self, table):
        x, y, sites = table
        model = classifier().fit(x, y, sites=sites)
        text = pickle.dumps(model)
        assert (pickle.loads(text).predict_proba(x) == model.predict_proba(x)).all()
        many = pd.concat([x] * 20, ignore_index=True), pd.concat([y] * 20, ignore_index=True)
        more = pickle.dumps(classifier().fit(*many, sites=np.tile(sites, 20)))
        assert len(more) < 1.1 * len(text)

    def test_saved_as_the_folder_of_a_run(self, table, tmp_path):
        x, y, sites = table
        model = classifier().fit(x, y, sites=sites)
        out = model.save(tmp_path / "run")
        loaded = fb.load_run(out)
        assert loaded.summary["accuracy"] is None
        assert len(loaded.history) == 2
        found = fb.predict(loaded, x)
        shares = found[["probability_ill", "probability_well"]]
        assert np.allclose(shares, model.predict_proba(x), atol=1e-12)
        assert (found["prediction"] == model.predict(x)).all()
        with pytest.raises(ValueError, match="already holds a run"):
            model.save(out)

    def test_the_command_line_predicts_with_it(self, table, tmp_path):
        x, y, sites = table
        model = classifier().fit(x, y, sites=sites)
        model.save(tmp_path / "run")
        x.to_csv(tmp_path / "new.csv", index=False)
        run, new, told = (str(tmp_path / name) for name in ("run", "new.csv", "told.csv"))
        assert main(["predict", run, new, "--out", told]) == 0
        told = pd.read_csv(told)
        assert accuracy_score(told["prediction"], model.predict(x)) == 1.0

    @pytest.mark.parametrize("alone", [True, False])
    def test_page_and_card_claim_no_test(self, table, tmp_path, alone):
        x, y, sites = table
        model = classifier().fit(x, y, sites=None if alone else sites)
        out = model.save(tmp_path / "run")
        for file in ("report.html", "model-card.md"):
            text = (out / file).read_text()
            assert "none was left to test" in text
            assert "0 test samples" not in text
            assert "0 other sites" not in text
        assert ("on its own rows alone" in text) is alone

    @pytest.mark.parametrize("alone", [True, False])
    def test_the_call_on_the_card_gives_the_same_model(self, table, tmp_path, alone):
        x, y, sites = table
        coded = x.assign(stage=x["stage"].astype(int))
        options = {"standardise": "joint", "categorical": ["stage"], "lr": 0.1}
        model = classifier(**options).fit(coded, y, sites=None if alone else sites)
        card = (model.save(tmp_path / "run") / "model-card.md").read_text()
        call = re.search(r"```\n(fedbridge\..*?)\n```", card, re.DOTALL)[1]
        again = eval(call, {"fedbridge": fb, "X": coded, "y": y, "sites": sites})
        assert (again.predict_proba(coded) == model.predict_proba(coded)).all()

    @pytest.mark.parametrize("method", ["auto", "alone-forest", "fedavg", "ditto"])
    def test_values_are_saved_too(self, tmp_path, method):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(60, 3))
        sites = np.array(["A", "T"])[np.arange(60) % 2]
        model = fb.FederatedRegressor(method, rounds=2, model="mlp:4", target="T")
        model.fit(x, x[:, 0], sites=sites)
        found = fb.predict(model.save(tmp_path / "run"), x)
        assert np.allclose(found["prediction"], model.predict(x), atol=1e-6)

    def test_an_unfitted_one_is_not_saved(self, tmp_path):
        with pytest.raises(sklearn.exceptions.NotFittedError):
            classifier().save(tmp_path / "run")

    def test_a_fit_that_fails_leaves_no_half_of_an_earlier_one(self, table):
        x, y, sites = table
        model = classifier().fit(x, y, sites=sites)
        with pytest.raises(OptionError):
            model.set_params(lr=-1).fit(x, y == "ill", sites=sites)
        with pytest.raises(sklearn.exceptions.NotFittedError):
            model.predict(x)


def grid_choice(grid):
    """What the best of a grid was fitted with."""
    return {"beta": grid.best_params_["federatedclassifier__beta"]}
