"""The page of a comparison: the table, a chart per setting, what failed and what is open."""

import json
import shlex

import pytest
from report_reading import (
    cell,
    cells,
    chart_rows,
    chart_titles,
    charts,
    line,
    points_of,
    read,
    table_called,
    write_comparison,
    write_run,
)

from fedbridge.cli.shared import Parser
from fedbridge.cli.shared import seeds as read_seeds
from fedbridge.report import ReportError, write_report
from fedbridge.workflows.watch import look

EVIL = "<script>alert(1)</script>"


def page_of(folder):
    return read(write_report(folder).read_text(encoding="utf-8"))


def four_methods():
    accuracies = {"near": {"auto": 80.0, "fedgp": 70.0}, "far": {"auto": 50.0, "fedgp": 60.0}}
    return [
        cell(setting, method, seed, accuracy + 2 * seed)
        for setting, methods in accuracies.items()
        for method, accuracy in methods.items()
        for seed in (0, 1)
    ]


def test_means_spreads_and_the_best_in_bold(tmp_path):
    page = page_of(write_comparison(tmp_path / "mine", four_methods()))
    table = table_called(page, "Mean test accuracy")
    assert cells(table) == [
        ["auto", "81.0 (1.4)", "51.0 (1.4)", "66.0"],
        ["fedgp", "71.0 (1.4)", "61.0 (1.4)", "66.0"],
    ]
    bold = [strong.text for strong in table.all("strong")]
    assert bold == ["81.0 (1.4)", "66.0", "61.0 (1.4)", "66.0"]
    assert page.one("p", class_="verdict").text == "Best in 1 of 2 settings each: auto, fedgp"
    assert page.one("h1").text == "Comparison: mine"
    assert "A note for readers." in page.text


def test_a_chart_per_setting_with_a_dot_per_seed_and_one_for_the_mean(tmp_path):
    page = page_of(write_comparison(tmp_path, four_methods()))
    for key in ("by-setting-near", "by-setting-far"):
        assert [row["name"] for row in chart_rows(page, key, "singles")] == ["auto"] * 2 + [
            "fedgp"
        ] * 2
    means = chart_rows(page, "by-setting-far")
    assert [(row["name"], row["mean"], row["best"]) for row in means] == [
        ("auto", 51, 0),
        ("fedgp", 61, 1),
    ]
    assert means[0]["high"] - means[0]["low"] == pytest.approx(2 * 2**0.5, rel=1e-3)


def test_methods_are_ranked_over_settings_and_seeds(tmp_path):
    entries = [
        cell(setting, method, seed, score + seed)
        for setting in "abcdef"
        for method, score in (("auto", 80.0), ("fedgp", 70.0), ("median", 60.0))
        for seed in (0, 1)
    ]
    page = page_of(write_comparison(tmp_path, entries))
    ranks = {row["method"]: row for row in chart_rows(page, "mean-ranks")}
    assert [row["rank"] for row in ranks.values()] == [1, 2, 3]
    width = ranks["auto"]["high"] - ranks["auto"]["low"]
    assert width == pytest.approx(2.343 * (3 * 4 / (6 * 6)) ** 0.5, rel=1e-3)
    assert [row["equal"] for row in ranks.values()] == [1, 1, 0]
    for layer in charts(page)["mean-ranks"]["spec"]["layer"]:
        assert layer["encoding"]["x"]["axis"]["values"] == [1, 2, 3]
    assert "auto has the best mean rank, but cannot be told from fedgp." in page.one("header").text
    assert "Over 6 settings the methods differ" in page.text


def test_one_setting_and_seed_cannot_be_ranked(tmp_path):
    page = page_of(write_comparison(tmp_path, [cell("s", "auto", 0, 80.0)]))
    assert "Ranking" not in [h.text for h in page.all("h2")]


def test_the_verdict_says_when_it_may_be_chance(tmp_path):
    page = page_of(write_comparison(tmp_path / "few", four_methods()))
    assert "cannot be told apart: the differences may be chance" in page.one("header").text
    one_seed = [cell("s", "auto", 0, 80.0), cell("s", "fedgp", 0, 70.0)]
    page = page_of(write_comparison(tmp_path / "one", one_seed))
    assert "too few runs to tell" in page.one("header").text
    clear = [
        cell(setting, method, 0, score)
        for setting in "abcdef"
        for method, score in (("auto", 80.0), ("fedgp", 70.0))
    ]
    page = page_of(write_comparison(tmp_path / "clear", clear))
    assert "the others are behind by more than chance" in page.one("header").text


def test_the_header_does_not_contradict_the_ranking(tmp_path):
    """Friedman's test sees a difference, and Nemenyi's cannot say of whom."""
    places = {"auto": "211111", "fedgp": "332232", "median": "123323"}
    entries = [
        cell(f"s{k}", method, 0, 80.0 - 10 * int(place))
        for method, ranks in places.items()
        for k, place in enumerate(ranks)
    ]
    page = page_of(write_comparison(tmp_path, entries))
    assert "the methods differ" in page.one("section", id="ranking").text
    header = page.one("header").text
    assert "the methods differ, but of no two it can be said which is better" in header
    assert "may be chance" not in header


def with_runs(folder, entries, **measured):
    """A comparison whose cells have folders with two rounds each."""
    write_comparison(folder, entries)
    for entry in entries:
        score = entry["summary"]["accuracy"]
        history = [line(1, 2, accuracy=score - 2, **measured), line(2, 2, accuracy=score)]
        write_run(folder / entry["folder"], history)
    return folder


def test_curves_are_means_over_seeds_with_one_colour_per_method(tmp_path):
    page = page_of(with_runs(tmp_path, four_methods()))
    assert points_of(page, "over-rounds-near") == {
        "auto": [(1, 79), (2, 81)],
        "fedgp": [(1, 69), (2, 71)],
    }
    colours = [
        next(
            layer for layer in charts(page)[key]["spec"]["layer"] if layer["mark"]["type"] == "line"
        )["encoding"]["color"]["scale"]
        for key in ("over-rounds-near", "over-rounds-far")
    ]
    assert colours[0] == colours[1]


def test_settings_that_turn_a_dial_make_a_shift_curve(tmp_path):
    noises = (0.0, 0.2, 0.4)
    entries = [cell(f"n{noise}", "auto", 0, 80 - 50 * noise) for noise in noises]
    tasks = [
        {"label": f"n{noise}", "task": "t", "target": None, "options": {"noise": noise, "n": 5}}
        for noise in reversed(noises)
    ]
    page = page_of(write_comparison(tmp_path, entries, tasks=tasks))
    assert points_of(page, "over-noise-n-5") == {"auto": [(0, 80), (0.2, 70), (0.4, 60)]}
    assert "Over noise (n 5)" in chart_titles(page)
    assert len([key for key in charts(page) if key.startswith("over-n")]) == 1


def test_two_values_make_no_curve(tmp_path):
    entries = [cell(f"n{noise}", "auto", 0, 80.0) for noise in (0, 1)]
    tasks = [
        {"label": f"n{noise}", "task": "t", "target": None, "options": {"noise": noise}}
        for noise in (0, 1)
    ]
    page = page_of(write_comparison(tmp_path, entries, tasks=tasks))
    assert not [key for key in charts(page) if key.startswith("over-")]


def test_settings_lie_on_the_map_where_their_first_round_was_measured(tmp_path):
    entries = [cell("near", "auto", 0, 80.0), cell("near", "fedgp", 0, 70.0)]
    measured = {"sigma2": 2.0, "d2": [1.0, 3.0], "tau2_d2": [1.0, 1.0]}
    page = page_of(with_runs(tmp_path, entries, **measured))
    (place,) = chart_rows(page, "map-of-winners", "places")
    assert (place["name"], place["d2"], place["sigma2"], place["won"]) == ("near", 2, 2, "auto")


def test_a_cell_outside_of_the_folder_is_not_read(tmp_path):
    entry = cell("near", "auto", 0, 80.0) | {"folder": "../elsewhere"}
    write_run(tmp_path / "elsewhere", [line(1, 2)])
    page = page_of(write_comparison(tmp_path / "mine", [entry]))
    assert not [key for key in charts(page) if key.startswith("over-rounds")]


def test_the_command_that_compares_again(tmp_path):
    tasks = [
        {"label": name, "task": "heart", "target": name, "options": {"n_target": 20}}
        for name in ("near", "far")
    ]
    text = page_of(write_comparison(tmp_path, four_methods(), tasks=tasks)).one("pre").text
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:7] == ["fedbridge", "compare", "heart", "--target", "near", "--target", "far"]
    assert words[7:13] == ["--methods", "auto,fedgp", "--seeds", "2", "--rounds", "20"]
    assert words[-4:] == ["--n-target", "20", "--lr", "0.1"]


@pytest.mark.parametrize(
    ("seeds", "said"), [((0,), "1"), ((7,), "7,"), ((0, 1, 2), "3"), ((0, 3), "0,3")]
)
def test_seeds_are_said_as_a_user_types_them(tmp_path, seeds, said):
    entries = [cell("near", "auto", seed, 80.0) for seed in seeds]
    words = shlex.split(page_of(write_comparison(tmp_path, entries)).one("pre").text)
    assert words[words.index("--seeds") + 1] == said
    assert list(read_seeds(said)) == list(seeds)


@pytest.mark.parametrize("value", ["Site of care", "--", "-90%", "--x", "a=b", "", "true", ","])
def test_the_command_line_reads_options_as_they_were(tmp_path, value):
    given = {"site_column": value, "label_map": {"no": 0, "yes": 1}, "columns": ["a b", "c"]}
    given |= {"lr": 0.1, "shuffle": True, "momentum": -0.5}
    write_comparison(tmp_path, [cell("near", "auto", 0, 80.0)], options=given)
    words = shlex.split(page_of(tmp_path).one("pre").text.replace("\\\n", " "))
    assert "--set" not in words
    parser = Parser(open_options=True)
    parser.add_argument("--set", action="append")
    assert parser.parse_known_args(words[words.index("again") + 1 :])[0].options == {
        "noise": 0.4,
        **given,
    }


def loaded(label, noise, target=None, **run):
    made = {"label": label, "task": "t", "target": target, "options": {"noise": noise}}
    return made | ({"run": run} if run else {})


def test_dials_are_part_of_the_command(tmp_path):
    tasks = [loaded("near", 0.1, beta=0.5), loaded("far", 0.9, beta=0.5)]
    text = page_of(write_comparison(tmp_path, four_methods(), tasks=tasks)).one("pre").text
    words = shlex.split(text.replace("\\\n", " "))
    assert words[words.index("--vary") + 1] == "noise=0.1,0.9"
    assert words[words.index("--beta") + 1] == "0.5"
    assert "--target" not in words


def test_settings_that_are_no_whole_grid_have_no_one_command(tmp_path):
    half = [loaded("near", 0.1, "A"), loaded("far", 0.9, "B")]
    other = [loaded("near", 0.1), {"label": "far", "task": "u", "target": None, "options": {}}]
    for tasks in (half, other):
        assert not page_of(write_comparison(tmp_path, four_methods(), tasks=tasks)).all("pre")


def test_options_of_runs_are_dials_too(tmp_path):
    betas = (0.0, 0.5, 1.0)
    entries = [cell(f"b{beta}", "fedgp", 0, 60 + 10 * beta) for beta in betas]
    tasks = [loaded(f"b{beta}", 0.2, beta=beta) for beta in betas]
    page = page_of(write_comparison(tmp_path, entries, tasks=tasks))
    assert points_of(page, "over-beta-noise-0.2") == {"fedgp": [(0, 60), (0.5, 65), (1, 70)]}
    assert "Over beta (noise 0.2)" in chart_titles(page)


def test_an_unfinished_comparison_shows_what_is_there(tmp_path):
    entries = [
        cell("near", "auto", 0, 80.0),
        cell("near", "auto", 1),
        cell("near", "fedgp", 0, error="loss is NaN"),
        cell("near", "fedgp", 1),
    ]
    page = page_of(write_comparison(tmp_path, entries))
    assert page.one("p", class_="verdict").text.startswith("No best yet")
    header = page.one("header").text
    assert "Unfinished: 1 of 4 runs so far, 2 still to come." in header
    assert "1 run failed." in header
    assert cells(table_called(page, "Mean"))[1] == ["fedgp", "–"]
    assert cells(table_called(page, "Mean"))[0] == ["auto", "80.0*"]
    assert cells(table_called(page, "failed")) == [["near", "fedgp", "0", "loss is NaN"]]
    runs = cells(table_called(page, "All runs"))
    assert [row[3] for row in runs] == ["done", "not finished", "failed", "not finished"]


def test_runs_that_the_file_does_not_know_yet_count_as_they_do_when_watched(tmp_path):
    entries = [cell("near", method, seed) for method in ("auto", "fedgp") for seed in (0, 1)]
    write_comparison(tmp_path, entries, rounds=2)
    rounds = [line(1, 2), line(2, 2, accuracy=81.0)]
    write_run(tmp_path / entries[0]["folder"], rounds)
    write_run(tmp_path / entries[1]["folder"], rounds[:1], rounds=2)
    page, watched = page_of(tmp_path), look(tmp_path)
    assert watched.counts == {"done": 1, "interrupted": 1, "waiting": 2}
    assert "Unfinished: 1 of 4 runs so far, 3 still to come." in page.one("header").text
    assert "3 of 4 runs are not finished." in page.text
    assert cells(table_called(page, "Mean"))[0] == ["auto", "81.0*"]


def test_a_finished_run_outside_of_the_folder_does_not_count(tmp_path):
    outside = cell("near", "auto", 0) | {"folder": "../elsewhere"}
    write_run(tmp_path / "elsewhere", [line(1, 2)])
    write_comparison(tmp_path / "mine", [outside], rounds=1)
    assert "0 of 1 runs so far" in page_of(tmp_path / "mine").one("header").text
    assert "done" not in look(tmp_path / "mine").counts


def test_the_note_on_the_control_is_found_in_files_of_older_versions(tmp_path):
    notes = ["Accuracy.", "target-only-matched is target-only here."]
    write_comparison(tmp_path, four_methods(), notes=notes)
    file = tmp_path / "comparison.json"
    content = json.loads(file.read_text())
    del content["control_note"]
    file.write_text(json.dumps(content))
    text = page_of(tmp_path).text
    assert text.count("target-only-matched is target-only here.") == 1


def test_methods_that_lack_the_same_have_one_note(tmp_path):
    lack = "unlabelled rows of the target; task 't' has none: give some."
    unmet = [
        cell(setting, method, 0, error=f"`{method}` needs {lack}") | {"unmet": True}
        for setting in ("near", "far")
        for method in ("kd3a", "fada", "mme")
    ]
    other = cell("near", "coral", 0, error="`coral` needs a head; there is none.")
    entries = [cell("near", "auto", 0, 80.0), *unmet, other | {"unmet": True}]
    said = [p.text for p in page_of(write_comparison(tmp_path, entries)).all("p", class_="note")]
    assert [text for text in said if "need" in text] == [
        f"`kd3a`, `fada` and `mme` need {lack}",
        "`coral` needs a head; there is none.",
    ]


def test_only_settings_in_which_all_methods_have_finished_count(tmp_path):
    scores = {
        "near": {"auto": 60.0, "fedgp": 70.0},
        "far": {"auto": 60.0, "fedgp": 70.0},
        "begun": {"auto": 99.0},
    }
    entries = [
        cell(setting, method, seed, scores[setting].get(method))
        for setting in scores
        for method in ("auto", "fedgp")
        for seed in (0, 1)
    ]
    page = page_of(write_comparison(tmp_path, entries))
    assert page.one("p", class_="verdict").text == "Best so far in 2 of 2 settings: fedgp"
    assert "Counted: 2 of 3 settings" in page.one("header").text
    table = table_called(page, "Mean")
    assert cells(table)[0] == ["auto", "60.0 (0.0)", "60.0 (0.0)", "99.0 (0.0)", "60.0"]
    assert [bold.text for bold in table.all("strong")] == ["70.0 (0.0)", "70.0 (0.0)", "70.0"]
    assert [row["best"] for row in chart_rows(page, "by-setting-begun")] == [0]
    assert "Over 4 runs" in page.one("section", id="ranking").text


def test_a_failed_run_has_ended_and_is_not_waited_for(tmp_path):
    entries = [cell("near", "auto", 0, 80.0), cell("near", "fedgp", 0, error="loss is NaN")]
    page = page_of(write_comparison(tmp_path, entries))
    assert page.one("p", class_="verdict").text == "Best: auto"
    header = page.one("header").text
    assert "1 run failed." in header
    assert "Unfinished" not in header


def test_the_same_failure_of_several_seeds_is_one_row(tmp_path):
    entries = [cell("near", "auto", seed, 80.0) for seed in (0, 1, 2)]
    entries += [cell("near", "fedgp", seed, error="loss is NaN") for seed in (0, 1, 2)]
    page = page_of(write_comparison(tmp_path, entries))
    assert cells(table_called(page, "failed")) == [["near", "fedgp", "0, 1, 2", "loss is NaN"]]


def test_a_mean_is_drawn_only_where_all_seeds_are(tmp_path):
    entries = [cell("near", "auto", seed, 80.0 + seed) for seed in (0, 1)]
    entries += [cell("near", "fedgp", 0, 70.0), cell("near", "fedgp", 1)]
    folder = with_runs(tmp_path, [entry for entry in entries if entry["summary"]])
    write_comparison(folder, entries)
    longer = [line(r, 2, accuracy=80.0) for r in (1, 2, 3)]
    write_run(folder / entries[0]["folder"], longer)
    page = page_of(folder)
    assert points_of(page, "over-rounds-near") == {"auto": [(1, 79.5), (2, 80.5), (3, None)]}
    drawn = page.one(id="chart-over-rounds-near").text
    assert "Without a line, for not all seeds are there: fedgp." in drawn
    assert [row["name"] for row in chart_rows(page, "by-setting-near")] == ["auto"]
    singles = chart_rows(page, "by-setting-near", "singles")
    assert [row["value"] for row in singles if row["name"] == "fedgp"] == [70]


def many_methods(settings, count=30):
    """One seed each; every setting has another winner, and the last methods are poor elsewhere."""
    return [
        cell(setting, f"m{k:02d}", 0, 99.0 if k == count - 1 - place else 80.0 - k)
        for place, setting in enumerate(settings)
        for k in range(count)
    ]


def looks_on(page, key):
    """The colour of every line of a chart."""
    lines = (s for s in charts(page)[key]["spec"]["layer"] if s["mark"]["type"] == "line")
    scale = next(lines)["encoding"]["color"]["scale"]
    return dict(zip(scale["domain"], scale["range"], strict=True))


def test_every_method_has_its_name_at_its_line_and_the_best_is_never_grey(tmp_path):
    settings = [f"s{k}" for k in range(12)]
    page = page_of(with_runs(tmp_path, many_methods(settings)))
    for place, setting in enumerate(settings):
        names = chart_rows(page, f"over-rounds-{setting}", "names")
        assert {row["s"] for row in names} == {f"m{k:02d}" for k in range(30)}
        (best,) = (row["s"] for row in names if row["best"])
        assert best == f"m{29 - place:02d}"
        looks = looks_on(page, f"over-rounds-{setting}")
        assert looks[best] != "var(--rest)"
    assert "var(--rest)" in looks.values()


def test_a_method_has_one_colour_on_the_whole_page(tmp_path):
    entries = [
        cell(setting, method, seed, score + seed)
        for setting in ("near", "far")
        for method, score in (("auto", 80.0), ("target-only", 70.0), ("fedgp", 60.0))
        for seed in (0, 1)
    ]
    page = page_of(with_runs(tmp_path, entries, sigma2=2.0, d2=[1.0, 3.0], tau2_d2=[1.0, 1.0]))
    looks = looks_on(page, "over-rounds-near")
    assert looks == {"auto": "var(--c0)", "fedgp": "var(--c1)", "target-only": "var(--ink)"}
    ranks = charts(page)["mean-ranks"]["spec"]["layer"][-1]["encoding"]["color"]["scale"]
    assert dict(zip(ranks["domain"], ranks["range"], strict=True)) == looks
    for setting in ("near", "far"):
        rows = chart_rows(page, f"by-setting-{setting}")
        assert {row["name"]: f"var(--{row['style']})" for row in rows} == looks
    places = chart_rows(page, "map-of-winners", "places")
    assert {(row["won"], row["style"]) for row in places} == {("auto", "c0")}


def test_a_comparison_that_has_only_begun(tmp_path):
    page = page_of(write_comparison(tmp_path, [cell("near", "auto", 0)]))
    assert page.one("p", class_="verdict").text == "No run is finished yet."
    assert charts(page) == {}


def test_finished_runs_lead_to_their_pages(tmp_path):
    page = page_of(write_comparison(tmp_path, [cell("a b?", "auto", 0, 80.0)]))
    assert (
        table_called(page, "All runs").one("a").attributes["href"]
        == "cells/a%20b%3F-auto-0/report.html"
    )


def test_a_folder_cannot_be_a_script(tmp_path):
    entry = cell("near", "auto", 0, 80.0) | {"folder": "javascript:alert(1)//"}
    page = page_of(write_comparison(tmp_path, [entry]))
    assert table_called(page, "All runs").one("a").attributes["href"].startswith("javascript%3A")


def test_names_with_html_are_shown_as_text(tmp_path):
    entries = [cell(EVIL, EVIL, 0, 80.0), cell(EVIL, EVIL, 1, error=EVIL)]
    folder = write_comparison(tmp_path, entries, notes=[EVIL], options={EVIL: EVIL})
    text = write_report(folder).read_text(encoding="utf-8")
    assert EVIL not in text
    page = read(text)
    assert [script.attributes.get("id") for script in page.all("script")] == [
        "charts",
        "library",
        None,
    ]
    assert EVIL in page.one("p", class_="verdict").text
    assert EVIL in chart_titles(page)


def test_a_regression_is_compared_by_its_negative_loss(tmp_path):
    entries = [cell("s", "auto", 0, score=-0.25), cell("s", "fedgp", 0, score=-0.5)]
    page = page_of(write_comparison(tmp_path, entries))
    table = table_called(page, "Mean negative test loss")
    assert cells(table) == [["auto", "−0.2500"], ["fedgp", "−0.5000"]]
    assert page.one("p", class_="verdict").text == "Best: auto"


def test_small_test_sets_are_named(tmp_path):
    page = page_of(write_comparison(tmp_path, [cell("s", "auto", 0, 80.0, n_test=16)]))
    assert "Only 16 test samples" in page.one("p", class_="caution").text


def test_the_configuration_says_how_settings_were_loaded(tmp_path):
    page = page_of(write_comparison(tmp_path, four_methods()))
    listed = {div.one("dt").text: div.one("dd").text for div in page.all("div") if div.all("dt")}
    assert listed["near"] == "task digits-noise, noise 0.4"
    assert listed["lr"] == "0.1"


def test_a_newer_or_incomplete_file_is_refused(tmp_path):
    with pytest.raises(ReportError, match="format 2"):
        write_report(write_comparison(tmp_path, four_methods(), format=2))
    with pytest.raises(ReportError, match="`seeds` is missing or of another kind"):
        write_report(write_comparison(tmp_path, four_methods(), seeds=None))
    (tmp_path / "comparison.json").write_text("{", encoding="utf-8")
    with pytest.raises(ReportError, match="Could not read"):
        write_report(tmp_path)
