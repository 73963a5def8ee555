"""One function for every kind of task: by name, file, folder or task file."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from fedbridge.base.errors import DataError, OptionError, UnknownNameError, UnknownOptionError
from fedbridge.base.files import to_json
from fedbridge.data.load import RUN_OPTIONS, load_task, possible_targets, registry, summary_of
from fedbridge.data.task import FederatedTask
from fedbridge.federation.settings import NAMES, Settings
from fedbridge.models import build_model
from fedbridge.workflows.run import run

EXAMPLES = Path(__file__).parents[2] / "examples"


TESTED_WITH_IMAGES_OF_THEIR_OWN = ("vlcs", "terra", "pacs", "office-home", "domainnet")


@pytest.mark.parametrize(
    "name", [name for name in registry.names() if name not in TESTED_WITH_IMAGES_OF_THEIR_OWN]
)
def test_every_built_in_task_loads_and_fits_its_model(tiny, name):
    task = load_task(name, target=possible_targets(name, n_target=20)[0], n_target=20)
    assert task.name == name
    assert summary_of(name)
    assert len(task.target) == 20
    build_model(task.model, task)
    Settings(**task.defaults)


def test_options_may_be_numbers_of_numpy():
    task = load_task(
        "rbf", seed=np.int64(3), diff=np.array([0.1, 0.5]), n_target=np.int32(20), n_sources=None
    )
    plain = load_task("rbf", seed=3, diff=[0.1, 0.5], n_target=20)
    assert json.loads(to_json(task.manifest)) == json.loads(
        to_json({**plain.manifest, "loaded_as": task.manifest["loaded_as"]})
    )
    loaded = load_task("digits-noise", noise=np.float32(0.25), target_fraction=np.float32(0.5))
    assert json.loads(to_json(loaded.manifest))["options"]["noise"] == 0.25


def test_the_manifest_holds_all_options_and_goes_into_a_file(tiny):
    manifest = load_task("fashion-noise", n_target=20).manifest
    assert manifest["options"] == {
        "noise": 0.4,
        "noise_draw": "redrawn",
        "n_target": 20,
        "target_fraction": None,
    }
    assert manifest["content"].startswith("sha256:")
    assert json.loads(to_json(dict(manifest))) == manifest


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'digits-noise'"):
        load_task("digit-noise")


def test_an_unknown_option_suggests_the_nearest():
    with pytest.raises(
        UnknownOptionError, match=r"Did you mean 'label_column'\? Known: site_column"
    ):
        load_task(EXAMPLES / "hospitals" / "hospitals.csv", target="x", lable_column="disease")


def test_a_built_in_name_wins_over_a_folder_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "digits-noise").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_task("digits-noise").n_classes == 10
    with pytest.raises(DataError, match="none of them"):
        load_task("./digits-noise/.")


@pytest.mark.parametrize("path", ["nowhere.csv", "no/where", "nowhere.toml"])
def test_a_path_to_nothing_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="there is none"):
        load_task(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "data.xlsx").write_text("")
    with pytest.raises(DataError, match=r"a \.csv, a \.parquet, a \.toml or a folder"):
        load_task(tmp_path / "data.xlsx")


def test_a_folder_of_several_kinds_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("")
    (tmp_path / "photo").mkdir()
    with pytest.raises(DataError, match="one CSV per site and domain/class"):
        load_task(tmp_path)


def test_another_package_may_bring_tasks_with_options_of_their_own(monkeypatch):
    def factory(target=None, seed=0, **options: object) -> FederatedTask:
        return load_task("digits-noise", target, seed, **options)

    monkeypatch.setitem(registry._entries, "mine", factory)
    assert len(load_task("mine", n_target=12).target) == 12


def test_a_split_of_another_package_is_an_option_like_any_other(monkeypatch):
    def factory(target=None, seed=0, *, n_target, split="half") -> FederatedTask:
        task = load_task("digits-noise", target, seed, n_target=n_target)
        return replace(task, notes=(split,))

    monkeypatch.setitem(registry._entries, "mine", factory)
    assert load_task("mine", n_target=12, split="third").notes == ("third",)
    assert load_task("mine", n_target=12).manifest["options"] == {"n_target": 12, "split": "half"}


def test_a_task_that_decides_what_tests_has_no_option_for_it():
    with pytest.raises(UnknownOptionError, match="no option 'test_fraction'"):
        load_task("digits-noise", test_fraction=0.5)


class TestTaskFile:
    @pytest.fixture
    def write(self, tmp_path):
        def text(content: str) -> Path:
            file = tmp_path / "task.toml"
            file.write_text(content)
            (tmp_path / "north.csv").write_text("age,label\n")
            return file

        return text

    def test_it_names_data_options_and_run_defaults(self):
        task = load_task(EXAMPLES / "hospitals" / "hospitals.toml")
        assert (task.target.name, len(task.target), task.model) == ("Northgate", 20, "mlp:16")
        assert task.source_names == ("Hillcrest", "Lakeside", "Riverside")
        assert task.class_names == ("no", "yes")
        assert task.defaults["lr"] == 0.05
        build_model(task.model, task)

    def test_arguments_win_over_the_file(self):
        file = EXAMPLES / "hospitals" / "hospitals.toml"
        task = load_task(str(file), target="Lakeside", n_target=7, seed=1)
        assert (task.target.name, len(task.target), task.manifest["seed"]) == ("Lakeside", 7, 1)

    def test_it_may_name_a_built_in_task_and_keeps_its_defaults(self, write):
        task = load_task(write('[task]\nname = "digits-noise"\nnoise = 0.1\n[run]\nlr = 0.5\n'))
        assert task.defaults["lr"] == 0.5
        assert task.defaults["batch_size"] == load_task("digits-noise").defaults["batch_size"]
        assert task.model == "mlp"

    @pytest.mark.parametrize(
        ("content", "error", "message"),
        [
            ("[task", DataError, "TOML file, but it cannot be read"),
            ("", DataError, "neither"),
            ('[task]\nname = "a"\npath = "b"', DataError, "both"),
            ('[tasks]\nname = "a"', DataError, r"\[tasks\]\. Did you mean 'task'"),
            ("task = 3", DataError, r"a table \[task\]"),
            ('[task]\npath = "task.toml"', DataError, "another task file"),
            ('[task]\npath = "none.csv"', DataError, "there is none"),
            ('[task]\nname = "digits-noise"\nnosie = 1', UnknownOptionError, "'noise'"),
            ('[task]\nname = "digits-noise"\nseed = 1', UnknownOptionError, "'seed'"),
            ('[task]\nname = "digits-noise"\n[run]\nmodel = 3', OptionError, "`model`"),
            ("[task]\nname = 3", OptionError, r"`name` in 'task\.toml' to be text, but got 3"),
            ('[task]\nname = "heart"\ntarget = 3', OptionError, "`target`.*in quotes"),
            ('[task]\nname = "heart"\ntarget = ["va"]', OptionError, "`target`"),
            ('[task]\nname = "digits-noise"\nnoise = 1999-01-01', DataError, "`noise` in .task."),
            ('[task]\nname = "digits-noise"\n[task.noise]', DataError, "`noise` in .task."),
            ('[task]\nname = "digits-noise"\n[task.hosts.a]\nx = 1', DataError, "`hosts`"),
            ('[task]\nname = "digits-noise"\n[sites.a]\nx = 1', OptionError, "no option 'sites'"),
            ('[task]\nname = "digits-noise"\n[site.a]\nx = 1', DataError, r"but got \[site\]"),
            ('[task]\nname = "digits-noise"\nsites.a = 1', OptionError, "no option 'sites'"),
            (
                '[task]\npath = "."\nlabel_column = 3',
                OptionError,
                r"of \[task\] .* text, but",
            ),
            ('[task]\npath = "."\ncolumns = 3', OptionError, "names of columns, but got 3"),
            ("x = " + "[" * 5000, DataError, "cannot be read"),
        ],
    )
    def test_a_file_that_says_something_else_is_refused(self, write, content, error, message):
        with pytest.raises(error, match=message):
            load_task(write(content))

    @pytest.mark.parametrize(
        ("key", "near"),
        [("learning_rate", "lr"), ("batchsize", "batch_size"), ("optimiser", "optimizer")],
    )
    def test_a_run_option_that_there_is_not_is_an_error_with_the_nearest(self, write, key, near):
        file = write(f'[task]\nname = "digits-noise"\n[run]\n{key} = 1\n')
        named = rf"\[run\] of 'task\.toml', but there is no option '{key}'\. Did you mean '{near}'"
        for read in (load_task, possible_targets):
            with pytest.raises(UnknownOptionError, match=named):
                read(file)

    @pytest.mark.parametrize("key", ["method", "rounds", "seed", "engine", "out"])
    def test_what_belongs_to_one_run_is_refused_with_where_to_give_it(self, write, key):
        file = write(f'[task]\nname = "digits-noise"\n[run]\n{key} = 1\n')
        with pytest.raises(UnknownOptionError, match=rf"'task\.toml', but got '{key}'.*--{key}"):
            load_task(file)

    def test_the_options_of_a_run_are_those_of_its_settings(self):
        assert RUN_OPTIONS == NAMES


class TestSources:
    """``sources`` keeps some of the sources of any task; all else stays as it was."""

    HOSPITALS = EXAMPLES / "hospitals" / "hospitals.csv"
    COLUMNS: ClassVar = {"site_column": "hospital", "label_column": "disease"}

    @pytest.mark.parametrize(
        "which", [["Riverside", "hillcrest"], "hillcrest, Riverside", ("HILLCREST", "Riverside")]
    )
    def test_a_list_or_text_with_commas_in_the_order_of_the_task(self, which):
        whole = load_task(self.HOSPITALS, target="Northgate", **self.COLUMNS)
        task = load_task(self.HOSPITALS, target="Northgate", sources=which, **self.COLUMNS)
        assert task.source_names == ("Hillcrest", "Riverside")
        assert torch.equal(task.target.x, whole.target.x)
        assert torch.equal(task.sources[1].x, whole.sources[2].x)
        assert list(task.manifest["sources"]) == ["Hillcrest", "Riverside"]
        assert task.manifest["options"]["sources"] == ["Hillcrest", "Riverside"]
        assert "left out of the sources: 'Lakeside'" in task.notes
        json.loads(to_json(dict(task.manifest)))

    @pytest.mark.parametrize(
        ("name", "target", "which"),
        [
            ("digits-noise", None, ["source 1", "source 3"]),
            ("rbf", None, ["source 1"]),
            ("heart", "va", ["cleveland"]),
            ("colored-mnist", "-90%", ["plus80"]),
            ("fashion-noise", None, "source 9"),
        ],
    )
    def test_of_built_in_tasks(self, tiny, name, target, which):
        task = load_task(name, target=target, n_target=20, sources=which)
        assert len(task.sources) == len([which] if isinstance(which, str) else which)
        assert "sources" not in load_task(name, target=target, n_target=20).manifest["options"]

    def test_of_folders_of_arrays_even_when_their_names_are_numbers(self, tmp_path):
        for site in ("1", "2", "3"):
            np.savez(tmp_path / f"{site}.npz", X=np.full((10, 2), int(site)), y=np.arange(10) % 2)
        for which in ("1,3", [1, 3], ["1", "3"]):
            task = load_task(tmp_path, target="2", sources=which)
            assert task.source_names == ("1", "3")
        assert load_task(tmp_path, target="2", sources=3).source_names == ("3",)
        assert len(load_task(tmp_path, target="2", sources=None).sources) == 2

    def test_of_folders_of_images(self, tmp_path):
        for site in ("sunny", "rain, fog", "night"):
            for label in ("cat", "dog"):
                (tmp_path / site / label).mkdir(parents=True)
                for k in range(4):
                    Image.new("RGB", (8, 8), (k, 0, 0)).save(tmp_path / site / label / f"{k}.png")
        task = load_task(tmp_path, target="night", sources="rain, fog", cache=False)
        assert task.source_names == ("rain, fog",)

    def test_of_a_task_file_which_gives_way_to_the_argument(self, tmp_path):
        file = tmp_path / "task.toml"
        file.write_text('[task]\nname = "digits-noise"\nsources = ["source 2"]\n')
        assert load_task(file).source_names == ("source 2",)
        task = load_task(file, sources="source 1,source 4")
        assert task.source_names == ("source 1", "source 4")
        assert task.manifest["loaded_as"]["options"] == {"sources": "source 1,source 4"}

    @pytest.mark.parametrize(
        ("which", "message"),
        [
            ("Riversid", "got 'Riversid'. Did you mean 'Riverside'.*Sources: 'Hillcrest', 'Lake"),
            (["Riverside", "Northgate"], "other than the target, but got 'Northgate'"),
            (["Riverside", "riverside"], "once, but got 'Riverside' twice"),
            ([], "at least one source"),
            (" , ", "at least one source"),
            (True, "a list of names, but got True"),
            (0.5, "a list of names, but got 0.5"),
        ],
    )
    def test_what_names_no_source_is_refused(self, which, message):
        with pytest.raises(OptionError, match=message):
            load_task(self.HOSPITALS, target="Northgate", sources=which, **self.COLUMNS)

    def test_the_run_remembers_them(self, tmp_path):
        task = load_task("digits-noise", sources="source 2")
        run(task, "fedda", rounds=1, workers=1, out=tmp_path / "run")
        config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
        assert config["sources"] == ["source 2"]
        assert config["loaded_as"]["options"] == {"sources": "source 2"}
