"""Methods: every name runs, and each does what it says on problems where that is known."""

from dataclasses import replace

import pytest
import torch
from small import Normed, blobs, federation, line, method, same_but_for_seconds, same_model
from torch import nn

import fedbridge as fb
from fedbridge import methods
from fedbridge.base.errors import UnknownNameError
from fedbridge.evaluation.metrics import measure_predictions
from fedbridge.federation.needs import UnmetNeedError
from fedbridge.methods import alone, finetune
from fedbridge.methods.rule import RuleMethod, select
from fedbridge.workflows.predict import load_model

QUICK = {
    "rounds": 2,
    "workers": 1,
    "model": "mlp:8",
    "lr": 0.1,
    "batch_size": 8,
    "batch_size_target": 8,
}


@pytest.fixture(autouse=True)
def _little_to_choose_from(monkeypatch):
    """What every method must do does not depend on how many trainings or trees it has."""
    monkeypatch.setattr(finetune, "EPOCHS", (1, 3))
    monkeypatch.setattr(finetune, "LR_FACTORS", (0.1, 1.0))
    monkeypatch.setattr(alone, "TREES", 9)


def test_all_rules_are_methods_and_auto_comes_first():
    assert methods.names()[0] == "auto"
    assert set(fb.rules.names()) < set(methods.names())
    with pytest.raises(UnknownNameError, match="auto"):
        methods.options_of("autto")


@pytest.mark.parametrize("name", ["source-only", "erm"])
@pytest.mark.parametrize("policy", ["target", "mean"])
def test_a_model_of_the_sources_alone_has_nothing_of_the_target(name, policy):
    task = blobs()
    elsewhere = replace(task, target=replace(task.target, x=100 + 7 * task.target.x))
    options = {**QUICK, "model": Normed(), "buffers": policy, "warmup": 1, "lr_target": 1e-4}
    ours, theirs = (fb.run(one, name, **options) for one in (task, elsewhere))
    assert same_model(ours.model, theirs.model)
    assert not torch.equal(ours.model.norm.running_mean, torch.zeros(2))


@pytest.mark.parametrize("name", [n for n in methods.names() if not n.startswith("alone-")])
def test_every_method_keeps_frozen_statistics(name):
    task = blobs(target_rows=24, n_target=9)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = NormedFeatures()
    made = fb.run(task, name, **{**QUICK, "rounds": 1, "model": model, "buffers": "frozen"})
    found, first = made.model.state_dict(), model.state_dict()
    for key in ("features.1.running_mean", "features.1.running_var"):
        assert all(torch.equal(v, first[key]) for k, v in found.items() if k.endswith(key))
    assert any(k.endswith("features.1.running_mean") for k in found)


class NormedFeatures(nn.Module):
    """A small network with a BatchNorm among its features, whose statistics are not the usual."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.head = nn.Linear(4, 3)
        self.features[1].running_mean.normal_()
        self.features[1].running_var.uniform_(0.5, 2)

    def forward(self, x):
        return self.head(self.features(x))


@pytest.mark.parametrize("name", methods.names())
def test_every_method_runs_twice_to_the_same_bits(name):
    task = blobs(target_rows=24, n_target=9)
    first, second = (fb.run(task, name, **QUICK) for _ in range(2))
    assert same_but_for_seconds(first.history, second.history)
    assert same_model(first.model, second.model)
    assert methods.summary_of(name)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_goes_on_to_the_same_bits_after_a_stop(name, tmp_path):
    task = blobs(target_rows=24, n_target=9)
    options = {**QUICK, "warmup": 1}
    whole = fb.run(task, name, **options)
    fb.run(task, name, **{**options, "rounds": 1}, out=tmp_path / "run")
    resumed = fb.run(task, name, **options, out=tmp_path / "run", resume=True)
    assert same_but_for_seconds(whole.history, resumed.history)
    assert same_model(whole.model, resumed.model)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_gives_the_same_bits_with_two_workers(name):
    task = blobs(target_rows=24, n_target=9)
    options = {**QUICK, "rounds": 1}
    alone, shared = (fb.run(task, name, **{**options, "workers": n}) for n in (1, 2))
    assert same_but_for_seconds(alone.history, shared.history)
    assert same_model(alone.model, shared.model)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_lives_with_clients_that_drop_out(name):
    task = blobs(target_rows=24, n_target=9)
    result = fb.run(task, name, **{**QUICK, "rounds": 4}, dropout=0.5, seed=1)
    assert len(result.history) == 4
    nobody_asked = ("oracle", "alone-auto", "alone-logistic", "alone-forest")
    assert any(line["failures"] for line in result.history) or name in nobody_asked


def test_an_unmet_need_is_said_before_anything_runs():
    with pytest.raises(
        UnmetNeedError, match="`coral` needs a model with a feature extractor; `linear` has none"
    ):
        fb.run(blobs(), "coral", model="linear")
    with pytest.raises(UnmetNeedError, match=r"`fedrep` needs a model with a head; .* has none"):
        fb.run(blobs(), "fedrep", model=nn.Linear(2, 3))
    with pytest.raises(UnmetNeedError, match="`knn-per` needs a task with classes"):
        fb.run(line(), "knn-per", model="mlp:4")


def test_only_methods_that_need_unlabelled_rows_see_them():
    task = blobs(target_rows=24, n_target=9)
    assert len(federation(task).bench.sites) == 4
    assert len(federation(task, method="oracle").bench.sites[-1]) == 24


@pytest.mark.parametrize("evidence", ["path", "init", "probe"])
@pytest.mark.parametrize("noise_from", ["own", "borrowed"])
@pytest.mark.parametrize("rule", ["fedda-auto", "fedgp-auto", "fedda-joint", "fedgp-joint"])
def test_evidence_is_an_option_of_every_rule_that_weighs(rule, evidence, noise_from):
    result = fb.run(blobs(), rule, **QUICK, evidence=evidence, noise_from=noise_from)
    beta = result.history[-1]["beta"]
    assert all(0 <= value <= 1 for value in beta)


def test_a_round_of_fedda_is_the_mixture_of_aligned_updates():
    fed = federation(lr=0.2, lr_target=0.1, batch_size=8, batch_size_target=4, blocks="model")
    gathered, _ = fed.gather(1, fed.initial)
    vectors = gathered.vectors(align=True)
    expected = fb.aggregate("fedda", vectors.target, vectors.sources, beta=0.25)
    made = method("fedda", fed, beta=0.25)
    made.run_round(1)
    torch.testing.assert_close(made.state.parameters, fed.initial.parameters + expected)


@pytest.mark.parametrize(
    ("name", "aligned"), [("fedda", True), ("fedavg", False), ("median", False)]
)
def test_rules_that_compare_updates_align_them_and_plain_averages_do_not(name, aligned):
    assert method(name, federation()).align is aligned
    assert method(name, federation(align=not aligned)).align is not aligned


def test_fedavg_counts_every_client_by_its_samples():
    fed = federation(blobs(sources=2, rows=30), blocks="model")
    gathered, _ = fed.gather(1, fed.initial)
    expected = torch.tensor([12.0, 30.0, 30.0]) / 72 @ gathered.rows
    made = method("fedavg", fed)
    made.run_round(1)
    torch.testing.assert_close(made.state.parameters, fed.initial.parameters + expected)


def test_target_only_asks_no_source():
    fed = federation()
    made = method("target-only", fed)
    record = made.run_round(1)
    assert fed.bytes_down == 4 * fed.blocks.total
    assert record.beta == [0.0, 0.0, 0.0]
    assert record.notes == []


def test_init_evidence_keeps_the_first_rounds_weights():
    fed = federation(evidence="init")
    made = method("fedda-joint", fed)
    betas = [made.run_round(number).beta for number in (1, 2, 3)]
    assert betas[0] == betas[1] == betas[2]
    path = method("fedda-joint", federation())
    assert path.run_round(1).beta == betas[0]
    assert path.run_round(2).beta != betas[1]


def test_init_evidence_of_fedgp_keeps_beta_and_projects_anew():
    fed = federation(evidence="init", blocks="model")
    made = method("fedgp-auto", fed)
    first, second = made.run_round(1), None
    before = made.state.parameters
    gathered, _ = fed.gather(2, made.state)
    vectors = gathered.vectors(align=True)
    expected = fb.aggregate(
        "fedgp", vectors.target.clone(), vectors.sources.clone(), beta=first.beta
    )
    second = made.run_round(2)
    assert second.beta == pytest.approx(first.beta)
    torch.testing.assert_close(made.state.parameters, before + expected)


def test_init_evidence_keeps_the_rules_own_options():
    fed = federation(evidence="init", blocks="model")
    made = method("fedgp-auto", fed, filter=False, projection="aligned-cosine")
    first = made.run_round(1)
    before = made.state.parameters
    vectors = fed.gather(2, made.state)[0].vectors(align=True)
    expected = fb.aggregate(
        "fedgp",
        vectors.target.clone(),
        vectors.sources.clone(),
        beta=first.beta,
        filter=False,
        projection="aligned-cosine",
    )
    made.run_round(2)
    torch.testing.assert_close(made.state.parameters, before + expected)


@pytest.mark.parametrize("rule", ["fedda-auto", "fedgp-auto", "fedda-joint", "fedgp-joint"])
def test_a_target_of_one_batch_is_weighed_by_gradients_at_the_start(rule):
    options = {**QUICK, "batch_size_target": 12, "probe_batch_size": 3, "rounds": 3}
    first, *later = fb.run(blobs(), rule, **options, evidence="init").history
    probed = fb.run(blobs(), rule, **{**options, "rounds": 1}, evidence="probe").history[0]
    assert first["sigma2"] == probed["sigma2"] > 0
    assert first["beta"] == probed["beta"]
    assert all(line["beta"] == pytest.approx(first["beta"]) for line in later)
    assert first["bytes_up"] > 1.9 * later[0]["bytes_up"], "only the first round probes"


def test_the_targets_probe_has_batches_of_its_own():
    batches = {"evidence": "probe", "batch_size_target": 8}
    fed = federation(blobs(target_rows=11), probe_batch_size=3, **batches)
    trained, probed = fed.gather(1, fed.initial, probe=True)
    assert (trained.target.batches, probed.target.batches) == (2, 3)
    same = federation(blobs(target_rows=11), **batches)
    same.open(rows=8)
    plain, usual = same.gather(1, same.initial, probe=True)
    assert usual.target.batches == 2
    assert torch.equal(trained.rows, plain.rows), "training is what it was"
    assert torch.equal(probed.rows[1:], usual.rows[1:]), "and so are the sources' probes"
    assert not torch.equal(probed.rows[0], usual.rows[0])


@pytest.mark.parametrize("rule", ["target-only", "fedavg", "fedgp", "median"])
def test_the_servers_momentum_adds_up_over_rounds(rule):
    """Whatever the rule: v ← μ v + update, θ ← θ + v."""
    plain, heavy = (method(rule, federation(server_momentum=share)) for share in (0.0, 0.5))
    velocity = torch.zeros_like(plain.state.parameters)
    for number in (1, 2, 3):
        start = heavy.state
        plain.state = start
        plain.run_round(number)
        velocity = 0.5 * velocity + (plain.state.parameters - start.parameters)
        heavy.run_round(number)
        torch.testing.assert_close(
            heavy.state.parameters - start.parameters, velocity, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("rule", ["fedda-joint", "fedgp-joint"])
def test_trust_in_a_source_that_is_missing_goes_to_the_target(rule, monkeypatch):
    fed = federation(blobs(sources=2), evidence="init", blocks="model")
    made = method(rule, fed)
    first = made.run_round(1)
    assert sum(first.beta) > 0.1
    monkeypatch.setattr(fed, "present", lambda *_, **__: ([0, 1], {"site 1": "dropped out"}))
    made.run_round(2)
    kept = select(made.kept, [0])
    assert float(kept.target) == pytest.approx(1 - first.beta[0])
    assert torch.equal(kept.sources, made.kept.sources[:, :1])
    assert torch.equal(select(made.kept, [0, 1]).target, made.kept.target)


def test_the_matched_control_takes_the_rules_share_of_the_targets_step():
    fed = federation()
    alone, _ = fed.gather(1, fed.initial, with_sources=False)
    for match, beta, step in (("fedgp", 0.5, 0.5), ("fedda", 0.25, 0.75), ("auto", 0.5, 1.0)):
        made = method("target-only-matched", fed, match=match, beta=beta)
        made.run_round(1)
        moved = made.state.parameters - fed.initial.parameters
        torch.testing.assert_close(moved, step * alone.rows[0], rtol=1e-4, atol=1e-6)


def test_the_matched_control_matches_fedgp_unless_it_is_told():
    usual, told = (
        fb.run(blobs(), "target-only-matched", **QUICK, **options)
        for options in ({}, {"match": "fedgp", "beta": 0.5})
    )
    assert same_model(usual.model, told.model)
    assert not same_model(usual.model, fb.run(blobs(), "target-only", **QUICK).model)


def test_the_matched_control_weighs_sources_as_the_rule_does():
    task = blobs(sources=2, rows=10)
    site = task.sources[1]
    big = replace(site, x=site.x.repeat(3, 1), y=site.y.repeat(3))
    task = replace(task, sources=(task.sources[0], big))
    for weights, step in (("equal", 0.5), ("samples", 0.25)):
        fed = federation(task, weights=weights)
        made = method("target-only-matched", fed, match="fedda", beta=[0.0, 1.0])
        assert made.step == pytest.approx(step)


def test_a_method_from_a_function_of_a_geometry_is_a_rule():
    made = RuleMethod(federation(), {}, fb.rules.get("fedda"))
    assert made.options == ()


@pytest.mark.parametrize("wrong", [{"match": "foo"}, {"match": "fedgp", "beta": 1.4}])
def test_the_matched_control_checks_what_it_matches(wrong):
    with pytest.raises(fb.FedbridgeError, match=r"foo|beta"):
        method("target-only-matched", federation(), **wrong)


@pytest.mark.parametrize("name", methods.names())
def test_every_delivered_model_is_found_again_in_its_folder(name, tmp_path):
    task = blobs(target_rows=24, n_target=9)
    result = fb.run(task, name, **QUICK, out=tmp_path / "run")
    saved = load_model(tmp_path / "run")
    with torch.no_grad():
        torch.testing.assert_close(saved.outputs(task.test.x), result.model(task.test.x))
    measured = measure_predictions(saved.outputs(task.test.x), task.test.y, task.n_classes)
    assert measured.accuracy == pytest.approx(result.history[-1]["accuracy"])


@pytest.mark.parametrize("mixes_aligned", [True, False])
def test_evidence_can_be_in_another_unit_than_what_is_mixed(mixes_aligned):
    """Weights as if all were aligned the other way, mixed as the setting ``align`` says."""

    def first(name, align, align_evidence=None, **options):
        settings = {"align": align, "align_evidence": align_evidence, "batch_size_target": 2}
        made = method(name, federation(blobs(shift=3.0, target_rows=60), **settings), **options)
        return made.run_round(1).beta, made.state.parameters

    beta, moved = first("fedda-auto", mixes_aligned, not mixes_aligned)
    assert beta == pytest.approx(first("fedda-auto", not mixes_aligned)[0], rel=1e-6)
    assert beta != pytest.approx(first("fedda-auto", mixes_aligned)[0], rel=1e-3)
    torch.testing.assert_close(moved, first("fedda", mixes_aligned, beta=beta)[1])


def test_delta_counts_the_batches_of_a_run():
    """In a run the batches are only known by their sketches, here exact ones of a small model."""

    def beta(delta):
        fed = federation(blobs(shift=3.0, target_rows=60), batch_size_target=2)
        return torch.tensor(method("fedgp-auto", fed, delta=delta).run_round(1).beta)

    whole, scripts, batches = map(beta, (1.0, "scripts", "batches"))
    assert bool((batches < scripts).all())
    assert bool((scripts < whole).all())
