"""examples/own_training_loop: the app as Flower would run it, in one process."""

import sys
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import validate_config
from pretend import Node, PretendGrid

from fedbridge.runs.folder import RunFolder

EXAMPLE = Path(__file__).parents[2] / "examples/own_training_loop"
SETTINGS = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
CONFIG = SETTINGS["tool"]["flwr"]["app"]["config"]


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    yield
    for name in [name for name in sys.modules if name.startswith("own_loop")]:
        del sys.modules[name]


def test_flower_accepts_its_settings(example):
    valid, errors, _ = validate_config(SETTINGS, check_module=True, project_dir=EXAMPLE)
    assert valid, errors


def test_its_nodes_train_in_their_own_loop_and_the_rule_weighs_them(example, tmp_path, capsys):
    from own_loop.client_app import app as client
    from own_loop.rows import SITES
    from own_loop.server_app import main

    nodes = [
        Node(name, client, {"partition-id": number, "num-partitions": 3})
        for number, name in enumerate(SITES)
    ]
    run = {**CONFIG, "rounds": 3, "out": str(tmp_path / "run")}
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run)
    main(PretendGrid(nodes), context)
    assert "accuracy at Northgate: " in capsys.readouterr().out
    history = RunFolder(tmp_path / "run").history()
    assert [line["round"] for line in history] == [1, 2, 3]
    assert all(0 <= beta <= 1 for line in history for beta in line["beta"])
    assert all(line["sigma2"] > 0 for line in history)
    assert not any(line["failures"] for line in history)
