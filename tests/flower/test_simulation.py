"""Flower's simulation under control: it runs an app with its own nodes, and nothing is left."""

import json
from pathlib import Path

import pytest
from flower.children import living, pids_of

from fedbridge.flower.cluster import Simulation

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
