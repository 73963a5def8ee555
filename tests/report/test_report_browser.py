"""Pages in a real browser: nothing to complain about, charts, sorting, dark, phone, print, keys."""

import pytest
from browser import a_browser, needs_chromium
from report_reading import cell, line, two_classes, write_comparison, write_run

from fedbridge.base.files import file_name
from fedbridge.base.text import shortened
from fedbridge.report import write_report
from fedbridge.report.charts.plots import LONGEST

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
    assert keys == [
        "mean-ranks",
        "by-setting-near",
        f"by-setting-{file_name(EVIL)}",
        "map-of-winners",
        "over-rounds-near",
        f"over-rounds-{file_name(EVIL)}",
    ]
    assert page.run("return document.querySelectorAll('.plot svg').length") == len(keys)


def test_the_map_says_once_who_won(opened, comparison_page):
    page = opened(comparison_page)
    labels = "'#chart-map-of-winners .role-legend-label text'"
    shown = page.run(f"return [...document.querySelectorAll({labels})].map(t => t.textContent)")
    assert shown == ["source-only", "fedda", "target-only", "auto"]


def test_charts_have_their_points(opened, run_page):
    page = opened(run_page)

    def symbols(key):
        return page.run(
            f"return document.querySelectorAll('#chart-{key} .mark-symbol.role-mark path').length"
        )

    assert symbols("source-weights") == 2 * 8, "two sources over eight rounds"
    assert symbols("noise-and-distances") == 3 * 8, "and the noise"
    assert symbols("loss-over-rounds") == 8
    assert symbols("map-of-winners") == 2
    lines = "return document.querySelectorAll('#chart-source-weights .mark-line path[d]').length"
    assert page.run(lines) == 2


def test_a_site_whose_name_is_code_is_shown_as_text(opened, run_page, comparison_page):
    page = opened(run_page)
    assert page.run("return document.querySelectorAll('main script').length") == 0
    legend = page.run("return document.querySelector('#chart-source-weights svg').textContent")
    assert shortened(EVIL, LONGEST) in legend
    assert EVIL in page.run("return document.querySelector('#table-sites').textContent")
    page = opened(comparison_page)
    drawn = "return document.getElementById(arguments[0]).textContent"
    assert EVIL in page.run(drawn, f"chart-by-setting-{file_name(EVIL)}")
    assert page.complaints() == []


def test_the_pointer_shows_values_as_text(opened, run_page):
    page = opened(run_page)
    place = page.run(
        "const chart = document.querySelector('#chart-source-weights');"
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
    place = (
        "document.querySelector('#chart-roc-curve .layer_3_marks path').getAttribute('transform')"
    )
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
    label = "'#chart-loss-over-rounds .role-axis-label text'"
    axis = f"getComputedStyle(document.querySelector({label})).fill"
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


COLLISIONS = """
const found = [];
for (const chart of document.querySelectorAll(".plot svg")) {
  const boxes = [...chart.querySelectorAll("text")]
    .filter(text => text.textContent.trim() && text.getAttribute("opacity") !== "0"
      && getComputedStyle(text).opacity !== "0")
    .map(text => [text.textContent, text.getBoundingClientRect()]);
  boxes.forEach(([one, a], index) => boxes.slice(index + 1).forEach(([other, b]) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 1 && down > 3) found.push(`${one} on ${other}`);
  }));
}
return found;
"""
"""Texts of a chart that stand on each other; lines of text may touch."""


@pytest.fixture(scope="module")
def crowded_run_page(tmp_path_factory):
    """Forty sources, the weighty ones close together, and a target that chose."""
    weights = [1 - k / 50 for k in range(40)]
    kinds = ("led, last", "head, last", "inputs, last", "inputs, earlier", "fine-tuned, last")
    told = dict.fromkeys((*kinds, "alone", "alone, network"), 0.14)
    history = [
        line(
            number,
            40,
            beta=weights,
            d2=[0.01 * 1.3 ** ((k * 7) % 40) for k in range(40)],
            tau2_d2=[0.005 * 1.3 ** ((k * 7) % 40) for k in range(40)],
            cv_loss={name: 1 + k / 100 for k, name in enumerate(told)},
            cv_error=told,
            weights=told,
        )
        for number in range(1, 31)
    ]
    folder = tmp_path_factory.mktemp("crowded-run")
    names = [f"Hospital {k:02d}" for k in range(40)]
    return write_report(write_run(folder, history, sources=names))


@pytest.fixture(scope="module")
def crowded_comparison_page(tmp_path_factory):
    """Thirty methods, most of them alike, over six settings of a dial."""
    folder = tmp_path_factory.mktemp("crowded-comparison")
    settings = [f"digits-noise, noise {k / 10}" for k in range(6)]
    entries = [
        cell(setting, f"a-method-with-a-name-{k}", 0, 80 + k / 10 - 3 * place)
        for place, setting in enumerate(settings)
        for k in range(30)
    ]
    tasks = [
        {"label": name, "task": "t", "target": None, "options": {"noise": k / 10}}
        for k, name in enumerate(settings)
    ]
    write_comparison(folder, entries, tasks=tasks)
    for entry in entries:
        score, place = entry["summary"]["accuracy"], settings.index(entry["setting"])
        measured = {"sigma2": 1.0 + place / 5, "d2": [1.0 + place, 2.0]}
        history = [line(number, 2, accuracy=score, **measured) for number in (1, 2, 3)]
        write_run(folder / entry["folder"], history)
    return write_report(folder)


@pytest.mark.parametrize("width", [390, 700, 1200])
@pytest.mark.parametrize(
    "which", ["run_page", "comparison_page", "crowded_run_page", "crowded_comparison_page"]
)
def test_no_text_of_a_chart_stands_on_another(opened, which, width, request):
    page = opened(request.getfixturevalue(which), width=width, mobile=width < 600)
    assert page.complaints() == []
    assert page.run(COLLISIONS) == []
    assert page.run("return document.documentElement.scrollWidth") <= width


def test_a_wide_table_keeps_its_first_column_and_shows_the_way_to_the_rest(
    opened, crowded_comparison_page
):
    page = opened(crowded_comparison_page, width=390, mobile=True)
    page.run("document.documentElement.style.scrollBehavior = 'auto'")
    box = "document.getElementById('table-comparison')"
    page.run(f"{box}.style.scrollBehavior = 'auto'; {box}.scrollIntoView()")
    button = f"{box}.nextElementSibling"
    page.wait(f"!{button}.hidden")
    left = "querySelector('tbody th').getBoundingClientRect().left"
    head = "querySelector('thead th').getBoundingClientRect().left"
    before = page.run(f"return [{box}.{left}, {box}.{head}]")
    page.run(f"{button}.click()")
    page.wait(f"{box}.scrollLeft > 100")
    assert page.run(f"return [{box}.{left}, {box}.{head}]") == before
    page.run(f"{box}.scrollLeft = 1e6")
    page.wait(f"{button}.hidden")
    page = opened(crowded_comparison_page, width=390, mobile=True)
    page.run("document.getElementById('every-run').open = true")
    page.wait("!document.querySelector('#table-runs + .onward').hidden")


def test_a_table_that_fits_has_no_button(opened, run_page):
    page = opened(run_page)
    page.run("document.querySelectorAll('details').forEach(part => part.open = true)")
    shown = "[...document.querySelectorAll('.onward')].filter(button => !button.hidden).length"
    assert page.run(f"return {shown}") == 0


def test_a_long_name_pushes_no_column_out_of_sight(opened, tmp_path):
    folder = write_run(tmp_path, [line(1, 2), line(2, 2)], sources=("L" * 120, "B"))
    page = opened(write_report(folder))
    widths = (
        "const t = document.getElementById('table-sites'); return [t.scrollWidth, t.clientWidth]"
    )
    content, window = page.run(widths)
    assert content <= window
    page = opened(write_report(folder), width=390, mobile=True)
    legend = "return document.querySelector('#chart-source-weights svg').getBBox().width"
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
    image = "document.querySelector('#chart-source-weights [role=img]')"
    told = page.run(f"return {image}.getAttribute('aria-label')")
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
    paths = "return document.querySelectorAll('#chart-source-weights .mark-line path[d]').length"
    assert page.run(paths) == 50
    page.media("print")
    page.run("document.querySelectorAll('details').forEach(part => part.open = true)")
    heights = page.run(
        "const t = document.getElementById('table-rounds');"
        "return [t.clientHeight, t.querySelector('table').offsetHeight]"
    )
    assert heights[0] >= heights[1], "a long table is printed whole"
