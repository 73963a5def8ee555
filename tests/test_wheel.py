"""The wheel, installed alone into an empty environment outside the repository, works."""

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from fedbridge.experiments import catalogue

ROOT = Path(__file__).resolve().parent.parent

USE_IT = """
import json, torch, fedbridge as fb
from fedbridge.experiments import catalogue
found = fb.aggregate("fedgp", target=torch.tensor([4.0, 2.0]), sources=torch.tensor([[2.0, 0.0]]))
print(json.dumps({"file": fb.__file__, "version": fb.__version__, "update": found.tolist(),
                  "tables": [catalogue.load(name).title for name in catalogue.names()]}))
"""


def run(*command, cwd):
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder)
    run(*build, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def environment(tmp_path):
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True)
    yield folder
    shutil.rmtree(folder)


def test_the_wheel_works_in_an_empty_environment_outside_the_repository(
    wheel, environment, tmp_path
):
    python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--disable-pip-version-check",
        "--constraint",
        ROOT / "constraints.txt",
        wheel,
        cwd=tmp_path,
    )
    seen = json.loads(run(python, "-I", "-c", USE_IT, cwd=tmp_path))
    assert Path(seen["file"]).is_relative_to(environment)
    assert seen["version"] == wheel.name.split("-")[1]
    assert seen["update"] == [4.0, 1.0]
    assert len(seen["tables"]) == len(catalogue.names()) > 30
