"""The small parts of a page: escaping, numbers, data for the script."""

import json
import math

import pytest
from report_reading import read

from fedbridge.report.page import data
from fedbridge.report.text import counted, duration, markup, number, percent, size, tag


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
