"""Values as text: names from data stay text in every format, and numbers are short."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_reading import read

from fedbridge.base.text import csv_text
from fedbridge.report.page import data
from fedbridge.report.text import (
    counted,
    duration,
    latex_text,
    markdown_code,
    markdown_text,
    markup,
    number,
    percent,
    size,
    stretches,
    tag,
)


def test_text_is_escaped_and_elements_are_not():
    assert tag("b", "<i>", tag("i", '"')) == "<b>&lt;i&gt;<i>&quot;</i></b>"
    assert tag("p", title='"><script>') == '<p title="&quot;&gt;&lt;script&gt;"></p>'
    assert tag("p", hidden=True, id=None, aria_label="x") == '<p hidden aria-label="x"></p>'
    assert markup("a&b", None, 3) == "a&amp;b3"


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--<script>", "]]>", "\u2028\u2029", "&lt;"]
)
def test_data_for_the_script_cannot_end_it_and_arrives_as_it_was(text):
    made = data("k", {"name": text})
    assert made.count("<") == 2
    assert made.isascii()
    assert json.loads(read(made).one("script").text) == {"name": text}


def test_data_without_a_number_is_an_error_and_not_broken_json():
    with pytest.raises(ValueError, match="JSON"):
        data("k", {"x": math.nan})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0.0, "0"),
        (3, "3"),
        (-0.25, "−0.250"),
        (75.638, "75.6"),
        (1234.5, "1,234"),
        (1.5e-7, "1.50e−07"),
        (2.5e9, "2.50e+09"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_units_are_as_people_say_them():
    assert percent(72.25) == "72.2\N{NO-BREAK SPACE}%"
    assert percent(None) == "–"
    assert [size(n) for n in (12, 4_230_000, 5e12)] == ["12 bytes", "4.23 MB", "5,000 GB"]
    assert [duration(s) for s in (7.234, 75, 3700)] == ["7.23 s", "1 min 15 s", "1 h 1 min"]
    assert [counted(n, "seed") for n in (1, 2000)] == ["1 seed", "2,000 seeds"]


def test_markdown_shows_tags_and_signs_as_they_are():
    assert markdown_text("<script>alert(1)</script>") == "&lt;script&gt;alert(1)&lt;/script&gt;"
    assert markdown_text("a|b_c*d`[e]") == r"a\|b\_c\*d\`\[e\]"


@given(st.text())
def test_markdown_text_is_one_line_without_open_signs(text):
    shown = markdown_text(text)
    assert shown.isprintable()
    for sign in "|`*_[]":
        assert shown.count(sign) == shown.count(f"\\{sign}")
    assert "<" not in shown


def test_code_cannot_end_its_own_fence():
    text = "before\n```\n# after"
    fence = markdown_code(text).splitlines()[0]
    assert fence not in text
    assert markdown_code("plain") == "```\nplain\n```"


def test_latex_has_no_sign_that_means_something():
    assert latex_text("50% & a_b #1 $x$ {y} ~ ^ \\") == (
        r"50\% \& a\_b \#1 \$x\$ \{y\} \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
    assert latex_text("[x] *") == "{[}x{]} {*}"
    assert latex_text("\\input{/etc/passwd}") == r"\textbackslash{}input\{/etc/passwd\}"


@pytest.mark.parametrize(
    "text", ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3", "－1+1", "-1e5x"]
)
def test_a_formula_is_text_in_a_csv(text):
    assert csv_text(text) == f"'{text}"


@pytest.mark.parametrize("text", ["+90%", "-90%", "-1.5", "-1e-5", "plain", "a=b"])
def test_other_text_stays_as_it_is_in_a_csv(text):
    assert csv_text(text) == text


def test_a_formula_after_signs_that_cannot_be_seen_is_one_too():
    assert csv_text("\t\r=1") == "'=1"


def test_rounds_that_follow_each_other_are_a_stretch():
    assert stretches([3], 4) == "3"
    assert stretches([-1, 0, 1, 5], 4) == "−1 to 1, 5"
    assert stretches([1, 3, 5, 6, 7, 9], 2) == "1, 3 and 4 more"
