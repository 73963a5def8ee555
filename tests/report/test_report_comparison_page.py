"""The page of a comparison: the table, a chart per setting, what failed and what is open."""

import pytest
from report_reading import cell, cells, chart, read, table_called, write_comparison

from fedbridge.report import ReportError, write_report

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
    for key in ("setting-0", "setting-1"):
        rows = chart(page, key).all("g", class_="row")
        assert [len(row.all("circle")) for row in rows] == [3, 3]
    best = chart(page, "setting-1").one("g", class_="best")
    assert best.one("text").text == "fedgpfedgp", "its tooltip and its name"


def test_an_unfinished_comparison_shows_what_is_there(tmp_path):
    entries = [
        cell("near", "auto", 0, 80.0),
        cell("near", "auto", 1),
        cell("near", "fedgp", 0, error="loss is NaN"),
        cell("near", "fedgp", 1),
    ]
    page = page_of(write_comparison(tmp_path, entries))
    assert "Unfinished: 1 of 4 runs so far. 1 failed." in page.one("header").text
    assert cells(table_called(page, "Mean"))[1] == ["fedgp", "–"]
    assert cells(table_called(page, "Mean"))[0] == ["auto", "80.0*"]
    assert cells(table_called(page, "failed")) == [["near", "fedgp", "0", "loss is NaN"]]
    runs = cells(table_called(page, "All runs"))
    assert [row[3] for row in runs] == ["done", "open", "failed", "open"]


def test_a_comparison_that_has_only_begun(tmp_path):
    page = page_of(write_comparison(tmp_path, [cell("near", "auto", 0)]))
    assert page.one("p", class_="verdict").text == "No run is finished yet."
    assert not page.all("svg")


def test_finished_runs_lead_to_their_pages(tmp_path):
    page = page_of(write_comparison(tmp_path, [cell("a b?", "auto", 0, 80.0)]))
    assert page.one("a").attributes["href"] == "cells/a%20b%3F-auto-0/report.html"


def test_a_folder_cannot_be_a_script(tmp_path):
    entry = cell("near", "auto", 0, 80.0) | {"folder": "javascript:alert(1)//"}
    page = page_of(write_comparison(tmp_path, [entry]))
    assert page.one("a").attributes["href"].startswith("javascript%3A")


def test_names_with_html_are_shown_as_text(tmp_path):
    entries = [cell(EVIL, EVIL, 0, 80.0), cell(EVIL, EVIL, 1, error=EVIL)]
    folder = write_comparison(tmp_path, entries, notes=[EVIL], options={EVIL: EVIL})
    text = write_report(folder).read_text(encoding="utf-8")
    assert EVIL not in text
    page = read(text)
    assert len(page.all("script")) == 1
    assert EVIL in page.one("p", class_="verdict").text
    assert page.one("figcaption").text == EVIL


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
    with pytest.raises(ReportError, match="lacks something"):
        write_report(write_comparison(tmp_path, four_methods(), seeds=None))
    (tmp_path / "comparison.json").write_text("{", encoding="utf-8")
    with pytest.raises(ReportError, match="Could not read"):
        write_report(tmp_path)
