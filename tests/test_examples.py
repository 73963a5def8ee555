"""The walk-throughs of the examples, command by command, with fewer rounds."""

import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

import fedbridge as fb
from fedbridge.cli.main import main

EXAMPLES = Path(__file__).parents[1] / "examples"
WITH_COMMANDS = ["hospitals", "camera_traps", "own_model", "own_rule", "reading_history"]
CASES = [*WITH_COMMANDS, "own_method", "own_training_loop", "flower-hospitals"]
SCREEN = 75
"""Lines of a README that somebody reads to its end."""

pytestmark = pytest.mark.usefixtures("own_code_forgotten")


@pytest.fixture
def folder(request, tmp_path, monkeypatch):
    shutil.copytree(EXAMPLES / request.param, tmp_path / request.param)
    monkeypatch.chdir(tmp_path / request.param)
    monkeypatch.setattr(sys, "path", [str(tmp_path / request.param), *sys.path])
    return tmp_path / request.param


def blocks(folder, language):
    return re.findall(rf"```{language}\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)


def commands(folder):
    """The words of every command, with fewer rounds and one seed."""
    lines = "".join(blocks(folder, "sh")).replace("\\\n", " ").splitlines()
    for line in lines:
        fewer = re.sub(r"--seeds \d+", "--seeds 1", re.sub(r"--rounds \d+", "--rounds 2", line))
        yield shlex.split(fewer)


def run_here(program, words, monkeypatch):
    """Run a command of a walk-through in this process."""
    if program == "python":
        monkeypatch.setattr(sys, "argv", list(words))
        runpy.run_path(words[0], run_name="__main__")
    else:
        assert program == "fedbridge"
        assert main([*words, "--debug"]) == 0


def test_every_case_is_listed_and_has_a_readme_of_one_screen():
    listed = re.findall(r"\]\(([^)]+)\)", (EXAMPLES / "README.md").read_text())
    there = [place.name for place in EXAMPLES.iterdir() if place.name != "README.md"]
    assert sorted(listed) == sorted(name for name in there if not name.startswith("__"))
    assert {*CASES} == {*listed} - {"notebooks", "core_tour.py"}
    for name in CASES:
        assert len((EXAMPLES / name / "README.md").read_text().splitlines()) <= SCREEN, name


@pytest.mark.parametrize("folder", WITH_COMMANDS, indirect=True)
def test_every_command_of_the_walk_through_works(folder, capsys, monkeypatch):
    for program, *words in commands(folder):
        run_here(program, words, monkeypatch)
    shown = capsys.readouterr().out
    assert "accuracy" in shown
    for page in re.findall(r"report: (.*)", shown):
        assert (folder / page).exists()
    if (folder / "new_patients.csv").exists():
        predictions = pd.read_csv(folder / "predictions.csv")
        assert len(predictions) == len(pd.read_csv(folder / "new_patients.csv"))
        assert set(predictions["prediction"]) <= {"yes", "no"}

    for block in blocks(folder, "python"):
        exec(compile(block, "README.md", "exec"), {"__name__": "document"})
    if folder.name == "own_model":
        assert "TwoLayers" in capsys.readouterr().out
    if folder.name == "camera_traps":
        assert len(pd.read_csv(folder / "animals.csv")) == 6
    if folder.name == "reading_history":
        assert "mean trust in every source" in shown
        assert len(pd.read_csv(folder / "rounds.csv")) == 2


@pytest.mark.parametrize("name", [".", *CASES])
def test_links_lead_to_files(name):
    text = (EXAMPLES / name / "README.md").read_text()
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (EXAMPLES / name / link).exists(), link


def test_the_own_rule_leaves_out_who_points_backwards(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES / "own_rule")
    from my_rules import agreeing

    target = torch.tensor([1.0, 0.0])
    sources = torch.tensor([[3.0, 1.0], [-1.0, 0.0]])
    found = fb.aggregate(agreeing, target, sources)
    assert found.tolist() == [2.0, 0.5]
    assert fb.aggregate(agreeing, target, -sources[:1]).tolist() == target.tolist()
    del sys.modules["my_rules"]
