"""The walk-throughs of the examples, command by command, with fewer rounds."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from fedbridge.cli.main import main

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def folder(request, tmp_path, monkeypatch):
    shutil.copytree(EXAMPLES / request.param, tmp_path / request.param)
    monkeypatch.chdir(tmp_path / request.param)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / request.param


def blocks(folder, language):
    return re.findall(rf"```{language}\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)


def commands(folder):
    lines = "".join(blocks(folder, "sh")).replace("\\\n", " ").splitlines()
    for line in lines:
        words = shlex.split(re.sub(r"--rounds \d+", "--rounds 2", line))
        assert words[0] == "fedbridge"
        yield words[1:]


@pytest.mark.parametrize("folder", ["hospitals", "own_model"], indirect=True)
def test_every_command_of_the_walk_through_works(folder, capsys):
    for words in commands(folder):
        assert main([*words, "--debug"]) == 0
    shown = capsys.readouterr().out
    assert "accuracy" in shown
    for page in re.findall(r"report: (.*)", shown):
        assert (folder / page).exists()
    if (folder / "new_patients.csv").exists():
        predictions = pd.read_csv(folder / "predictions.csv")
        assert len(predictions) == len(pd.read_csv(folder / "new_patients.csv"))
        assert set(predictions["prediction"]) <= {"yes", "no"}


@pytest.mark.parametrize("folder", ["own_model"], indirect=True)
def test_the_python_of_the_walk_through_runs(folder, capsys):
    (code,) = blocks(folder, "python")
    exec(compile(code, "README.md", "exec"), {"__name__": "document"})
    assert "TwoLayers" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["hospitals", "own_model"])
def test_links_lead_to_files(name):
    text = (EXAMPLES / name / "README.md").read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (EXAMPLES / name / link).exists(), link
