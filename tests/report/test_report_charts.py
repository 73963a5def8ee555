"""Charts: points where they belong, gaps, bounds on size, words, and names that stay names."""

import itertools
import math
import re

import pytest
import vl_convert

from fedbridge.evaluation.ranking import rank_methods
from fedbridge.report import paper_spec
from fedbridge.report.charts import (
    INK,
    ON_PAPER,
    PALETTE,
    REST,
    form,
    maps,
    more_styles,
    on_paper,
    rows,
    short,
    span,
    styles,
    whole_ticks,
)
from fedbridge.report.charts.maps import Angles, Place, delta_errors, win_map
from fedbridge.report.charts.plots import (
    DRAWN,
    HOVERED,
    LABEL,
    DotRow,
    Series,
    dot_chart,
    line_chart,
    rank_chart,
    spread_out,
)
from fedbridge.report.charts.tested import confusion_chart

EVIL = "datum.x</script>'\"]"


def drawn(*series, **options):
    return line_chart("k", "T", series, x_label="round", y_label="y", **options)


def parts(spec, *names):
    """Everything that stands under one of these names in a description, at any depth."""
    found = []
    if isinstance(spec, dict):
        for name, value in spec.items():
            found += [value] if name in names else parts(value, *names)
    elif isinstance(spec, list):
        for item in spec:
            found += parts(item, *names)
    return found


def test_every_point_is_a_row_and_answers_the_pointer():
    chart = drawn(Series("S", ((1, 0.0), (2, 1.5), (3, 2.0))))
    assert rows(chart.data["values"]) == [
        {"s": "S", "x": 1, "y": 0},
        {"s": "S", "x": 2, "y": 1.5},
        {"s": "S", "x": 3, "y": 2},
    ]
    assert chart.data["points"]["x"] == [1, 2, 3]


@pytest.mark.parametrize("gap", [None, math.nan, math.inf])
def test_a_missing_value_is_a_gap_and_a_lonely_point_is_still_seen(gap):
    chart = drawn(Series("S", ((1, 1.0), (2, 2.0), (3, gap), (4, 3.0), (5, gap))))
    assert chart.data["values"]["y"] == [1, 2, None, 3, None]
    assert rows(chart.data["points"])[-1] == {
        "s": "S",
        "x": 4,
        "y": 3,
        "style": "c0",
        "alone": 1,
        "quiet": 0,
        "tip": "S, round 4: 3",
    }
    assert chart.data["points"]["alone"] == [0, 0, 1]


def test_a_chart_without_values_is_no_chart():
    assert drawn(Series("S", ((1, None), (2, math.nan)))) is None
    assert dot_chart("d", "T", [DotRow("a", (), None)], x_label="x") is None


def test_a_band_has_the_gaps_of_its_line():
    edges = ((0.0, 2.0), None, (1.0, 3.0))
    chart = drawn(
        Series("S", ((1, 1.0), (2, None), (3, 2.0)), band=edges), Series("B", ((1, 1.0),))
    )
    assert chart.data["values"]["low"] == [0, None, 1, None]
    assert chart.data["values"]["high"] == [2, None, 3, None]
    assert chart.spec["layer"][0]["mark"]["type"] == "area"


def test_words_for_a_screen_reader():
    chart = drawn(Series("S", ((1, 0.25), (9, 0.5))))
    assert chart.told == "y over round. S: 0.250 at 1, 0.500 at 9."


def test_many_lines_share_a_pale_colour_and_have_names_only_if_asked():
    many = styles(11)
    assert many == [*PALETTE, REST, REST, REST]
    lines = [Series(f"S{k}", ((1, 1.0), (2, k)), many[k]) for k in range(11)]
    chart = drawn(*lines)
    assert "In grey: 3 more." in chart.note
    assert chart.data["names"]["s"] == [f"S{k}" for k in range(8)]
    thin = {row["s"] for row in rows(chart.data["values"]) if row["pale"]}
    assert thin == {"S8", "S9", "S10"}
    named = drawn(*lines, name_pale=True)
    assert set(named.data["names"]["s"]) == {f"S{k}" for k in range(11)}
    assert named.note == ""


def test_lines_differ_in_more_than_their_colour():
    for part in (0, 1):
        assert len({form(style)[part] for style in PALETTE}) == len(PALETTE)
    assert form("c0/3") == form("c3")


def test_more_lines_than_colours_differ_in_their_forms_before_any_is_pale():
    many = more_styles(3 * len(PALETTE))
    looks = {(style.partition("/")[0], form(style)) for style in many}
    assert len(looks) == len(many)
    assert many[: len(PALETTE)] == list(PALETTE)
    assert REST not in many


def test_every_name_stands_beside_the_end_of_its_line_and_none_on_another():
    chart = drawn(*(Series(f"S{k}", ((1, 0.0), (2, 50 + k / 100)), "c0") for k in range(40)))
    names = rows(chart.data["names"])
    assert [row["y"] for row in names] == [short(50 + k / 100) for k in range(40)]
    low, high = chart.spec["layer"][0]["encoding"]["y"]["scale"]["domain"]
    pixels = sorted((high - row["at"]) / (high - low) * chart.spec["height"] for row in names)
    gaps = [below - above for above, below in itertools.pairwise(pixels)]
    assert min(gaps) >= LABEL * 0.99
    assert pixels[0] >= 0
    assert pixels[-1] <= chart.spec["height"] + 1e-6
    ordered = sorted(names, key=lambda row: -row["at"])
    assert ordered == sorted(names, key=lambda row: -row["y"])


def test_the_stroke_from_a_line_that_ends_early_does_not_look_like_one():
    chart = drawn(Series("S", ((1, 1.0), (2, 2.0))), Series("E", ((1, 1.0), (2, None)), "c1"))
    assert [row["early"] for row in rows(chart.data["names"])] == [0, 1]


def test_one_line_needs_no_name_but_the_title():
    assert "text" not in parts(drawn(Series("S", ((1, 1.0), (2, 2.0)))).spec, "type")


def test_places_move_no_farther_than_they_must():
    assert spread_out([10.0, 50.0, 90.0], 13, 100) == [10, 50, 90]
    assert spread_out([50.0, 50.0, 50.0], 10, 100) == [40, 50, 60]
    assert spread_out([0.0, 0.0], 10, 100) == [0, 10]
    assert spread_out([100.0, 100.0], 10, 100) == [90, 100]
    assert spread_out([5.0] * 5, 10, 20) == [0, 5, 10, 15, 20]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 10, 11, 50, 97, 500])
def test_rounds_have_whole_ticks_that_differ(count):
    ticks = whole_ticks(1, count)
    assert ticks[0] == 1
    assert ticks == sorted(set(ticks))
    assert all(isinstance(tick, int) and tick <= count for tick in ticks)
    assert len(ticks) == count if count <= 10 else 5 <= len(ticks) <= 12


def test_three_rounds_have_three_ticks_and_so_has_a_warm_up():
    chart = drawn(Series("S", ((1, 1.0), (2, 2.0), (3, 1.0))))
    assert chart.spec["layer"][0]["encoding"]["x"]["axis"]["values"] == [1, 2, 3]
    assert whole_ticks(-1, 2) == [-1, 0, 1, 2]
    assert whole_ticks(1, 15) == [1, 3, 5, 7, 9, 11, 13, 15]
    assert whole_ticks(1, 50) == [1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50]


@pytest.mark.parametrize("rounds", [5, 8, 10, 12, 23, 97, 500])
@pytest.mark.parametrize("width", [100, 420])
def test_the_last_round_has_a_label_at_every_width(rounds, width):
    points = tuple((k, float(k)) for k in range(1, rounds + 1))
    spec = paper_spec(drawn(Series("S", points), Series("T", points, "c1"))) | {"width": width}
    svg = vl_convert.vegalite_to_svg(spec)
    labels = re.search(r'role-axis-label"(.*?)</g>', svg.partition("X-axis")[2])[1]
    shown = re.findall(r'opacity="1"[^>]*>(\d+)<|<text(?![^>]*opacity="0")[^>]*>(\d+)<', labels)
    texts = [one or other for one, other in shown]
    assert (texts[0], texts[-1]) == ("1", str(rounds))


def test_axes_end_where_values_do():
    assert span([52.0, 99.7], (0, 100)) == (50, 100)
    assert span([97.0, 99.7], (0, 100))[1] == 100
    assert span([100.0], (0, 100))[1] == 100
    assert span([0.1, 0.93]) == (0, 1)
    chart = dot_chart(
        "d", "T", [DotRow("a", (), 98.0, 5.0), DotRow("b", (), 60.0)], x_label="%", limits=(0, 100)
    )
    assert chart.data["values"]["high"] == [100, 60]
    for layer in chart.spec["layer"]:
        assert layer["encoding"]["x"]["scale"]["domain"][1] == 100


def test_a_chart_with_very_many_points_is_thinned_and_says_so():
    chart = drawn(Series("S", tuple((x, float(x % 7)) for x in range(2 * DRAWN))))
    assert "One in 2 rounds is drawn." in chart.note
    assert len(chart.data["values"]["x"]) == DRAWN
    assert len(chart.data["points"]["x"]) <= HOVERED


def test_names_from_data_never_become_fields_or_expressions():
    confusion = confusion_chart([[1, 2], [3, 4]], [EVIL, "b"])
    places = [Place(EVIL, 1.0, 2.0, won=EVIL), Place("b", 2.0, 2.0, won="fedgp")]
    made = [
        drawn(Series(EVIL, ((1, 1.0),)), Series("b", ((1, 2.0),), "c1")),
        dot_chart("d", "T", [DotRow(EVIL, (1.0,), 1.0)], x_label="x"),
        confusion,
        win_map("m", "T", places, Angles(0.5, 10)),
        rank_chart(
            rank_methods([EVIL, "b"], [[1.0, 2.0], [2.0, 1.0]]), dict.fromkeys([EVIL, "b"], INK)
        ),
    ]
    for chart in made:
        code = parts(chart.spec, "field", "filter", "test", "calculate", "expr", "signal", "name")
        assert code
        assert not [piece for piece in code if EVIL in str(piece)]
        assert any(EVIL in values for columns in chart.data.values() for values in columns.values())


def test_repeated_text_travels_once():
    packed = drawn(Series("long name", ((1, 1.0), (2, 2.0)))).to_json()["data"]["values"]
    assert packed["s"] == {"of": ["long name"], "at": [0, 0]}
    assert packed["y"] == [1, 2]


def test_numbers_have_the_digits_that_can_be_seen():
    assert [short(v) for v in (1 / 3, 2.0, None, math.nan)] == [0.33333, 2, None, None]


def test_dots_show_every_value_the_mean_and_the_spread():
    chart = dot_chart(
        "d",
        "T",
        [
            DotRow("auto", (70.0, 80.0), 75.0, 7.0, best=True),
            DotRow("fedgp", (60.0,), 60.0),
            DotRow("open", (), None),
        ],
        x_label="accuracy",
    )
    auto, fedgp = rows(chart.data["values"])
    assert (auto["low"], auto["mean"], auto["high"], auto["best"]) == (68, 75, 82, 1)
    assert (fedgp["low"], fedgp["mean"], fedgp["high"], fedgp["best"]) == (60, 60, 60, 0)
    assert chart.data["singles"]["value"] == [70, 80, 60]
    assert chart.told == "accuracy: auto 75.0; fedgp 60.0; open –."


def test_bars_of_ranks_overlap_just_when_methods_cannot_be_told_apart():
    methods = ["a", "b", "c", "d"]
    ranking = rank_methods(methods, [[4.0, 3.0, 2.0, 1.0]] * 9 + [[1.0, 2.0, 3.0, 4.0]])
    chart = rank_chart(ranking, dict(zip(methods, PALETTE, strict=False)))
    bars = rows(chart.data["values"])
    for one in bars:
        for other in bars:
            close = abs(one["rank"] - other["rank"]) <= ranking.critical_difference
            overlap = one["low"] <= other["high"] and other["low"] <= one["high"]
            assert overlap == close
    assert [bar["equal"] for bar in bars] == [1, 1, 0, 0]
    for layer in chart.spec["layer"]:
        assert layer["encoding"]["x"]["scale"]["domain"] == [1, 4], "no rank is better than 1"
        assert layer["mark"]["type"] == "point" or layer["mark"]["clip"]


def test_the_ground_of_the_map_is_the_smallest_delta_error_everywhere():
    angles = Angles(0.6, 50)
    chart = win_map("m", "T", [Place("here", 1.0, 1.0)], angles)
    wedges = rows(chart.data["values"])
    seen = set()
    for wedge in wedges:
        if wedge["y2"] <= 1.01 * wedge["y"]:
            continue
        noise = math.sqrt(wedge["y"] * wedge["y2"])
        errors = delta_errors(wedge["x"], noise, angles)
        assert wedge["rule"] == min(errors, key=errors.__getitem__)
        seen.add(wedge["rule"])
    assert seen == {"source-only", "fedgp", "target-only"}


def test_without_angles_the_map_leaves_fedgp_out():
    assert "fedgp" not in delta_errors(1.0, 1.0, Angles(None, 1))
    assert delta_errors(1.0, 3.0, Angles(None, 1))["fedda"] == pytest.approx(1.0)


def test_a_map_of_many_names_the_weightiest_and_no_name_is_on_another():
    places = [
        Place(f"Hospital {k:02d}", 0.01 * 1.2**k, 1.0, "c1" if k < 7 else REST, weight=-k)
        for k in range(40)
    ]
    chart = win_map("m", "T", places, Angles(0.5, 50))
    named = chart.data["names"]["name"]
    assert set(named) == {f"Hospital {k:02d}" for k in range(8)}
    assert "32 have their name under the pointer." in chart.note
    assert chart.data["places"]["name"][-1] == "Hospital 00", "the weightiest lies on top"


def test_names_that_have_no_room_are_those_of_lighter_places(monkeypatch):
    """All lie on one spot, with fewer sides than names."""
    monkeypatch.setattr(maps, "SIDES", maps.SIDES[:6])
    places = [Place(f"Hospital {k}", 1.0 + k / 1e4, 1.0, weight=-(k % 4)) for k in range(8)]
    named = win_map("m", "T", places, Angles(0.5, 50)).data["names"]["name"]
    assert 2 <= len(named) < 8
    weights = sorted(int(name[-1]) % 4 for name in named)
    assert weights == sorted(k % 4 for k in range(8))[: len(named)]


def test_no_stroke_to_a_name_passes_another():
    distances = (0.29718, 0.18, 0.172, 0.092944, 0.090353, 0.082162, 0.060195, 0.05096, 0.0489)
    places = [
        Place(f"Clinic-{k:02d}", d2, 0.26112, weight=1.0)
        for k, d2 in enumerate((*distances, 0.035872, 0.019559))
    ]
    chart = win_map("m", "T", places, Angles(0.5, 50))
    by_name = {place.name: place for place in places}
    sides = {by_name[row["name"]]: row["side"] for row in rows(chart.data["names"])}
    low, high = (min(distances[-1], 0.019559) / maps.AIR, distances[0] * maps.AIR)
    frame = maps._Frame(low, high, 0.26112 / maps.AIR, 0.26112 * maps.AIR)
    for width in maps.WIDTHS:
        drawn = maps._Map(places, frame, width)
        boxes = {place: drawn._boxes(place, side)[0] for place, side in sides.items()}
        for place, side in sides.items():
            right, lines = maps.SIDES[side]
            (x, y), away = drawn.spots[place], maps.SIDE if right else -maps.SIDE
            stroke = [(x + away * t / 50, y + lines * maps.LINE * t / 50) for t in range(5, 46)]
            for other, (left, end, top, bottom) in boxes.items():
                if other is not place and lines:
                    assert not any(left < a < end and top < b < bottom for a, b in stroke)


def test_the_ground_of_the_map_has_a_legend_on_paper_too_and_no_colour_of_a_mark():
    chart = win_map("m", "T", [Place("here", 1.0, 1.0, "c1")], Angles(0.6, 50))
    ground = chart.spec["layer"][0]
    assert ground["mark"]["color"] == "var(--soft)"
    assert "color" not in ground["encoding"]
    drawn = vl_convert.vegalite_to_svg(paper_spec(chart))
    for rule in ("smallest Delta error", "source-only", "fedgp", "target-only"):
        assert f">{rule}</text>" in drawn
    assert ">fedda</text>" not in drawn


def test_what_is_not_on_the_map_is_named_the_weightiest_first():
    places = [Place("far", 1.0, 1.0), Place("light", -1.0, 1.0, weight=0.1)]
    chart = win_map("m", "T", [*places, Place("heavy", -0.1, 1.0, weight=0.9)], Angles(0.6, 50))
    assert "Not on the map, with an estimate of zero or below: heavy, light." in chart.note


def test_a_map_needs_a_positive_place():
    assert win_map("m", "T", [Place("a", -1.0, 1.0)], Angles(None, 1)) is None


def test_on_paper_nothing_is_left_to_a_style_sheet_and_names_stay():
    chart = drawn(Series("A", ((1, 1.0),)), Series("var(--x)", ((1, 2.0),), "c1"))
    assert "var(--c1)" in str(chart.spec)
    paper = str(on_paper(chart.spec))
    assert "var(--c1)" not in paper
    assert ON_PAPER["c1"] in paper
    assert "var(--x)" in paper
