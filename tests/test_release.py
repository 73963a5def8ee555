"""What a release says of itself: one version, the same Pythons everywhere, commands that exist."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import fedbridge as fb

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PYTHONS = [
    found[1]
    for line in PROJECT["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
]


def read(name):
    return (ROOT / name).read_text("utf-8")


def test_the_changelog_and_the_citation_are_of_this_version():
    newest = re.search(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", read("CHANGELOG.md"), re.MULTILINE)
    citation = yaml.safe_load(read("CITATION.cff"))
    assert newest is not None
    assert newest[1] == citation["version"] == fb.__version__
    assert newest[2] == str(citation["date-released"])
    assert citation["license"] == PROJECT["license"]


def test_the_citation_names_the_paper_and_its_authors():
    (paper,) = yaml.safe_load(read("CITATION.cff"))["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Jiang", "Zhang", "Koyejo"]
    assert paper["title"].startswith("Principled Federated Domain Adaptation")


def test_badges_say_what_the_project_says():
    assert f">{' | '.join(PYTHONS)}<" in read("docs/images/badge-python.svg")
    assert f">{PROJECT['license']}<" in read("docs/images/badge-licence.svg")


def test_workflows_call_targets_of_make_on_every_python():
    targets = set(re.findall(r"^([a-z-]+):.*##", read("Makefile"), flags=re.MULTILINE))
    jobs = yaml.safe_load(read(".github/workflows/tests.yml"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = [re.fullmatch(r"make ([a-z-]+) PYTHON=python", command)[1] for command in commands]
    assert sorted(called) == ["docs", "test", "wheel"]
    assert set(called) <= targets
    assert jobs["tests"]["strategy"]["matrix"]["python"] == PYTHONS


def test_hooks_before_a_commit_are_the_tools_of_the_environment():
    (repository,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"].split()[0] for hook in repository["hooks"]]
    assert entries == [".venv/bin/ruff", ".venv/bin/ruff", ".venv/bin/mypy"]


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_every_package_of_an_extra_has_an_exact_version(extra):
    exact = {line.partition("==")[0].lower() for line in read("constraints.txt").splitlines()}
    named = [re.match(r"[\w-]+", one)[0] for one in PROJECT["optional-dependencies"][extra]]
    assert [name for name in named if name.lower().replace("_", "-") not in exact] == []


def test_documents_that_install_from_an_index_say_what_works_today():
    guide = read("docs/guide.md")
    assert f"dist/fedbridge-{fb.__version__}-py3-none-any.whl" in guide
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")]:
        text = page.read_text("utf-8")
        if re.search(r"pip install ['\"]?fedbridge", text.replace("\n", " ")):
            assert page.name == "guide.md" or "guide.md#install" in text, page.name
