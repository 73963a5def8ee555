"""A Flower user's own ServerApp and ClientApp, with a training loop of his own."""

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.clientapp import ClientApp
from pretend import Node, PretendGrid, identify
from small import Normed, blobs
from torch import nn
from torch.nn import functional

import fedbridge as fb
from fedbridge.base.errors import OptionError, ShapeError
from fedbridge.data.site_package import sites_of
from fedbridge.federation.federation import TargetFailedError
from fedbridge.flower import (
    FedBridgeStrategy,
    reply_to_decide,
    reply_to_evaluate,
    reply_to_hello,
    reply_to_train,
)
from fedbridge.flower.coordinator import NoChoiceError
from fedbridge.flower.messages import Layout, Skeleton

LR, BATCH = 0.1, 8


def own_app(site, make_model, *, decides=False, seen=None, broken_in=None):
    """What a Flower user writes: three short functions around his own loop."""
    app = ClientApp()
    seen = [] if seen is None else seen

    def loaded(message):
        model = make_model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        return model

    @app.query()
    def hello(message, context):
        return reply_to_hello(
            message,
            site=site.name,
            role=site.role,
            num_examples=len(site.train),
            num_test=0 if site.test is None else len(site.test),
            input_shape=(2,),
            n_classes=3,
        )

    @app.train()
    def train(message, context):
        seen.append(("train", site.name, dict(message.content["config"])))
        if message.content["config"]["server-round"] == broken_in:
            raise ValueError("no such column: age")
        model, changes = loaded(message), []
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for x, y in zip(site.train.x.split(BATCH), site.train.y.split(BATCH), strict=True):
            before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            changes.append(nn.utils.parameters_to_vector(model.parameters()).detach() - before)
        return reply_to_train(
            message,
            model,
            site=site.name,
            role=site.role,
            num_examples=len(site.train),
            steps=len(changes),
            lr=LR,
            loss=float(loss.detach()),
            batch_updates=changes if site.role == "target" else (),
        )

    @app.evaluate()
    def evaluate(message, context):
        seen.append(("evaluate", site.name, dict(message.content["config"])))
        if decides:
            rows = [(s.x, s.y) for s in (site.train, site.test)]
            return reply_to_decide(
                message,
                context,
                make_model,
                site=site.name,
                train=rows[0],
                test=rows[1],
                n_classes=3,
            )
        outputs = loaded(message).eval()(site.test.x)
        return reply_to_evaluate(
            message,
            site=site.name,
            num_examples=len(site.test),
            loss=float(functional.cross_entropy(outputs, site.test.y)),
            accuracy=100 * float((outputs.argmax(1) == site.test.y).double().mean()),
        )

    return app


def start(rule, make_model, task=None, rounds=6, asked=None, memory=None, app=None, **options):
    task = blobs(target_rows=24) if task is None else task
    config = {} if memory is None else {"memory": str(memory)}
    grid = PretendGrid(
        Node(s.name, own_app(s, make_model, **app or {}), config) for s in sites_of(task)
    )
    torch.manual_seed(0)
    strategy = FedBridgeStrategy(rule, target="target", own_training=True, wait=0.2, **options)
    arrays = ArrayRecord(make_model().state_dict())
    result = strategy.start(grid, arrays, num_rounds=rounds, **asked or {})
    return strategy, result


@pytest.mark.parametrize("rule", fb.rules.names())
def test_every_rule_works_on_updates_of_somebody_elses_loop(rule):
    strategy, result = start(rule, lambda: nn.Linear(2, 3))
    lines = strategy.result.history
    assert [line["failures"] for line in lines] == [{}] * 6
    assert lines[-1]["accuracy"] > 80
    assert set(result.arrays) == {"weight", "bias"}


def test_the_noise_of_the_targets_batches_reaches_the_rule():
    strategy, _ = start("fedda-auto", lambda: nn.Linear(2, 3), rounds=1)
    assert strategy.result.history[0]["sigma2"] > 0


def test_models_with_buffers_travel_as_their_state_dict():
    strategy, result = start("fedda", Normed, rounds=2)
    assert strategy.result.history[-1]["failures"] == {}
    found = result.arrays.to_torch_state_dict()
    assert int(found["norm.num_batches_tracked"]) == 6
    Normed().load_state_dict(found)


def test_auto_takes_updates_of_somebody_elses_loop_and_lets_the_target_choose(tmp_path):
    app = {"decides": True}
    strategy, _ = start("auto", lambda: nn.Linear(2, 3), memory=tmp_path, app=app)
    lines = strategy.result.history
    assert [line["failures"] for line in lines] == [{}] * 6
    assert "judged by your 24 labels" in lines[-1]["said"]
    assert lines[-1]["accuracy"] > 80
    assert sum(lines[-1]["beta"]) <= 1 + 1e-9


def test_a_target_that_only_measures_is_told_how_to_choose():
    with pytest.raises(NoChoiceError, match=r"KeyError: 'arrays': .*reply_to_decide"):
        start("auto", lambda: nn.Linear(2, 3), rounds=1)


def test_what_the_server_asks_is_in_every_message():
    seen = []
    asked = {
        "train_config": ConfigRecord({"lr": 0.25}),
        "evaluate_config": ConfigRecord({"threshold": 0.4}),
    }
    start("fedda", lambda: nn.Linear(2, 3), rounds=3, asked=asked, app={"seen": seen})
    trained = [config for kind, _, config in seen if kind == "train"]
    measured = [config for kind, _, config in seen if kind == "evaluate"]
    assert sorted({config["server-round"] for config in trained}) == [1, 2, 3]
    assert all(config["lr"] == 0.25 for config in trained)
    assert [config["threshold"] for config in measured] == [0.4] * 3


def test_the_server_measures_the_model_of_every_round():
    shown = {}

    def evaluate(round, arrays):
        shown[round] = arrays.to_torch_state_dict()["bias"].tolist()
        return MetricRecord({"round-was": round}) if round != 2 else None

    _, result = start("fedda", lambda: nn.Linear(2, 3), rounds=3, asked={"evaluate_fn": evaluate})
    assert list(shown) == [0, 1, 2, 3]
    assert len({tuple(bias) for bias in shown.values()}) == 4
    assert shown[3] == result.arrays.to_torch_state_dict()["bias"].tolist()
    assert {k: v["round-was"] for k, v in result.evaluate_metrics_serverapp.items()} == {
        0: 0,
        1: 1,
        3: 3,
    }


@pytest.mark.parametrize(
    ("options", "asked", "said"),
    [
        ({}, {"train_config": ConfigRecord({"lr": 0.1})}, "own_training=True"),
        ({}, {"evaluate_config": ConfigRecord({"lr": 0.1})}, "own_training=True"),
        ({"own_training": True}, {"train_config": ConfigRecord({"work": "x"})}, "'work'"),
        ({"rule": "auto"}, {"evaluate_fn": print}, "target decides"),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_anybody_is_asked(options, asked, said):
    strategy = FedBridgeStrategy(**{"rule": "fedda", "target": "target", **options})
    with pytest.raises(OptionError, match=said):
        strategy.start(PretendGrid(), **asked)


def test_gradients_are_not_asked_of_loops_that_tell_none():
    with pytest.raises(OptionError, match="evidence='probe'"):
        FedBridgeStrategy("fedda-auto", target="A", own_training=True, evidence="probe")


def test_an_error_of_the_targets_loop_is_named_without_advice_on_learning_rates():
    with pytest.raises(TargetFailedError, match="no such column: age") as caught:
        start("fedda", lambda: nn.Linear(2, 3), app={"broken_in": 1})
    assert "lr" not in str(caught.value).replace("learning rate", "lr")


def test_a_plugged_in_strategy_says_how_it_is_used():
    identify()
    strategy = FedBridgeStrategy("fedda", target="A")
    with pytest.raises(NotImplementedError, match="start"):
        strategy.aggregate_train(1, [])
    with pytest.raises(NotImplementedError, match="start"):
        strategy.aggregate_evaluate(1, [])


class TestLayout:
    def test_a_state_dict_and_back(self):
        model = Normed()
        layout = Layout.of_model(model)
        state = layout.state(model.state_dict())
        found = layout.arrays(state)
        assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
        assert set(state.buffers) == set(dict(model.named_buffers()))

    def test_a_skeleton_has_the_models_own_blocks_in_order(self):
        model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        skeleton = Skeleton(model.state_dict())
        assert Layout.of_model(skeleton) == Layout.of_model(model)

    def test_other_shapes_are_refused(self):
        layout = Layout.of_model(nn.Linear(2, 3))
        with pytest.raises(ShapeError, match="weight"):
            layout.state({"weight": torch.zeros(3, 1), "bias": torch.zeros(3)})


@pytest.mark.parametrize("method", ["fedrep", "pfedfda"])
def test_methods_whose_clients_do_more_than_train_are_refused(method):
    with pytest.raises(OptionError, match=rf"one's own can serve, but got '{method}'"):
        FedBridgeStrategy(method, target="T", own_training=True)
