"""Tables as CSV, Markdown and LaTeX, read back by other readers."""

import csv
from io import StringIO

import pandas as pd
import pytest

from fedbridge.report.tables import Cell, Column, Table, to_csv, to_latex, to_markdown

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
