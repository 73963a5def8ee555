"""A graph without fedbridge answers as ``predict`` does, on every kind of task."""

import json
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pictures import TINY, register_tiny_backbone, write_images
from real_data import needs
from safetensors.torch import load_file
from tiny_data import write_idx_set
from torch import nn

import fedbridge as fb
from fedbridge.base.errors import ModelError, OptionError
from fedbridge.base.files import StorageError
from fedbridge.cli.main import main
from fedbridge.data.images.preprocessing import decode_image
from fedbridge.data.tables.preprocessing import ByOwnRows, CodedColumn, Preprocessing
from fedbridge.models.build import BUILT_IN, build_model
from fedbridge.runs.folder import RunFolderError
from fedbridge.training.blend import Blended
from fedbridge.workflows import onnx_graph
from fedbridge.workflows.predict import SavedModel, predict_with

ort = pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")

QUICK = {"method": "fedda", "rounds": 2, "workers": 1}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
LINES = re.DOTALL | re.MULTILINE


def patients(n, seed=0):
    """Two sites; numbers and categories, missing ones too, and names that a graph might use."""
    draw = np.random.default_rng(seed)
    sick = draw.integers(0, 2, n)
    table = pd.DataFrame(
        {
            "site": draw.choice(["a", "b"], n),
            "age": np.round(50 + 10 * sick + draw.normal(size=n), 1),
            "year": 2020 + draw.integers(0, 3, n),
            "colour": draw.choice(["red", "blue", "deep green"], n),
            "stage": draw.choice([1, 2, 3], n),
            "linear": draw.normal(size=n),
            "prediction": draw.normal(size=n),
            "fedbridge/rows": draw.normal(size=n),
            "ill": np.where(sick, "yes", "no"),
            "dose": 2.0 * sick + 0.123 * np.arange(n),
        }
    )
    table.loc[::7, "age"] = np.nan
    table.loc[3::11, "colour"] = None
    return table


COLUMNS = "age,year,colour,stage,linear,prediction,fedbridge/rows"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def table(folder):
    patients(120).to_csv(folder / "patients.csv", index=False)
    return folder / "patients.csv"


def trained(table, out, **options):
    of_task = {"target": "a", "label_column": "ill", "columns": COLUMNS, "categorical": "stage"}
    task = fb.load_task(table, **of_task | options.pop("task", {}))
    fb.run(task, out=out, **QUICK | options)
    return out


@pytest.fixture(scope="module")
def run(folder, table):
    return trained(table, folder / "classes", rounds=5)


@pytest.fixture(scope="module")
def graph(folder, run):
    fb.export(run, onnx=folder / "model.onnx")
    return ort.InferenceSession(folder / "model.onnx")


def columns_of(session, frame):
    """A table as the metadata say that the graph takes it."""
    about = json.loads(session.get_modelmeta().custom_metadata_map["columns"])
    rows = {}
    for column in about:
        cells = frame[[column["name"]]]
        if column["kind"] == "category":
            cells = cells.astype(object).where(cells.notna(), "").astype(str).astype(object)
        kind = None if column["kind"] == "category" else float
        rows[column["input"]] = cells.to_numpy(kind, copy=True)
    return rows


def answers(session, rows):
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, rows), strict=True))


def same_as_predict(session, rows, run, new):
    """Compare all answers of a graph with those of ``predict``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = fb.predict(run, new)
    found = answers(session, rows)
    if "prediction" in found:
        values = expected.filter(regex="^prediction").to_numpy()
        np.testing.assert_allclose(found["prediction"].reshape(values.shape), values, **CLOSE)
        return expected
    shares = expected.filter(regex="^probability_").to_numpy()
    np.testing.assert_allclose(found["probabilities"], shares, **CLOSE)
    assert found["label"].tolist() == expected["prediction"].tolist()
    return expected


def same_on_arrays(run, out, x):
    done = fb.export(run, onnx=out)
    session = ort.InferenceSession(out)
    assert [value.name for value in session.get_inputs()] == ["x"]
    same_as_predict(session, {"x": x}, run, x)
    same_as_predict(session, {"x": x[:1]}, run, x[:1])
    return done, session


class TestTables:
    def test_every_column_is_an_input_and_answers_are_those_of_predict(self, graph, run):
        new = patients(40, seed=5)
        inputs = {value.name: (value.type, value.shape) for value in graph.get_inputs()}
        assert list(inputs) == COLUMNS.split(",")
        assert inputs["age"] == ("tensor(double)", ["rows", 1])
        assert inputs["colour"] == ("tensor(string)", ["rows", 1])
        outputs = {value.name: value.type for value in graph.get_outputs()}
        assert outputs == {"probabilities": "tensor(float)", "label": "tensor(string)"}
        same_as_predict(graph, columns_of(graph, new), run, new)
        same_as_predict(graph, columns_of(graph, new[:1]), run, new[:1])

    def test_missing_and_unknown_values_are_treated_as_predict_treats_them(self, graph, run):
        new = patients(12, seed=6)
        new["colour"] = ["", "NaN", "n/a", "?", "NULL", "none of them", "red", "Red", *["blue"] * 4]
        new["stage"] = ["1", "1.0", "2.0", "2", "", "9", "nan", *["3"] * 5]
        new.loc[:3, "age"] = np.nan
        rows = columns_of(graph, new)
        expected = same_as_predict(graph, rows, run, new)
        assert len(set(expected["probability_yes"])) > 3
        rows["colour"][:5] = ""
        same_as_predict(graph, rows, run, new)

    def test_a_row_that_predict_refuses_has_no_answer(self, graph):
        rows = columns_of(graph, patients(3, seed=7))
        rows["linear"][:2] = [[np.inf], [1e300]]
        found = answers(graph, rows)
        assert np.isnan(found["probabilities"][:2]).all()
        assert found["label"].tolist()[:2] == ["", ""]
        assert found["label"][2] in ("yes", "no")
        assert found["probabilities"][2].sum() == pytest.approx(1)

    def test_metadata_name_columns_levels_and_classes(self, graph):
        about = graph.get_modelmeta().custom_metadata_map
        columns = {column["name"]: column for column in json.loads(about["columns"])}
        assert list(columns) == COLUMNS.split(",")
        assert columns["colour"]["levels"] == ["blue", "deep green", "red"]
        assert columns["stage"]["levels"] == ["1", "2", "3"]
        assert json.loads(about["class_names"]) == ["no", "yes"]
        assert about["label_column"] == "ill"

    def test_nothing_tells_of_the_machine_and_the_bytes_are_the_same(self, run, folder, tmp_path):
        fb.export(run, onnx=tmp_path / "again.onnx")
        content = (tmp_path / "again.onnx").read_bytes()
        assert content == (folder / "model.onnx").read_bytes()
        assert b"stack_trace" not in content
        assert str(Path(fb.__file__).parent).encode() not in content

    def test_regression_gives_values_and_keeps_a_column_of_that_name(self, table, tmp_path):
        run = trained(table, tmp_path / "r", task={"label_column": "dose"})
        done = fb.export(run, onnx=tmp_path / "m.onnx")
        assert done.outputs == {"prediction": "float32 (rows)"}
        assert "prediction_" in done.inputs
        session = ort.InferenceSession(tmp_path / "m.onnx")
        new = patients(20, seed=8)
        same_as_predict(session, columns_of(session, new), run, new)

    @pytest.mark.parametrize("method", ["auto", "alone-forest", "alone-logistic", "knn-per", "mme"])
    def test_methods_that_deliver_more_than_the_network(self, table, tmp_path, method):
        run = trained(table, tmp_path / "r", method=method, task={"n_target": 20})
        assert isinstance(fb.load_run(run).model, Blended) == (method == "auto")
        fb.export(run, onnx=tmp_path / "m.onnx")
        session = ort.InferenceSession(tmp_path / "m.onnx")
        new = patients(30, seed=9)
        same_as_predict(session, columns_of(session, new), run, new)

    @needs("heart")
    def test_heart(self, tmp_path):
        task = fb.load_task("heart", target="va")
        result = fb.run(task, out=tmp_path / "r", **QUICK)
        done = fb.export(tmp_path / "r", onnx=tmp_path / "m.onnx")
        assert done.difference < 1e-5
        assert done.rows > 0
        session = ort.InferenceSession(tmp_path / "m.onnx")
        frame = pd.DataFrame(
            {
                column.name: [*column.levels[:2], ""]
                if hasattr(column, "levels")
                else [column.mean, column.mean + column.scale, np.nan]
                for column in result.preprocessing.columns
            }
        )
        same_as_predict(session, columns_of(session, frame), tmp_path / "r", frame)

    def test_codes_are_scaled_without_their_first_level(self):
        code = CodedColumn("code", "b", ("a", "b", "c"), (0.2, 0.7), (0.5, 2.0))
        how = Preprocessing("a", (code,), "ill", ("no", "yes"))
        saved = SavedModel(nn.Linear(2, 2), (2,), how.class_names, how)
        session = ort.InferenceSession(onnx_graph.onnx_model(saved).content)
        cells = np.array([["a"], ["b"], ["c"], [""], ["d"]], dtype=object)
        with pytest.warns(UserWarning, match="never saw"):
            expected = predict_with(saved, pd.DataFrame(cells, columns=["code"])).probabilities
        np.testing.assert_allclose(
            answers(session, {"code": cells})["probabilities"], expected, **CLOSE
        )

    @pytest.mark.parametrize("category", [False, True])
    def test_a_column_that_a_source_lacks_is_filled_and_marked(self, tmp_path, category):
        tables = dict(list(patients(120).groupby("site")))
        gone = "colour" if category else "age"
        tables["b"] = tables["b"].drop(columns=gone)
        (tmp_path / "sites").mkdir()
        for site, rows in tables.items():
            rows.drop(columns="site").to_csv(tmp_path / "sites" / f"{site}.csv", index=False)
        trained(tmp_path / "sites", tmp_path / "r", task={"impute": gone}, rounds=5)
        fb.export(tmp_path / "r", onnx=tmp_path / "m.onnx")
        session = ort.InferenceSession(tmp_path / "m.onnx")
        new = patients(30, seed=1)
        rows = columns_of(session, new)
        assert len(rows) == len(COLUMNS.split(","))
        same_as_predict(session, rows, tmp_path / "r", new)
        for spelled in ["", "NA", "n/a"] if category else [np.nan]:
            empty = {**rows, gone: np.full_like(rows[gone], spelled)}
            found = same_as_predict(session, empty, tmp_path / "r", new.drop(columns=gone))
        kept = same_as_predict(session, rows, tmp_path / "r", new)
        assert not found.filter(regex="^prob").equals(kept.filter(regex="^prob"))
        about = json.loads(session.get_modelmeta().custom_metadata_map["columns"])
        assert [column["name"] for column in about if column.get("imputed")] == [gone]

    def test_rows_that_are_scaled_by_themselves_have_no_graph(self, run):
        loaded = fb.load_run(run)
        how = loaded.preprocessing
        own = ByOwnRows("any site", how.columns, how.label_column, how.class_names)
        saved = SavedModel(loaded.model, loaded.saved.input_shape, loaded.class_names, own)
        with pytest.raises(ModelError, match="export the run in the target's folder"):
            onnx_graph.onnx_model(saved)


class TestArraysAndImages:
    def test_digits(self, tmp_path):
        task = fb.load_task("digits-noise")
        fb.run(task, out=tmp_path / "r", **QUICK)
        x = task.test.x[:20].numpy()
        _, session = same_on_arrays(tmp_path / "r", tmp_path / "m.onnx", x)
        broken = x.copy()
        broken[0, 0, 0, 0] = np.nan
        found = answers(session, {"x": broken})
        assert found["label"][0] == ""
        assert np.isnan(found["probabilities"][0]).all()
        assert not np.isnan(found["probabilities"][1:]).any()

    def test_rbf(self, tmp_path):
        task = fb.load_task("rbf")
        fb.run(task, out=tmp_path / "r", **QUICK)
        x = task.test.x[:20].numpy()
        done, _ = same_on_arrays(tmp_path / "r", tmp_path / "m.onnx", x)
        assert done.difference < 1e-5
        assert list(done.outputs) == ["prediction"]

    def test_coloured_digits(self, tmp_path, monkeypatch):
        write_idx_set(tmp_path / "data" / "mnist")
        monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path / "data"))
        task = fb.load_task("colored-mnist-14", target="minus90", n_target=20)
        for method in ("fedgp-auto", "auto"):
            run = tmp_path / method
            fb.run(task, out=run, **QUICK | {"method": method})
            done, _ = same_on_arrays(run, tmp_path / "m.onnx", task.test.x[:20].numpy())
            assert done.difference < 1e-5

    def test_bytes_are_divided_by_255_in_the_graph(self, tmp_path):
        draw = np.random.default_rng(0)
        x = draw.integers(0, 256, (24, 3, 8, 8), dtype=np.uint8)
        y = np.arange(24) % 2
        task = fb.FederatedTask.from_arrays({"s": (x, y)}, (x, y))
        result = fb.run(task, out=tmp_path / "r", **QUICK)
        done, _ = same_on_arrays(tmp_path / "r", tmp_path / "m.onnx", x)
        assert done.inputs == {"x": "uint8 (rows, 3, 8, 8)"}
        assert fb.export(result, onnx=tmp_path / "n.onnx").inputs == done.inputs

    @pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"resnet50", "sigmoid-uniform"}))
    def test_every_built_in_network_has_a_graph(self, name):
        x = torch.rand(4, 3, 16, 16)
        task = fb.FederatedTask.from_arrays({"s": (x, [0, 1, 0, 1])}, (x, [0, 1, 0, 1]))
        saved = saved_with(build_model(name, task), (3, 16, 16))
        session = ort.InferenceSession(onnx_graph.onnx_model(saved).content)
        found = answers(session, {"x": x.numpy()})
        expected = predict_with(saved, x).probabilities
        np.testing.assert_allclose(found["probabilities"], expected, **CLOSE)

    def test_several_values(self, tmp_path):
        draw = np.random.default_rng(0)
        x, y = draw.normal(size=(20, 3)).astype(np.float32), draw.normal(size=(20, 2))
        task = fb.FederatedTask.from_arrays({"s": (x, y)}, (x, y))
        fb.run(task, out=tmp_path / "r", model="linear", **QUICK)
        done, _ = same_on_arrays(tmp_path / "r", tmp_path / "m.onnx", x)
        assert done.outputs == {"prediction": "float32 (rows, 2)"}

    @pytest.mark.parametrize("options", [{"image_size": 12}, {"grayscale": True}])
    def test_a_folder_of_images(self, tmp_path, options):
        self.check_images(tmp_path, {"image_size": 12, **options})

    def test_features_of_a_backbone(self, tmp_path, monkeypatch):
        register_tiny_backbone(monkeypatch)
        self.check_images(tmp_path, {"backbone": TINY})

    def check_images(self, tmp_path, options):
        write_images(tmp_path / "photos", ("day", "night"), ("cat", "dog"))
        task = fb.load_task(tmp_path / "photos", target="night", **options)
        fb.run(task, out=tmp_path / "r", **QUICK)
        fb.export(tmp_path / "r", onnx=tmp_path / "m.onnx")
        session = ort.InferenceSession(tmp_path / "m.onnx")
        how = task.preprocessing
        assert json.loads(session.get_modelmeta().custom_metadata_map["images"])["size"] == how.size
        files = sorted((tmp_path / "photos").rglob("*.png"))
        pixels = np.stack([decode_image(file, how.size, how.grayscale) for file in files])
        same_as_predict(session, {"x": pixels}, tmp_path / "r", tmp_path / "photos")


class Odd(nn.Module):
    """A model with code of its own, and something that no graph has."""

    def __init__(self, forward):
        super().__init__()
        self.layer, self.does = nn.Linear(4, 2), forward

    def forward(self, x):
        return self.does(self.layer, x)


def saved_with(model, shape=(4,)):
    return SavedModel(model.eval(), shape, ("no", "yes"), None)


class TestRefusals:
    def test_a_layer_that_has_no_graph(self):
        model = Odd(lambda layer, x: layer(x) + torch.linalg.eigvals(x.T @ x).real.sum())
        with pytest.raises(ModelError, match=r"cannot be exported .*--torch"):
            onnx_graph.onnx_model(saved_with(model))

    def test_code_that_fixes_the_number_of_rows(self):
        model = Odd(lambda layer, x: layer(x) + torch.zeros(len(x), 1))
        with pytest.raises(ModelError, match="any number of rows"):
            onnx_graph.onnx_model(saved_with(model))

    def test_a_graph_that_answers_differently_is_not_written(self, run, tmp_path, monkeypatch):
        monkeypatch.setattr(onnx_graph, "places_of", lambda column: {"red": 0})
        with pytest.raises(ModelError, match="was not written"):
            fb.export(run, onnx=tmp_path / "m.onnx")
        assert not (tmp_path / "m.onnx").exists()

    @pytest.mark.parametrize("package", ["onnx", "onnxscript"])
    def test_without_the_extra_it_says_what_to_install(self, run, tmp_path, monkeypatch, package):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ModelError, match=r"pip install 'fedbridge\[export\]'"):
            fb.export(run, onnx=tmp_path / "m.onnx")

    def test_without_onnxruntime_it_says_that_nothing_was_checked(self, run, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        done = fb.export(run, onnx=tmp_path / "m.onnx")
        assert done.rows is None
        assert "not checked: onnxruntime is not installed" in str(done)
        assert done.to_json()["checked"] is None

    def test_nowhere_to_write(self, run):
        with pytest.raises(OptionError, match="but got neither"):
            fb.export(run)

    def test_one_place_for_two_things(self, run, tmp_path):
        file = tmp_path / "m.safetensors"
        with pytest.raises(OptionError, match="both name"):
            fb.export(run, onnx=file, torch=file)

    def test_a_run_is_not_written_over(self, run):
        with pytest.raises(StorageError, match="choose another"):
            fb.export(run, torch=run)

    def test_a_changed_run_is_refused(self, table, tmp_path):
        run = trained(table, tmp_path / "r", rounds=1)
        file = run / "preprocessing.json"
        file.write_text(file.read_text().replace("deep green", "deep grey"))
        with pytest.raises(RunFolderError, match=r"preprocessing\.json was changed"):
            fb.export(run, torch=tmp_path / "t")
        assert fb.export(run, torch=tmp_path / "t", unchecked=True).files

    def test_code_of_a_user_is_named_by_him(self, table, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("export_net.py").write_text(
            "from torch import nn\n"
            "class Net(nn.Module):\n"
            "    def __init__(self, task):\n"
            "        super().__init__()\n"
            "        self.layer = nn.Linear(task.input_shape[0], task.outputs)\n"
            "    def forward(self, x):\n"
            "        return self.layer(x).tanh()\n"
        )
        run = trained(table, tmp_path / "r", model="export_net:Net")
        with pytest.raises(RunFolderError, match="--model export_net:Net"):
            fb.export(run, onnx="m.onnx")
        done = fb.export(run, onnx="m.onnx", torch="t", model="export_net:Net")
        assert done.difference < 1e-5
        assert done.needs == "the code of export_net.Net"
        script = runpy.run_path("t/load_model.py")
        assert done.needs in script["__doc__"]
        bare = fb.load_run(run, model="export_net:Net").model
        expected = bare.layer.weight.detach().clone()
        bare.layer.weight.data.zero_()
        torch.testing.assert_close(script["load"](bare).layer.weight.detach(), expected)


def code_lines(script):
    """Lines of a script without its docstring, blank lines and the layers of the network."""
    code = script.read_text("utf-8").split('"""')[2]
    code = re.sub(r"network = .*?^    network\.", "network =\n    network.", code, flags=LINES)
    return len([line for line in code.splitlines() if line.strip()])


class TestTorch:
    @pytest.mark.parametrize("model", ["linear", "mlp:8", "sigmoid", "cnn", "mnist-cnn"])
    @pytest.mark.parametrize("shape", [(1, 8, 8), (8, 8)])
    def test_the_script_builds_the_same_network(self, tmp_path, model, shape):
        draw = np.random.default_rng(0)
        x, y = draw.normal(size=(20, *shape)), np.arange(20) % 2
        task = fb.FederatedTask.from_arrays({"s": (x, y)}, (x, y))
        result = fb.run(task, model=model, **QUICK | {"rounds": 1})
        done = fb.export(result, torch=tmp_path / "t")
        assert [file.name for file in done.files] == ["model.safetensors", "load_model.py"]
        assert done.needs == ""
        network = runpy.run_path(str(tmp_path / "t" / "load_model.py"))["load"]()
        rows = task.test.x
        torch.testing.assert_close(network(rows), result.model(rows))
        state = load_file(tmp_path / "t" / "model.safetensors")
        assert state.keys() == result.model.state_dict().keys()
        assert code_lines(tmp_path / "t" / "load_model.py") <= 10

    def test_a_blend_loads_in_an_interpreter_without_fedbridge(self, table, tmp_path):
        run = trained(table, tmp_path / "r", method="auto", rounds=3)
        loaded = fb.load_run(run)
        member = loaded.model.members[0] if isinstance(loaded.model, Blended) else loaded.model
        inputs = loaded.saved.input_shape[0]
        blend = Blended([member, member], (inputs, 2))
        blend.scales.copy_(torch.tensor([0.3, 0.5]))
        nn.init.uniform_(blend.linear.weight)
        saved = SavedModel(blend, (inputs,), loaded.class_names, loaded.preprocessing)
        done = fb.export(
            fb.LoadedRun(run, loaded.history, loaded.summary, saved),
            torch=tmp_path / "w.safetensors",
        )
        names = ["w.safetensors", "load_w.py", "w.preprocessing.json"]
        assert [file.name for file in done.files] == names
        code = f"""
import sys, torch, load_w
print(load_w.load()(torch.ones(1, {inputs})).tolist())
assert "fedbridge" not in sys.modules
"""
        said = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120
        )
        assert said.returncode == 0, said.stderr
        expected = blend(torch.ones(1, inputs)).tolist()
        np.testing.assert_allclose(json.loads(said.stdout), expected, rtol=1e-5)


class TestCommand:
    def test_it_says_what_it_wrote_and_how_it_was_checked(self, run, tmp_path, capsys):
        assert main(["export", str(run), "--onnx", str(tmp_path / "m.onnx")]) == 0
        shown = capsys.readouterr().out
        assert "checked with onnxruntime on 10 rows: as `fedbridge predict`" in shown
        assert "age: float64 (rows, 1)" in shown
        assert "and 2 more" in shown

    def test_json(self, run, tmp_path, capsys):
        words = ["export", str(run), "--onnx", str(tmp_path / "m.onnx"), "--torch", str(tmp_path)]
        assert main([*words, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert len(told["files"]) == 4
        assert told["checked"]["difference"] < 1e-5
        assert set(told["outputs"]) == {"probabilities", "label"}

    def test_mistakes_are_one_line(self, run, capsys):
        assert main(["export", str(run)]) == 2
        assert "name one of them" in capsys.readouterr().err
