"""The documents as a site: all pages are in it, all public names, and nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from browser import a_browser, needs_chromium

import fedbridge as fb

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
FROM_ELSEWHERE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(?:https?:)?//""")


def in_nav(part=CONFIG["nav"]):
    """The files that the navigation names."""
    if isinstance(part, str):
        return [part]
    inner = part.values() if isinstance(part, dict) else part
    return [name for one in inner for name in in_nav(one)]


def documented():
    """What the pages of the API reference are made from."""
    text = "".join(page.read_text("utf-8") for page in sorted((DOCS / "api").glob("*.md")))
    return set(re.findall(r"^::: (\S+)", text, flags=re.MULTILINE)), text


def test_the_navigation_names_files_that_are_there_once():
    found = in_nav()
    assert len(found) == len(set(found)) > 20
    places = (DOCS, ROOT)
    missing = [name for name in found if not any((place / name).is_file() for place in places)]
    assert missing == ["index.md"]  # the README


def test_every_document_and_example_is_in_the_navigation():
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    examples = [page.relative_to(ROOT).as_posix() for page in ROOT.glob("examples/*/README.md")]
    assert {*pages, *examples} - set(in_nav()) == set()


@pytest.mark.parametrize("name", fb.__all__)
def test_every_public_name_is_in_the_api_reference(name):
    value = getattr(fb, name)
    own = value.__name__ if isinstance(value, ModuleType) else f"fedbridge.{name}"
    assert own in documented()[0]


def test_every_rule_is_in_the_api_reference():
    _, text = documented()
    shown = re.findall(r"^        - (\w+)$", text, flags=re.MULTILINE)
    assert {name.replace("-", "_") for name in fb.rules.names()} <= set(shown)


def test_the_public_names_of_flower_are_in_the_api_reference():
    shown = (DOCS / "api/flower.md").read_text("utf-8")
    tree = (ROOT / "src/fedbridge/flower/__init__.py").read_text("utf-8")
    names = re.findall(r'"(\w+)"', tree.partition("__all__ = [")[2].partition("]")[0])
    assert len(names) > 5
    assert [name for name in names if f"- {name}\n" not in shown] == []


def test_lists_of_the_documents_begin_after_an_empty_line():
    """Else they are lists where the repository is read, and one paragraph on the site."""
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/*/README.md")]:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        items = re.findall(r"^(\S.*)\n(?:[-*]|\d+\.) \S", text, flags=re.MULTILINE)
        assert [line for line in items if not re.match(r"([-*]|\d+\.) ", line)] == [], page.name


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("needs the extra docs: make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(
        [*command, "--config-file", ROOT / "mkdocs.yml"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    yield folder
    shutil.rmtree(folder)


def test_the_site_is_built_without_a_warning_and_fetches_nothing(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    fetching = [page for page in pages if FROM_ELSEWHERE.search(page.read_text("utf-8"))]
    assert fetching == []


def test_what_lies_outside_the_documents_is_a_page(site):
    readme = (site / "index.html").read_text("utf-8")
    assert 'href="examples/hospitals/index.html"' in readme
    assert 'src="images/report.png"' in readme
    guide = (site / "guide.html").read_text("utf-8")
    assert 'href="examples/hospitals/index.html"' in guide
    assert "class Geometry" in re.sub(
        "<[^>]+>", "", (site / "src/fedbridge/core/geometry.py.html").read_text("utf-8")
    )


def test_options_and_examples_of_docstrings_are_shown_as_such(site):
    rules = re.sub(r"<[^>]+>", "", (site / "api/rules.html").read_text("utf-8"))
    assert "Other Parameters" in rules
    assert ">>>" in rules.replace("&gt;", ">")


@needs_chromium
def test_search_finds_a_rule_on_a_page_that_was_opened_from_disk(site):
    with a_browser() as browser:
        browser.open(site / "api" / "runs.html")
        browser.run(
            "document.getElementById('__search').click();"
            "const field = document.querySelector('.md-search__input');"
            "field.focus(); field.value = 'fedgp'; field.dispatchEvent(new Event('input'));"
            "field.dispatchEvent(new Event('keyup'));"
        )
        browser.wait("document.querySelectorAll('.md-search-result__item').length > 2")
        assert browser.complaints() == []
