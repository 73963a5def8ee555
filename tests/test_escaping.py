"""Text from data stays text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbridge.report.text import csv_text, latex_text, markdown_code, markdown_text


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


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3"])
def test_a_formula_is_text_in_a_csv(text):
    assert csv_text(text) == f"'{text}"


@pytest.mark.parametrize("text", ["+90%", "-90%", "-1.5", "plain", "a=b"])
def test_other_text_stays_as_it_is_in_a_csv(text):
    assert csv_text(text) == text


def test_a_formula_after_signs_that_cannot_be_seen_is_one_too():
    assert csv_text("\t\r=1") == "'=1"
