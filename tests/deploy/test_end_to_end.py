"""From ``deploy init`` to a model, with real processes, TLS and registered keys on this machine."""

import json
import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
from deploying import give_data, patients
from flower.children import pids_of
from messy import SETTINGS, agreed, as_spelled, write_messy
from pictures import write_images
from small import same_model, same_numbers

import fedbridge as fb
from fedbridge.cli.main import main
from fedbridge.deploy.approval import hash_of_app
from fedbridge.deploy.folders import Deployment, SiteFolder
from fedbridge.deploy.reaching import LinkError, reach_link
from fedbridge.deploy.site_log import SiteLog
from fedbridge.flower.programs import Control, SupervisedProcesses, free_ports
from fedbridge.runs.folder import RunFolder
from fedbridge.workflows.predict import load_model, predict

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
        assert main(["deploy", "check", str(made.site(name).folder)]) == 0
    start_link(processes, made)
    assert main(["deploy", "register", str(made.folder)]) == 0
    start_nodes(processes, made)


def logged(made, name):
    return SiteLog(made.site(name).log).verify()


def test_sites_take_part_in_approved_runs_only_and_write_everything_down(made, processes, capsys):
    """And a source protects its rows one by one, up to its own budget."""
    file = made.site("A").settings_file
    file.write_text(f"record-epsilon = 5.0\nrecord-rounds = 2\n{file.read_text()}")
    ready(processes, made)
    known = hash_of_app(made.app)
    capsys.readouterr()
    assert main(["deploy", "check", str(made.folder)]) == 0
    assert known in capsys.readouterr().out.replace("\n", "")
    file.write_text(f'approve = ["{known}"]\n{file.read_text()}')
    history = run(made)
    assert 0 < history[0]["epsilon"]["A"] < history[1]["epsilon"]["A"] <= 5.0
    for name in made.plan().sites:
        lines = logged(made, name)
        assert {line["app"] for line in lines} == {known}
        assert {"query", "train"} <= {line["kind"] for line in lines}
        assert all(line["answer"] == "sent" and line["bytes"] > 0 for line in lines)
    trained = [line for line in logged(made, "A") if line["kind"] == "train"]
    assert [line["round"] for line in trained] == [1, 2]
    assert [line["epsilon"] for line in trained] == [one["epsilon"]["A"] for one in history]
    file.write_text(file.read_text().replace(known, "0" * 64))
    shutil.rmtree(made.run)
    capsys.readouterr()
    assert main(["deploy", "run", str(made.folder)]) == 1
    said = capsys.readouterr().err
    assert "A cannot take part: Expected a run that this site has approved" in said
    assert "correct that at the site and run again" in said
    assert f"the hash {known}" in logged(made, "A")[-1]["answer"]
    assert logged(made, "A")[-1]["bytes"] == 0


def use_the_models(made, local, csv, capsys):
    """What the runbook's last section says, at the target and at the coordinator."""
    words = made.runbook.read_text().rpartition("## Use the model")[2]
    (command,) = re.findall(r"^fedbridge predict .*$", words, re.MULTILINE)
    out = made.folder / "predictions.csv"
    typed = shlex.split(command.replace("NEW.csv", str(csv)).replace("predictions.csv", str(out)))
    capsys.readouterr()
    assert main(typed[1:]) == 0
    found = pd.read_csv(out)
    assert len(found) == len(pd.read_csv(csv))
    own = RunFolder(made.site("T").run)
    own.verify()
    assert same_model(load_model(own.path).model, local.model)
    assert {"model-card.md", "report.html", "preprocessing.json", "checksums.json"} <= {
        file.name for file in own.path.iterdir()
    }
    with pytest.warns(UserWarning, match="give all rows of a site at once"):
        assert len(predict(made.run, csv).rows) == len(found)


def messy(name):
    """Tables as people have them: another order, another format of numbers, an empty column."""
    table = patients(name).assign(Thal=["x", "Y"] * 20, weight=np.arange(40) % 13 / 4)
    return table.assign(Thal=None) if name == "B" else table[table.columns[::-1]]


def test_messy_files_from_the_first_check_to_the_second_day(tmp_path, processes, capsys):
    """A plan that is changed by what the checks say; later a site whose file has changed."""
    made = Deployment(tmp_path / "dep")
    words = f"--sites A,B --target T --port {next(free_ports())} --rounds 1 --wait 60"
    words += " --model linear --lr 0.1 --batch-size 8"
    assert main(["deploy", "init", *words.split(), "--out", str(made.folder)]) == 0
    give_data(made, B=messy("B"), T=messy("T"))
    sites = [made.site(name) for name in ("A", "B", "T")]
    csv = sites[0].folder / "patients.csv"
    messy("A").to_csv(csv, index=False, sep=";", decimal=",")
    for site, port in zip(sites, free_ports(), strict=False):
        lines = site.settings_file.read_text()
        lines = lines.replace(f"port = {site.settings().port}", f"port = {port}")
        site.settings_file.write_text(f'memory = "{site.folder / "memory"}"\n{lines}')
    assert [main(["deploy", "check", str(site.folder)]) for site in sites] == [2, 0, 0]
    assert 'decimal = ","' in (said := " ".join(capsys.readouterr().out.split()))
    assert "no values in 'Thal'" in said
    with sites[0].settings_file.open("a") as file:
        file.write('decimal = ","\n')
    assert main(["deploy", "check", str(sites[0].folder)]) == 0
    assert main(["deploy", "check", str(made.folder)]) == 2
    command = capsys.readouterr().out.splitlines()[-1]
    assert command.startswith("fedbridge deploy change ")
    assert main(shlex.split(command)[1:]) == 0
    assert set(made.plan().reading.columns) == {"age", "sex", "weight"}

    start_link(processes, made)
    capsys.readouterr()
    assert main(["deploy", "node", str(sites[0].folder)]) == 2
    assert "registered at the link, but it is not" in capsys.readouterr().err
    assert main(["deploy", "register", str(made.folder)]) == 0
    start_nodes(processes, made)
    capsys.readouterr()
    assert main(["deploy", "run", str(made.folder), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["model"] == str(sites[2].run)
    assert "here: nobody yet; missing: T, A, B (0 of 60 seconds)" in told.err
    new = sites[2].folder / "patients.csv"
    assert main(["predict", str(sites[2].run), str(new)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 41
    assert main(["predict", str(made.run), str(new)]) == 2
    assert "is at its target" in capsys.readouterr().err

    patients("B", weight=1, sex=None).to_csv(sites[1].folder / "patients.csv", index=False)
    assert main(["deploy", "change", str(made.folder), "--method", "fedavg"]) == 0
    capsys.readouterr()
    assert main(["deploy", "run", str(made.folder)]) == 0
    told = capsys.readouterr()
    reason = "cannot take part: a column has no values at the site"
    assert f"B {reason}" in told.err
    assert f"took no part: B ({reason}" in told.out
    summary = json.loads((made.run / "summary.json").read_text())
    assert summary["n_sources"] == {"A": 40, "B": 0}
    assert RunFolder(sites[2].run).config()["method"] == "fedavg"
    assert "Expected values in column 'sex'" in (sites[1].folder / "node.log").read_text()


def test_every_site_maps_its_own_file_and_the_target_predicts_in_its_own_spelling(
    tmp_path, processes, capsys
):
    """The model is that of one machine, whose task file says the same of the same files."""
    made = Deployment(tmp_path / "dep")
    words = f"--sites A,B,D --target T --port {next(free_ports())} --rounds 1 --method fedda"
    words += " --impute chol --model linear --lr 0.1 --batch-size 8"
    assert main(["deploy", "init", *words.split(), "--out", str(made.folder)]) == 0
    files = write_messy(tmp_path / "messy")
    for name, port in zip(made.plan().sites, free_ports(), strict=False):
        site = made.site(name)
        text = site.settings_file.read_text().replace(
            f"port = {site.settings().port}", f"port = {port}"
        )
        text = text.replace('data = ""', f'data = "{files / name}.csv"')
        own = tomli_w.dumps(SETTINGS.get(name, {}))
        site.settings_file.write_text(f'memory = "{site.folder / "memory"}"\n{text}\n{own}')
    ready(processes, made)
    assert main(["deploy", "run", str(made.folder)]) == 0
    task = tmp_path / "task.toml"
    content = {"task": {"path": "messy", "target": "T", "impute": "chol"}, "sites": SETTINGS}
    task.write_text(tomli_w.dumps(content))
    local = fb.run(task, method="fedda", rounds=1, **OPTIONS, out=tmp_path / "run")
    own = made.site("T").run
    assert same_model(load_model(own).model, local.model)
    table, how = as_spelled("T", agreed("new").drop(columns="label"))
    table.to_csv(tmp_path / "new.csv", index=False, **how)
    capsys.readouterr()
    said = [main(["predict", str(d), str(tmp_path / "new.csv")]) for d in (own, tmp_path / "run")]
    lines = capsys.readouterr().out.splitlines()
    assert said == [0, 0]
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]


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
    use_the_models(made, local, here / "T.csv", capsys)

    assert main(["deploy", "change", str(made.folder), "--method", "ditto"]) == 0
    run(made)
    own = made.site("T").run
    personal = fb.run(fb.load_task(here, "T", seed=1), "ditto", 2, seed=1, **OPTIONS)
    assert same_model(load_model(own).model, personal.model), "it is at the target"
    assert not same_model(load_model(made.run).model, personal.model), "and nowhere else"
    capsys.readouterr()
    assert main(["predict", str(own), str(here / "T.csv")]) == 0
    assert main(["predict", str(made.run), str(here / "T.csv")]) == 2
    assert "is at its target" in capsys.readouterr().err

    processes.end("link", "node-A", "node-T", patience=30)
    assert pids_of(processes) == []
    assert "Traceback" not in (made.coordinator / "link.log").read_text()


@pytest.mark.parametrize("form", ["images", "npz"])
def test_sites_with_images_or_arrays_from_init_to_a_prediction(form, tmp_path, processes, capsys):
    made, data = Deployment(tmp_path / "dep"), tmp_path / "data"
    words = f"--sites A --target T --port {next(free_ports())} --rounds 1 --method fedda"
    words += f" --lr 0.1 --batch-size 8 --model linear --form {form}"
    options = {}
    if form == "images":
        words, options = f"{words} --image-size 8", {"image_size": 8}
        write_images(data, ("A", "T"), ("cat", "dog"), 12)
        new = data / "T" / "dog"
    else:
        data.mkdir()
        for name in ("A", "T"):
            y = np.arange(24) % 2
            np.savez(data / f"{name}.npz", X=np.eye(3)[y] + ord(name) % 2, y=y)
        new = data / "T.npz"
    assert main(["deploy", "init", *words.split(), "--out", str(made.folder)]) == 0
    for name, port in zip(made.plan().sites, free_ports(), strict=False):
        site = made.site(name)
        own = data / name if form == "images" else data / f"{name}.npz"
        text = site.settings_file.read_text().replace('data = ""', f'data = "{own}"')
        text = text.replace(f"port = {site.settings().port}", f"port = {port}")
        site.settings_file.write_text(f'memory = "{site.folder / "memory"}"\n{text}')
    ready(processes, made)
    assert main(["deploy", "run", str(made.folder)]) == 0
    task = fb.load_task(data, "T", **options)
    local = fb.run(task, "fedda", 1, **OPTIONS)
    assert same_model(load_model(made.site("T").run).model, local.model)
    capsys.readouterr()
    assert main(["predict", str(made.site("T").run), str(new), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert len(found) == (12 if form == "images" else 24)
    assert len(predict(made.run, new).rows) == len(found)


def own_port(site, port):
    text = site.settings_file.read_text()
    text = text.replace(f"port = {site.settings().port}", f"port = {port}")
    site.settings_file.write_text(f'memory = "{site.folder / "memory"}"\n{text}')


def rounds_of(made):
    return RunFolder(made.run).history() if (made.run / "history.jsonl").exists() else []


def test_a_source_joins_a_run_that_goes_on_and_another_leaves(made, processes):
    folder = str(made.folder)
    assert main(["deploy", "change", folder, "--rounds", "8"]) == 0
    ready(processes, made)
    start(processes, made, "run", "run", made.folder)
    wait_until(lambda: rounds_of(made))
    assert main(["deploy", "change", folder, "--join", "C"]) == 0
    site = made.site("C")
    own_port(site, next(free_ports()))
    patients("C").to_csv(site.folder / "patients.csv", index=False)
    text = site.settings_file.read_text()
    data = f'data = "{site.folder / "patients.csv"}"'
    site.settings_file.write_text(text.replace('data = ""', data))
    assert main(["deploy", "check", str(site.folder)]) == 0
    assert main(["deploy", "register", folder]) == 0
    start(processes, made, "node-C", "node", site.folder)
    wait_until(lambda: main(["deploy", "check", folder]) == 0)
    wait_until(lambda: any("C joins" in str(line["notes"]) for line in rounds_of(made)))
    assert main(["deploy", "change", folder, "--leave", "A", "--why", "a new contract"]) == 0
    wait_until(lambda: (made.run / "summary.json").exists())
    history = rounds_of(made)
    assert [line["round"] for line in history] == [*range(1, 9)]
    first = RunFolder(made.run).config()["joined"]["C"]
    assert [line["beta"][1] is not None for line in history[first:]] == [True] * (8 - first)
    last = history[-1]
    assert last["failures"] == {"A": "has left for good: a new contract"}
    assert [*RunFolder(made.site("T").run).config()["joined"]] == ["C"]


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


def test_advice_of_every_site_is_that_of_one_machine_and_leaves_no_model(
    made, processes, tmp_path, capsys
):
    """A and T are the target in turn, since both allow it, and approve just that."""
    for name in made.plan().sites:
        file = made.site(name).settings_file
        file.write_text(file.read_text().replace("matrix = false", "matrix = true"))
    ready(processes, made)
    capsys.readouterr()
    words = ["deploy", "advise", str(made.folder), "--matrix", "--after", "1", "--json"]
    assert main([*words, "--dry-run"]) == 0
    hashes = json.loads(capsys.readouterr().out)["approve"]
    for name in made.plan().sites:
        file = made.site(name).settings_file
        file.write_text(f"approve = {json.dumps(hashes)}\n{file.read_text()}")
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    here = tmp_path / "here"
    here.mkdir()
    for name in made.plan().sites:
        patients(name).to_csv(here / f"{name}.csv", index=False)
    local = fb.advise_matrix(here, seed=1, after=1, workers=1, **OPTIONS).to_json()
    assert [turn["target"] for turn in found["turns"]] == ["A", "T"]
    for ours, theirs in zip(found["turns"], local["turns"], strict=True):
        same_numbers({**ours["advice"], "task": "here"}, json.loads(json.dumps(theirs["advice"])))
    assert not made.site("T").run.exists()
    assert not made.site("A").run.exists()
    assert main([*words, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out) == found
