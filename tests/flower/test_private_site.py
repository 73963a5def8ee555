"""Record-level privacy at a site: its own word, its own dice, and an end when it is spent."""

import json
from dataclasses import replace
from itertools import count

import pytest
import torch
from flower.test_site import ORDERS
from flower.test_what_leaves_a_site import bytes_of
from pretend import Node, PretendGrid, nodes_of, run_over_pretended_flower
from small import blobs
from torch import nn

import fedbridge as fb
from fedbridge.advice import batches, predict
from fedbridge.advice.advise import SKETCH_SIZE
from fedbridge.advice.measure import ADVICE
from fedbridge.base.errors import OptionError
from fedbridge.data.site_package import sites_of
from fedbridge.data.task import Site
from fedbridge.flower import privacy
from fedbridge.flower.client import client_app
from fedbridge.flower.messages import RequestError, job_of_json, jobs_to_json
from fedbridge.flower.privacy import PrivacyBudget, PrivacySpentError
from fedbridge.flower.site import SPENDING, SiteMemory, SiteWorker
from fedbridge.flower.strategy import FedBridgeStrategy
from fedbridge.training import trainer
from fedbridge.training.chance import PrivateChance
from fedbridge.training.job import Job, LocalPlan
from fedbridge.training.record_privacy import RecordNoise, RecordPrivacy

QUICK = {"model": "mlp:8", "batch_size": 8, "lr": 0.05}
OWN = {"record-epsilon": 3.0, "record-rounds": 2}
PRIVACY = RecordPrivacy(3.0, 2)
LARGER = blobs(target_rows=24)


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


def other_values():
    """Sites of as many rows, of which nothing else is the same: other values, other labels."""
    return [
        replace(site, train=Site(site.name, 9 - 3 * site.train.x, site.train.y.clamp(min=1)))
        for site in sites_of(LARGER)
    ]


def without_gradients(monkeypatch):
    """Noise that can be had again, and gradients of nothing: what is left tells of no value."""
    drawn = count()
    monkeypatch.setattr(trainer, "PrivateChance", lambda seed: PrivateChance(next(drawn)))
    monkeypatch.setattr(trainer, "clipped_sum", lambda model, *rows: zeros_for(model))
    monkeypatch.setattr(privacy, "clipped", lambda vector, bound: torch.zeros_like(vector).double())
    monkeypatch.setattr(privacy, "unpredictable_normals", lambda n: normals(next(drawn), n))


def zeros_for(model):
    return torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)


def normals(seed, size):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()


def everything_sent(sites, method, folder, own, **options):
    def node(site):
        memory = {"memory": str(folder / site.name), "advice": True, **own}
        return Node(site.name, client_app(load=lambda context: site), memory)

    with pytest.MonkeyPatch.context() as monkeypatch:
        without_gradients(monkeypatch)
        grid = PretendGrid(map(node, sites))
        told = {**QUICK, "model": "linear", **options}
        try:
            strategy, _ = run_over_pretended_flower(LARGER, method, 2, folder, grid, **told)
            heard = [line["failures"] for line in strategy.result.history]
        except fb.FedbridgeError as error:
            heard = [str(error)]
    return heard, [(name, kind, bytes_of(content)) for name, kind, content in grid.sent]


@pytest.mark.parametrize(
    "own",
    [{**OWN, "record-rounds": 9}, {"dp-clip": 1.0, "dp-noise": 2.0}],
    ids=["record", "local"],
)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedgp-auto", {}),
        ("auto", {}),
        (ADVICE, {"sketch_size": SKETCH_SIZE, "after": 2}),
        ("source-only", {"class_weights": (1.0, 0.0, 0.0)}),
        ("fedavg", {"early_stopping": 1, "validation_fraction": 0.3}),
    ],
    ids=["noise", "auto", "advice", "class weights", "rows set aside"],
)
def test_but_for_protected_gradients_nothing_that_leaves_depends_on_values(
    own, method, options, tmp_path, monkeypatch
):
    """Two federations whose rows have nothing in common but their number send the same bytes."""
    monkeypatch.setattr(predict, "SIMULATED_RESAMPLES", 6)
    monkeypatch.setattr(batches, "RESAMPLES", 40)
    first = everything_sent(sites_of(LARGER), method, tmp_path / "a", own, **options)
    other = everything_sent(other_values(), method, tmp_path / "b", own, **options)
    assert first == other


def test_such_a_difference_would_be_found(tmp_path):
    first = everything_sent(sites_of(LARGER), "fedavg", tmp_path / "a", {})
    other = everything_sent(other_values(), "fedavg", tmp_path / "b", {})
    assert first != other


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
