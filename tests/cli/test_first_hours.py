"""The first hours of a data manager: messy files, run, predict, compare, advise, the next day."""

import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedbridge as fb
from fedbridge.base.text import console
from fedbridge.cli.compare import TimeLeft
from fedbridge.cli.main import main
from fedbridge.cli.watch import state_line
from fedbridge.report.tables import Column, Table, to_terminal
from fedbridge.runs.record import read_run
from fedbridge.workflows.watch import look

OPTIONS = shlex.split(
    "--site-column Klinik --label-column Krank --target Klein --decimal , "
    "--label-map ja=1,nein=0 --workers 1"
)
SITES = {"Nord": ("ja", "nein"), "Süd": ("1", "0"), "West": ("Ja", "Nein"), "Klein": ("ja", "nein")}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Semicolons, decimal commas, a byte-order mark, an identifier, labels of three kinds."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    tables = []
    for site, (yes, no) in SITES.items():
        sick = generator.random(40) < 0.5
        age = 50 + 12 * sick * (-1 if site == "West" else 1) + generator.normal(size=40) * 5
        table = pd.DataFrame({"Klinik": site, "Alter": np.round(age, 1)})
        tables.append(
            table.assign(Sex=generator.choice(["m", "w"], 40), Krank=np.where(sick, yes, no))
        )
    table = pd.concat(tables).sample(frac=1, random_state=0, ignore_index=True)
    table.insert(0, "Patient", generator.permutation(range(1000, 1160)))
    table.loc[3, "Alter"] = np.nan
    form = {"sep": ";", "decimal": ",", "index": False, "encoding": "utf-8-sig"}
    table.to_csv("kliniken.csv", **form)
    table.drop(columns=["Krank", "Klinik"]).head(6).to_csv("neu.csv", **form)
    return table


def told(capsys, *words, status=0):
    assert main(list(words)) == status
    shown = capsys.readouterr()
    return shown.out if status == 0 else shown.err


def test_from_the_first_error_to_the_second_day(capsys, files):
    first = ["run", "kliniken.csv", "--target", "Klein"]
    assert "--site-column" in told(capsys, *first, status=2)
    first += ["--site-column", "Klinik"]
    assert "--label-column" in told(capsys, *first, status=2)
    first += ["--label-column", "Krank"]
    assert "--decimal ," in told(capsys, *first, status=2)
    first += ["--decimal", ","]
    assert "--label-map ja=1,nein=0" in told(capsys, *first, status=2)
    shown = told(capsys, "run", "kliniken.csv", *OPTIONS, "--rounds", "3", "--out", "r")
    assert "'Patient'" in shown
    assert "standardised" not in shown
    assert re.search(r"\d+ more notes on data and training: --verbose shows all", shown)
    lines = shown.splitlines()
    assert any(line.startswith("Alone or joined: loss on your own labels") for line in lines)
    assert any(line.startswith("Trusted: ") and "West" in line for line in lines)
    next_command = next(line for line in lines if line.startswith("Next: fedbridge compare"))

    predicted = told(capsys, "predict", "r", "neu.csv")
    table = pd.read_csv(io.StringIO(predicted))
    assert list(table) == ["row", "Patient", "prediction", "probability_0", "probability_1"]
    assert table.Patient.tolist() == files.Patient.head(6).tolist()

    words = shlex.split(next_command.removeprefix("Next: fedbridge "))
    assert words[words.index("--seeds") + 1] == "5"
    words[words.index("--seeds") + 1] = "1"
    compared = told(capsys, *words, "--no-alone", "--out", "c")
    assert "auto" in compared
    again = told(capsys, *words, "--no-alone", "--out", "c", "--resume")
    assert "4 of 4 runs were finished before" in again

    more = ["run", "kliniken.csv", *OPTIONS, "--rounds", "4", "--out", "r", "--resume", "--verbose"]
    assert "standardised" in told(capsys, *more)
    assert len(read_run(Path("r")).history) == 4

    advice = told(capsys, "advise", "kliniken.csv", *OPTIONS, "--after", "2", "--quiet")
    assert advice.index("Partners of Klein") < advice.index("Evidence: ")
    assert "Recommended: `" in advice.partition("Evidence: ")[2]


def test_sites_are_chosen_and_the_positive_class_too(capsys):
    words = [*OPTIONS, "--rounds", "1", "--method", "fedda", "--positive", "0"]
    found = json.loads(
        told(capsys, "run", "kliniken.csv", *words, "--exclude-sites", "West", "--json")
    )
    assert found["sources"] == ["Nord", "Süd"]
    record = read_run(Path(found["out"]))
    assert (record.class_names, record.positive) == (["0", "1"], 0)
    words += ["--sources", "Nord,West", "--out", "two"]
    assert json.loads(told(capsys, "run", "kliniken.csv", *words, "--json"))["sources"] == [
        "Nord",
        "West",
    ]
    compared = ["compare", "kliniken.csv", *words[:-2], "--methods", "fedda", "--seeds", "1"]
    compared.remove("--method")
    compared.remove("fedda")
    assert "fedda" in told(capsys, *compared, "--no-alone")


def test_run_and_advice_have_the_same_words_for_a_partner(capsys):
    told(capsys, "run", "kliniken.csv", *OPTIONS, "--rounds", "8", "--out", "r", "--quiet")
    ran = told(capsys, "run", "kliniken.csv", *OPTIONS, "--rounds", "8", "--out", "r", "--resume")
    trusted = next(line for line in ran.splitlines() if line.startswith("Trusted: "))
    advice = " ".join(told(capsys, "advise", "r").split())
    for words in re.findall(r"\(([^)]+)\)", trusted):
        assert words in advice
    assert "your own rows" in trusted


def test_a_method_without_cross_validation_says_so(capsys):
    words = ["run", "kliniken.csv", *OPTIONS, "--rounds", "1", "--method", "ditto"]
    shown = told(capsys, *words)
    assert "ditto does not cross-validate" in shown
    assert "weighs no partner" in shown


def test_a_large_test_set_leads_to_predictions(capsys):
    shown = told(capsys, "run", "digits-noise", "--rounds", "1", "--method", "fedda", "--out", "d")
    assert "Next: fedbridge predict d NEW_DATA" in shown


@pytest.mark.usefixtures("own_code_forgotten")
def test_methods_of_ones_own_on_the_command_line(capsys, tmp_path):
    (tmp_path / "stays_here.py").write_text(
        "from fedbridge.methods import Method, Record\n\n\n"
        "class StaysHere(Method):\n    def run_round(self, round):\n        return Record()\n"
    )
    words = ["--rounds", "1", "--workers", "1"]
    plugin = ["--plugin", "stays_here.py"]
    told(capsys, "run", "digits-noise", "--method", "stays-here", *plugin, *words, "--out", "p")
    shown = told(capsys, "run", "digits-noise", "--method", "stays_here:StaysHere", *words)
    assert "digits-noise: target by stays-here" in shown
    found = told(
        capsys,
        *("compare", "digits-noise", "--methods", "stays-here,fedda", "--seeds", "1"),
        *("--no-alone", *plugin, *words),
    )
    assert "stays-here" in found


@pytest.mark.parametrize("width", [120, 60, 30])
def test_tables_never_break_words(width):
    words = ["target-only-matched", "extraordinarily", "12.5 (3.4)", "hungarian"]
    table = Table(
        "t", "A table", tuple(map(Column, ("method", "remark", "x", "y"))), (tuple(words),)
    )
    screen = console(width=width)
    with screen.capture() as captured:
        screen.print(to_terminal(table, titled=True))
    shown = captured.get()
    assert all(word in shown for text in words for word in text.split())
    assert max(map(len, shown.splitlines())) <= width
    assert ("┃" in shown) == (width >= 80)


def test_a_comparison_and_watch_tell_the_same_time(tmp_path):
    seen = []

    def update(done, cells, name):
        left = TimeLeft(tmp_path / "c")
        watched = look(tmp_path / "c")
        if watched.seconds_left is not None:
            seen.append((left._look(), state_line(watched)))

    fb.compare(
        *("digits-noise", ["fedda"], 2, 3, tmp_path / "c"), alone=False, workers=1, progress=update
    )
    assert seen
    assert any(text and line.endswith(text) for text, line in seen)
