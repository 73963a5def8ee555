"""Figures for a paper."""

import xml.etree.ElementTree as ET

import vl_convert
from report_reading import cell, line, two_classes, write_comparison, write_run

from fedbridge.base.text import shortened
from fedbridge.report import paper_spec, read_page, save_figures
from fedbridge.report.charts.plots import LONGEST

EVIL = "<script>alert(1)</script>"


def a_run(folder):
    outputs, labels = two_classes()
    history = [line(number, 2, d2=[0.5, 1.0]) for number in (1, 2, 3)]
    return write_run(
        folder, history, sources=(EVIL, "B"), n_classes=2, outputs=outputs, labels=labels
    )


def test_every_chart_is_saved_as_svg_png_and_pdf(tmp_path):
    page = read_page(a_run(tmp_path / "run"))
    told = []
    files = save_figures(page, tmp_path / "figures", lambda *step: told.append(step))
    assert len(page.charts) == 9
    assert {file.name for file in files} == {
        f"{chart.key}.{kind}" for chart in page.charts for kind in ("svg", "png", "pdf")
    }
    for file in files:
        content = file.read_bytes()
        if file.suffix == ".png":
            assert content.startswith(b"\x89PNG")
        elif file.suffix == ".pdf":
            assert content.startswith(b"%PDF")
        else:
            assert ET.fromstring(content).tag.endswith("svg")
            assert b"var(--" not in content
    weights = (tmp_path / "figures" / "source-weights.svg").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in weights
    assert EVIL not in weights
    assert told[0] == (0.0, "Accuracy")


def test_the_figures_of_a_comparison_can_be_drawn_without_a_complaint(tmp_path, capfd):
    entries = [
        cell(setting, method, seed, score + seed)
        for setting in ("near", "far")
        for method, score in (("auto", 80.0), ("fedgp", 70.0))
        for seed in (0, 1)
    ]
    page = read_page(write_comparison(tmp_path, entries))
    assert [chart.key for chart in page.charts] == [
        "mean-ranks",
        "by-setting-near",
        "by-setting-far",
    ]
    for chart in page.charts:
        vl_convert.vegalite_to_svg(paper_spec(chart), show_warnings=True)
    shown = capfd.readouterr()
    assert shown.out + shown.err == ""


def test_figures_say_what_they_show_and_have_the_names_of_their_lines(tmp_path):
    page = read_page(a_run(tmp_path / "run"))
    assert [chart.key for chart in page.charts] == [
        "accuracy-over-rounds",
        "loss-over-rounds",
        "source-weights",
        "noise-and-distances",
        "source-contributions",
        "map-of-winners",
        "confusion-matrix",
        "roc-curve",
        "calibration",
    ]
    (weights,) = (chart for chart in page.charts if chart.key == "source-weights")
    drawn = ET.fromstring(vl_convert.vegalite_to_svg(paper_spec(weights)))
    texts = {"".join(element.itertext()) for element in drawn.iter() if "text" in element.tag}
    assert {shortened(EVIL, LONGEST), "B"} <= texts


def test_settings_that_differ_in_signs_only_have_files_of_their_own(tmp_path):
    entries = [cell(name, "auto", 0, 80.0) for name in ("a b", "a/b", "../a")]
    keys = [chart.key for chart in read_page(write_comparison(tmp_path, entries)).charts]
    assert len(set(keys)) == 3
    assert not [key for key in keys if "/" in key]
