"""One table for every place, read back by other readers; the tables of runs and comparisons."""

import csv
import json
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from report_reading import cells, read
from rich.console import Console
from small import blobs, line

import fedbridge as fb
from fedbridge.cli.main import main
from fedbridge.evaluation.ranking import rank_methods
from fedbridge.report import ReportError, write_tables
from fedbridge.report.result_tables import comparison_table, comparison_tables, ranking_table
from fedbridge.report.tables import (
    Cell,
    Column,
    Table,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
    to_terminal,
)
from fedbridge.runs.comparison import CellResult, Comparison
from fedbridge.workflows.compare import Setting, compare

QUICK = {"rounds": 2, "workers": 1, "model": "linear", "lr": 0.1, "batch_size": 8}
SUFFIXES = ("csv", "md", "tex")


TABLE = Table(
    "comparison",
    "Means",
    (
        Column("method"),
        Column("a & b_c", "number", beside=("a & b_c (std)",)),
        Column("50%|x", "number"),
    ),
    (
        ("fedda", Cell(81.2345, "81.2 (1.3)", bold=True, beside=(1.26,)), 70.0),
        ("[x] <script>", Cell(79.0, "79.0 (0.5)", beside=(0.5,)), None),
    ),
    ("In brackets the standard deviation & more.",),
)


def text_table(head, *cells):
    """A table of one column of text."""
    return Table("t", "", (Column(head),), tuple((cell,) for cell in cells))


class TestCsv:
    def test_all_digits_and_a_column_for_the_spread(self):
        read = pd.read_csv(StringIO(to_csv(TABLE)))
        assert list(read.columns) == ["method", "a & b_c", "a & b_c (std)", "50%|x"]
        assert read["a & b_c"].tolist() == [81.2345, 79.0]
        assert read["a & b_c (std)"].tolist() == [1.26, 0.5]
        assert pd.isna(read["50%|x"][1])

    def test_quotes_commas_and_line_breaks(self):
        table = text_table('a "b", c', "x\ny")
        assert list(csv.reader(StringIO(to_csv(table)))) == [['a "b", c'], ["x y"]]

    def test_a_name_is_no_formula(self):
        table = text_table("site", "=HYPERLINK(1)", "+90%")
        assert list(csv.reader(StringIO(to_csv(table))))[1:] == [["'=HYPERLINK(1)"], ["+90%"]]

    def test_what_the_spread_is_can_be_said(self):
        columns = (Column("s", "number", beside=("s (half)",)),)
        table = Table("t", "", columns, ((Cell(1.0, beside=(2.0,)),),))
        assert to_csv(table).startswith("s,s (half)\n")

    def test_text_in_a_column_of_numbers_keeps_the_columns_in_line(self):
        columns = (Column("s", "number", beside=("s (std)",)), Column("u"))
        table = Table("t", "", columns, ((Cell(1.0, beside=(2.0,)), "a"), ("none", "b")))
        assert list(csv.reader(StringIO(to_csv(table))))[2] == ["none", "", "b"]


class TestMarkdown:
    def test_mean_and_spread_the_best_in_bold(self):
        lines = to_markdown(TABLE).splitlines()
        assert lines[0] == r"| method | a &amp; b\_c | 50%\|x |"
        assert lines[1] == "| --- | ---: | ---: |"
        assert lines[2] == "| fedda | **81.2 (1.3)** | 70.0 |"
        assert lines[3] == r"| \[x\] &lt;script&gt; | 79.0 (0.5) | – |"
        assert lines[5] == "In brackets the standard deviation &amp; more."

    def test_digits_can_be_chosen(self):
        table = Table("t", "", (Column("loss", "number", digits=4),), ((-0.123456,),))
        assert "| -0.1235 |" in to_markdown(table)


class TestLatex:
    def test_booktabs_with_escaped_text(self):
        lines = [text.strip() for text in to_latex(TABLE).splitlines()]
        rules = [text for text in lines if text.endswith("rule")]
        assert rules == [r"\toprule", r"\midrule", r"\bottomrule"]
        assert r"\begin{tabular}{lrr}" in lines
        assert r"method & a \& b\_c & 50\%\textbar{}x \\" in lines
        assert r"fedda & \textbf{81.2 (1.3)} & 70.0 \\" in lines
        assert r"{[}x{]} \textless{}script\textgreater{} & 79.0 (0.5) & -- \\" in lines
        assert r"\caption{In brackets the standard deviation \& more.}" in lines
        assert r"\label{tab:comparison}" in lines

    def test_environments_and_braces_are_closed(self):
        text = to_latex(text_table("}{\\end{table}", "\\"))
        assert text.count(r"\begin{") == text.count(r"\end{") == 2
        plain = text.replace(r"\{", "").replace(r"\}", "")
        assert plain.count("{") == plain.count("}")

    @pytest.mark.parametrize("rows", [(), (("a",),)])
    def test_a_table_without_notes_has_no_caption(self, rows):
        assert "caption" not in to_latex(Table("t", "", (Column("h"),), rows))


class TestPage:
    def test_a_number_is_short_and_sorted_by_all_its_digits(self):
        page = read(to_html(TABLE))
        assert cells(page) == [
            ["fedda", "81.2 (1.3)", "70.0"],
            ["[x] <script>", "79.0 (0.5)", "–"],
        ]
        assert [cell.attributes["data-key"] for cell in page.all("td")] == [
            "81.2345",
            "70.0",
            "79.0",
            "",
        ]
        assert [strong.text for strong in page.all("strong")] == ["81.2 (1.3)"]

    def test_a_title_gets_a_capital_and_a_heading_stays_as_it_is(self):
        table = Table("t", "", (Column("site"), Column("sigma2", heading="σ²")), ())
        heads = read(to_html(table)).one("thead").all("button")
        assert [button.text for button in heads] == ["Site", "σ²"]

    def test_a_column_may_be_for_the_page_or_for_files_only(self):
        columns = (Column("a"), Column("b", only="page"), Column("c", only="files"))
        table = Table("t", "", columns, (("1", "2", "3"),))
        assert cells(read(to_html(table))) == [["1", "2"]]
        assert to_csv(table) == "a,c\n1,3\n"
        assert "| 1 | 3 |" in to_markdown(table)
        assert [column.header.plain for column in to_terminal(table).columns] == ["a", "c"]


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
    compare(settings, ["fedda"], [0, 1], 1, out, alone=False, steps=1, workers=1)
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
        for name in ("summary.json", "checksums.json"):
            (tmp_path / "run" / name).unlink()
        write_tables(tmp_path / "run", tmp_path / "t")
        sites = pd.read_csv(tmp_path / "t" / "sites.csv", index_col="site")
        assert sites["labelled training rows"]["target"] == 12
        assert len(pd.read_csv(tmp_path / "t" / "rounds.csv")) == 2

    def test_another_folder_is_an_error(self, tmp_path):
        with pytest.raises(ReportError, match=r"no config\.toml"):
            write_tables(tmp_path, tmp_path / "t")
