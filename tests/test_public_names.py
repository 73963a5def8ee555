"""What `import fedbridge` gives: all public names, and nothing heavy before one is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedbridge as fb

HEAVY = {"torch", "numpy", "pandas", "sklearn", "scipy", "rich", "flwr", "requests"}


def alone(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_nothing_heavy():
    found = alone("import sys, fedbridge; print(*sys.modules)").split()
    assert "fedbridge" in found
    assert not HEAVY & set(found)


@pytest.mark.parametrize("name", fb.__all__)
def test_every_public_name_is_there_and_listed(name):
    assert getattr(fb, name) is not None
    assert name in dir(fb)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'fly'"):
        fb.fly  # noqa: B018


def test_editors_and_type_checkers_see_the_same_names():
    tree = ast.parse(Path(fb.__file__).read_text(encoding="utf-8"))
    declared = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    ]
    assert sorted(declared) == sorted(fb.__all__)


@pytest.mark.parametrize(
    ("path", "module", "names"),
    [
        ("rules", "core.rules", "names, rule, fedgp"),
        ("theory", "core.theory", "fedda_delta, fedgp_delta"),
        ("methods", "methods", "names, Method, Record"),
        ("engines.flower", "flower", "client_app, server_app, FedBridgeStrategy, reply_to_train"),
    ],
)
def test_public_paths_lead_to_the_same_module(path, module, names):
    code = f"import fedbridge.{path} as a, fedbridge.{module} as b; from fedbridge.{path} import "
    assert alone(f"{code}{names}; print(a is b)") == "True"


def test_no_two_classes_share_a_name():
    trees = [ast.parse(file.read_text("utf-8")) for file in Path(fb.__file__).parent.rglob("*.py")]
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert len(classes) > 100
    assert sorted(classes) == sorted(set(classes))
