"""Figures for a paper."""

import xml.etree.ElementTree as ET

import vl_convert
from report_reading import cell, line, two_classes, write_comparison, write_run

from fedbridge.report import paper_spec, read_page, save_figures

EVIL = "<script>alert(1)</script>"


def a_run(folder):
    outputs, labels = two_classes()
    history = [line(number, 2, d2=[0.5, 1.0]) for number in (1, 2, 3)]
    return write_run(
        folder, history, sources=(EVIL, "B"), n_classes=2, outputs=outputs, labels=labels
    )


def test_every_chart_is_saved_as_svg_and_png(tmp_path):
    page = read_page(a_run(tmp_path / "run"))
    told = []
    files = save_figures(page, tmp_path / "figures", lambda *step: told.append(step))
    assert len(page.charts) == 9
    assert {file.name for file in files} == {
        f"{chart.key}.{kind}" for chart in page.charts for kind in ("svg", "png")
    }
    for file in files:
        content = file.read_bytes()
        if file.suffix == ".png":
            assert content.startswith(b"\x89PNG")
        else:
            assert ET.fromstring(content).tag.endswith("svg")
            assert b"var(--" not in content
    weights = (tmp_path / "figures" / "beta.svg").read_text(encoding="utf-8")
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
    assert [chart.key for chart in page.charts] == ["ranks", "setting-0", "setting-1"]
    for chart in page.charts:
        vl_convert.vegalite_to_svg(paper_spec(chart), show_warnings=True)
    shown = capfd.readouterr()
    assert shown.out + shown.err == ""
