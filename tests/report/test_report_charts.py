"""Charts: points where they belong, gaps, bounds on size, words for those who cannot see them."""

import math

import pytest
from report_reading import read

from fedbridge.report.charts import DRAWN, DotRow, Series, dot_chart, line_chart, styles
from fedbridge.report.markup import markup, tag
from fedbridge.report.scale import Scale, duration, number, percent, size


def drawn(*series, **options):
    return read(line_chart("k", "T", series, x_label="round", y_label="y", **options))


def places(group):
    circles = group.all("circle")
    return [(float(c.attributes["cx"]), float(c.attributes["cy"])) for c in circles]


def test_text_is_escaped_and_elements_are_not():
    assert tag("b", "<i>", tag("i", '"')) == "<b>&lt;i&gt;<i>&quot;</i></b>"
    assert tag("p", title='"><script>') == '<p title="&quot;&gt;&lt;script&gt;"></p>'
    assert tag("p", hidden=True, id=None, aria_label="x") == '<p hidden aria-label="x"></p>'
    assert markup("a&b", None, 3) == "a&amp;b3"


def test_every_point_is_drawn_in_proportion_with_its_value_to_hover():
    found = drawn(Series("S", ((1, 0.0), (2, 1.0), (3, 2.0))))
    (first, middle, last) = places(found.one("g", class_="points"))
    assert first[0] < middle[0] < last[0]
    assert first[1] > middle[1] > last[1], "larger values lie higher"
    assert middle[0] == pytest.approx((first[0] + last[0]) / 2, abs=0.1)
    assert middle[1] == pytest.approx((first[1] + last[1]) / 2, abs=0.1)
    assert [c.text for c in found.all("circle")] == ["S, 1: 0", "S, 2: 1.000", "S, 3: 2.000"]


@pytest.mark.parametrize("gap", [None, math.nan, math.inf])
def test_a_missing_value_is_a_gap_and_a_lonely_point_is_still_seen(gap):
    found = drawn(Series("S", ((1, 1.0), (2, 2.0), (3, gap), (4, 3.0), (5, gap))))
    assert found.one("path", class_="line").attributes["d"].count("M") == 1
    assert len(found.all("circle")) == 3


def test_a_lonely_point_in_a_long_line_is_visible_though_the_others_wait_for_the_pointer():
    points = tuple((x, None if x in (49, 51) else 1.0) for x in range(100))
    circles = drawn(Series("S", points)).all("circle")
    assert [c.text for c in circles if c.attributes.get("class") != "quiet"] == ["S, 50: 1.000"]


def test_a_chart_without_values_says_so():
    found = drawn(Series("S", ((1, None), (2, math.nan))))
    assert not found.all("svg")
    assert "No values yet." in found.text


def test_one_point_and_equal_values_can_be_drawn():
    assert places(drawn(Series("S", ((1, 0.0),))).one("g", class_="points"))
    assert len(places(drawn(Series("S", ((1, 5.0), (2, 5.0)))).one("g", class_="points"))) == 2


def test_bounds_are_not_exceeded_and_the_band_lies_around_the_line():
    series = Series("S", ((1, 99.0), (2, 100.0)), band=((95.0, 100.0), (96.0, 100.0)))
    found = drawn(series, bounds=(0.0, 100.0))
    labels = [float(t.text) for t in found.one("svg").all("text") if t.text.isdigit()]
    assert max(labels) <= 100
    band = found.one("path", class_="band").attributes["d"]
    assert band.startswith("M")
    assert band.endswith("Z")


def test_a_band_has_the_gaps_of_its_line():
    edges = ((0.0, 2.0), (0.0, 2.0), None, (0.0, 2.0), (0.0, 2.0))
    points = tuple((x, None if edge is None else 1.0) for x, edge in enumerate(edges))
    found = drawn(Series("S", points, band=edges))
    assert found.one("path", class_="band").attributes["d"].count("M") == 2


def test_words_for_a_screen_reader():
    svg = drawn(Series("S", ((1, 0.25), (9, 0.5)))).one("svg")
    assert svg.attributes["role"] == "img"
    title, told = svg.attributes["aria-labelledby"].split()
    assert svg.one("title", id=title).text == "T"
    assert svg.one("desc", id=told).text == "y over round. S: 0.250 at 1, 0.500 at 9."


def test_many_lines_share_a_pale_colour_and_one_entry_of_the_legend():
    many = styles(9)
    assert len(set(many[:6])) == 6
    assert many[6:] == ["rest"] * 3
    found = drawn(*(Series(f"S{k}", ((1, 1.0), (2, k)), many[k]) for k in range(9)))
    assert [li.text for li in found.all("li")][-1] == "3 more"
    assert len(found.all("path", class_="line")) == 9
    assert "rest" in found.all("path", class_="line")[0].attributes["class"], "pale ones below"


def test_a_chart_with_very_many_points_is_thinned_and_says_so():
    long = Series("S", tuple((x, float(x % 7)) for x in range(2 * DRAWN)))
    found = drawn(long)
    assert "One in 2 rounds is drawn." in found.text
    assert found.one("path", class_="line").attributes["d"].count(",") <= DRAWN
    assert len(found.all("circle")) < 1100


def test_dots_show_every_value_the_mean_and_the_spread():
    rows = [
        DotRow("auto", (70.0, 80.0), 75.0, 7.1, best=True),
        DotRow("a-method-with-a-very-long-name", (60.0,), 60.0),
        DotRow("open", (), None),
    ]
    found = read(dot_chart("d", "T", rows, x_label="accuracy"))
    auto, long, unfinished = found.all("g", class_="row")
    assert "best" in auto.attributes["class"]
    assert [len(group.all("circle")) for group in (auto, long, unfinished)] == [3, 2, 0]
    assert len(auto.all("line")) == 1
    assert auto.all("circle")[-1].text == "auto, mean: 75.00 ± 7.10"
    assert long.one("text").text.endswith("a-method-with-a-ve…")
    assert (
        found.one("desc").text
        == "accuracy: auto 75.0; a-method-with-a-very-long-name 60.0; open –."
    )


def test_dots_without_any_value_say_so():
    assert "No values yet." in dot_chart("d", "T", [DotRow("a", (), None)], x_label="x")


@pytest.mark.parametrize(
    ("low", "high", "whole", "ticks"),
    [
        (0, 10, False, [0, 2, 4, 6, 8, 10]),
        (-0.3, 1.1, False, [0, 0.5, 1]),
        (1, 3, True, [1, 2, 3]),
        (20, 80, False, [20, 40, 60, 80]),
    ],
)
def test_ticks_are_round_numbers(low, high, whole, ticks):
    assert Scale(low, high, 0, 100).ticks(whole=whole) == pytest.approx(ticks)


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
