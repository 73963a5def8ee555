"""The method of docs/new-method.md: its limits, its effect, and its package, installed by pip."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small import blobs, federation, method, same_model
from torch.nn import functional

import fedbridge as fb
from fedbridge.methods import StepContext
from fedbridge.training.objective import Batch

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/own_method"

pytestmark = pytest.mark.usefixtures("own_code_forgotten")


@pytest.fixture
def own(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    import forgiving

    yield forgiving
    del sys.modules["forgiving"]


def test_the_page_shows_the_file():
    text = (ROOT / "docs/new-method.md").read_text("utf-8")
    shown = re.findall(r"```(?:python|toml)\n(.*?)```", text, re.DOTALL)
    code = (EXAMPLE / "forgiving.py").read_text("utf-8")
    assert shown[0] == code
    assert len(code.splitlines()) <= 42
    assert any(block in (EXAMPLE / "pyproject.toml").read_text("utf-8") for block in shown[1:])


def test_the_loss_has_the_limits_that_it_claims(own):
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(4, 3), torch.randn(6, 4), torch.arange(6) % 3
    rows = Batch(x, y, torch.arange(6))
    context = StepContext(
        model, torch.nn.Parameter(torch.zeros(1)), None, lambda *_: None, rows, (), 0.1
    )
    usual = functional.cross_entropy(model(x), y)
    near_zero, at_one = (own.ForgivingLoss(q)(context).item() for q in (1e-3, 1.0))
    assert near_zero == pytest.approx(usual.item(), rel=1e-2)
    share = model(x).detach().softmax(1)[torch.arange(6), y]
    assert at_one == pytest.approx((1 - share).mean().item(), rel=1e-5)


def test_a_row_pulls_less_the_less_the_model_believes_its_label(own):
    logits = torch.tensor([[4.0, 0.0]], requires_grad=True)
    usual = torch.autograd.grad(functional.cross_entropy(logits, torch.tensor([1])), logits)[0]
    rows = Batch(torch.zeros(1, 1), torch.tensor([1]), torch.tensor([0]))
    nothing = torch.nn.Parameter(torch.zeros(1))
    context = StepContext(lambda _: logits, nothing, None, lambda *_: None, rows, (), 0.1)
    loss = own.ForgivingLoss(0.7)(context)
    found = torch.autograd.grad(loss, logits)[0]
    share = float(logits.detach().softmax(1)[0, 1])
    torch.testing.assert_close(found, usual * share**0.7)


def test_the_method_trains_by_its_loss_and_resumes(own, tmp_path):
    one = method("fedda", federation())
    assert type(one.objective) is not own.ForgivingLoss
    settings = {"seed": 1, "workers": 1, "q": 0.9, "beta": 0.5}
    whole = fb.run(blobs(), own.Forgiving, rounds=4, **settings)
    fb.run(blobs(), own.Forgiving, rounds=2, **settings, out=tmp_path / "a")
    rest = fb.run(blobs(), own.Forgiving, rounds=4, **settings, out=tmp_path / "a", resume=True)
    usual = fb.run(blobs(), "fedda", rounds=4, seed=1, workers=1, beta=0.5)
    assert same_model(whole.model, rest.model)
    assert not same_model(whole.model, usual.model)
    with pytest.raises(fb.FedbridgeError, match=r"Expected `q`"):
        fb.run(blobs(), own.Forgiving, rounds=1, q=3, workers=1)


def test_where_labels_are_wrong_it_is_better(own, capsys):
    table = runpy.run_path(str(EXAMPLE / "wrong_labels.py"))
    table["main"](25, 1)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["0%", "20%", "40%"]
    assert float(rows[2][2]) > float(rows[2][1]) + 3


def test_the_installed_package_runs_by_its_name(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "package")
    place = tmp_path / "installed"
    words = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    words += ["--disable-pip-version-check", "--target", place, tmp_path / "package"]
    path = os.pathsep.join([str(place), str(Path(fb.__file__).parents[1])])

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", *map(str, words)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    installed = run(*words)
    assert installed.returncode == 0, installed.stderr
    assert sorted(p.name for p in place.glob("*.py")) == ["forgiving.py"]
    command = ("fedbridge", "run", "digits-noise", "--method", "forgiving", "--rounds", "2")
    done = run(*command, "--q", "0.5", "--workers", "1", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "target by forgiving" in done.stdout
    assert 'method = "forgiving"' in (tmp_path / "run/config.toml").read_text()
    listed = run("fedbridge", "methods")
    assert "FedDA, with a local loss that forgives" in " ".join(listed.stdout.split())
