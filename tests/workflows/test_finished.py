"""A finished run in hand: loaded, shown in five lines, and used on rows in memory."""

import numpy as np
import pandas as pd
import pytest
import torch

import fedbridge as fb
from fedbridge.base.errors import DataError, OptionError, ShapeError
from fedbridge.runs.folder import RunFolder, RunFolderError
from fedbridge.workflows.finished import save_run

QUICK = {"method": "fedda", "rounds": 2, "workers": 1}


def patients(n, site, seed):
    generator = np.random.default_rng(seed)
    sick = generator.integers(0, 2, n)
    return pd.DataFrame(
        {
            "pid": [f"{site}-{k:03}" for k in range(n)],
            "site": site,
            "age": np.round(50 + 10 * sick + generator.normal(size=n), 1),
            "colour": generator.choice(["red", "blue"], n),
            "label": np.where(sick, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    table = pd.concat([patients(40, "a", 0), patients(40, "b", 1)])
    table.to_csv(folder / "patients.csv", index=False)
    task = fb.load_task(folder / "patients.csv", target="a", id_column="pid")
    return fb.run(task, out=folder / "run", **QUICK), task


@pytest.fixture
def new():
    return patients(7, "c", 5).drop(columns=["label", "site"])


class TestPredict:
    def test_a_result_a_loaded_run_and_a_folder_say_the_same_of_a_table(self, ran, new, tmp_path):
        result, task = ran
        found = fb.predict(result, new)
        assert list(found) == ["row", "pid", "prediction", "probability_no", "probability_yes"]
        assert found.pid.tolist() == new.pid.tolist()
        with torch.no_grad():
            shares = result.model(task.preprocessing.apply(new)).double().softmax(1)
        np.testing.assert_allclose(found[["probability_no", "probability_yes"]], shares)
        pd.testing.assert_frame_equal(found, fb.predict(fb.load_run(result.out), new))
        pd.testing.assert_frame_equal(found, fb.predict(result.out, new))
        new.to_csv(tmp_path / "new.csv", index=False)
        pd.testing.assert_frame_equal(found, fb.predict(str(result.out), tmp_path / "new.csv"))

    def test_an_array_has_the_columns_of_training_in_their_order(self, ran, new):
        found = fb.predict(ran[0], new[["age", "colour"]].to_numpy())
        expected = fb.predict(ran[0], new).drop(columns="pid")
        pd.testing.assert_frame_equal(found, expected)
        with pytest.raises(ShapeError, match=r"2 columns .*'age', 'colour'.* shape \(7, 3\)"):
            fb.predict(ran[0], new.to_numpy())

    def test_a_task_of_arrays_takes_arrays_tensors_and_frames(self):
        generator = np.random.default_rng(0)
        rows = {name: generator.normal(size=(20, 3)) for name in "AT"}
        labels = {name: (x[:, 0] > 0).astype(int) for name, x in rows.items()}
        task = fb.FederatedTask.from_arrays(
            {"A": (rows["A"], labels["A"])}, (rows["T"], labels["T"]), positive=0
        )
        assert (task.class_names, task.positive_name) == (("0", "1"), "0")
        result = fb.run(task, **QUICK)
        found = fb.predict(result, rows["A"])
        assert list(found)[1:] == ["prediction", "probability_0", "probability_1"]
        for same in (torch.tensor(rows["A"]), pd.DataFrame(rows["A"])):
            pd.testing.assert_frame_equal(fb.predict(result, same), found)

    def test_regression_has_values(self, tmp_path):
        table = pd.concat([patients(40, "a", 0), patients(40, "b", 1)]).drop(columns="label")
        table.to_csv(tmp_path / "ages.csv", index=False)
        options = {"label_column": "age", "id_column": "pid", "kind": "regression"}
        result = fb.run(fb.load_task(tmp_path / "ages.csv", "a", **options), **QUICK)
        found = fb.predict(result, table)
        assert list(found) == ["row", "pid", "prediction"]
        assert found.prediction.dtype == float

    @pytest.mark.parametrize("wrong", [5, None, {"age": [1]}])
    def test_other_things_are_refused_in_our_words(self, ran, new, wrong):
        with pytest.raises(OptionError, match="the folder of one"):
            fb.predict(wrong, new)
        with pytest.raises(DataError, match="a pandas DataFrame or an array"):
            fb.predict(ran[0], wrong)
        with pytest.raises(OptionError, match="as a path"):
            fb.load_run(wrong)

    def test_a_missing_column_is_named(self, ran, new):
        with pytest.raises(DataError, match="'age'"):
            fb.predict(ran[0], new.drop(columns="age"))


class TestShown:
    def test_a_task_a_result_and_a_loaded_run_are_five_lines_without_rows(self, ran):
        result, task = ran
        for thing in (task, result, fb.load_run(result.out)):
            for text in (str(thing), repr(thing)):
                assert len(text.splitlines()) == 5
                assert "tensor" not in text
                assert max(map(len, text.splitlines())) <= 160
        assert "'no', 'yes', positive 'yes'" in repr(task)
        assert "b (40)" in repr(task)
        assert "accuracy" in repr(result)
        assert repr(task.sources[0]) == "<Site 'b': 40 rows>"

    def test_a_comparison_is_five_lines(self):
        found = fb.compare("digits-noise", ["fedda"], seeds=1, rounds=1, workers=1, alone=False)
        assert len(repr(found).splitlines()) == 5
        assert isinstance(found, fb.Comparison)
        assert isinstance(found.frame(), pd.DataFrame)

    def test_many_sites_stay_five_lines(self):
        rows = {f"site {k}\nof many": (np.eye(4), [0, 1, 0, 1]) for k in range(50)}
        task = fb.FederatedTask.from_arrays(rows, (np.eye(4), [0, 1, 0, 1]))
        assert len(repr(task).splitlines()) == 5
        assert "44 more" in repr(task)


class TestLoadRun:
    def test_model_history_and_summary_are_there(self, ran):
        result, task = ran
        run = fb.load_run(result.out)
        assert run.history["round"].tolist() == [1, 2]
        assert run.history["accuracy"].tolist() == [line["accuracy"] for line in result.history]
        assert (run.summary, run.class_names) == (result.summary, ("no", "yes"))
        assert run.preprocessing == task.preprocessing
        x = task.test.x
        assert torch.equal(run.model(x), result.model(x))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fb.run(5), "Expected a task"),
        (lambda: fb.run("digits-noise", method=5), "Expected a method"),
        (lambda: fb.compare(5, ["fedda"]), "Expected a task"),
        (lambda: fb.compare("digits-noise", 5), "`methods`"),
        (lambda: fb.compare("digits-noise", ["fedda"], seeds="x"), "`seeds`"),
    ],
)
def test_wrong_types_give_our_errors(call, said):
    with pytest.raises(fb.FedbridgeError, match=said):
        call()


def test_a_run_in_memory_is_saved_as_a_folder(ran, new, tmp_path):
    result, task = ran
    kept = fb.run(task, **QUICK)
    out = save_run(kept, tmp_path / "later")
    assert RunFolder(out).config() == RunFolder(result.out).config()
    assert [*fb.load_run(out).history["accuracy"]] == [line["accuracy"] for line in result.history]
    pd.testing.assert_frame_equal(fb.predict(out, new), fb.predict(result, new))
    RunFolder(out).verify()
    assert "accuracy" in (out / "report.html").read_text()
    with pytest.raises(RunFolderError, match="already holds a run"):
        save_run(kept, out)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="holds other files"):
        save_run(kept, tmp_path / "other")
