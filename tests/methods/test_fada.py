"""FADA: features that hide their domain, and attention to sources that tighten the target."""

import pytest
import torch
from small import blobs, federation, line, method
from torch import nn

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.federation.needs import Need, UnmetNeedError
from fedbridge.methods.fada import (
    Adversary,
    Alignment,
    domain_loss,
    in_common,
    parts_loss,
    spread_partition,
    tighten,
)
from fedbridge.models import SplitModel, build_model
from fedbridge.training.objective import Batch, StepContext

QUICK = {"rounds": 2, "workers": 1, "model": "mlp:8", "lr": 0.1, "batch_size": 8}


def unlabelled_blobs(**options):
    return blobs(**{"target_rows": 40, "n_target": 9, **options})


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


def network_and_desk():
    """A network, and a step with rows of two domains."""
    torch.manual_seed(0)
    net = Adversary(build_model("mlp:8", unlabelled_blobs()), (8,), 3)
    own = Batch(torch.randn(6, 2), torch.arange(6) % 3, torch.arange(6))
    theirs = Batch(torch.randn(5, 2) + 2, torch.zeros(5, dtype=torch.int64), torch.arange(5))
    flat = nn.Parameter(torch.zeros(1))
    loss_of = nn.functional.cross_entropy
    return net, StepContext(net, flat, None, loss_of, own, (theirs,), lr=0.1)


def gradients(alignment, disentangling):
    """Gradients of one step's objective for every parameter of the network."""
    net, context = network_and_desk()
    Alignment(alignment, disentangling)(context).backward()
    return {name: value.grad.clone() for name, value in net.named_parameters()}


class TestAlignment:
    def test_the_identifier_learns_domains_and_the_features_the_opposite(self):
        none, some, more = (gradients(strength, 0.1) for strength in (0.0, 1.0, 2.0))
        for name, value in none.items():
            if name.startswith("domain"):
                torch.testing.assert_close(value, some[name])
        first = "model.features.1.weight"
        pull = some[first] - none[first]
        assert float(pull.norm()) > 0
        torch.testing.assert_close(more[first] - none[first], 2 * pull)

    def test_the_features_go_against_the_gradient_of_the_identifiers_loss(self):
        net, context = network_and_desk()
        parts = (net.invariant(net.features(batch.x)) for batch in (context.own, context.beside[0]))
        weight = net.model.features[1].weight
        (plain,) = torch.autograd.grad(domain_loss(net, *parts), weight)
        first = "model.features.1.weight"
        torch.testing.assert_close(
            gradients(0.5, 0.0)[first] - gradients(0.0, 0.0)[first], -plain / 2
        )

    def test_disentangling_trains_the_gate_and_the_class_identifier_only(self):
        without, with_it = gradients(0.5, 0.0), gradients(0.5, 1.0)
        moved = {name for name in without if not torch.equal(without[name], with_it[name])}
        assert moved == {"invariant.openness", "classes.weight", "classes.bias"}

    def test_domains_are_harder_to_tell_after_alignment(self):
        task = unlabelled_blobs(shift=1.5, rows=60)
        gaps = []
        for alignment in (0.0, 2.0):
            on = federation(task, model="mlp:8", method="fada", lr=0.1)
            made = method("fada", on, alignment=alignment)
            for number in range(1, 16):
                made.run_round(number)
            clouds = [
                on.predict(made.state, site, lambda net, x: net.invariant(net.features(x)))
                for site in (on.bench.sites[1], on.bench.sites[on.site_for(Need.UNLABELLED)])
            ]
            spread = torch.cat(clouds).var(0).sum()
            gaps.append(float((clouds[0].mean(0) - clouds[1].mean(0)).square().sum() / spread))
        assert gaps[1] < 0.7 * gaps[0]


class TestParts:
    def test_parts_of_one_feature_have_in_common_what_both_hold(self):
        feature = torch.randn(20, 1)
        for share in (0.0, 0.3, 1.0):
            common = float(in_common(share * feature, (1 - share) * feature))
            assert common == pytest.approx((share * (1 - share)) ** 2, abs=1e-6)

    def test_separate_features_that_do_not_vary_together_have_nothing_in_common(self):
        first = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
        second = torch.tensor([[0.0, 1.0], [0.0, -1.0], [0.0, 1.0], [0.0, -1.0]])
        assert float(in_common(first, second)) == 0
        assert float(in_common(torch.ones(3, 2), torch.ones(3, 2))) == 0

    def test_the_gate_holds_on_to_features_that_tell_classes(self):
        torch.manual_seed(0)
        net = Adversary(build_model("mlp:2", unlabelled_blobs()), (2,), 3)
        with torch.no_grad():
            net.invariant.openness.zero_()
        labels = torch.arange(60) % 3
        source = torch.stack((labels - 1.0, torch.randn(60)), dim=1)
        parameters = [net.invariant.openness, *net.classes.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.3)
        for _ in range(100):
            optimizer.zero_grad()
            parts_loss(net, source, source, labels).backward()
            optimizer.step()
        telling, noise = net.invariant.openness.sigmoid().tolist()
        assert telling > noise
        assert telling > 0.7


class TestAttention:
    def test_the_share_left_within_clusters_by_hand(self):
        features = torch.tensor([[0.0], [2.0], [10.0], [12.0]]).double()
        share, clusters = tighten(features, spread_partition(features, 2))
        assert share == pytest.approx(4 / 104)
        assert clusters[0] == clusters[1] != clusters[2] == clusters[3]

    def test_it_knows_no_scale_and_no_place(self):
        features = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)).double()
        share, _ = tighten(features, spread_partition(features, 3))
        moved = 7 * features - 3
        assert tighten(moved, spread_partition(moved, 3))[0] == pytest.approx(share)
        assert 0 < share < 1

    def test_fewer_rows_than_clusters_and_features_that_do_not_vary(self):
        features = torch.randn(3, 2).double()
        assert tighten(features, spread_partition(features, 5))[0] == pytest.approx(0)
        assert tighten(torch.ones(4, 2), spread_partition(torch.ones(4, 2), 3))[0] == 1

    def test_a_source_of_random_labels_gets_less(self):
        task = unlabelled_blobs(sources=3, rows=60)
        labels = task.sources[1].y
        shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        labels.copy_(labels[shuffled])
        result = fb.run(task, "fada", **{**QUICK, "rounds": 15, "lr": 0.3})
        shares = torch.tensor([round_line["beta"] for round_line in result.history]).mean(0)
        assert float(shares[1]) < 0.75 * float(shares[[0, 2]].min())
        assert result.accuracy > 85

    def test_without_attention_sources_count_the_same(self):
        result = fb.run(unlabelled_blobs(), "fada", **QUICK, attention=0)
        assert result.history[-1]["beta"] == pytest.approx([1 / 3] * 3)


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
    assert on.bytes_up == on.bytes_down == 4 * on.blocks.total + 4 * 5 * 8 * 8


def test_the_targets_labels_play_no_part():
    task, other = unlabelled_blobs(), unlabelled_blobs()
    other.target.y.copy_((other.target.y + 1) % 3)
    first, second = (
        method("fada", federation(one, model="mlp:8", method="fada")) for one in (task, other)
    )
    first.run_round(1)
    second.run_round(1)
    assert torch.equal(first.state.parameters, second.state.parameters)


@pytest.mark.parametrize("option", ["alignment", "disentangling", "attention"])
def test_needs_and_options_are_checked(option):
    on = federation(unlabelled_blobs(), model="mlp:8", method="fada")
    with pytest.raises(OptionError, match=f"`{option}`"):
        method("fada", on, **{option: -1})
    with pytest.raises(UnmetNeedError, match="classes"):
        fb.run(line(), "fada", rounds=1)
    with pytest.raises(UnmetNeedError, match="feature extractor"):
        fb.run(unlabelled_blobs(), "fada", rounds=1, model="linear")
