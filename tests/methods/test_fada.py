"""FADA: features that hide their domain, and attention to sources that tighten the target."""

import math
from copy import deepcopy
from itertools import product

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from small import blobs, federation, line, method
from torch import nn

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.core.blocks import parameter_vector
from fedbridge.federation.needs import Need, UnmetNeedError
from fedbridge.methods.fada import (
    Dependence,
    Disentangler,
    gap_statistic,
    spread_partition,
    taken_for_source,
    tighten,
    told_apart,
    unevenness,
)
from fedbridge.models import SplitModel, build_model
from fedbridge.training.objective import StepContext
from fedbridge.training.state import entries

QUICK = {"rounds": 2, "workers": 1, "model": "mlp:8", "lr": 0.1, "batch_size": 8}
SHIFTED = {"rounds": 10, "workers": 1, "model": "mlp:16", "lr": 0.05, "batch_size": 8}


def unlabelled_blobs(**options):
    return blobs(**{"target_rows": 40, "n_target": 9, **options})


def two_sources(seed, kind="alike", shift=0.0):
    """Three classes in three of six dimensions; the target has moved in all of them.

    The second source is like the first, or has its classes in other dimensions, or random labels.
    """
    generator = torch.Generator().manual_seed(seed)
    move = shift * torch.tensor([0.5, 0.0, 0.0, 1.0, 1.0, 1.0])

    def site(count, moved, first=0, shuffled=False):
        y = torch.arange(count) % 3
        x = 2 * nn.functional.one_hot(y + first, 6) + moved * move
        x = x + 0.6 * torch.randn(count, 6, generator=generator)
        return x, y[torch.randperm(count, generator=generator)] if shuffled else y

    other = {"alike": {}, "elsewhere": {"first": 3}, "random": {"shuffled": True}}[kind]
    return fb.FederatedTask.from_arrays(
        sources={"first": site(60, 0), "second": site(60, 0.1, **other)},
        target=site(63, 1),
        test=site(150, 1),
        seed=seed,
        n_target=3,
    )


class Normalised(nn.Module):
    """A model with BatchNorm among its features, which are small maps."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Unflatten(1, (2, 4))
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))

    def forward(self, x):
        return self.head(self.features(x))


class TestSteps:
    """One batch: those who tell, then those who hide."""

    @staticmethod
    def scene():
        task = unlabelled_blobs(sources=1)
        on = federation(task, model="mlp:8", method="fada", lr=0.05, batch_size=100)
        made = method("fada", on)
        beside = (on.site_for(Need.UNLABELLED),)
        job = on.job(1, 1, on.initial, objective=made.training, beside=beside)
        (batches,) = on.bench._batches_of_steps(job, 1)
        return on, made, batches

    @staticmethod
    def gradients(made, net, batches, step):
        loss_of = nn.functional.cross_entropy
        context = StepContext(net, None, None, loss_of, batches[0], (batches[1],), lr=0.05)
        loss = made.training(context) if step == 1 else made.training.hiding(context)
        named = dict(net.named_parameters())
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        return {
            name: torch.zeros_like(value) if gradient is None else gradient
            for (name, value), gradient in zip(named.items(), found, strict=True)
        }

    def test_each_network_moves_when_it_is_its_turn(self):
        on, made, batches = self.scene()
        net = deepcopy(on.bench.model)
        tellers = ("model.head", "classes", "domain", "dependence")
        for step, waits in ((1, ("rebuild",)), (2, tellers)):
            found = self.gradients(made, net, batches, step)
            with torch.no_grad():
                for name, value in net.named_parameters():
                    if not name.startswith(waits):
                        value -= 0.05 * found[name]
        _, (trained,) = made.train_sources(1)
        torch.testing.assert_close(trained.parameters, parameter_vector(net), atol=1e-5, rtol=1e-4)

    def test_telling_teaches_the_features_classes_and_nothing_of_domains(self):
        on, made, batches = self.scene()
        net = deepcopy(on.bench.model)
        found = self.gradients(made, net, batches, 1)
        x, y = batches[0].x, batches[0].y
        f = net.model.features(x)
        loss = nn.functional.cross_entropy(net.model.head(net.invariant(f)), y)
        loss = loss + nn.functional.cross_entropy(net.classes(net.specific(f)), y)
        names = ["model.features.1.weight", "invariant.layer.weight", "specific.layer.weight"]
        for name in names:
            (expected,) = torch.autograd.grad(loss, net.get_parameter(name), retain_graph=True)
            torch.testing.assert_close(found[name], expected)
        assert bool(found["domain.0.weight"].any())
        assert bool(found["dependence.first.weight"].any())

    def test_hiding_changes_features_by_deceit_and_disentanglers_by_all_of_it(self):
        on, made, batches = self.scene()
        net = deepcopy(on.bench.model)
        found = self.gradients(made, net, batches, 2)
        whole = [net.model.features(batch.x) for batch in batches]
        names = ["model.features.1.weight", "rebuild.weight"]
        deceit = taken_for_source(net.domain, *map(net.invariant, whole))
        deceit = deceit + unevenness(net.classes(net.specific(whole[0])))
        both = [torch.cat((net.invariant(f), net.specific(f)), 1) for f in whole]
        error = (net.rebuild(torch.cat(both)) - torch.cat(whole)).square().mean()
        for name, loss in zip(names, (deceit, 0.1 * error), strict=True):
            (expected,) = torch.autograd.grad(loss, net.get_parameter(name), retain_graph=True)
            torch.testing.assert_close(found[name], expected)


class TestLosses:
    def test_the_identifiers_and_the_deceivers_loss(self):
        logits = torch.randn(2, 5, dtype=torch.float64)
        source, target = logits.sigmoid()
        identifier = -source.log().mean() - (1 - target).log().mean()
        deceiver = -source.log().mean() - target.log().mean()
        torch.testing.assert_close(told_apart(nn.Identity(), *logits), identifier)
        torch.testing.assert_close(taken_for_source(nn.Identity(), *logits), deceiver)

    def test_an_even_prediction_is_the_least_uneven(self):
        even = float(unevenness(torch.zeros(3, 4)))
        assert even == pytest.approx(math.log(4))
        logits = torch.randn(3, 4)
        expected = -logits.softmax(1).log().sum() / 12
        assert float(unevenness(logits)) == pytest.approx(float(expected))
        assert float(expected) > even

    def test_the_estimate_of_dependence_by_hand(self):
        torch.manual_seed(0)
        net, (p, q) = Dependence(2), torch.randn(2, 3, 2)

        def score(one, other):
            hidden = net.first.weight @ torch.cat((one, other)) + net.first.bias
            hidden = torch.where(hidden > 0, hidden, 0.2 * hidden)
            return float(net.last.weight[0] @ hidden + net.last.bias[0])

        with torch.no_grad():
            together = sum(score(p[k], q[k]) for k in range(3)) / 3
            apart = sum(math.exp(score(p[k], q[k - 1])) for k in range(3)) / 3
            found = float(net(p, q))
        assert found == pytest.approx(together - math.log(apart), abs=1e-6)

    @pytest.mark.parametrize("correlation", [0.0, 0.8])
    def test_the_estimate_comes_to_the_mutual_information_of_normal_variables(self, correlation):
        torch.manual_seed(0)
        net = Dependence(1)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

        def drawn(count):
            p, noise = torch.randn(2, count, 1)
            return p, correlation * p + math.sqrt(1 - correlation**2) * noise

        for _ in range(300):
            optimizer.zero_grad()
            (-net(*drawn(256))).backward()
            optimizer.step()
        true = -math.log(1 - correlation**2) / 2
        with torch.no_grad():
            assert float(net(*drawn(20000))) == pytest.approx(true, abs=0.06)

    def test_the_invariant_part_begins_as_the_features(self):
        features = torch.rand(4, 2, 3)
        torch.testing.assert_close(Disentangler(6, identity=True)(features), features)


class TestInvariance:
    def test_domains_are_harder_to_tell_by_the_invariant_features(self):
        """A probe of its own that is fitted to them afterwards; half of its guesses are luck."""
        told = {0.0: 0.0, 1.0: 0.0}
        for alignment, seed in product(told, range(2)):
            task = two_sources(seed, shift=1.5)
            on = federation(task, model="mlp:16", method="fada", lr=0.05)
            made = method("fada", on, alignment=alignment)
            for number in range(1, 11):
                made.run_round(number)
            clouds = [
                on.predict(made.state, site, lambda net, x: net.invariant(net.features(x)))
                for site in (on.bench.sites[1], on.bench.sites[on.site_for(Need.UNLABELLED)])
            ]
            domain = [0] * len(clouds[0]) + [1] * len(clouds[1])
            rows = torch.cat(clouds).numpy()
            told[alignment] += (
                LogisticRegression(max_iter=500).fit(rows, domain).score(rows, domain)
            )
        assert told[1.0] / 2 < told[0.0] / 2 - 0.05

    def test_more_rows_of_a_shifted_target_are_told_right_than_by_the_sources_alone(self):
        tasks = [two_sources(seed, shift=1.5) for seed in range(2)]
        plain, aligned = (
            sum(fb.run(task, name, seed=0, **SHIFTED).accuracy for task in tasks) / 2
            for name in ("source-only", "fada")
        )
        assert aligned > plain + 4


class TestAttention:
    def test_the_gap_statistic_by_hand(self):
        features = torch.tensor([[0.0], [2.0], [10.0], [13.0]]).double()
        clusters = tighten(features, spread_partition(features, 2))
        assert clusters[0] == clusters[1] != clusters[2] == clusters[3]
        assert gap_statistic(features, clusters) == pytest.approx((2 * 2 / 4 + 2 * 3 / 4) / 4)

    def test_the_gap_statistic_pair_by_pair(self):
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(12, 3, generator=generator).double()
        partition = torch.arange(12) % 5
        expected = 0.0
        for j, k in product(range(12), repeat=2):
            if partition[j] == partition[k]:
                size = int((partition == partition[j]).sum())
                expected += float((features[j] - features[k]).norm()) / (2 * size)
        assert gap_statistic(features, partition) == pytest.approx(expected / 12)

    def test_relative_it_knows_no_scale_and_no_place(self):
        features = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)).double()
        partition = tighten(features, spread_partition(features, 3))
        moved = 7 * features - 3
        share = gap_statistic(features, partition, relative=True)
        assert gap_statistic(moved, partition, relative=True) == pytest.approx(share)
        assert gap_statistic(moved, partition) == pytest.approx(
            7 * gap_statistic(features, partition)
        )
        assert 0 < share < 1

    def test_fewer_rows_than_clusters_and_features_that_do_not_vary(self):
        features = torch.randn(3, 2).double()
        apart = tighten(features, spread_partition(features, 5))
        assert gap_statistic(features, apart) == pytest.approx(0)
        same = torch.ones(4, 2).double()
        assert gap_statistic(same, tighten(same, spread_partition(same, 3)), relative=True) == 1

    def test_shares_are_the_softmax_of_the_gains_of_a_step(self):
        result = fb.run(unlabelled_blobs(), "fada", **QUICK, attention=3.0)
        last = result.history[-1]
        weights = [math.exp(3 * gain) for gain in last["gain"]]
        assert last["beta"] == pytest.approx([w / sum(weights) for w in weights])

    @staticmethod
    def share_of_the_first(kind, **options):
        shares = []
        for seed in range(2):
            result = fb.run(two_sources(seed, kind, 0.3), "fada", seed=seed, **SHIFTED, **options)
            shares.append(torch.tensor([ln["beta"][0] for ln in result.history]).mean())
        return float(torch.stack(shares).mean())

    def test_a_source_with_the_targets_classes_gets_more_than_one_with_others(self):
        assert self.share_of_the_first("elsewhere", attention=5) > 0.52

    def test_a_source_of_random_labels_shrinks_features_which_relative_does_not_reward(self):
        assert self.share_of_the_first("random", attention=5) < 0.5
        assert self.share_of_the_first("random", attention=200, relative=True) > 0.55

    def test_without_attention_sources_count_the_same(self):
        result = fb.run(unlabelled_blobs(), "fada", **QUICK, attention=0)
        assert result.history[-1]["beta"] == pytest.approx([1 / 3] * 3)


def test_the_networks_that_look_at_the_parts_stay_with_their_source():
    on = federation(unlabelled_blobs(sources=2), model="mlp:8", method="fada")
    made = method("fada", on)
    first = made.own.clone()
    assert torch.equal(first[0], first[1])
    made.run_round(1)
    after_one = made.own.clone()
    assert not torch.equal(after_one[0], after_one[1])
    start = made._start(1)
    assert torch.equal(entries(start.parameters, on.stays), after_one[1])
    net = on.bench.model
    private = (net.classes, net.domain, net.dependence, net.rebuild)
    sizes = sum(value.numel() for part in private for value in part.parameters())
    assert first.shape == (2, sizes)


def test_the_delivered_model_answers_as_the_one_that_was_tested():
    task = unlabelled_blobs()
    result = fb.run(task, "fada", **QUICK)
    with torch.no_grad():
        right = (result.model(task.test.x).argmax(1) == task.test.y).double().mean()
    assert 100 * float(right) == pytest.approx(result.history[-1]["accuracy"])
    tensors = result.model.state_dict()
    again = fb.methods.class_of("fada").restore(build_model("mlp:8", task), tensors)
    again.load_state_dict(tensors)
    assert isinstance(again, SplitModel)
    assert torch.equal(again.eval()(task.test.x), result.model(task.test.x))


@pytest.mark.parametrize("options", [{}, {"batch_size": 1, "steps": 5}, {"buffers": "keep"}])
def test_works_with_one_source_maps_and_batch_norm(options):
    task = unlabelled_blobs(sources=1)
    result = fb.run(task, "fada", **{**QUICK, "model": Normalised(), **options})
    assert result.history[-1]["beta"] == [1.0]


def test_features_and_their_gradients_are_counted():
    on = federation(unlabelled_blobs(sources=1), model="mlp:8", method="fada")
    method("fada", on).run_round(1)
    model = 4 * (on.blocks.total - sum(end - start for start, end in on.stays))
    features = 4 * 5 * 8 * 8
    assert on.bytes_up == model + 2 * features
    assert on.bytes_down == model + features


def test_the_targets_labels_play_no_part():
    task, other = unlabelled_blobs(), unlabelled_blobs()
    other.target.y.copy_((other.target.y + 1) % 3)
    first, second = (
        method("fada", federation(one, model="mlp:8", method="fada")) for one in (task, other)
    )
    first.run_round(1)
    second.run_round(1)
    assert torch.equal(first.state.parameters, second.state.parameters)


@pytest.mark.parametrize(
    "option", ["alignment", "disentangling", "information", "reconstruction", "attention"]
)
def test_needs_and_options_are_checked(option):
    on = federation(unlabelled_blobs(), model="mlp:8", method="fada")
    with pytest.raises(OptionError, match=f"`{option}`"):
        method("fada", on, **{option: -1})
    with pytest.raises(UnmetNeedError, match="classes"):
        fb.run(line(), "fada", rounds=1)
    with pytest.raises(UnmetNeedError, match="feature extractor"):
        fb.run(unlabelled_blobs(), "fada", rounds=1, model="linear")
