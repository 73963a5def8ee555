"""Names from data, whatever they hold, are text: in a terminal, a spreadsheet and JSON."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from fedbridge.base.files import StorageError, to_json, write_atomically
from fedbridge.base.text import console, one_line, plain
from fedbridge.cli.main import main

EVIL = ("\x1b[31mred", "\x9b2J", "=HYPERLINK(1)", "\u202egnp")
COLUMNS = ["--target", "a", "--site-column", "site", "--label-column", "ill"]
QUICK = ["--workers", "1", "--model", "linear", "--rounds", "1", "--method", "fedavg"]


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A run on a table whose sites and classes are called as nobody should be."""
    folder = tmp_path_factory.mktemp("evil")
    rows = [["site", "age", "ill"]]
    rows += [[("a", EVIL[0], EVIL[1])[k % 3], str(k * 7 % 31), EVIL[2 + k % 2]] for k in range(60)]
    with (folder / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    (folder / "new.csv").write_text("age\n3\n12\n25\n")
    words = ["run", str(folder / "t.csv"), *COLUMNS, *QUICK, "--out", str(folder / "run")]
    assert main(words) == 0
    return folder


@pytest.fixture
def copy(evil, tmp_path, monkeypatch):
    shutil.copytree(evil, tmp_path / "x")
    monkeypatch.chdir(tmp_path / "x")


def controls(text):
    return [c for c in text if not c.isprintable() and c != "\n"]


@pytest.mark.parametrize(
    "words",
    [
        ["run", "t.csv", *COLUMNS, *QUICK, "--out", "again"],
        ["run", "t.csv", "--target", "x\x1b[2J", *COLUMNS[2:], *QUICK],
        ["predict", "run", "new.csv"],
        ["predict", "run", "new.csv", "--out", "\x1b[31mp.csv"],
        ["predict", "run", "\x1b[31mmissing.csv"],
        ["watch", "run", "--once"],
        ["report", "run", "--tables", "\x1b[31mtables"],
        ["advise", "run"],
    ],
    ids=str,
)
def test_no_command_writes_a_control_sequence(copy, capsys, words):
    main(words)
    shown = capsys.readouterr()
    assert controls(shown.out) == []
    assert controls(shown.err) == []


def test_json_stays_json_and_says_what_the_data_say(copy, capsys):
    assert main(["predict", "run", "new.csv", "--json"]) == 0
    text = capsys.readouterr().out
    assert controls(text) == []
    classes = {row["prediction"] for row in json.loads(text)["predictions"]}
    assert classes <= {EVIL[2], EVIL[3]}


def test_text_that_no_encoding_can_hold_is_an_escape():
    text = to_json({"\udcff": "\x9b\u2028é"})
    assert text == '{"\\udcff": "\\u009b\\u2028é"}'
    assert json.loads(text) == {"\udcff": "\x9b\u2028é"}


def test_predictions_hold_no_formula_and_numbers_stay_numbers(copy):
    assert main(["predict", "run", "new.csv", "--out", "p.csv"]) == 0
    rows = list(csv.reader(io.StringIO(Path("p.csv").read_text())))
    assert "probability_=HYPERLINK(1)" in rows[0]
    assert {row[1] for row in rows[1:]} <= {"'=HYPERLINK(1)", "gnp"}
    assert all(0 <= float(cell) <= 1 for row in rows[1:] for cell in row[2:])


def test_a_console_obeys_nothing_but_its_own_styles():
    shown = console()
    shown.file = io.StringIO()
    table = Table(title=Text("\x1b]0;title\x07"))
    table.add_column("a\x9b2J")
    table.add_row(Text("\x1b[31m"))
    shown.print(table, "[bold]\x1b[2J")
    assert controls(shown.file.getvalue()) == []
    assert "[bold]" in shown.file.getvalue()


def test_lines_stay_in_text_and_go_in_one_line():
    assert plain("a\n\x1bb") == "a\n b"
    assert one_line(" a\n\x1bb") == "a  b"


OTHER_SPELLINGS = ["new.csv", "./new.csv", "run/../new.csv", "soft.csv", "hard.csv", "absolute"]


@pytest.mark.parametrize("out", OTHER_SPELLINGS)
def test_predict_never_writes_over_its_input(copy, capsys, out):
    os.link("new.csv", "hard.csv")
    Path("soft.csv").symlink_to("new.csv")
    before = Path("new.csv").read_bytes()
    where = str(Path("new.csv").resolve()) if out == "absolute" else out
    assert main(["predict", "run", "new.csv", "--out", where]) == 2
    assert "another file than the input" in capsys.readouterr().err
    assert Path("new.csv").read_bytes() == before


@pytest.mark.parametrize("command", [["predict", "run", "new.csv"], ["report", "run"]])
@pytest.mark.parametrize("name", ["model.safetensors", "config.toml", "checksums.json"])
def test_a_run_is_never_written_over(copy, capsys, command, name):
    before = Path("run", name).read_bytes()
    assert main([*command, "--out", f"run/{name}"]) == 2
    assert Path("run", name).read_bytes() == before


def test_a_device_is_never_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        with pytest.raises(StorageError, match="no regular file"):
            write_atomically(tmp_path / name, "x")
    assert (tmp_path / "null").is_symlink()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["null", "pipe"]
