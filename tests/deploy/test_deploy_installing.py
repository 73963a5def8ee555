"""What a site installs: the coordinator's code, and the versions it runs with."""

import os
import subprocess
import sys
import tomllib
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest
from deploying import deployment, plan
from flwr.cli.config_utils import load_and_validate

from fedbridge._version import __version__
from fedbridge.cli.main import main
from fedbridge.deploy import installing
from fedbridge.deploy.changing import change_deployment
from fedbridge.deploy.folders import DeploymentError
from fedbridge.deploy.installing import CONSTRAINTS, own_constraints, own_wheel
from fedbridge.flower.server import FLOWER, app_files

ROOT = Path(__file__).parents[2]
APPS = ("examples/flower-hospitals", "tests/flower/tiny_app")


def pip(*words, cwd):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return deployment(tmp_path_factory.mktemp("dep") / "dep").site("A").folder


def test_every_site_has_the_wheel_the_constraints_and_the_commands(made):
    wheel = own_wheel()
    for name in made.plan().sites:
        folder = made.site(name).folder
        assert (folder / wheel.name).read_bytes() == wheel.content
        assert (folder / CONSTRAINTS).read_text() == own_constraints()
        page = (folder / "START-HERE.md").read_text()
        assert f"pip install --constraint constraints.txt './{wheel.name}[flower]'" in page
        assert "pip install --no-index --find-links wheels" in page
        assert wheel.sha256 in page
    runbook = made.runbook.read_text()
    assert wheel.sha256 in runbook
    assert "pip download --dest wheels" in runbook


def test_the_wheel_installs_without_an_index_and_packs_itself_again_to_the_same_bytes(
    site, tmp_path
):
    """What is installed from it is a fedbridge that can make deployments, as from a checkout."""
    wheel, there = own_wheel(), tmp_path / "there"
    done = pip("install", "--no-index", "--no-deps", "--target", there, wheel.name, cwd=site)
    assert done.returncode == 0, done.stderr
    code = (
        "from fedbridge.deploy import installing as i; import fedbridge;"
        "print(fedbridge.__file__, i.own_wheel().sha256, i.own_constraints(), end='')"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(there)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    file, digest, constraints = told.split(" ", 2)
    assert file.startswith(str(there))
    assert digest == wheel.sha256
    assert constraints == own_constraints()


def test_pip_finds_all_that_the_wheel_needs_in_an_environment_with_these_versions(site):
    wheel = own_wheel()
    done = pip(
        *("install", "--no-index", "--dry-run", "--constraint", CONSTRAINTS),
        f"./{wheel.name}[flower]",
        cwd=site,
    )
    assert done.returncode == 0, done.stderr


def test_constraints_are_exact_and_have_no_builds_own_label():
    lines = own_constraints().splitlines()[1:]
    assert all(line.count("==") == 1 and "+" not in line for line in lines)
    names = {line.partition("==")[0] for line in lines}
    assert {"torch", "flwr", "cryptography", "numpy"} <= names
    assert not {"pytest", "mypy", "fedbridge"} & names


def test_the_wheels_requirements_are_those_of_the_checkout_today():
    with ZipFile(BytesIO(own_wheel().content)) as archive:
        about = f"fedbridge-{__version__}.dist-info"
        text = archive.read(f"{about}/METADATA").decode()
        names = archive.namelist()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [line for line in text.splitlines() if line.startswith("Requires-Dist: ")]
    assert len(needed) == len(project["dependencies"]) + sum(
        map(len, project["optional-dependencies"].values())
    )
    assert f"Version: {__version__}" in text
    assert f"{about}/licenses/LICENSE" in names
    assert "fedbridge/deploy/START-HERE.md" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


def test_code_that_is_not_installed_says_so(monkeypatch):
    def missing(name):
        raise installing.PackageNotFoundError(name)

    monkeypatch.setattr(installing, "distribution", missing)
    with pytest.raises(DeploymentError, match="Expected an installed fedbridge"):
        own_wheel.__wrapped__()


def test_another_version_takes_the_place_of_the_one_before(made):
    folder = made.site("A").folder
    old = folder / "fedbridge-0.0.1-py3-none-any.whl"
    old.write_bytes(b"")
    change_deployment(made, plan(rounds=5))
    assert [file.name for file in folder.glob("*.whl")] == [own_wheel().name]


def test_init_says_which_wheel_it_is(tmp_path, capsys):
    words = ["deploy", "init", "--sites", "A", "--target", "T", "--out", str(tmp_path / "dep")]
    assert main(words) == 0
    assert f"{own_wheel().name}, SHA-256 {own_wheel().sha256}" in capsys.readouterr().out


@pytest.mark.parametrize("app", [*APPS, "a deployment's", "one that runs on one machine"])
def test_flower_has_no_word_to_say_about_our_apps(app, made, tmp_path):
    """They have the format of today, whose errors and warnings ``flwr build`` shows."""
    folder = ROOT / app if app in APPS else made.app
    if app.startswith("one"):
        folder = tmp_path / "app"
        for path, text in app_files({}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    config, warnings = load_and_validate(folder / "pyproject.toml", check_module=False)
    assert not warnings
    assert config["tool"]["flwr"]["app"]["fab-format-version"] == 1
    assert (folder / config["project"]["license"]["file"]).read_text()


def test_the_versions_of_flower_that_apps_name_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["flower"] == [f"flwr{FLOWER}"]
