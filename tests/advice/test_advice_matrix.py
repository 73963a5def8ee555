"""Every site the target in turn: who gains from whom."""

import json
from io import StringIO

import pandas as pd
import pytest
import torch
from rich.console import Console
from small import blobs

import fedbridge as fb
from fedbridge.advice import batches, predict
from fedbridge.advice.matrix import AdviceMatrix, Turn
from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.base.text import unbroken
from fedbridge.cli.advise import show_matrix
from fedbridge.cli.main import main
from fedbridge.report.tables import to_terminal

WORDS = ["--after", "1", "--lr", "0.1", "--batch-size", "8", "--workers", "1", "--model", "linear"]
OPTIONS = {"after": 1, "lr": 0.1, "batch_size": 8, "workers": 1, "model": "linear"}


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr(predict, "SIMULATED_RESAMPLES", 6)
    monkeypatch.setattr(batches, "RESAMPLES", 40)


@pytest.fixture
def csv(tmp_path):
    """Three sites; the labels of C say the opposite."""
    chooser = torch.Generator().manual_seed(0)
    parts = []
    for name in ("A", "B", "C"):
        x = torch.randn(40, 2, generator=chooser)
        y = (x.sum(1) > 0) ^ (name == "C")
        parts.append(pd.DataFrame({"site": name, "u": x[:, 0], "v": x[:, 1], "label": y.int()}))
    path = tmp_path / "sites.csv"
    pd.concat(parts).to_csv(path, index=False)
    return path


def test_every_turn_is_the_advice_of_that_target(csv, tmp_path, capsys):
    out = tmp_path / "first"
    words = ["advise", str(csv), "--matrix", "--json", "--out", str(out), *WORDS]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [turn["target"] for turn in found["turns"]] == ["A", "B", "C"]
    for turn in found["turns"]:
        alone = fb.advise(fb.load_task(csv, turn["target"]), **OPTIONS).to_json()
        assert turn["advice"] == json.loads(json.dumps(alone))
    assert json.loads((out / "matrix.json").read_text())["turns"] == found["turns"]
    shares = pd.read_csv(out / "matrix.csv", index_col="target")
    assert list(shares.columns) == ["A", "B", "C"]
    assert shares.isna().to_numpy().diagonal().all()
    gains = pd.read_csv(out / "gains.csv", index_col="target")
    worth = found["turns"][0]["advice"]["worth"]
    assert gains.loc["A", "gain"] == pytest.approx(worth["gain"] / worth["alone"])
    assert gains.loc["A", "gain low"] < gains.loc["A", "gain"] < gains.loc["A", "gain high"]
    pairs = pd.read_csv(out / "pairs.csv")
    assert len(pairs) == 6
    assert "Who helps whom" in (out / "report.html").read_text()


def test_labels_are_as_many_as_asked_for(csv, capsys):
    assert main(["advise", str(csv), "--matrix", "--labels", "12", "--json", *WORDS]) == 0
    turns = json.loads(capsys.readouterr().out)["turns"]
    assert {turn["advice"]["samples"] for turn in turns} == {12}


def test_some_targets_and_progress(csv):
    told = []
    found = fb.advise_matrix(
        csv, ["C", "A"], progress=lambda share, text: told.append((share, text)), **OPTIONS
    )
    assert [turn.target for turn in found.turns] == ["C", "A"]
    assert [share for share, _ in told] == sorted(share for share, _ in told)
    assert told[-1][0] == pytest.approx(1.0)
    assert any("A, 2 of 2: round 1 of 1" in text for _, text in told)


def test_a_site_that_cannot_be_measured_is_named(csv):
    table = pd.read_csv(csv)
    table.loc[table.site == "C", "label"] = 1  # one class only, and no target can be made of it
    table[(table.site != "C") | (table.index == table.index[-1])].to_csv(csv, index=False)
    found = fb.advise_matrix(csv, **OPTIONS)
    last = found.turns[-1]
    assert (last.target, last.advice) == ("C", None)
    assert f"C was not measured: {last.why}." in str(found)


def test_what_cannot_be_is_refused(csv, capsys):
    for words, said in (
        (["--target", "A"], "--targets"),
        (["--targets", "A,Q"], "Q"),
        (["--labels", "5", "--n-target", "6"], "got both"),
        (["--out", str(csv)], "is a file"),
    ):
        assert main(["advise", str(csv), "--matrix", *words]) == 2
        assert said in capsys.readouterr().err
    assert main(["advise", str(csv), "--target", "A", "--targets", "B"]) == 2
    with pytest.raises(OptionError, match="several sites that can be the target"):
        fb.advise_matrix("digits-none")
    with pytest.raises(FedbridgeError):
        fb.advise_matrix(csv, learning=1)


def matrix():
    task = blobs(target_rows=24)
    advice = fb.advise(task, **OPTIONS)
    return AdviceMatrix("x", 0, (Turn("target", advice), Turn("site 1", None, "it said no")))


def test_who_was_not_measured_has_a_row_and_a_reason():
    found = matrix()
    assert found.sources == ["target", "site 1", "site 0", "site 2"]
    assert [row[2] for row in found.gains().rows][1] == "not measured"
    assert str(found).endswith("site 1 was not measured: it said no.")


@pytest.mark.parametrize("width", [30, 60, 200])
def test_any_terminal_shows_every_name_whole(width):
    found = matrix()
    written = Console(file=StringIO(), width=width)
    for table in (found.helpers(), found.gains()):
        written.print(unbroken(to_terminal(table), width))
    written.print(show_matrix(found).renderables[-1])
    shown = written.file.getvalue()
    for name in ("target", "site 0", "site 1", "site 2", "not measured"):
        assert name in " ".join(shown.split())
