"""What runs locally runs over Flower, unchanged, to the same bits."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from pretend import PretendGrid, model_at_target, nodes_of, run_over_pretended_flower
from small import Normed, blobs, line, same_model

import fedbridge as fb
from fedbridge import methods
from fedbridge.base.errors import OptionError
from fedbridge.data.preparing import AddNoise
from fedbridge.federation import groups
from fedbridge.federation.needs import UnmetNeedError
from fedbridge.flower import FedBridgeStrategy
from fedbridge.methods import finetune
from fedbridge.models import build_model

QUICK = {"model": "mlp:8", "lr": 0.1, "batch_size": 8}
TRAVELLING = [name for name in methods.names() if methods.class_of(name).travels]
PERSONAL = ("ditto", "fedrep", "apfl", "knn-per", "finetune-cv", "pfedfda")
DECIDING = ("auto", "alone-auto", "offset", "recalibrate", *PERSONAL)
"""Methods whose target makes a model that stays with it."""


@pytest.fixture
def short_grid(monkeypatch):
    """Few of the trainings that ``finetune-cv`` chooses among; sites are in this process."""
    monkeypatch.setattr(finetune, "EPOCHS", (1, 3))
    monkeypatch.setattr(finetune, "LR_FACTORS", (0.1, 1.0))


def same_history(ours, theirs):
    """Everything but times, and bytes, which a network measures and a local run estimates."""

    def kept(line):
        return {k: v for k, v in line.items() if not k.startswith(("seconds", "bytes"))}

    return [kept(line) for line in ours] == [kept(line) for line in theirs]


def both(task, method, tmp_path, rounds=2, **options):
    given = {**QUICK, **options}
    strategy, _ = run_over_pretended_flower(task, method, rounds, tmp_path, **given)
    remote = strategy.result
    if method in DECIDING:
        plain = build_model(given["model"], task)
        remote = replace(remote, model=model_at_target(strategy, tmp_path, plain))
    return fb.run(task, method, rounds, workers=1, **given), remote


def assert_same(pair):
    local, remote = pair
    assert same_history(local.history, remote.history)
    assert same_model(local.model, remote.model)
    assert local.accuracy == remote.accuracy


def test_which_targets_decide():
    kinds = {name: methods.class_of(name) for name in TRAVELLING}
    shell = methods.class_of("fedda").target_side.__func__
    own = {name for name, kind in kinds.items() if kind.target_side.__func__ is not shell}
    assert own == {*DECIDING}


def test_all_rules_and_auto_travel():
    assert {*fb.rules.names(), "auto", "fedprox"} <= {*TRAVELLING}


@pytest.mark.parametrize("name", TRAVELLING)
def test_every_method_that_travels(name, tmp_path):
    assert_same(both(blobs(target_rows=24, n_target=10), name, tmp_path))


@pytest.mark.parametrize("method", ["fedgp-joint", "auto"])
@pytest.mark.parametrize(
    "options",
    [
        {"warmup": 2},
        {"evidence": "probe"},
        {"evidence": "init"},
        {"evidence": "init", "probe_batch_size": 3, "server_momentum": 0.9},
        {"noise_from": "borrowed"},
        {"class_weights": "balanced"},
        {"participation": 0.5},
        {"dropout": 0.4},
        {"early_stopping": 2},
        {"optimizer": "adam", "lr_target": 0.01, "batch_size_target": 3, "weights": "samples"},
        {"blocks": "model", "align": False},
    ],
    ids=lambda options: "-".join(options),
)
def test_every_option_that_a_local_run_takes(method, options, tmp_path):
    assert_same(both(blobs(target_rows=24), method, tmp_path, rounds=3, **options))


@pytest.mark.parametrize("method", ["fedavg", "fedda", "fedgp-auto"])
def test_sources_so_many_that_updates_are_used_in_groups(method, tmp_path, monkeypatch):
    monkeypatch.setattr(groups, "GROUP", 3)
    options = {"warmup": 1, "dropout": 0.2}
    assert_same(both(blobs(target_rows=24, sources=8), method, tmp_path, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"gate": 0.5, "warmup": 1, "participation": 0.5, "weights": "samples"},
        {"gate": 0.5, "heads": "own", "labels": "soft", "focus": "leave-one-out"},
        {"gate": 0.5, "labelled": True, "class_weights": "balanced", "early_stopping": 2},
        {"dropout": 0.4, "optimizer": "adam", "mixup": 0},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_vote_is_held_where_the_unlabelled_rows_are(options, tmp_path):
    task = blobs(target_rows=24, n_target=10)
    assert_same(both(task, "kd3a", tmp_path, rounds=3, **options))


def test_of_a_vote_an_update_and_what_each_model_is_worth_leave(tmp_path):
    task = blobs(target_rows=24, n_target=10)
    options = {**QUICK, "heads": "own"}
    _, grid = run_over_pretended_flower(task, "kd3a", 2, tmp_path, **options)
    sent = [content for name, kind, content in grid.sent if (name, kind) == ("target", "train")]
    assert len(sent) == 2
    for content in sent:
        assert {*content.array_records} == {"update-0", "told-0"}
        told = content.array_records["told-0"]
        assert {name: array.numpy().shape for name, array in told.items()} == {
            "focus": (3,),
            "heard": (),
        }


def test_a_target_without_such_rows_says_what_is_missing(tmp_path):
    with pytest.raises(UnmetNeedError, match="unlabelled rows of the target"):
        run_over_pretended_flower(blobs(), "kd3a", 2, tmp_path, **QUICK)


def test_a_vote_with_batch_norm(tmp_path):
    task, options = blobs(target_rows=24, n_target=10), {**QUICK, "model": Normed(), "gate": 0.3}
    grid = PretendGrid(nodes_of(task, tmp_path, model=Normed))
    strategy, _ = run_over_pretended_flower(task, "kd3a", 2, tmp_path, grid, **options)
    local = fb.run(task, "kd3a", 2, workers=1, **options)
    assert local.history[-1]["consensus"] > 0
    assert same_model(local.model, strategy.result.model)


@pytest.mark.parametrize("method", ["fedda", "auto"])
def test_noise_that_is_redrawn(method, tmp_path):
    task = blobs(target_rows=24)
    noisy = {
        role: replace(site, prepare=AddNoise(1.0))
        for role, site in (("target", task.target), ("test", task.test))
    }
    assert_same(both(replace(task, **noisy), method, tmp_path, rounds=3, early_stopping=2))


@pytest.mark.parametrize("policy", ["target", "mean", "keep", "frozen"])
@pytest.mark.parametrize("method", ["fedavg", "source-only", "auto"])
def test_models_with_buffers(method, policy, tmp_path):
    task, options = blobs(), {**QUICK, "model": Normed(), "buffers": policy}
    grid = PretendGrid(nodes_of(task, tmp_path, model=Normed))
    strategy, _ = run_over_pretended_flower(task, method, 2, tmp_path, grid, **options)
    local = fb.run(task, method, 2, workers=1, **options)
    remote = strategy.result.model
    if method in DECIDING:
        remote = model_at_target(strategy, tmp_path, Normed())
    assert same_model(local.model, remote)


def test_the_target_keeps_the_best_model_on_the_rows_set_aside(tmp_path):
    task = blobs(target_rows=24, shift=2.0)
    options = {**QUICK, "lr": 1.0, "early_stopping": 3}
    strategy, _ = run_over_pretended_flower(task, "fedavg", 6, tmp_path, **options)
    local = fb.run(task, "fedavg", 6, workers=1, **options)
    losses = [line["validation_loss"] for line in local.history]
    assert losses[-1] > min(losses), "the last round is not the best"
    kept = model_at_target(strategy, tmp_path, build_model(QUICK["model"], task))
    assert same_model(local.model, kept)


@pytest.mark.parametrize("method", ["recalibrate", "offset"])
@pytest.mark.parametrize(
    "options",
    [{"warmup": 1, "participation": 0.5}, {"early_stopping": 2}, {"folds": 3, "dropout": 0.4}],
    ids=lambda options: "-".join(options),
)
def test_a_last_layer_is_fitted_where_the_labels_are(method, options, tmp_path):
    assert_same(both(blobs(target_rows=24), method, tmp_path, rounds=3, **options))


@pytest.mark.parametrize("method", PERSONAL)
@pytest.mark.parametrize(
    "options",
    [
        {"warmup": 1, "participation": 0.5, "class_weights": "balanced"},
        {"early_stopping": 2, "optimizer": "adam", "lr_target": 0.01},
        {"dropout": 0.4, "rounds": 4},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_model_of_the_targets_own_is_made_where_its_rows_are(
    method, options, short_grid, tmp_path
):
    more = {"adaptive": True} if method == "apfl" else {}
    assert_same(both(blobs(target_rows=24), method, tmp_path, **{"rounds": 3, **options, **more}))


@pytest.mark.parametrize("method", PERSONAL)
def test_of_a_target_with_a_model_of_its_own_only_the_shared_part_leaves(
    method, short_grid, tmp_path
):
    task = blobs(target_rows=24)
    strategy, grid = run_over_pretended_flower(task, method, 2, tmp_path, **QUICK)
    sent = [content for name, _, content in grid.sent if name == "target"]
    arrays = [record for content in sent for record in content.array_records]
    more = {"told-0"} if method == "pfedfda" else set()
    assert {*arrays} <= {"update-0", "noise-0", *more}
    plain = build_model(QUICK["model"], task)
    own = model_at_target(strategy, tmp_path, deepcopy(plain))
    assert not same_model(own, strategy.result.model), "the coordinator has another"
    told = b"".join(
        array.numpy().tobytes()
        for content in sent
        for record in content.array_records.values()
        for array in record.values()
    )
    if method == "fedrep":
        for name, kind, content in grid.sent:
            if kind == "train":
                vector = torch.from_numpy(content.array_records["update-0"]["values"].numpy())
                assert not vector[-27:].any(), name
                assert vector[:-27].any(), name
    if method == "knn-per":
        assert own.keys.numpy()[0].tobytes() not in told


@pytest.mark.parametrize("method", ["ditto", "apfl", "finetune-cv"])
@pytest.mark.parametrize("policy", ["target", "keep"])
def test_a_model_of_the_targets_own_with_buffers(method, policy, short_grid, tmp_path):
    task, options = blobs(), {**QUICK, "model": Normed(), "buffers": policy}
    grid = PretendGrid(nodes_of(task, tmp_path, model=Normed))
    strategy, _ = run_over_pretended_flower(task, method, 2, tmp_path, grid, **options)
    local = fb.run(task, method, 2, workers=1, **options)
    assert same_model(local.model, model_at_target(strategy, tmp_path, Normed()))


def test_only_the_choice_and_its_worth_leave_a_target_that_refits(tmp_path):
    strategy, grid = run_over_pretended_flower(blobs(), "offset", 2, tmp_path, **QUICK)
    assert [kind for name, kind in grid.asked if name == "target"] == ["query", *["evaluate"] * 2]
    sent = [content for name, kind, content in grid.sent if (name, kind) == ("target", "evaluate")]
    assert all({*content} == {"site", "metrics"} for content in sent)
    led = fb.run(blobs(), "source-only", 2, workers=1, **QUICK)
    assert same_model(led.model, strategy.result.model), "the coordinator has the sources' model"


def test_regression(tmp_path):
    assert_same(both(line(), "fedda-joint", tmp_path))


@pytest.mark.parametrize("method", ["fedda", "auto"])
def test_values_in_a_scale_of_their_own(tmp_path, method):
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, 120)
    rows = {"site": ["A", "B", "T"] * 40, "age": age, "price": 2e5 + 3e3 * age}
    pd.DataFrame(rows).to_csv(tmp_path / "prices.csv", index=False)
    task = fb.load_task(tmp_path / "prices.csv", target="T", label_column="price")
    local, remote = both(task, method, tmp_path / "run")
    assert_same((local, remote))
    assert local.history[-1]["loss"] > 100, "of prices, not of what is learned"


def test_one_message_per_source_and_round_and_one_in_which_the_target_decides(tmp_path):
    """The target's gradient is asked for in the rounds 1, 2 and 4."""
    task = blobs()
    _, grid = run_over_pretended_flower(task, "auto", 5, tmp_path, **QUICK)
    everybody = {"target", *task.source_names}
    kinds = [kind for _, kind in grid.asked]
    assert kinds.count("query") == len(everybody)
    assert {"target": 3, **dict.fromkeys(task.source_names, 5)} == {
        name: sum(asked == (name, "train") for asked in grid.asked) for name in everybody
    }
    assert [name for name, kind in grid.asked if kind == "evaluate"] == ["target"] * 5


def test_the_noise_of_fedgp_travels_as_a_sketch_and_never_as_models(tmp_path):
    task, size = blobs(target_rows=40), 16
    options = {**QUICK, "batch_size_target": 2, "sketch_size": size, "model": "mlp:64"}
    _, grid = run_over_pretended_flower(task, "fedgp-joint", 1, tmp_path, **options)
    content = next(c for name, kind, c in grid.sent if (name, kind) == ("target", "train"))
    sketches = content.array_records["noise-0"]["sketches"].numpy()
    batches, blocks = 20, 4
    assert sketches.shape == (batches - 1, blocks, 2, size)
    model = content.array_records["update-0"]["values"].numpy()
    assert sketches[0].size < model.size


def test_the_model_and_the_candidates_of_auto_stay_with_the_target(tmp_path):
    """Of its arrays only its gradient and how noisy that is leave, while probes are asked for."""
    _, grid = run_over_pretended_flower(blobs(), "auto", 3, tmp_path, **QUICK)
    sent = [content for name, _, content in grid.sent if name == "target"]
    arrays = [record for content in sent for record in content.array_records]
    assert arrays == ["update-0", "noise-0"] * 2


def test_bytes_are_those_of_the_messages(tmp_path):
    task = blobs(target_rows=24)
    strategy, _ = run_over_pretended_flower(
        task, "fedavg", 1, tmp_path, **{**QUICK, "model": "mlp:4000"}
    )
    (line,), size = strategy.result.history, 4 * (2 * 4000 + 4000 + 4000 * 3 + 3)
    assert line["bytes_up"] == pytest.approx(4 * size, rel=0.05)
    assert line["bytes_down"] == pytest.approx(5 * size, rel=0.05)


def test_methods_that_need_everything_in_one_place_are_refused():
    with pytest.raises(OptionError, match=r"'erm' does not run over a network.*auto"):
        FedBridgeStrategy("erm", target="A")


def test_sources_that_are_not_named_take_part_in_the_order_of_their_names(tmp_path):
    task = blobs()
    strategy = FedBridgeStrategy("fedda", target="target", wait=0.2, out=tmp_path / "run", **QUICK)
    strategy.start(PretendGrid(reversed(nodes_of(task, tmp_path))), num_rounds=1)
    assert strategy.result.summary["sources"] == sorted(task.source_names)


def test_result_is_flowers_own_kind_too(tmp_path):
    task = blobs()
    grid = PretendGrid(nodes_of(task, tmp_path))
    strategy = FedBridgeStrategy("fedda", target="target", wait=0.2, **QUICK)
    result = strategy.start(grid, num_rounds=2)
    assert [*result.evaluate_metrics_clientapp] == [1, 2]
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(
        strategy.result.history[-1]["accuracy"]
    )
    found = result.arrays.to_torch_state_dict()
    for name, value in strategy.result.model.state_dict().items():
        assert torch.equal(found[name], value)
