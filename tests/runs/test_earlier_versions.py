"""Folders that version 0.1.0 wrote: they open, predict, go on and are shown.

Only ``report.html`` and ``model-card.md``, which can be made anew, were taken out of them.
"""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save

from fedbridge.cli.main import main

KEPT = Path(__file__).parent / "version_0_1_0"
EXPECTED = json.loads((KEPT / "expected.json").read_text())
COLUMNS = ["--site-column", "hospital", "--label-column", "disease", "--workers", "1"]
TASK = ["patients.csv", "--target", "east", "--model", "linear", *COLUMNS]


@pytest.fixture(autouse=True)
def _in_a_copy(tmp_path, monkeypatch):
    shutil.copytree(KEPT, tmp_path / "kept")
    monkeypatch.chdir(tmp_path / "kept")


def ran(capsys, *words):
    assert main(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def sha256(file):
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def as_then(file):
    """Checksum of a model's file as version 0.1.0 wrote it, which did not name the run."""
    return hashlib.sha256(save(load_file(file), metadata={"format": "1"})).hexdigest()


def history(folder):
    return [json.loads(line) for line in Path(folder, "history.jsonl").read_text().splitlines()]


@pytest.mark.filterwarnings("default:.*no checksums.json")
def test_a_finished_run_predicts_what_it_predicted(capsys):
    assert main(["predict", "run", "new_patients.csv"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == EXPECTED["predictions"]
    assert "has no checksums.json" in shown.err


@pytest.mark.parametrize("folder", ["run", "resumable", "comparison"])
def test_every_folder_gets_its_page_and_is_watched(capsys, folder):
    ran(capsys, "report", folder, "--tables", "tables")
    assert "<html" in Path(folder, "report.html").read_text()
    assert list(Path("tables").glob("*.csv"))
    state = json.loads(ran(capsys, "watch", folder, "--json"))
    assert state["state"] == ("stopped" if folder == "resumable" else "finished")


def test_a_stopped_run_of_a_method_that_is_another_now_says_so(capsys):
    assert [line["round"] for line in history("resumable")] == [1, 2]
    auto = ["run", *TASK, "--method", "auto", "--rounds", "4", "--out", "resumable", "--resume"]
    assert main(auto) == 2
    assert "start again in a new folder" in capsys.readouterr().err
    assert [line["round"] for line in history("resumable")] == [1, 2]


def test_a_comparison_may_grow_by_variants(capsys):
    words = ["--methods", "fedavg[lr=0.1]", "--seeds", "2", "--rounds", "2", "--out", "comparison"]
    words.append("--no-alone")
    told = json.loads(ran(capsys, "compare", *TASK, *words, "--json"))
    assert told["methods"][-1] == "fedavg[lr=0.1]"
    kept = {path.parent.name for path in KEPT.glob("comparison/cells/*/summary.json")}
    assert kept <= {Path(cell["folder"]).name for cell in told["cells"]}, "in the folders of then"
    assert "8 of 8 runs were finished before" in ran(capsys, "compare", *TASK, *words)


def test_a_comparison_goes_on_and_keeps_what_is_finished(capsys):
    before = {path: sha256(path) for path in Path("comparison/cells").rglob("summary.json")}
    words = [
        "--methods",
        "source-only,fedda",
        "--seeds",
        "2",
        "--rounds",
        "2",
        "--out",
        "comparison",
        "--no-alone",
    ]
    shown = ran(capsys, "compare", *TASK, *words)
    # the control that matched `auto` now matches `fedda`
    assert "4 of 8 runs were finished before" in shown
    assert {path: sha256(path) for path in before} == before
    assert Path("comparison/cells/east-fedda-1/summary.json").exists()
