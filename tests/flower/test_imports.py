"""What a site's client imports, and that a warm process has imported all that its apps need."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ABOVE = {"cli", "deploy", "experiments", "report", "workflows"}

CLIENT = """
import sys
import fedbridge.flower.client
print(*sys.modules)
"""
FORKED = """
import sys, tempfile
from importlib import import_module
from pathlib import Path
from fedbridge.flower.executor import APPS
for module in APPS:
    import_module(module)
from flower.pretend import run_over_pretended_flower
from small import blobs
task = blobs()
warm = set(sys.modules)
with tempfile.TemporaryDirectory() as folder:
    run_over_pretended_flower(task, "auto", 1, Path(folder), model="mlp:8", batch_size=8)
print("new:", *(set(sys.modules) - warm))
"""


def printed(script):
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS, check=True)
    return done.stdout.split()


def test_a_site_imports_nothing_that_looks_at_runs():
    found = [name for name in printed(CLIENT) if ABOVE & set(name.split(".")[:2])]
    assert found == []


@pytest.mark.parametrize("root", ["fedbridge", "torch", "flwr", "pandas"])
def test_an_app_finds_all_it_needs_imported(forked, root):
    assert [name for name in forked if name.partition(".")[0] == root] == []


@pytest.fixture(scope="module")
def forked():
    """What the apps of a run import that the warm process has not."""
    first, *new = printed(FORKED)
    assert first == "new:"
    return new
