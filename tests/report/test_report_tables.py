"""The tables of runs and comparisons as files."""

import json
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from report_reading import cells, read
from rich.console import Console
from small import blobs, line

import fedbridge as fb
from fedbridge.cli import main
from fedbridge.compare import Setting, compare
from fedbridge.comparison import CellResult, Comparison
from fedbridge.ranking import rank_methods
from fedbridge.report import ReportError, write_tables
from fedbridge.report.comparison_tables import comparison_table, comparison_tables, ranking_table
from fedbridge.report.tables import to_html, to_markdown, to_terminal

QUICK = {"rounds": 2, "workers": 1, "model": "linear", "lr": 0.1, "batch_size": 8}
SUFFIXES = ("csv", "md", "tex")


def comparison_of(scores, seeds=(0, 1, 2)):
    """A comparison in which every seed of a method scores a point more than the one before."""
    cells = [
        CellResult(
            setting,
            method,
            seed,
            summary={"accuracy": score + seed, "score": None, "accuracy_interval": (0, 20)},
        )
        for (setting, method), score in scores.items()
        for seed in seeds
    ]
    settings, methods = (tuple(dict.fromkeys(key[k] for key in scores)) for k in (0, 1))
    return Comparison(settings, methods, tuple(seeds), 10, tuple(cells), "note")


def lines_of(console):
    """The lines of a table in the terminal that hold its rows."""
    return [ln for ln in console.file.getvalue().splitlines() if ln.startswith("│")]


SCORES = {("s", "fedda"): 50, ("s", "fedgp"): 60, ("t", "fedda"): 70, ("t", "fedgp"): 40}


class TestComparison:
    def test_entries_are_mean_and_deviation_with_the_best_marked(self):
        table = comparison_table(comparison_of(SCORES))
        assert [column.title for column in table.columns] == ["method", "s", "t", "average"]
        assert [cell.text for cell in table.rows[0][1:]] == ["51.0 (1.0)", "71.0 (1.0)", "61.0"]
        assert [cell.bold for cell in table.rows[0][1:]] == [False, True, True]

    def test_one_seed_has_the_interval_of_its_test_set(self):
        table = comparison_table(comparison_of(SCORES, seeds=(0,)))
        assert table.rows[0][1].beside == (10,)
        assert table.columns[1].beside == ("s (half of the 95% interval)",)

    def test_all_places_show_the_same(self):
        table = comparison_table(comparison_of(SCORES))
        console = Console(file=StringIO(), width=80)
        console.print(to_terminal(table, styled=False))
        terminal = [ln.split("│")[1:-1] for ln in lines_of(console)]
        document = [ln.strip("| ").split(" | ") for ln in to_markdown(table).splitlines()[2:4]]
        assert [[word.strip() for word in line] for line in terminal] == document
        page = cells(read(to_html(table)))
        assert page == [[word.strip("*") for word in line] for line in document]
        assert page[0] == ["fedda", "51.0 (1.0)", "71.0 (1.0)", "61.0"]

    def test_the_ranking_marks_what_cannot_be_told_from_the_best(self):
        scores = {(f"s{k}", m): 10.0 * ord(m) for k in range(12) for m in "abcd"}
        table = comparison_tables(comparison_of(scores))[1]
        assert [row[0] for row in table.rows] == ["d", "c", "b", "a"]
        assert [row[1].bold for row in table.rows] == [True, True, False, False]
        assert [row[1].value for row in table.rows] == [1, 2, 3, 4]
        assert "| d | **1.00** |" in to_markdown(table)

    def test_there_is_no_ranking_of_too_little(self):
        (only,) = comparison_tables(comparison_of({("s", "a"): 1, ("s", "b"): 2}, seeds=(0,)))
        assert only.name == "comparison"

    def test_methods_that_are_not_ranked_are_named(self):
        table = ranking_table(rank_methods("ab", [[1, 2], [1, 2]], left_out=["mme"]))
        assert table.notes[-1].endswith("everywhere: mme.")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("tables") / "comparison"
    settings = [Setting("a|b & <i>", "digits-noise", options={"n_target": 12})]
    compare(settings, ["fedda"], [0, 1], 1, out, {"steps": 1, "workers": 1})
    return out


def test_the_command_writes_every_table_of_a_comparison(compared, tmp_path, capsys):
    assert main(["report", str(compared), "--tables", str(tmp_path / "t"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    expected = {f"{name}.{s}" for name in ("comparison", "ranking") for s in SUFFIXES}
    assert {file.name for file in (tmp_path / "t").iterdir()} == expected
    assert {Path(file).name for file in told["tables"]} == expected
    read = pd.read_csv(tmp_path / "t" / "comparison.csv", index_col="method")
    content = json.loads((compared / "comparison.json").read_text())
    scores = [c["summary"]["accuracy"] for c in content["cells"] if c["method"] == "fedda"]
    assert read["a|b & <i>"]["fedda"] == pytest.approx(sum(scores) / 2)
    assert r"a\textbar{}b \& \textless{}i" in (tmp_path / "t" / "comparison.tex").read_text()


def test_an_unfinished_comparison_has_tables_too(compared, tmp_path):
    content = json.loads((compared / "comparison.json").read_text())
    for cell in content["cells"]:
        cell["summary"] = None if cell["seed"] == 1 else cell["summary"]
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    assert {file.name for file in write_tables(tmp_path, tmp_path / "t")} == {
        f"comparison.{suffix}" for suffix in SUFFIXES
    }


class TestRun:
    def test_classes(self, tmp_path):
        result = fb.run(blobs(), "fedda", **QUICK, out=tmp_path / "run")
        names = {file.stem for file in write_tables(tmp_path / "run", tmp_path / "t")}
        assert names == {"measures", "sites", "rounds", "classes", "confusion"}
        rounds = pd.read_csv(tmp_path / "t" / "rounds.csv")
        assert rounds["accuracy"].tolist() == [ln["accuracy"] for ln in result.history]
        assert rounds["weight of site 1"].tolist() == [ln["beta"][1] for ln in result.history]
        confusion = pd.read_csv(tmp_path / "t" / "confusion.csv", index_col=0)
        hits = sum(confusion.iloc[k, k] for k in range(3))
        assert 100 * hits / 60 == pytest.approx(result.summary["accuracy_last"])

    def test_values(self, tmp_path):
        fb.run(line(), "fedda", **QUICK, out=tmp_path / "run")
        names = {file.stem for file in write_tables(tmp_path / "run", tmp_path / "t")}
        assert names == {"measures", "sites", "rounds"}

    def test_one_that_was_stopped(self, tmp_path):
        fb.run(blobs(), "target-only", **QUICK, out=tmp_path / "run")
        (tmp_path / "run" / "summary.json").unlink()
        write_tables(tmp_path / "run", tmp_path / "t")
        sites = pd.read_csv(tmp_path / "t" / "sites.csv", index_col="site")
        assert sites["labelled training rows"]["target"] == 12
        assert len(pd.read_csv(tmp_path / "t" / "rounds.csv")) == 2

    def test_another_folder_is_an_error(self, tmp_path):
        with pytest.raises(ReportError, match=r"no config\.toml"):
            write_tables(tmp_path, tmp_path / "t")
