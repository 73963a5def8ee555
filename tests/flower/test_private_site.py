"""Record-level privacy at a site: its own word, its own dice, and an end when it is spent."""

import json

import pytest
import torch
from flower.test_site import ORDERS
from pretend import PretendGrid, nodes_of, run_over_pretended_flower
from small import blobs
from torch import nn

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.data.site_package import sites_of
from fedbridge.flower.messages import RequestError, job_of_json, jobs_to_json
from fedbridge.flower.privacy import PrivacyBudget, PrivacySpentError
from fedbridge.flower.site import SPENDING, SiteMemory, SiteWorker
from fedbridge.flower.strategy import FedBridgeStrategy
from fedbridge.training.job import Job, LocalPlan
from fedbridge.training.record_privacy import RecordNoise, RecordPrivacy

QUICK = {"model": "mlp:8", "batch_size": 8, "lr": 0.05}
OWN = {"record-epsilon": 3.0, "record-rounds": 2}
PRIVACY = RecordPrivacy(3.0, 2)


def worker(folder, which=1, model=None, **changes):
    site = sites_of(blobs())[which]
    return SiteWorker(
        site,
        ORDERS,
        SiteMemory(folder, "r", site.name),
        model=model,
        privacy=PRIVACY,
        budget=PRIVACY.epsilon,
        **changes,
    )


def train(one, round=1, **plan):
    job = Job(1, LocalPlan(batch_size=8, **plan), seed=3)
    return one.train(round, [job], [one.federation.initial])


@pytest.mark.parametrize("method", ["fedavg", "fedgp-auto", "auto"])
def test_a_run_over_the_wire_tells_epsilon_and_nothing_measured(method, tmp_path):
    task = blobs()
    grid = PretendGrid(nodes_of(task, tmp_path, **OWN))
    strategy, _ = run_over_pretended_flower(task, method, 2, tmp_path, grid, **QUICK)
    first, second = strategy.result.history
    assert not first["failures"]
    assert set(second["epsilon"]) >= {*task.source_names}
    assert first["epsilon"]["site 0"] < second["epsilon"]["site 0"] <= 3.0
    for _, kind, content in grid.sent:
        if kind == "evaluate":
            assert {*content["metrics"]} <= {"num-examples"}
        for name in content:
            if name.startswith("metrics-"):
                assert str(content[name]["loss"]) == "nan"
                assert content[name]["seconds"] == 0.0


def test_a_spent_budget_is_refused_and_named_by_the_history(tmp_path):
    task = blobs()
    nodes = nodes_of(task, tmp_path)
    for node in nodes[1:]:
        node.config.update(OWN)
    grid = PretendGrid(nodes)
    strategy, _ = run_over_pretended_flower(task, "source-only", 3, tmp_path, grid, **QUICK)
    last = strategy.result.history[-1]
    assert "its privacy budget is spent" in last["failures"]["site 0"]


def test_a_budget_lasts_over_runs(tmp_path):
    for run in (1, 2):
        assert train(worker(tmp_path), run).epsilon <= 3.0
    with pytest.raises(PrivacySpentError, match="within an epsilon of 3"):
        train(worker(tmp_path), 3)
    assert PrivacyBudget(tmp_path / SPENDING).epsilon(PRIVACY.delta) <= 3.0


@pytest.mark.parametrize("epochs", [1, 5])
def test_more_steps_get_more_noise_and_not_more_epsilon(epochs, tmp_path):
    for run in (1, 2):
        spent = train(worker(tmp_path), run, epochs=epochs).epsilon
    assert 2.9 < spent <= 3.0


def test_what_a_job_costs_is_written_down_before_it_is_done(tmp_path, monkeypatch):
    one = worker(tmp_path)
    monkeypatch.setattr(one.federation.bench, "run", lambda *a: pytest.fail("trained"))
    monkeypatch.setattr(PrivacyBudget, "spend", lambda *a: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(RuntimeError):
        train(one)


def test_noise_and_rows_are_not_those_of_the_coordinators_seed(tmp_path):
    first, again = (
        train(worker(tmp_path / name)).deliveries[0].result.vector for name in ("a", "b")
    )
    assert not torch.equal(first, again)


def test_a_coordinator_cannot_say_how_a_site_is_protected():
    for option in ("record_epsilon", "record_rounds", "record_of"):
        with pytest.raises(OptionError, match="a site's own word"):
            FedBridgeStrategy("fedavg", **{option: "all" if option == "record_of" else 3})
    job = Job(1, LocalPlan(), 0, privacy=RecordNoise(1e9, 0.0))
    (record,) = json.loads(json.dumps(jobs_to_json([job])))
    assert "privacy" not in record
    assert job_of_json({**record, "privacy": {"clip": 1e9}}).privacy is None


def test_a_model_that_mixes_rows_is_refused_in_words_that_the_coordinator_hears(tmp_path):
    def mixed():
        return nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

    with pytest.raises(RequestError, match="GroupNorm"):
        train(worker(tmp_path, model=mixed))


def test_simulations_have_no_settings_of_sites(tmp_path):
    with pytest.raises(OptionError, match="'flower-sim'"):
        fb.run(blobs(), "fedavg", 1, engine="flower-sim", record_epsilon=3)


@pytest.mark.deploy
def test_over_real_processes_sites_protect_themselves_and_stop(tmp_path):
    done = fb.run(
        blobs(),
        "fedda-auto",
        3,
        engine="flower",
        out=tmp_path / "run",
        model="linear",
        batch_size=8,
        record_epsilon=3,
        record_rounds=2,
    )
    assert [set(line["epsilon"]) for line in done.history[:2]] == [{*blobs().source_names}] * 2
    assert done.history[1]["epsilon"]["site 0"] <= 3.0
    assert set(done.history[2]["failures"]) == {*blobs().source_names}
    assert "its privacy budget is spent" in str(done.history[2]["failures"])
