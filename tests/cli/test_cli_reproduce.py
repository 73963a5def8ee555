"""``fedbridge reproduce``: the list, a table of one's own, and what is said when it cannot be."""

import json

import pytest

from fedbridge.cli import reproduce as command
from fedbridge.cli.main import main
from fedbridge.experiments import catalogue

TINY = """
title = "Digits with noise"
where = "Table 0"
form = "table"
score = "accuracy"
rounds = 3
seeds = 2
columns = [
    { label = "few", task = "digits-noise", options = { n_target = 12 } },
    { label = "more", task = "digits-noise", options = { n_target = 24 } },
]

[quick]
rounds = 1
seeds = 1
columns = ["few"]

[[rows]]
label = "FedGP"
method = "fedgp"
options = { steps = 1 }
paper = [50.0, nan]
"""


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)


@pytest.fixture
def _no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBRIDGE_DATA", str(tmp_path / "nothing"))


@pytest.mark.usefixtures("_no_data")
class TestList:
    def test_a_list_of_objects_with_a_name_each(self, capsys):
        assert main(["reproduce", "--list", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [entry["name"] for entry in found] == list(catalogue.names())
        heart = next(entry for entry in found if entry["name"] == "fed-heart")
        assert heart["title"] == catalogue.load("fed-heart").title
        assert (heart["form"], heart["data"], heart["on_disk"]) == ("table", ["heart"], False)

    def test_what_is_not_on_disk_is_marked_with_the_way_to_get_it(self, capsys):
        assert main(["reproduce", "--list"]) == 0
        shown = capsys.readouterr().out
        assert "fed-heart" in shown
        assert "fedbridge data fetch" in shown
        (line,) = (line for line in shown.splitlines() if "rbf-map" in line)
        assert "generated" in line


def refused(capsys, *words):
    assert main(["reproduce", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


@pytest.mark.usefixtures("_no_data")
class TestRefusals:
    def test_missing_data_end_it_before_any_run(self, capsys, tmp_path):
        assert "run `fedbridge data fetch heart`" in refused(capsys, "fed-heart", "--quick")
        assert not (tmp_path / "runs").exists()

    def test_an_unknown_name_suggests_the_nearest(self, capsys):
        assert "fed-heart" in refused(capsys, "fed-hart")

    def test_no_name_at_all(self, capsys):
        assert "--list" in refused(capsys)

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--protocol", "paperr"], "protocol"),
            (["--rounds", "0"], "`rounds`"),
            (["--seeds", "0"], "how many seeds, from 1"),
            (["--columns", "CIFAR*"], "fits none of: few, more"),
        ],
    )
    def test_what_cannot_be_meant(self, capsys, words, said):
        assert said in refused(capsys, "tiny.toml", *words)


class TestTable:
    def test_the_quick_form_runs_and_tells_ours_theirs_and_the_difference(self, capsys, tmp_path):
        assert main(["reproduce", "tiny.toml", "--quick", "--workers", "1", "--json"]) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        told = json.loads(shown.out)
        assert (told["columns"], told["rounds"], told["seeds"]) == (["few"], 1, [0])
        ((cell,),) = (row["cells"] for row in told["rows"])
        assert cell["paper"] == 50.0
        assert cell["difference"] == cell["ours"] - 50.0
        assert told["out"] == "runs/reproduce/tiny-quick"
        assert (tmp_path / told["report"]).exists()
        assert len(list((tmp_path / "runs/reproduce/cells").iterdir())) == 1

    def test_a_second_time_shows_what_is_there(self, capsys):
        words = ["reproduce", "tiny.toml", "--rounds", "1", "--seeds", "1", "--workers", "1"]
        assert main(words) == 0
        first = capsys.readouterr().out
        assert main(words) == 0
        again = capsys.readouterr().out
        assert again.splitlines()[0] == "2 runs were finished before"
        assert again.splitlines()[1:] == first.splitlines()
        assert "/ 50.0 /" in first

    def test_ctrl_c_says_how_to_go_on(self, capsys, monkeypatch, tmp_path):
        done = []

        def stop(result, index, found):
            finish(result, index, found)
            done.append(index)
            raise KeyboardInterrupt

        from fedbridge.workflows.cells import Board

        finish = Board.finish
        monkeypatch.setattr(Board, "finish", stop)
        words = ["reproduce", "tiny.toml", "--rounds", "1", "--workers", "1"]
        assert main(words) == 130
        told = capsys.readouterr().err
        assert told == f"fedbridge: stopped; to go on: fedbridge {' '.join(words)}\n"
        assert len(list((tmp_path / "runs/reproduce/cells").iterdir())) == len(done) == 1

    def test_a_failed_run_is_named(self, capsys, tmp_path):
        (tmp_path / "broken.toml").write_text(TINY.replace("steps = 1", "lr = 1e30"))
        assert main(["reproduce", "broken.toml", "--quick", "--workers", "1"]) == 1
        assert "few, FedGP, seed 0 failed: " in capsys.readouterr().err

    @pytest.mark.usefixtures("_no_data")
    def test_all_runs_what_has_data_and_names_the_others(self, capsys, monkeypatch):
        known = {"tiny": catalogue.read("tiny", TINY), "heart": catalogue.load("fed-heart")}
        monkeypatch.setattr(catalogue, "names", lambda: tuple(known))
        monkeypatch.setattr(catalogue, "load", known.__getitem__)
        words = ["reproduce", command.ALL, "--quick", "--workers", "1", "--out", "o", "--json"]
        assert main(words) == 0
        shown = capsys.readouterr()
        told = json.loads(shown.out)
        assert [one["out"] for one in told["reproductions"]] == ["o/tiny"]
        assert "fedbridge data fetch heart" in told["left_out"]["heart"]
        assert "heart is left out" in shown.err
