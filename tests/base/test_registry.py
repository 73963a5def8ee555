"""Names, and the rules that other packages bring."""

import subprocess
import sys

import pytest

from fedbridge.base.errors import FedbridgeError, UnknownNameError
from fedbridge.base.registry import Registry


def fresh(group="fedbridge.test"):
    return Registry("rule", group, lambda name, entry: entry)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package on the path as pip would: modules, and a dist-info with entry points."""

    def put(module, source, entry_points):
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path

    return put


def run(code, path):
    """Run code in a new interpreter that sees the packages in ``path``; warnings are errors."""
    start = f"import sys; sys.path.insert(0, {str(path)!r})\n"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", start + code],
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_entry_is_found_by_its_name_and_listed_in_order():
    registry = fresh()
    registry.add("b", 1)
    registry.add("a", 2)
    assert (registry.get("a"), registry.names()) == (2, ["b", "a"])


def test_a_name_is_given_once():
    registry = fresh()
    registry.add("a", 1)
    with pytest.raises(FedbridgeError, match="'a' is taken"):
        registry.add("a", 2)
    assert registry.get("a") == 1


@pytest.mark.parametrize("asked", ["fedpg", "FedGP", "fed_gp", "fedgpp"])
def test_an_unknown_name_suggests_the_nearest(asked):
    registry = fresh()
    registry.add("fedgp", 1)
    registry.add("median", 2)
    with pytest.raises(UnknownNameError, match=f"but got '{asked}'. Did you mean 'fedgp'") as error:
        registry.get(asked)
    assert "Known: fedgp, median." in str(error.value)
    assert isinstance(error.value, KeyError)
    assert not str(error.value).startswith(("'", '"'))


def test_a_name_near_nothing_gets_no_suggestion():
    registry = fresh()
    registry.add("fedgp", 1)
    with pytest.raises(UnknownNameError, match=r"but got 'zzz'\. Known: fedgp"):
        registry.get("zzz")


def test_another_package_adds_an_entry(install):
    install(
        "plugin_plain", "def half(): return 1\n", "[fedbridge.test]\nhalf = plugin_plain:half\n"
    )
    registry = fresh()
    registry.add("own", None)
    assert registry.names() == ["own", "half"]
    assert fresh().get("half")() == 1


def test_another_group_is_not_ours(install):
    install("plugin_other", "def half(): return 1\n", "[other.group]\nhalf = plugin_other:half\n")
    assert fresh().names() == []


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module\n", "no_such_module"),
        ("def other(): pass\n", "broken"),
        ("raise SystemError('boom')\n", "boom"),
    ],
    ids=["import fails", "attribute missing", "import raises"],
)
def test_a_broken_entry_is_left_out_with_a_warning(install, request, source, reason):
    module = "plugin_" + request.node.callspec.id.replace(" ", "_")
    points = f"[fedbridge.test]\nbroken = {module}:broken\nfine = json:dumps\n"
    install(module, source, points)
    registry = fresh()
    registry.add("own", 1)
    with pytest.warns(UserWarning, match=f"rule 'broken' from '{module}:broken'.*{reason}"):
        assert registry.names() == ["own", "fine"]
    assert registry.names() == ["own", "fine"]  # and warns only once


def test_another_package_cannot_replace_a_name(install):
    install("plugin_thief", "mine = 2\n", "[fedbridge.test]\nmine = plugin_thief:mine\n")
    registry = fresh()
    registry.add("mine", 1)
    with pytest.warns(UserWarning, match="'mine' is taken"):
        assert registry.names() == ["mine"]
    assert registry.get("mine") == 1


def test_built_in_names_are_found_without_loading_other_packages(install):
    install("plugin_slow", "raise RuntimeError\n", "[fedbridge.test]\nslow = plugin_slow:x\n")
    registry = fresh()
    registry.add("own", 1)
    assert registry.get("own") == 1


RULES_OF_ANOTHER_PACKAGE = """
import torch
from fedbridge.core.rules import CoordinateRule, Mix, coordinate_rule, rule

def first_source(geometry, *, share=1.0):
    sources = torch.zeros_like(geometry.source2)
    sources[:, 0] = share
    return Mix(1.0 - sources.sum(1), sources, sources)

largest = CoordinateRule("largest", lambda target, sources: sources.amax(0))

@rule("decorated")
def decorated(geometry):
    return first_source(geometry)

@coordinate_rule("sum")
def total(target, sources):
    return sources.sum(0)
"""

ENTRY_POINTS = """[fedbridge.rules]
first-source = plugin_rules:first_source
largest = plugin_rules:largest
decorated = plugin_rules:decorated
sum = plugin_rules:total
"""


def test_rules_of_another_package_work_like_our_own(install):
    path = install("plugin_rules", RULES_OF_ANOTHER_PACKAGE, ENTRY_POINTS)
    done = run(
        "import torch, fedbridge as fb\n"
        "t, s = torch.tensor([1.0, 1.0]), torch.tensor([[2.0, 4.0], [3.0, 0.0]])\n"
        "print(fb.aggregate('first-source', t, s, share=0.5).tolist())\n"
        "print(fb.aggregate('largest', t, s).tolist())\n"
        "print(fb.aggregate('decorated', t, s).tolist())\n"
        "print(fb.aggregate('sum', t, s).tolist())\n"
        "print(fb.rules.names()[-4:])\n",
        path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[1.5, 2.5]",
        "[3.0, 4.0]",
        "[2.0, 4.0]",
        "[5.0, 4.0]",
        "['decorated', 'sum', 'first-source', 'largest']",
    ]


def test_a_broken_rule_of_another_package_does_not_take_the_library_down(install):
    path = install("plugin_bad", "x = 3\n", "[fedbridge.rules]\nbad = plugin_bad:x\n")
    done = run(
        "import warnings, fedbridge as fb\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    names = fb.rules.names()\n"
        "print('bad' in names, 'fedgp' in names, seen[0].message)\n",
        path,
    )
    assert done.stdout.startswith("False True The rule 'bad' from 'plugin_bad:x' is left out")
