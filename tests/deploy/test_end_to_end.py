"""From ``deploy init`` to a model, with real processes, TLS and registered keys on this machine."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from deploying import give_data, patients
from flower.children import pids_of

import fedbridge as fb
from fedbridge.cli.main import main
from fedbridge.deploy.checking import LinkError, reach_link
from fedbridge.deploy.folders import Deployment
from fedbridge.flower.programs import SupervisedProcesses, free_ports

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]

PATIENCE = 240.0
OPTIONS = {"model": "linear", "lr": 0.1, "batch_size": 8}


@pytest.fixture
def processes():
    started = SupervisedProcesses()
    yield started
    started.close()


@pytest.fixture
def made(tmp_path):
    folder = tmp_path / "dep"
    port = next(free_ports())
    words = f"--sites A --target T --port {port} --rounds 2 --method fedda --seed 1"
    words += " --model linear --lr 0.1 --batch-size 8"
    assert main(["deploy", "init", *words.split(), "--out", str(folder)]) == 0
    made = Deployment(folder)
    give_data(made)
    settings = {name: made.site(name).settings_file for name in made.plan().sites}
    for (name, file), own in zip(settings.items(), free_ports(), strict=False):
        text = file.read_text().replace(
            f"port = {made.site(name).settings().port}", f"port = {own}"
        )
        memory = made.site(name).folder / "memory"
        file.write_text(f'memory = "{memory}"\n{text}')
    return made


def start(processes, made, name, *words):
    """Start ``fedbridge deploy ...`` as a person would, in a process of its own."""
    command = [str(Path(sys.executable).with_name("fedbridge")), "deploy", *map(str, words)]
    processes.start(name, command, made.folder / f"{name}.out", dict(os.environ))


def wait_until(holds):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if holds():
            return
        time.sleep(0.3)
    raise AssertionError("that took too long")


def answers(made):
    try:
        reach_link(made.plan().address, made.certificates.ca)
    except LinkError:
        return False
    return True


def test_a_deployment_from_its_folder_to_its_model(made, processes, tmp_path, capsys):
    for name in made.plan().sites:
        assert main(["deploy", "check", str(made.site(name).folder)]) == 2
    start(processes, made, "link", "link", made.folder)
    wait_until(lambda: answers(made))
    assert main(["deploy", "register", str(made.folder)]) == 0
    assert main(["deploy", "register", str(made.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["registered"] == []
    for name in made.plan().sites:
        start(processes, made, f"node-{name}", "node", made.site(name).folder)
    wait_until(lambda: main(["deploy", "check", str(made.folder)]) == 0)

    assert main(["deploy", "run", str(made.folder)]) == 0

    history = [json.loads(line) for line in (made.run / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in history] == [1, 2]
    assert [line["failures"] for line in history] == [{}, {}]
    here = tmp_path / "here"
    here.mkdir()
    for name in made.plan().sites:
        patients(name).to_csv(here / f"{name}.csv", index=False)
    local = fb.run(fb.load_task(here, "T", seed=1), "fedda", 2, seed=1, **OPTIONS)
    for line, expected in zip(history, local.history, strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], abs=1e-6)

    processes.end("link", "node-A", "node-T", patience=30)
    assert pids_of(processes) == []
    assert "Traceback" not in (made.coordinator / "link.log").read_text()
