"""Protocols: what the paper's text and scripts do, beside our own defaults."""

from dataclasses import replace

import pytest
import torch
from small import blobs, same_model

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.data.load import RUN_OPTIONS, _known_options, registry
from fedbridge.data.protocols import data_options, entries, follow, run_options
from fedbridge.federation.settings import split_options
from fedbridge.methods import names, options_of, usual_options


def settings_of(task, method):
    return split_options({}, method, options_of(method), task.defaults_for(method))


@pytest.mark.parametrize("entry", entries("paper"), ids=lambda entry: entry.why)
def test_every_entry_names_what_there_is_and_why(entry):
    assert entry.why
    assert {*entry.tasks} <= {*registry.names()}
    assert {*entry.methods} <= {*names()}
    for task in entry.tasks:
        assert {*entry.data} <= {*_known_options(registry.get(task))}
    for method in entry.methods or ("fedavg",):
        assert {*entry.run} <= {*RUN_OPTIONS, *options_of(method)}


def test_fair_changes_nothing():
    task, fair = fb.load_task("digits-noise"), fb.load_task("digits-noise", protocol="fair")
    assert fair.defaults == task.defaults
    assert fair.of_methods == {}
    assert fair.manifest == task.manifest


def test_the_paper_weighs_by_samples_and_mixes_whole_updates():
    task = fb.load_task("digits-noise", protocol="paper")
    fedda, _ = settings_of(task, "fedda")
    assert (fedda.weights, fedda.align) == ("samples", False)
    auto, _ = settings_of(task, "fedda-auto")
    assert (auto.align, auto.align_evidence) == (False, True)
    fedgp, own = settings_of(task, "fedgp-auto")
    assert fedgp.align is None
    assert own == {"projection": "aligned-cosine", "delta": "scripts"}


def test_every_rule_has_its_own_steps_in_the_papers_tables():
    task = follow(fb.load_task("digits-noise"), "paper")
    assert settings_of(task, "fedgp")[0].batch_size_target == 4

    def steps(name, target, method):
        said = [entry for entry in entries("paper") if entry.is_for(name, target)]
        found = {"lr_factor": 1.0}
        for entry in said:
            if not entry.methods or method in entry.methods:
                found |= entry.run
        return found["lr_factor"], found.get("batch_size_target")

    assert steps("fashion-noise", "target", "fedgp") == (1.0, None)
    assert steps("fashion-noise", "target", "fedgp-auto") == (0.1, 4)
    assert steps("cifar10-noise", "target", "fedda-auto") == (0.35, None)
    assert steps("colored-mnist", "+80%", "fedda-auto") == (0.5, 2)
    assert steps("colored-mnist", "+80%", "target-only") == (1.0, 16)
    assert steps("colored-mnist-14", "-90%", "fedgp-auto") == (0.25, 2)
    assert steps("office-home", "Art", "fedgp-auto") == (0.1, 64)
    assert steps("office-home", "Clipart", "fedgp-auto") == (0.5, 64)
    assert data_options("paper", "colored-mnist", "+80%") == {"n_target": 18}
    assert data_options("paper", "heart", "Cleveland") == {"split": "flamby", "n_target": 39}
    assert data_options("paper", "heart", "va") == {"split": "flamby"}


def test_what_is_given_wins_over_the_protocol():
    task = fb.load_task("digits-noise", protocol="paper")
    given = split_options({"weights": "equal"}, "fedda", ("beta",), task.defaults_for("fedda"))
    assert given[0].weights == "equal"


def test_a_run_takes_the_protocol_too():
    options = {"rounds": 2, "workers": 1, "seed": 0}
    loaded = fb.run(fb.load_task("digits-noise", protocol="paper"), "fedda", **options)
    assert same_model(
        fb.run("digits-noise", "fedda", protocol="paper", **options).model, loaded.model
    )
    fair = fb.load_task("digits-noise")
    assert same_model(fb.run(fair, "fedda", protocol="paper", **options).model, loaded.model)
    assert not same_model(fb.run(fair, "fedda", **options).model, loaded.model)


def test_own_data_can_follow_it_and_an_unknown_one_is_refused():
    paper = fb.run(blobs(), "fedda", protocol="paper", rounds=1, workers=1)
    assert same_model(paper.model, fb.run(blobs(), "fedda", rounds=1, workers=1, align=False).model)
    with pytest.raises(OptionError, match="fair, paper"):
        fb.run(blobs(), "fedda", protocol="papers")
    with pytest.raises(OptionError, match="fair, paper"):
        fb.load_task("digits-noise", protocol="papers")


def test_rbf_is_the_figures():
    paper = fb.load_task("rbf", protocol="paper")
    assert paper.defaults["server_momentum"] == 0.9
    assert settings_of(paper, "fedgp-auto")[1] == {"projection": "exact", "delta": 1.0}
    assert fb.load_task("rbf").defaults.get("server_momentum") is None


def test_a_matched_control_has_the_steps_of_the_method_it_matches():
    task = follow(fb.load_task("digits-noise"), "paper")
    of_methods = {"fedgp-auto": {"lr_factor": 0.1, "batch_size_target": 2, "delta": "scripts"}}
    task = replace(task, of_methods=of_methods)
    usual = usual_options("target-only-matched", task, {"match": "fedgp-auto"})
    assert (usual["lr_factor"], usual["batch_size_target"]) == (0.1, 2)
    assert "delta" not in usual
    assert usual_options("target-only-matched", task, {})["batch_size_target"] == 4
    matched, alone = (
        fb.run(task, name, rounds=2, workers=1, **options)
        for name, options in (
            ("target-only-matched", {"match": "fedgp-auto"}),
            ("target-only", {"lr_factor": 0.1, "batch_size_target": 2}),
        )
    )
    assert same_model(matched.model, alone.model)


def test_half_the_rate_of_two_outputs_is_the_whole_rate_of_one():
    """Adam on a softmax over two outputs and on a sigmoid: the same line between the classes."""
    x, y = torch.randn(60, 5, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    one, two = torch.nn.Linear(5, 1), torch.nn.Linear(5, 2)
    with torch.no_grad():
        for single, double in zip(one.parameters(), two.parameters(), strict=True):
            double.copy_(torch.cat([-single / 2, single / 2]))
    steps = [torch.optim.Adam(one.parameters(), 1e-3), torch.optim.Adam(two.parameters(), 5e-4)]
    for k in range(0, 60, 4):
        rows = slice(k, k + 4)
        alone = one(x[rows])[:, 0]
        losses = (
            torch.nn.functional.binary_cross_entropy_with_logits(alone, y[rows].float()),
            torch.nn.functional.cross_entropy(two(x[rows]), y[rows]),
        )
        for step, loss in zip(steps, losses, strict=True):
            step.zero_grad()
            loss.backward()
            step.step()
    both = two(x).diff(dim=1)
    assert torch.allclose(one(x), both, atol=1e-6)
    assert run_options("paper", "heart", "va", "fedgp")["lr"] == 5e-4
