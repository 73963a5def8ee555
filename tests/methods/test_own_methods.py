"""Rules and methods of a user's own: by module and name, as classes, from a file."""

import pytest
import torch

import fedbridge as fb
from fedbridge import methods
from fedbridge.base.errors import OptionError
from fedbridge.runs.folder import RunFolderError
from fedbridge.workflows.run import OwnMethodError

QUICK = {"rounds": 1, "workers": 1}

RULE = '''
import torch
from fedbridge import Geometry, Mix
from fedbridge.rules import rule


def trusting(geometry: Geometry, *, share: float = 0.5) -> Mix:
    """The same share to every source."""
    blocks, n = geometry.distance2.shape
    weights = torch.full((blocks, n), share / n, dtype=torch.float64)
    return Mix(target=1 - weights.sum(1), sources=weights, beta=weights)
'''

METHOD = '''
from fedbridge.methods import Method, Record


class StayingPut(Method):
    """Leaves the model as it was."""

    options = ("patience",)

    def run_round(self, round):
        return Record(notes=[f"patience {self.given.get('patience')}"])


class Failing(StayingPut):
    name = "fails"

    def run_round(self, round):
        return self.nothing
'''


@pytest.fixture(autouse=True)
def _here(own_code_forgotten, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "my_rules.py").write_text(RULE)
    (tmp_path / "my_methods.py").write_text(METHOD)
    return tmp_path


def test_a_function_by_module_and_name_is_a_rule_with_its_options(files):
    result = fb.run("digits-noise", method="my_rules:trusting", share=0.2, **QUICK)
    assert result.history[0]["beta"] == pytest.approx([0.05] * 4)
    assert result.summary["method"] == "my_rules:trusting"
    assert "my_rules:trusting" in fb.methods.names()


def test_a_class_by_module_and_name_is_a_method_with_its_options(files):
    result = fb.run("digits-noise", method="my_methods:StayingPut", patience=3, **QUICK)
    assert "patience 3" in result.history[0]["notes"]


def test_a_class_and_a_function_are_taken_as_they_are():
    class Mine(fb.methods.Method):
        """Stays."""

        def run_round(self, round):
            return fb.methods.Record()

    def even(geometry):
        weights = torch.full(geometry.distance2.shape, 0.1, dtype=torch.float64)
        return fb.Mix(target=1 - weights.sum(1), sources=weights, beta=weights)

    assert fb.run("digits-noise", method=Mine, **QUICK).summary["method"].endswith("Mine")
    assert fb.run("digits-noise", even, **QUICK).history[0]["beta"] == pytest.approx([0.1] * 4)
    found = fb.compare("digits-noise", [Mine, (even, {"lr": 0.2})], 1, 1, alone=False, workers=1)
    assert not found.failures
    assert fb.compare("digits-noise", {"mine": Mine}, 1, 1, alone=False, workers=1).methods[-1] == (
        "mine"
    )


def test_a_built_in_class_keeps_its_name():
    assert methods.known_as(methods.class_of("ditto")) == "ditto"
    assert methods.known_as(fb.rules.get("fedda").function) == "fedda"


def test_a_file_brings_rules_and_methods_by_their_names(files):
    (files / "plugged.py").write_text(
        RULE.replace("def trusting", '@rule("trusting")\ndef trusting') + METHOD
    )
    added = methods.add_plugin(files / "plugged.py")
    assert added == ["trusting", "staying-put", "fails"]
    assert methods.add_plugin(files / "plugged.py") == []
    assert fb.run("digits-noise", method="trusting", **QUICK).history[0]["beta"]
    assert methods.is_own("staying-put")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("my_rules:nothing", "has none|it has none"),
        ("no_module:thing", "Run from the folder that holds it"),
        ("autoo", "module:name"),
        (5, "fedbridge.methods.names"),
        (dict, "to be a Method"),
    ],
)
def test_what_is_no_method_is_refused(files, given, said):
    with pytest.raises(fb.FedbridgeError, match=said):
        fb.run("digits-noise", method=given, **QUICK)


def test_a_file_that_cannot_be_run_is_refused(files):
    with pytest.raises(OptionError, match="Expected a Python file"):
        methods.add_plugin(files / "nowhere.py")
    (files / "plugged.py").write_text("1 / 0")
    with pytest.raises(OptionError, match="ZeroDivisionError"):
        methods.add_plugin(files / "plugged.py")
    (files / "plugged.py").write_text(METHOD.replace('"fails"', '"auto"'))
    with pytest.raises(OptionError, match="'auto' is taken"):
        methods.add_plugin(files / "plugged.py")


def test_an_error_of_ones_own_is_told_as_one(files):
    with pytest.raises(OwnMethodError, match=r"which is your own.*AttributeError"):
        fb.run("digits-noise", method="my_methods:Failing", **QUICK)


def test_other_processes_do_not_know_it(files):
    with pytest.raises(OptionError, match="entry point"):
        fb.run("digits-noise", method="my_rules:trusting", engine="flower", **QUICK)


def test_a_folder_does_not_decide_what_code_runs(files, tmp_path):
    task = fb.load_task("digits-noise")
    result = fb.run(task, method="my_methods:StayingPut", out=tmp_path / "run", **QUICK)
    assert len(fb.predict(tmp_path / "run", task.test.x[:2])) == 2
    del methods._registry._entries["my_methods:StayingPut"]
    with pytest.raises(RunFolderError, match="--method my_methods:StayingPut"):
        fb.predict(result.out, task.test.x[:2])
