"""The example app: its files belong together, and its nodes read what a local run reads."""

import re
import runpy
import shlex
import shutil
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import validate_config

from fedbridge.cli.main import build_parser
from fedbridge.data.load import load_task
from fedbridge.data.tables.schema import Schema
from fedbridge.flower.strategy import FedBridgeStrategy

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-hospitals"
SETTINGS = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
CONFIG = SETTINGS["tool"]["flwr"]["app"]["config"]


@pytest.fixture
def app(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)


def context(**node: object) -> Context:
    run = {**CONFIG, "data": str(EXAMPLE / "data")}
    return Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=run)


def test_flower_accepts_its_settings(app):
    valid, errors, _ = validate_config(SETTINGS, check_module=True, project_dir=EXAMPLE)
    assert valid, errors


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_neither_data_nor_results_are_part_of_the_app_that_travels(tmp_path):
    copy = tmp_path / "flower-hospitals"
    shutil.copytree(EXAMPLE, copy)
    (copy / "run").mkdir()
    (copy / "run" / "manifest.json").write_text("{}")
    with zipfile.ZipFile(BytesIO(build_fab_from_disk(copy))) as bundle:
        folders = {name.split("/")[0] for name in bundle.namelist()}
    assert "flower_hospitals" in folders
    assert not {"data", "run"} & folders


@pytest.mark.parametrize("script", ["make_departments", "agree"])
def test_its_files_are_what_its_scripts_write(script, tmp_path, capsys):
    copy = tmp_path / "app"
    shutil.copytree(EXAMPLE, copy)
    runpy.run_path(str(copy / f"{script}.py"), run_name="__main__")
    for file in (*copy.glob("data/*.csv"), copy / "flower_hospitals" / "schema.json"):
        assert file.read_bytes() == (EXAMPLE / file.relative_to(copy)).read_bytes()


def test_simulated_nodes_read_the_rows_of_a_local_run(app):
    from flower_hospitals.task import load_department

    task = load_task(
        EXAMPLE / "data", "Westend", CONFIG["seed"], label_column="sepsis", n_target=20
    )
    for number, expected in enumerate((*task.sources, task.target)):
        site = load_department(context(**{"partition-id": number, "num-partitions": 4}))
        assert site.name == expected.name
        assert site.train.x.equal(expected.x)
        assert site.train.y.equal(expected.y)


def test_a_real_node_reads_the_file_that_it_is_told(app, tmp_path):
    from flower_hospitals.task import load_department

    file = tmp_path / "own.csv"
    shutil.copy(EXAMPLE / "data" / "Meadow.csv", file)
    site = load_department(context(site="Meadow", data=str(file)))
    assert (site.name, site.role, len(site.train)) == ("Meadow", "source", 300)


def test_the_coordinator_runs_the_strategy_of_its_settings(app, monkeypatch):
    from flower_hospitals.server_app import main

    started = {}

    def start(strategy, grid, num_rounds):
        started.update(strategy=strategy, rounds=num_rounds)

    monkeypatch.setattr(FedBridgeStrategy, "start", start)
    main(None, context())
    strategy = started["strategy"]
    assert (strategy.rule, strategy.target, started["rounds"]) == ("auto", "Westend", 10)
    assert strategy.sites == ["Harbour", "Hillside", "Meadow"]
    assert strategy.out is None


def test_commands_and_links_of_the_walk_through_are_right():
    text = (EXAMPLE / "README.md").read_text()
    lines = (
        "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ").splitlines()
    )
    ours = [shlex.split(line)[1:] for line in lines if line.startswith("fedbridge ")]
    assert len(ours) == 2
    for words in ours:
        build_parser().parse_args(words)
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (EXAMPLE / link).exists(), link


def test_the_schema_is_of_this_version():
    schema = Schema.from_json((EXAMPLE / "flower_hospitals" / "schema.json").read_text())
    assert schema.class_names == ("no", "yes")
