"""What the documents show is run, word for word."""

import re
import runpy
from pathlib import Path

import pytest

import fedbridge as fb

ROOT = Path(__file__).parents[1]
FILES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
EXAMPLES = sorted(ROOT.glob("examples/*/README.md"))
DOCUMENTS = [path.relative_to(ROOT).as_posix() for path in FILES]


pytestmark = pytest.mark.usefixtures("own_code_forgotten")


def python_blocks(document: str) -> str:
    text = (ROOT / document).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


def run_python_of(document: str) -> None:
    exec(compile(python_blocks(document), document, "exec"), {"__name__": "document"})


@pytest.mark.parametrize(
    "document", [name for name in DOCUMENTS if "```python" in (ROOT / name).read_text("utf-8")]
)
def test_python_in_a_document_runs(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_python_of(document)


def test_the_documents_that_show_python_are_found():
    shown = [name for name in DOCUMENTS if python_blocks(name)]
    assert {"README.md", "docs/guide.md", "docs/advise.md", "docs/new-rule.md"} <= set(shown)


def test_the_documented_rule_is_registered_by_its_name():
    run_python_of("docs/new-rule.md")
    assert fb.rules.get("nearest").options == ("caution",)


def test_tables_of_options_are_those_of_the_docstrings():
    make = runpy.run_path(str(ROOT / "docs/make_tables.py"))
    found = "".join(path.read_text(encoding="utf-8") for path in FILES)
    assert set(make["TABLES"]) == set(re.findall(r"<!-- options: (\w+) -->", found))
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert make["filled"](text) == text, f"{path.name}: run python docs/make_tables.py"


def test_tables_of_results_are_those_of_the_committed_runs():
    make = runpy.run_path(str(ROOT / "docs/make_results.py"))
    text = make["DOCUMENT"].read_text(encoding="utf-8")
    shown = {
        make["file_of"](name, protocol, quick=bool(quick)).name
        for _, name, protocol, quick, _ in make["PART"].findall(text)
    }
    assert shown == {file.name for file in make["RESULTS"].glob("*.json")}
    assert make["filled"](text) == text, "run python docs/make_results.py"


def test_tables_of_privacy_are_those_of_the_committed_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    make = runpy.run_path(str(ROOT / "benchmarks/privacy.py"))
    text = make["DOCUMENT"].read_text(encoding="utf-8")
    assert {name for _, name, _ in make["PART"].findall(text)} == set(make["STUDIES"])
    assert make["filled"](text) == text, "run python benchmarks/privacy.py --write"


def test_lines_of_the_documents_are_short():
    for path in [*FILES, *EXAMPLES]:
        long = [line for line in path.read_text("utf-8").splitlines() if len(line) > 100]
        assert [line for line in long if not line.startswith(("|", "!["))] == [], path.name


def test_links_of_the_documents_lead_to_files():
    for document in FILES:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_contributing_names_places_that_are_there():
    named = re.findall(r"`(\w+/[\w/]*(?:\.py)?)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert len(named) > 15
    places = (ROOT, ROOT / "src/fedbridge")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_the_core_tour_shows_every_rule(capsys):
    tour = runpy.run_path(str(ROOT / "examples/core_tour.py"))
    tour["main"].__globals__["DRAWS"] = 3
    tour["main"]()
    shown = capsys.readouterr().out
    assert "fedgp-joint" in shown
    assert "errs least" in shown
