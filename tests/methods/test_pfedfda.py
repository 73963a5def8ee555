"""pFedFDA: Gaussian heads between the target's statistics and everyone's."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from small import blobs, federation, method
from torch.nn import functional

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.methods.pfedfda import (
    DEALING,
    _halves,
    best_beta,
    class_shares,
    estimate,
    gaussian_head,
    interpolate,
)
from fedbridge.models import HeadPlace
from fedbridge.training.job import seed_of
from fedbridge.training.state import complement, entries

QUICK = {"rounds": 2, "workers": 1, "model": "linear", "lr": 0.1, "batch_size": 8}


def cloud(n=200, width=4, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    labels = torch.arange(n) % classes
    return normal(classes, width)[labels] * 2 + normal(n, width) @ normal(width, width), labels


def nothing(classes=3, width=4):
    return torch.zeros(classes, width).double(), torch.eye(width).double()


class TestHead:
    def test_is_linear_discriminant_analysis(self):
        features, labels = cloud()
        means = torch.stack([features[labels == k].mean(0) for k in range(3)])
        centred = features - means[labels]
        shares = functional.one_hot(labels).double().mean(0)
        weight, bias = gaussian_head((means, centred.T @ centred / len(labels)), shares)
        plain = LinearDiscriminantAnalysis(solver="lsqr").fit(features, labels)
        found = functional.softmax(features @ weight.T + bias, 1)
        np.testing.assert_allclose(found, plain.predict_proba(features), atol=2e-3)

    def test_a_class_twice_as_frequent_is_twice_as_likely(self):
        statistics = nothing()
        _, bias = gaussian_head(statistics, torch.tensor([0.5, 0.25, 0.25]).double())
        torch.testing.assert_close((bias[0] - bias[1]).exp(), torch.tensor(2.0).double())


class TestStatistics:
    def test_are_means_and_common_covariance_with_the_unit_matrix_added(self):
        features, labels = cloud()
        means, covariance = estimate(features, labels, nothing())
        expected = np.stack([features[labels == k].numpy().mean(0) for k in range(3)])
        rest = features.numpy() - expected[labels]
        np.testing.assert_allclose(means, expected)
        np.testing.assert_allclose(covariance, rest.T @ rest / 199 + np.eye(4))

    def test_a_class_of_two_rows_keeps_its_global_mean(self):
        features, _ = cloud(n=6)
        labels = torch.tensor([0, 0, 0, 0, 1, 1])
        known = (torch.full((3, 4), 7.0).double(), torch.eye(4).double())
        means, _ = estimate(features, labels, known)
        assert torch.equal(means[1:], known[0][1:])
        torch.testing.assert_close(means[0], features[:4].mean(0))

    def test_shares_are_never_0(self):
        shares = class_shares(torch.tensor([0, 0, 1]), 3)
        assert float(shares[2]) == pytest.approx(1e-4, rel=1e-2)
        assert float(shares.sum()) == pytest.approx(1)


class TestBeta:
    @pytest.mark.parametrize("seed", range(4))
    def test_is_where_brute_force_finds_the_smallest_held_out_loss(self, seed):
        features, labels = cloud(n=24, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(3, 4, generator=generator, dtype=torch.float64)
        known = (
            estimate(*cloud(n=600, seed=seed), nothing())[0] + noise,
            3 * torch.eye(4).double(),
        )
        halves = _halves(labels, seed)
        shares = class_shares(labels, 3)

        def loss(beta):
            total = 0.0
            for half in (0, 1):
                rest, out = halves != half, halves == half
                own = estimate(features[rest], labels[rest], known)
                means = (beta * own[0] + (1 - beta) * known[0]).numpy()
                covariance = (beta * own[1] + (1 - beta) * known[1]).numpy()
                inverse = np.linalg.inv(
                    (1 - 1e-4) * covariance + 1e-4 * np.trace(covariance) / 4 * np.eye(4)
                )
                gaps = features[out].numpy()[:, None] - means
                log_density = -np.einsum("nki,ij,nkj->nk", gaps, inverse, gaps) / 2
                z = log_density + shares.log().numpy()
                chosen = z[np.arange(len(z)), labels[out]]
                total += (np.log(np.exp(z).sum(1)) - chosen).mean()
            return total

        found = best_beta(features, labels, known, halves)
        fine = np.linspace(0, 1, 401)
        best = fine[np.argmin([loss(beta) for beta in fine])]
        assert loss(found) <= min(loss(k / 20) for k in range(21)) + 1e-9
        assert abs(found - best) <= 0.05
        inside = minimize_scalar(loss, bounds=(0, 1), method="bounded")
        assert loss(found) < inside.fun + 0.02

    def test_is_0_where_there_are_no_two_halves(self):
        features, labels = cloud(n=1)
        assert best_beta(features, labels, nothing(), _halves(labels, 0)) == 0

    def test_halves_share_every_class(self):
        labels = torch.tensor([0] * 8 + [1] * 6 + [2] * 2)
        halves = _halves(labels, 0)
        assert [int(halves[labels == k].sum()) for k in range(3)] == [4, 3, 1]

    def test_interpolates_between_the_two(self):
        local, known = estimate(*cloud(), nothing()), nothing()
        assert all(map(torch.equal, interpolate(local, known, 0.0), known))
        assert all(map(torch.equal, interpolate(local, known, 1.0), local))
        torch.testing.assert_close(interpolate(local, known, 0.25)[0], 0.25 * local[0])

    @pytest.mark.parametrize("wrong", [-0.1, 1.1, "half"])
    def test_refuses_one_that_is_none(self, wrong):
        with pytest.raises(OptionError, match="beta"):
            fb.run(blobs(), "pfedfda", **QUICK, beta=wrong)


class TestRounds:
    def test_statistics_are_the_mean_of_the_clients_by_samples(self):
        fed = federation(blobs(sources=2, rows=30), method="pfedfda")
        made = method("pfedfda", fed, beta=1.0)
        known = made.means.clone(), made.covariance.clone()
        made.run_round(1)
        local = []
        for client, site in enumerate((fed.task.target, *fed.task.sources)):
            halves = _halves(site.y, seed_of(0, 1, client, DEALING))
            beta = best_beta(site.x.double(), site.y, known, halves)
            assert beta > 0
            local.append(interpolate(estimate(site.x.double(), site.y, known), known, beta))
        weights = [12 / 72, 30 / 72, 30 / 72]
        for k, found in enumerate((made.means, made.covariance)):
            expected = sum(w * own[k] for w, own in zip(weights, local, strict=True))
            torch.testing.assert_close(found, expected)

    def test_the_head_is_held_fixed_while_bodies_train(self):
        fed = federation(model="mlp:8", method="pfedfda")
        made = method("pfedfda", fed)
        job, place = made.job(1, 1), HeadPlace.of(fed.bench.model)
        head = job.objective.prepared(
            fed.bench.model, fed.initial.parameters, fed.task.sources[0].y
        )
        assert not torch.equal(head, fed.initial.parameters)
        _, (change,) = fed.do([job], [fed.initial])
        assert not bool(entries(change, place.slices).any())
        assert bool(entries(change, complement(place.slices, len(change))).any())

    def test_bodies_and_statistics_cross_the_wire_and_heads_do_not(self):
        fed = federation(model="mlp:8", method="pfedfda")
        method("pfedfda", fed).run_round(1)
        body, statistics = 2 * 8 + 8, 3 * 8 + 8 * 8
        assert fed.bytes_up == fed.bytes_down == 4 * 4 * (body + statistics)


def moved(seed, width=12, classes=4, target_rows=24):
    """Every site sees the classes' features moved and stretched in its own way."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    centres = 0.6 * normal(classes, width)

    def world():
        own = centres + 0.4 * normal(classes, width)
        stretch = torch.exp(0.3 * normal(width))

        def site(count):
            y = torch.arange(count) % classes
            return (own[y] + normal(count, width)) * stretch, y

        return site

    target = world()
    return fb.FederatedTask.from_arrays(
        sources=[world()(200) for _ in range(4)], target=target(target_rows), test=target(1000)
    )


def test_under_a_shift_of_features_it_beats_the_global_and_the_local_classifier():
    given = {**QUICK, "rounds": 3}

    def accuracy(beta):
        runs = [fb.run(moved(k), "pfedfda", **given, seed=k, beta=beta) for k in range(5)]
        return np.mean([result.accuracy for result in runs])

    accuracies = {beta: accuracy(beta) for beta in (None, 0.0, 1.0)}
    assert accuracies[None] > accuracies[0.0] + 2
    assert accuracies[None] > accuracies[1.0] + 2
