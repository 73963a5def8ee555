"""From ``deploy init`` to a model, with real processes, TLS and registered keys on this machine."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from deploying import give_data, patients
from flower.children import pids_of

import fedbridge as fb
from fedbridge.cli.main import main
from fedbridge.deploy.checking import LinkError, reach_link
from fedbridge.deploy.folders import Deployment, SiteFolder
from fedbridge.flower.programs import Control, SupervisedProcesses, free_ports

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


def start_link(processes, made):
    start(processes, made, "link", "link", made.folder)
    wait_until(lambda: answers(made))


def start_nodes(processes, made):
    for name in made.plan().sites:
        start(processes, made, f"node-{name}", "node", made.site(name).folder)
    wait_until(lambda: main(["deploy", "check", str(made.folder)]) == 0)


def run(made):
    """A run in a new folder; its history."""
    shutil.rmtree(made.run, ignore_errors=True)
    assert main(["deploy", "run", str(made.folder)]) == 0
    history = [json.loads(line) for line in (made.run / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in history] == [1, 2]
    assert [line["failures"] for line in history] == [{}, {}]
    return history


def ready(processes, made):
    """The link runs, every site is described, registered and online."""
    for name in made.plan().sites:
        assert main(["deploy", "check", str(made.site(name).folder)]) == 2
    start_link(processes, made)
    assert main(["deploy", "register", str(made.folder)]) == 0
    start_nodes(processes, made)


def test_a_deployment_from_its_folder_to_its_model(made, processes, tmp_path, capsys):
    ready(processes, made)
    assert main(["deploy", "register", str(made.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["registered"] == []
    history = run(made)
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


def test_a_second_key_under_the_targets_name_is_refused_and_named(
    made, processes, tmp_path, capsys
):
    ready(processes, made)
    impostor = SiteFolder(tmp_path / "impostor")
    shutil.copytree(made.site("T").folder, impostor.folder)
    impostor.key.private.unlink()
    assert main(["deploy", "key", str(impostor.folder)]) == 0
    settings = impostor.settings_file.read_text()
    port = f"port = {impostor.settings().port}"
    impostor.settings_file.write_text(settings.replace(port, f"port = {next(free_ports())}"))
    with Control(made.plan().address, made.certificates.ca) as control:
        number = control.register(impostor.key.public, "T")
        start(processes, made, "impostor", "node", impostor.folder)
        wait_until(lambda: all(node.online for node in control.nodes()))
    capsys.readouterr()
    assert main(["deploy", "check", str(made.folder), "--json"]) == 2
    problems = [
        f for f in json.loads(capsys.readouterr().out)["findings"] if f["state"] == "problem"
    ]
    assert [finding["what"] for finding in problems] == ["T: node"]
    assert f"flwr supernode unregister {number} fedbridge" in problems[0]["said"]

    history = run(made)
    assert any(f"Refused node {number}, registered as 'T'" in note for note in history[0]["notes"])
    assert "another key" in capsys.readouterr().err
    assert main(["deploy", "register", str(made.folder)]) == 2


def test_a_new_authority_takes_over_without_locking_anybody_out(made, processes):
    ready(processes, made)
    assert main(["deploy", "renew", str(made.folder), "--authority"]) == 0
    processes.end("link", patience=30)
    start_link(processes, made)
    wait_until(lambda: main(["deploy", "check", str(made.folder)]) == 0)
    run(made)
    processes.end("node-A", "node-T", patience=30)
    wait_until(lambda: main(["deploy", "check", str(made.folder)]) == 2)
    start_nodes(processes, made)
    assert main(["deploy", "renew", str(made.folder)]) == 0
    processes.end("link", patience=30)
    start_link(processes, made)
    wait_until(lambda: main(["deploy", "check", str(made.folder)]) == 0)
    run(made)
