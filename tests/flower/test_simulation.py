"""Flower's simulation under control: it runs an app with its own nodes, and nothing is left."""

import json
from pathlib import Path

import pytest
from flower.children import living, pids_of
from small import same_model

from fedbridge.cli.main import main
from fedbridge.flower.cluster import Simulation
from fedbridge.workflows.predict import load_model

pytest.importorskip("ray")
APP = Path(__file__).parent / "tiny_app"


@pytest.mark.deploy
@pytest.mark.long
def test_an_app_runs_with_simulated_nodes_and_nothing_is_left(tmp_path):
    out = tmp_path / "out.json"
    pids: set[int] = set()
    with Simulation(tmp_path / "simulation", nodes=2) as simulation:
        simulation.start()

        def watch(state) -> None:
            pids.update(pids_of(simulation.processes))

        state = simulation.run_app(APP, {"out": str(out)}, on_tick=watch)
        assert (state.status, state.details) == ("completed", "")
    answers = json.loads(out.read_text())["answers"]
    assert {answer["partition-id"] for answer in answers} == {"0", "1"}
    assert len(pids) > 5  # the link, what it starts, and Ray
    assert living(pids) == []


@pytest.mark.deploy
@pytest.mark.long
def test_a_personal_method_ends_with_the_model_of_one_machine(tmp_path):
    """From the command line; the model that the target makes is brought into the run's folder."""
    rows = {
        s: [f"{k % 7 + n},{k % 3},{'ny'[k % 2]}" for k in range(40)] for n, s in enumerate("AT")
    }
    (tmp_path / "sites").mkdir()
    for name, lines in rows.items():
        (tmp_path / "sites" / f"{name}.csv").write_text("\n".join(["a,b,label", *lines]))
    words = f"run {tmp_path / 'sites'} --target T --method ditto --rounds 2 --model linear"
    for engine in ("local", "flower-sim"):
        assert main([*words.split(), "--engine", engine, "--out", str(tmp_path / engine)]) == 0
    here, there = (load_model(tmp_path / engine).model for engine in ("local", "flower-sim"))
    assert same_model(here, there)
