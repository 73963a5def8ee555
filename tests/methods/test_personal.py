"""Personalised methods at their limits, where each is something simpler."""

from dataclasses import replace

import pytest
import torch
from small import Normed, blobs, federation, method, same_model
from torch.nn import functional

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.models import head_slices
from fedbridge.training.neighbours import blend, vote
from fedbridge.training.state import State, entries, put

QUICK = {"rounds": 3, "workers": 1, "model": "mlp:8", "lr": 0.1, "batch_size": 8}


def parameters(result):
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


def run(name, task=None, **options):
    return fb.run(blobs(shift=0.5) if task is None else task, name, **{**QUICK, **options})


class TestDitto:
    def test_without_a_penalty_is_local_training(self):
        assert same_model(run("ditto", penalty=0).model, run("target-only").model)

    def test_with_a_strong_penalty_is_the_global_model_of_the_rounds_start(self):
        """A pull of 1/η takes the model to the anchor in one step, but for η times a gradient."""
        options = {"lr_target": 1e-5, "batch_size_target": 12}
        ditto = run("ditto", penalty=1e5, rounds=4, **options)
        fedavg = run("fedavg", rounds=3, **options)
        torch.testing.assert_close(parameters(ditto), parameters(fedavg), rtol=0, atol=1e-4)

    def test_lies_between_the_two(self):
        ends = [parameters(run("ditto", penalty=0)), parameters(run("fedavg", rounds=2))]
        middle = parameters(run("ditto", penalty=3.0))
        width = (ends[0] - ends[1]).norm()
        assert 0 < (middle - ends[0]).norm() < width
        assert 0 < (middle - ends[1]).norm() < width

    @pytest.mark.parametrize("wrong", [-1, "much", float("nan"), True])
    def test_refuses_a_penalty_that_is_none(self, wrong):
        with pytest.raises(OptionError, match="penalty"):
            run("ditto", penalty=wrong)


class TestFedProx:
    def test_without_a_penalty_is_fedavg(self):
        assert same_model(run("fedprox", penalty=0).model, run("fedavg").model)

    @pytest.mark.parametrize(("optimizer", "most"), [("sgd", 20), ("momentum", 38)])
    @pytest.mark.parametrize("name", ["ditto", "fedprox"])
    def test_a_penalty_too_strong_for_the_steps_is_refused(self, name, optimizer, most):
        run(name, penalty=most - 0.1, optimizer=optimizer, rounds=1)
        with pytest.raises(OptionError, match=rf"`penalty` below {most}\b"):
            run(name, penalty=most, optimizer=optimizer)

    def test_clients_stray_less(self):
        def strayed(penalty):
            fed = federation(method="fedprox")
            made = method("fedprox", fed, penalty=penalty)
            made.run_round(1)
            return float((made.state.parameters - fed.initial.parameters).norm())

        assert strayed(5.0) < strayed(1.0) < strayed(0)


class TestFedRep:
    def test_never_sends_its_head(self):
        fed = federation(model="mlp:8", method="fedrep")
        head = sum(end - start for start, end in head_slices(fed.bench.model))
        assert head == 8 * 3 + 3
        method("fedrep", fed).run_round(1)
        body = 4 * (fed.blocks.total - head)
        assert fed.bytes_up == fed.bytes_down == 4 * body

    def test_its_warm_up_sends_whole_models(self):
        sent = [run(name, warmup=1).history[0]["bytes_up"] for name in ("fedrep", "fedavg")]
        assert sent[0] == sent[1]

    @pytest.mark.parametrize(("options", "steps"), [({"steps": 2}, 6), ({"epochs": 2}, 30)])
    def test_the_head_trains_head_epochs_times_as_long_as_the_body(self, options, steps):
        fed = federation(model="mlp:8", method="fedrep", **options)
        job = method("fedrep", fed, head_epochs=3).job(1, 1)
        lengths = [part.plan.total_steps(40) for part in (job.first, job)]
        assert lengths == [steps, steps / 3]

    def test_usually_ten_times_as_long(self):
        job = method("fedrep", federation(model="mlp:8", method="fedrep")).job(1, 1)
        assert [part.plan.total_steps(40) for part in (job.first, job)] == [50, 5]

    def test_a_well_trained_head_makes_up_for_other_labels(self):
        task = blobs(sources=3, target_rows=30)
        for site in task.sources:
            site.y.copy_((site.y + 1) % 3)
        long, fedavg = (run(name, task, rounds=10) for name in ("fedrep", "fedavg"))
        short = run("fedrep", task, rounds=10, head_epochs=1)
        assert long.accuracy > 90 > 30 > fedavg.accuracy
        assert long.history[1]["loss"] < short.history[1]["loss"]

    def test_a_linear_model_is_all_head_and_trains_alone(self):
        fed = federation(method="fedrep", model="linear")
        made = method("fedrep", fed, head_epochs=1)
        made.run_round(1)
        assert fed.bytes_up == fed.bytes_down == 0
        job = replace(made.job(1, 0), keeps=())
        _, (change,) = fed.do([job], [fed.initial])
        torch.testing.assert_close(made.state.parameters, fed.initial.parameters + change)
        assert torch.equal(made.shared.parameters, fed.initial.parameters)

    def test_shares_the_body_and_keeps_heads_apart(self):
        fed = federation(model="mlp:8", method="fedrep")
        made = method("fedrep", fed)
        made.run_round(1)
        (start, end), *_ = head_slices(fed.bench.model)
        heads = fed.kept
        assert {client: len(head) for client, head in heads.items()} == dict.fromkeys(
            range(4), end - start
        )
        assert all(not torch.equal(heads[0], heads[client]) for client in (1, 2, 3))
        assert torch.equal(made.state.parameters[start:end], heads[0])
        initial = fed.initial.parameters[start:end]
        assert torch.equal(made.shared.parameters[start:end], initial), "nobody is told of heads"

    def test_the_body_moves_by_the_mean_of_the_clients_by_samples(self):
        fed = federation(blobs(sources=2, rows=30), model="mlp:8", method="fedrep")
        made = method("fedrep", fed)
        changes = []
        for client in (0, 1, 2):
            job = made.job(1, client)
            _, (head,) = fed.do([replace(job.first, keeps=())], [fed.initial])
            assert not head[: made.head[0][0]].any(), "the body waits"
            trained = fed.initial.moved(head.clone())
            _, (body,) = fed.do([replace(job, first=None, keeps=())], [trained])
            changes.append(body.clone())
            assert not body[made.head[0][0] : made.head[0][1]].any(), "the head stays"
        expected = torch.tensor([12.0, 30.0, 30.0]) / 72 @ torch.stack(changes)
        made.run_round(1)
        moved = made.state.parameters - fed.initial.parameters
        for start, end in made.body:
            torch.testing.assert_close(moved[start:end], expected[start:end])

    def test_a_head_goes_on_from_where_it_was(self):
        fed = federation(model="mlp:8", method="fedrep")
        made = method("fedrep", fed)
        made.run_round(1)
        before, own = made.shared, {client: head.clone() for client, head in fed.kept.items()}
        made.run_round(2)
        job = made.job(2, 1)
        start = before.parameters.clone()
        put(start, own[1], made.head)
        _, (change,) = fed.do([replace(job.first, keeps=())], [State(start, {})])
        assert torch.equal(fed.kept[1], entries(start + change, made.head))


class TestApfl:
    def test_mixing_one_is_local_training(self):
        torch.testing.assert_close(
            parameters(run("apfl", mixing=1)), parameters(run("target-only"))
        )

    def test_mixing_zero_is_fedavg(self):
        torch.testing.assert_close(parameters(run("apfl", mixing=0)), parameters(run("fedavg")))

    def test_the_delivered_model_answers_as_the_mixture_did(self):
        result = run("apfl", mixing=0.3)
        task = blobs(shift=0.5)
        accuracy = (result.model(task.test.x).argmax(1) == task.test.y).float().mean() * 100
        assert result.history[-1]["accuracy"] == pytest.approx(float(accuracy))

    def test_fixed_mixing_stays_and_adaptive_mixing_moves_within_its_limits(self):
        assert {line["mixing"] for line in run("apfl", mixing=0.25).history} == {0.25}
        learned = [line["mixing"] for line in run("apfl", adaptive=True, rounds=6, lr=0.5).history]
        assert all(0 <= mixing <= 1 for mixing in learned)
        assert len(set(learned)) > 1

    def test_adaptive_mixing_turns_to_the_local_model_when_sources_mislead(self):
        task = blobs(sources=2, target_rows=60)
        for site in task.sources:
            site.y.copy_((site.y + 1) % 3)
        misled = run("apfl", task, adaptive=True, rounds=8, lr=0.3).history[-1]["mixing"]
        helped = run("apfl", blobs(sources=2), adaptive=True, rounds=8, lr=0.3).history[-1][
            "mixing"
        ]
        assert misled > 0.5
        assert misled > helped

    def test_its_local_model_never_leaves(self):
        fed = federation(model="mlp:8", method="apfl")
        method("apfl", fed).run_round(1)
        assert fed.bytes_up == 4 * 4 * fed.blocks.total

    def test_the_warm_up_shows_the_model_that_all_clients_train(self):
        for model in ("mlp:8", Normed()):
            ours, theirs = (
                run(name, warmup=2, model=model).history[:2] for name in ("apfl", "fedavg")
            )
            assert [line["loss"] for line in ours] == [line["loss"] for line in theirs]

    @pytest.mark.parametrize(("mixing", "other"), [(0, "fedavg"), (1, "target-only")])
    def test_at_both_ends_batch_norm_statistics_are_those_of_the_model_taken(self, mixing, other):
        options = {"model": Normed(), "warmup": 1, "buffers": "mean" if mixing == 0 else "target"}
        task = blobs(shift=0.5)
        ours, theirs = run("apfl", task, mixing=mixing, **options), run(other, task, **options)
        for name, value in theirs.model.state_dict().items():
            torch.testing.assert_close(ours.model.state_dict()[name], value)
        assert ours.history[-1]["loss"] == pytest.approx(theirs.history[-1]["loss"])

    def test_the_delivered_statistics_are_those_of_the_mixture(self):
        task = blobs(shift=0.5)
        result = run("apfl", task, model=Normed(), warmup=1)
        outputs = result.model(task.test.x).detach()
        loss = functional.cross_entropy(outputs, task.test.y)
        assert result.history[-1]["loss"] == pytest.approx(float(loss), rel=1e-5)

    @pytest.mark.parametrize("wrong", [{"mixing": 1.5}, {"adaptive": "yes"}])
    def test_checks_its_options(self, wrong):
        with pytest.raises(OptionError, match=r"mixing|adaptive"):
            run("apfl", **wrong)


class TestKnnPer:
    def test_at_weight_zero_is_fedavg(self):
        knn, fedavg = run("knn-per", share=0), run("fedavg")
        assert torch.equal(
            torch.cat([p.detach().flatten() for p in knn.model.model.parameters()]),
            parameters(fedavg),
        )
        for ours, theirs in zip(knn.history, fedavg.history, strict=True):
            assert ours["accuracy"] == theirs["accuracy"]
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)

    def test_the_vote_is_a_weighted_count_of_the_nearest(self):
        distances = torch.tensor([[0.0, 1.0, 9.0]], dtype=torch.float64)
        votes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        near = vote(distances, votes, 2, 1.0)
        weight = 1 / (1 + torch.e**-1)
        torch.testing.assert_close(near, torch.tensor([[weight, 1 - weight]], dtype=torch.float64))

    def test_distances_count_per_feature(self):
        fed = federation(model="mlp:8", method="knn-per")
        made = method("knn-per", fed, share=1, neighbours=3, scale=0.5)
        made.run_round(1)
        model, test, own = fed.bench.model, fed.task.test, fed.task.target
        found = fed.predict(made.model, test).softmax(1)
        with torch.no_grad():
            keys, asked = model.features(own.x), model.features(test.x[:5])
        for row, key in enumerate(asked):
            squared = ((keys - key) ** 2).sum(1)
            expected = torch.zeros(3)
            for near in squared.argsort()[:3].tolist():
                expected[own.y[near]] += torch.exp(-squared[near] / (8 * 0.5))
            torch.testing.assert_close(found[row], expected / expected.sum(), atol=1e-5, rtol=1e-4)

    def test_on_a_linear_model_the_features_are_the_inputs(self):
        task = blobs(sources=2, target_rows=60)
        for site in task.sources:
            site.y.copy_((site.y + 1) % 3)
        result = run("knn-per", task, model="linear", rounds=5)
        keys, labels = (result.model.state_dict()[name] for name in ("keys", "votes"))
        assert torch.equal(keys, task.target.x)
        assert torch.equal(labels.argmax(1), task.target.y)
        assert result.accuracy > run("fedavg", task, model="linear", rounds=5).accuracy + 15

    def test_the_mixture_is_one_of_probabilities(self):
        outputs = torch.tensor([[2.0, -1.0]])
        near = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
        mixed = blend(outputs, near, 0.25).exp()
        expected = 0.75 * outputs.softmax(1) + 0.25 * near.float()
        torch.testing.assert_close(mixed, expected)

    def test_own_rows_win_where_sources_have_other_labels(self):
        task = blobs(sources=2, target_rows=60)
        for site in task.sources:
            site.y.copy_((site.y + 1) % 3)
        knn, fedavg = (run(name, task, rounds=5) for name in ("knn-per", "fedavg"))
        assert knn.history[-1]["share"] > 0.5
        assert knn.accuracy > fedavg.accuracy + 30

    def test_the_weight_is_chosen_without_the_test_rows(self):
        task = blobs(shift=0.5)
        before = [line["share"] for line in run("knn-per", task).history]
        task.test.y.copy_((task.test.y + 1) % 3)
        assert [line["share"] for line in run("knn-per", task).history] == before

    def test_the_store_never_leaves_the_target(self):
        sent = []
        for name in ("knn-per", "fedavg"):
            fed = federation(model="mlp:8", method=name)
            method(name, fed).run_round(1)
            sent.append((fed.bytes_up, fed.bytes_down))
        assert sent[0] == sent[1]

    def test_rows_set_aside_for_validation_have_no_vote(self):
        fed = federation(model="mlp:8", method="knn-per", early_stopping=2)
        made = method("knn-per", fed)
        made.run_round(1)
        kept = len(fed.target_rows)
        assert len(made.store["votes"]) == kept < len(fed.task.target)
        assert bool(torch.isfinite(fed.predict(made.model, fed.task.test)).all())


@pytest.mark.parametrize("name", ["ditto", "fedrep", "apfl", "knn-per", "finetune-offline"])
def test_works_with_one_source_and_one_batch(name):
    result = run(name, blobs(sources=1), batch_size=64, rounds=10, lr=0.3)
    assert [line["failures"] for line in result.history] == [{}] * 10
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert result.accuracy > 90
