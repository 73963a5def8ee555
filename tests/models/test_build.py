"""Models by name, one's own models, and models that do not fit."""

import sys
from pathlib import Path

import pytest
import torch
from small import random_rows
from torch import nn

from fedbridge.base.errors import ModelError, OptionError, UnknownNameError
from fedbridge.data.task import FederatedTask
from fedbridge.models import build_model, check_built_in, is_built_in, registry, split_model
from fedbridge.models.build import BUILT_IN


def regression_of(y: torch.Tensor) -> FederatedTask:
    x = torch.rand(len(y), 4)
    return FederatedTask.from_arrays([(x, y)], (x, y), (x, y))


def test_a_model_without_the_two_parts_cannot_be_split():
    with pytest.raises(ModelError, match=r"`features` and `head`.*use mlp or cnn"):
        split_model(torch.nn.Linear(4, 10))


def test_the_features_of_a_linear_model_are_its_inputs():
    features, head = split_model(build_model("linear", random_rows((4,))))
    rows = torch.rand(3, 4)
    assert torch.equal(features(rows), rows)
    assert head(rows).shape == (3, 10)


def test_the_seed_before_building_decides_the_parameters():
    task = random_rows((1, 28, 28))
    built = []
    for _ in range(2):
        torch.manual_seed(3)
        built.append(build_model("cnn", task).state_dict())
    assert all(torch.equal(built[0][key], built[1][key]) for key in built[0])


def test_checking_the_fit_leaves_random_state_mode_and_statistics_alone():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 3)

        def forward(self, x):
            return self.last(self.norm(x + torch.randn_like(x)))

    model = Noisy()
    model.norm.eval()
    task = random_rows((4,), n_classes=3)
    state = torch.get_rng_state()
    built = build_model(model, task)
    assert torch.equal(torch.get_rng_state(), state)
    assert built.training
    assert not built.norm.training
    assert int(built.norm.num_batches_tracked) == 0


def test_a_ready_module_is_copied():
    own = nn.Linear(4, 3)
    built = build_model(own, random_rows((4,), n_classes=3))
    assert built is not own
    assert torch.equal(built.weight, own.weight)


@pytest.mark.parametrize(
    "factory",
    [
        lambda task: nn.Linear(4, task.outputs),
        lambda: nn.Linear(4, 3),
        lambda width=4: nn.Linear(width, 3),
        lambda task=None: nn.Linear(4, task.outputs),
    ],
)
def test_a_function_gets_the_task_if_it_wants_it(factory):
    assert isinstance(build_model(factory, random_rows((4,), n_classes=3)), nn.Linear)


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Writes an importable module into the current folder, and forgets it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text: str) -> None:
        (tmp_path / "own_net.py").write_text(text)
        monkeypatch.delitem(sys.modules, "own_net", raising=False)

    yield write
    sys.modules.pop("own_net", None)


def test_module_colon_function_is_found_in_the_current_folder(own_module):
    own_module("from torch import nn\ndef make(task):\n    return nn.Linear(4, task.outputs)\n")
    assert build_model("own_net:make", random_rows((4,), n_classes=3)).out_features == 3


@pytest.mark.parametrize(
    ("text", "spec", "message"),
    [
        ("", "own_net:make", "to have a function 'make'"),
        ("", "no_such_module:make", "import 'no_such_module'.*Run from the folder"),
        ("1 / 0", "own_net:make", "ZeroDivisionError"),
        ("def make(): return 3", "own_net:make", "return a torch.nn.Module.*returned int"),
        ("def make(task): return task.nothing", "own_net:make", "AttributeError"),
    ],
)
def test_a_model_that_cannot_be_built_says_why(own_module, text, spec, message):
    own_module(text)
    with pytest.raises(ModelError, match=message):
        build_model(spec, random_rows((4,)))


def test_an_output_size_that_does_not_fit_is_refused():
    with pytest.raises(ModelError, match=r"3 outputs, one per class.*returned \(2, 5\)"):
        build_model(nn.Linear(4, 5), random_rows((4,), n_classes=3))


def test_an_input_size_that_does_not_fit_is_refused():
    with pytest.raises(ModelError, match=r"batches of shape \(n, 4\)"):
        build_model(nn.Linear(5, 3), random_rows((4,), n_classes=3))


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ModelError, match="parameters to train"):
        build_model(nn.Flatten(), random_rows((3,), n_classes=3))


def test_regression_takes_one_column_or_none():
    task = regression_of(torch.rand(6))
    assert build_model("mlp", task)(task.test.x).shape == (6, 1)
    build_model(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), task)
    with pytest.raises(ModelError, match=r"1 output\(s\)"):
        build_model(nn.Linear(4, 2), task)


def test_regression_of_several_values_has_as_many_outputs():
    assert build_model("linear", regression_of(torch.rand(6, 3))).head.out_features == 3


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'mlp'"):
        build_model("mpl", random_rows((4,)))


def test_the_example_of_an_own_model_fits(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2] / "examples" / "own_model")
    monkeypatch.setattr(sys, "path", list(sys.path))
    model = build_model("my_model:build", random_rows((1, 8, 8)))
    split_model(model)
    sys.modules.pop("my_model")


def test_a_misspelt_variant_of_a_built_in_network_is_no_module():
    with pytest.raises(ModelError, match="resnet18:pretrained"):
        build_model("resnet18:pretraind", random_rows((3, 32, 32)))


@pytest.mark.parametrize("name", [*BUILT_IN, "mlp:128", "resnet18:pretrained", "cnn:3"])
def test_a_built_in_model_travels_by_its_name(name):
    assert is_built_in(name)
    assert check_built_in(name) == name


@pytest.mark.parametrize(
    "name",
    ["my_model:build", "resnet18:weights.pth", "resnet18:/x.safetensors#sha256=0123abcd", "mlp:٣"],
)
def test_what_would_run_code_or_open_files_elsewhere_does_not_travel(name):
    assert not is_built_in(name)
    with pytest.raises(OptionError, match="Expected a built-in model"):
        check_built_in(name)


def test_models_of_other_packages_do_not_travel(monkeypatch):
    monkeypatch.setitem(registry._entries, "theirs", lambda task, size: nn.Linear(4, 3))
    assert isinstance(build_model("theirs", random_rows((4,), n_classes=3)), nn.Linear)
    assert not is_built_in("theirs")


def test_a_model_that_is_no_name_does_not_travel():
    with pytest.raises(OptionError, match=r"a Linear.*client_app\(model=...\)"):
        check_built_in(nn.Linear(4, 3))
