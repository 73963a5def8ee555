"""Pages in a real browser: nothing to complain about, charts, sorting, dark, phone, print, keys."""

import pytest
from browser import a_browser, needs_chromium
from report_reading import cell, line, two_classes, write_comparison, write_run

from fedbridge.report import write_report

pytestmark = needs_chromium

EVIL = "<script>alert(1)</script>"
TAB, ENTER, SPACE, RIGHT = "\ue004", "\ue007", " ", "\ue014"
GROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(247, 247, 244)", "rgb(18, 21, 26)"


@pytest.fixture(scope="module")
def browser():
    with a_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def run_page(tmp_path_factory):
    """A run of two classes with a source whose name is code."""
    outputs, labels = two_classes()
    history = [line(number, 2, d2=[0.5, 1.0 + number]) for number in range(1, 9)]
    sources = (EVIL, "St. John's \"</td>")
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, history, sources=sources, n_classes=2, outputs=outputs, labels=labels)
    return write_report(folder)


@pytest.fixture(scope="module")
def comparison_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    entries = [
        cell(setting, method, seed, score + seed)
        for setting in ("near", EVIL)
        for method, score in (("auto", 80.0), ("fedgp", 7.5), ("median", 60.0))
        for seed in (0, 1)
    ]
    write_comparison(folder, entries)
    for entry in entries:
        score = entry["summary"]["accuracy"]
        write_run(
            folder / f"cells/{entry['folder'].removeprefix('cells/')}",
            [line(number, 2, accuracy=score, d2=[1.0, 2.0]) for number in (1, 2)],
        )
    return write_report(folder)


@pytest.fixture
def opened(browser):
    """Open a page as most people see it."""

    def open_page(path, *, width=1200, mobile=False, scheme="light", media=""):
        browser.size(width, mobile=mobile)
        browser.media(media, scheme)
        return browser.open(path).drawn()

    return open_page


def test_a_run_draws_every_chart_without_a_complaint(opened, run_page):
    page = opened(run_page)
    assert page.complaints() == []
    drawn = page.run(
        "return [...document.querySelectorAll('.plot')].map(p => p.querySelectorAll('svg').length)"
    )
    assert drawn == [1] * 9


def test_a_comparison_draws_every_chart_without_a_complaint(opened, comparison_page):
    page = opened(comparison_page)
    assert page.complaints() == []
    keys = page.run(
        "return [...document.querySelectorAll('[data-chart]')].map(p => p.dataset.chart)"
    )
    assert keys == ["ranks", "setting-0", "setting-1", "map", "curves-0", "curves-1"]
    assert page.run("return document.querySelectorAll('.plot svg').length") == len(keys)


def test_charts_have_their_points(opened, run_page):
    page = opened(run_page)

    def symbols(key):
        return page.run(
            f"return document.querySelectorAll('#chart-{key} .mark-symbol.role-mark path').length"
        )

    assert symbols("beta") == 2 * 8, "two sources over eight rounds"
    assert symbols("d2") == 3 * 8, "and the noise"
    assert symbols("loss") == 8
    assert symbols("map") == 2
    lines = "return document.querySelectorAll('#chart-beta .mark-line path[d]').length"
    assert page.run(lines) == 2


def test_a_site_whose_name_is_code_is_shown_as_text(opened, run_page, comparison_page):
    page = opened(run_page)
    assert page.run("return document.querySelectorAll('main script').length") == 0
    legend = page.run("return document.querySelector('#chart-beta svg').textContent")
    assert EVIL in legend
    assert EVIL in page.run("return document.querySelector('#table-sites').textContent")
    page = opened(comparison_page)
    assert EVIL in page.run("return document.querySelector('#chart-setting-1').textContent")
    assert page.complaints() == []


def test_the_pointer_shows_values_as_text(opened, run_page):
    page = opened(run_page)
    place = page.run(
        "const chart = document.querySelector('#chart-beta');"
        "chart.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const box = chart.querySelector('.mark-symbol.role-mark path').getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]"
    )
    page.point(*place)
    shown = page.wait("document.querySelector('#vg-tooltip-element.visible')?.textContent")
    assert EVIL in shown
    assert "round 1: 0" in shown
    assert page.run("return document.querySelectorAll('#vg-tooltip-element script').length") == 0


def column(page, table, index):
    return page.run(
        f"return [...document.querySelectorAll('#table-{table} tbody tr')]"
        f".map(row => row.cells[{index}].textContent)"
    )


def test_tables_sort_by_number_and_back(opened, comparison_page):
    page = opened(comparison_page)
    head = "document.querySelectorAll('#table-comparison thead th')[1]"
    page.run(f"{head}.querySelector('button').click()")
    assert column(page, "comparison", 0) == ["fedgp", "median", "auto"]
    assert page.run(f"return {head}.getAttribute('aria-sort')") == "ascending"
    page.run(f"{head}.querySelector('button').click()")
    assert column(page, "comparison", 0) == ["auto", "median", "fedgp"]
    assert page.run(f"return {head}.getAttribute('aria-sort')") == "descending"


def test_empty_cells_come_last_whichever_way(opened, run_page):
    page = opened(run_page)
    for _ in range(2):
        page.run("document.querySelectorAll('#table-sites thead button')[3].click()")
        assert column(page, "sites", 3)[-1] == "–"


def test_the_keyboard_reaches_and_sorts(opened, comparison_page):
    page = opened(comparison_page)
    page.press(TAB)
    assert page.run("return document.activeElement.className") == "skip"
    page.press(TAB)
    assert page.run("return document.activeElement.id") == "theme"
    page.run("document.querySelectorAll('#table-comparison thead button')[1].focus()")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    for key, first in ((ENTER, "fedgp"), (SPACE, "auto")):
        page.press(key)
        assert column(page, "comparison", 0)[0] == first
    assert page.run(f"return {outline}") == "solid"


def test_the_threshold_moves_with_the_keyboard(opened, run_page):
    page = opened(run_page)
    before = page.run("return document.querySelector('.panel output').textContent")
    page.run("document.getElementById('threshold').focus()")
    place = "document.querySelector('#chart-roc .layer_3_marks path').getAttribute('transform')"
    stood = page.run(f"return {place}")
    for _ in range(30):
        page.press(RIGHT)
    assert (before, page.run("return document.querySelector('.panel output').textContent")) == (
        "0.50",
        "0.80",
    )
    said = page.run("return document.getElementById('threshold').getAttribute('aria-valuetext')")
    assert said.startswith("0.80: sensitivity")
    page.wait(f"{place} !== arguments[0]", stood)


def test_dark_follows_the_system_and_the_switch(opened, run_page):
    page = opened(run_page, scheme="dark")
    axis = "getComputedStyle(document.querySelector('#chart-loss .role-axis-label text')).fill"
    assert page.run(f"return {GROUND}") == DARK
    dark = page.run(f"return {axis}")
    page.run("document.getElementById('theme').click()")
    assert page.run(f"return {GROUND}") == LIGHT
    assert page.run(f"return {axis}") != dark, "charts change their colours too"
    page = opened(run_page, scheme="light")
    assert page.run(f"return {GROUND}") == LIGHT
    page.run("document.getElementById('theme').click()")
    assert page.run(f"return {GROUND}") == DARK
    assert (
        page.run("return document.getElementById('theme').getAttribute('aria-pressed')") == "true"
    )


@pytest.mark.parametrize("which", ["run_page", "comparison_page"])
def test_a_phone_never_scrolls_sideways(opened, which, request):
    page = opened(request.getfixturevalue(which), width=390, mobile=True)
    page.run("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert page.run("return document.documentElement.scrollWidth") <= 390
    widths = page.run(
        "return [...document.querySelectorAll('.plot')].map(p => [p.scrollWidth, p.clientWidth])"
    )
    assert all(inside <= outside for inside, outside in widths)


def test_a_long_name_pushes_no_column_out_of_sight(opened, tmp_path):
    folder = write_run(tmp_path, [line(1, 2), line(2, 2)], sources=("L" * 120, "B"))
    page = opened(write_report(folder))
    widths = (
        "const t = document.getElementById('table-sites'); return [t.scrollWidth, t.clientWidth]"
    )
    content, window = page.run(widths)
    assert content <= window
    page = opened(write_report(folder), width=390, mobile=True)
    legend = "return document.querySelector('#chart-beta svg').getBBox().width"
    assert page.run(legend) <= 390


def test_a_link_to_a_folded_part_opens_it(opened, run_page):
    page = opened(run_page)
    assert not page.run("return document.getElementById('configuration').open")
    page.run("document.querySelector('nav a[href=\"#configuration\"]').click()")
    page.wait("document.getElementById('configuration').open")


def test_print_is_light_open_and_without_controls(opened, run_page):
    page = opened(run_page, scheme="dark", media="print")
    assert page.run(f"return {GROUND}") == "rgb(255, 255, 255)"
    hidden = "getComputedStyle(document.querySelector('nav')).display"
    assert page.run(f"return {hidden}") == "none"
    page.media(scheme="dark")
    assert page.pdf().startswith(b"%PDF")
    assert page.run("return [...document.querySelectorAll('details')].every(part => part.open)")


def test_every_chart_and_control_has_a_name(opened, run_page):
    page = opened(run_page)
    unnamed = page.run(
        "return [...document.querySelectorAll('[role=img], [role=region], button, input, nav')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.textContent || e.labels?.length)).length"
    )
    assert unnamed == 0
    told = page.run(
        "return document.querySelector('#chart-beta [role=img]').getAttribute('aria-label')"
    )
    assert told.startswith("Weight of every source. weight β over round.")


def test_fifty_sources_and_five_hundred_rounds_open(opened, tmp_path):
    weights = [[(k * number) % 97 / 97 for k in range(50)] for number in range(1, 501)]
    history = [
        line(number, 50, accuracy=80.0, balanced_accuracy=79.0, beta=beta, d2=beta)
        for number, beta in enumerate(weights, 1)
    ]
    names = [f"Hospital {k}" for k in range(50)]
    page = opened(write_report(write_run(tmp_path, history, sources=names)))
    assert page.complaints() == []
    paths = "return document.querySelectorAll('#chart-beta .mark-line path[d]').length"
    assert page.run(paths) == 50
    page.media("print")
    page.run("document.querySelectorAll('details').forEach(part => part.open = true)")
    heights = page.run(
        "const t = document.getElementById('table-rounds');"
        "return [t.clientHeight, t.querySelector('table').offsetHeight]"
    )
    assert heights[0] >= heights[1], "a long table is printed whole"
