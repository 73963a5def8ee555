"""Record-level privacy: every row is clipped, noise is as large as said, and epsilon is honest."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from scipy import integrate, stats
from small import blobs, federation, line
from torch import nn
from torch.nn import functional

import fedbridge as fb
from fedbridge.base.errors import ModelError, OptionError
from fedbridge.core.blocks import trainable_parameters
from fedbridge.federation.evidence import measure_evidence, target_noise
from fedbridge.training.accountant import Look, composed_epsilon, noise_within
from fedbridge.training.chance import PrivateChance
from fedbridge.training.job import Job, LocalPlan
from fedbridge.training.objective import Proximal
from fedbridge.training.record_privacy import (
    RecordNoise,
    RecordPrivacy,
    added_variance,
    check_job,
    clipped_sum,
    looks_of,
)

PRIVACY = RecordPrivacy(epsilon=3.0, rounds=10)


def of_rows(model, x, y, loss=functional.cross_entropy):
    """Gradients row by row, the plain way."""
    found = []
    for row, label in zip(x, y, strict=True):
        parts = torch.autograd.grad(loss(model(row[None]), label[None]), [*trainable(model)])
        found.append(torch.cat([part.flatten() for part in parts]).double())
    return torch.stack(found)


def trainable(model):
    return list(trainable_parameters(model))


def small_rows(n=6):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % 3


NETWORKS = {
    "dense": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
    "groups": lambda: nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)),
    "part frozen": lambda: nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.Linear(5, 3)),
}


@pytest.mark.parametrize("clip", [0.3, 1e6])
@pytest.mark.parametrize("network", NETWORKS)
def test_every_rows_gradient_is_clipped_and_added(network, clip):
    torch.manual_seed(0)
    model, (x, y) = NETWORKS[network](), small_rows()
    each = of_rows(model, x, y)
    each *= (clip / each.norm(dim=1).clamp(min=clip))[:, None]
    torch.testing.assert_close(
        clipped_sum(model, functional.cross_entropy, x, y, clip), each.sum(0), rtol=1e-5, atol=1e-6
    )


class Picky(nn.Module):
    """Looks at its numbers, which no transformation of many rows at once can follow."""

    def forward(self, x):
        return 2 * x if float(x.sum()) > 0 else x


def test_what_cannot_be_done_for_many_rows_at_once_is_done_one_by_one():
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(Picky(), nn.Linear(4, 3)), small_rows()
    found = clipped_sum(model, functional.cross_entropy, x, y, 1e6)
    torch.testing.assert_close(found, of_rows(model, x, y).sum(0), rtol=1e-5, atol=1e-6)


def test_a_row_whose_gradient_is_not_finite_counts_as_nothing():
    model, (x, y) = nn.Linear(4, 3), small_rows()
    x[2] = math.inf
    kept = torch.tensor([0, 1, 3, 4, 5])
    expected = clipped_sum(model, functional.cross_entropy, x[kept], y[kept], 1.0)
    torch.testing.assert_close(
        clipped_sum(model, functional.cross_entropy, x, y, 1.0), expected, rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("seed", [None, 3])
def test_every_row_takes_part_with_the_same_chance(seed):
    chance = PrivateChance(seed)
    taken = torch.zeros(50)
    for _ in range(400):
        taken[chance.subset(50, 0.2)] += 1
    assert float(taken.mean()) == pytest.approx(80, rel=0.03)
    assert stats.chisquare(taken.numpy()).pvalue > 1e-5
    assert len(chance.subset(50, 1.0)) == 50


def test_the_systems_draws_cannot_be_had_again_and_those_of_a_seed_can():
    assert not torch.equal(PrivateChance().normals(5), PrivateChance().normals(5))
    assert torch.equal(PrivateChance(1).normals(5), PrivateChance(1).normals(5))


def epsilon_of_one_look(rate, noise, delta):
    """The exact epsilon of one sampled Gaussian (add or remove a row), by integration."""

    def lost(epsilon):
        def beyond(x, more, less):
            return max(0.0, more(x) - math.exp(epsilon) * less(x))

        def with_row(x):
            return (1 - rate) * stats.norm.pdf(x, 0, noise) + rate * stats.norm.pdf(x, 1, noise)

        def without(x):
            return stats.norm.pdf(x, 0, noise)

        ends = (-12 * noise, 1 + 12 * noise)
        pairs = ((with_row, without), (without, with_row))
        return max(integrate.quad(beyond, *ends, args=pair, limit=500)[0] for pair in pairs)

    low, high = 0.0, 20.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if lost(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 0.8), (0.3, 1.5), (1.0, 2.0)])
def test_epsilon_of_a_look_is_a_bound_of_the_exact_one(rate, noise):
    exact = epsilon_of_one_look(rate, noise, 1e-5)
    reported = composed_epsilon({Look(rate, noise): 1}, 1e-5)
    assert exact <= reported <= 1.6 * exact


def test_looks_at_fewer_rows_cost_less_and_add_up():
    few, all_rows = ({Look(rate, 1.0): 10} for rate in (0.1, 1.0))
    assert composed_epsilon(few, 1e-5) < composed_epsilon(all_rows, 1e-5)
    together = composed_epsilon({**few, **all_rows}, 1e-5)
    assert together >= composed_epsilon(all_rows, 1e-5)


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("rate", [0.05, 0.4, 1.0])
def test_the_noise_that_is_solved_for_uses_the_budget_up_and_no_more(epsilon, rate):
    noise = noise_within(epsilon, 1e-5, rate, 8, 20)
    cost = composed_epsilon({Look(rate, noise): 160}, 1e-5)
    assert 0.97 * epsilon < cost <= epsilon


def test_messages_with_and_without_probes_stay_within_the_budget_together():
    """As ``auto`` asks for them: some rounds have twice the looks of the others."""
    plain, twice = (noise_within(3.0, 1e-5, 0.1, 8, 10, extra) for extra in (0, 8))
    assert twice > plain
    looks = {Look(0.1, plain): 8 * 6, Look(0.1, twice): 16 * 4}
    assert composed_epsilon(looks, 1e-5) <= 3.0


def test_a_budget_that_nothing_keeps_within_is_refused():
    with pytest.raises(OptionError, match="raise the budget"):
        noise_within(1e-9, 1e-5, 1.0, 1000, 1000)


@pytest.mark.parametrize(
    "values", [(0, 1), (3.0, 0), (3.0, 1, 0.0), (3.0, 1, 1.0, 1.0), (math.inf, 1), ("3", 1)]
)
def test_settings_that_make_no_sense_are_refused(values):
    with pytest.raises(OptionError, match="record_"):
        RecordPrivacy(*values)


def private_job(on, client=1, kind="train", noise="size", privacy=None, **plan):
    own = {"lr": 0.1, "batch_size": 8, **plan}
    job = Job(client, LocalPlan(**own, noise=noise), seed=4, kind=kind, anchor=0)
    return replace(job, privacy=privacy or RecordNoise(1.0, 1.0, seed=4))


def done(on, job):
    outcomes, rows = on.do([job], [on.initial])
    assert outcomes[0].failure is None
    return outcomes[0], rows[0].clone()


def test_without_noise_or_clip_and_with_all_rows_it_is_plain_training():
    on = federation(blobs(rows=24))
    job = Job(1, LocalPlan(lr=0.1, batch_size=24, epochs=3), seed=4)
    free = RecordNoise(1e9, 0.0, seed=4)
    (_, plain), (_, private) = done(on, job), done(on, replace(job, privacy=free))
    torch.testing.assert_close(private, plain, rtol=1e-4, atol=1e-6)


def test_a_pull_towards_the_anchor_is_no_rows_and_is_not_clipped():
    on = federation(blobs(rows=24))
    job = Job(1, LocalPlan(lr=0.1, batch_size=24, epochs=3), 4, objective=Proximal(2.0), anchor=0)
    free = RecordNoise(1e9, 0.0, seed=4)
    (_, plain), (_, private) = done(on, job), done(on, replace(job, privacy=free))
    torch.testing.assert_close(private, plain, rtol=1e-4, atol=1e-6)


def test_values_are_predicted_privately_too():
    on = federation(line())
    job = Job(1, LocalPlan(lr=0.05, batch_size=30, epochs=2), seed=4)
    free = RecordNoise(1e9, 0.0, seed=4)
    (_, plain), (_, private) = done(on, job), done(on, replace(job, privacy=free))
    torch.testing.assert_close(private, plain, rtol=1e-4, atol=1e-6)


def test_a_job_is_the_same_again_and_another_seed_is_another():
    on = federation()
    first, again = (done(on, private_job(on))[1] for _ in range(2))
    other = done(on, private_job(on, privacy=RecordNoise(1.0, 1.0, seed=5)))[1]
    hidden = [done(on, private_job(on, privacy=RecordNoise(1.0, 1.0)))[1] for _ in range(2)]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(*hidden)


@pytest.mark.parametrize("kind", ["train", "probe"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_the_added_noise_is_as_large_as_said(kind, optimizer):
    """Rows that tell nothing (their gradients are clipped to next to nothing) leave noise alone."""
    on = federation(blobs(rows=32))
    plan = {"optimizer": optimizer, "epochs": 2}
    lengths = []
    for _ in range(200):
        job = private_job(on, kind=kind, privacy=RecordNoise(1e-9, 3e9), **plan)
        outcome, vector = done(on, job)
        lengths.append(float(vector.double().square().sum()))
    told = float(outcome.added.sum())
    assert told == pytest.approx(float(added_variance(job, 32, on.blocks).sum()))
    assert sum(lengths) / len(lengths) == pytest.approx(told, rel=0.15)
    assert bool((outcome.noise >= outcome.added * (1 - 1e-9)).all())


def test_what_adam_makes_of_the_noise_is_measured_only():
    outcome, _ = done(on := federation(), private_job(on, optimizer="adam"))
    assert outcome.added is None
    assert float(outcome.noise.sum()) > 0


def test_nothing_that_is_told_besides_is_made_of_rows():
    on = federation(model=nn.Sequential(nn.Linear(2, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)))
    outcome, _ = done(on, private_job(on))
    assert math.isnan(outcome.loss)
    assert outcome.seconds == 0.0
    assert not outcome.told
    assert not outcome.buffers


def test_batch_norm_is_refused_and_frozen_it_is_not():
    network = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    with pytest.raises(ModelError, match=r"'1' is a BatchNorm1d: use GroupNorm"):
        fb.run(blobs(), "fedavg", 1, model=network, workers=1, record_epsilon=3)
    done = fb.run(
        blobs(), "fedavg", 1, model=network, workers=1, record_epsilon=3, buffers="frozen"
    )
    assert not done.history[0]["failures"]


def test_objectives_of_other_kinds_and_weights_of_classes_are_refused():
    for method in ("fada", "erm", "irm", "fedrep"):
        with pytest.raises(OptionError, match="use a rule, 'fedprox' or 'auto'"):
            fb.run(blobs(n_target=6), method, 1, workers=1, model="mlp:8", record_epsilon=3)
    with pytest.raises(OptionError, match="`class_weights`"):
        check_job(Job(1, LocalPlan(class_weights=(1.0, 2.0)), 0))


@pytest.mark.parametrize(
    "method", ["fedavg", "fedda-auto", "fedgp-auto", "fedgp-joint", "median", "fedprox", "auto"]
)
def test_runs_of_rules_and_auto_stay_within_epsilon(method):
    history = fb.run(blobs(), method, 4, workers=1, batch_size=8, record_epsilon=3).history
    spent = [line["epsilon"] for line in history]
    assert set(spent[0]) == {"site 0", "site 1", "site 2"}
    assert all(a["site 0"] < b["site 0"] for a, b in pairwise(spent))
    assert 2.7 < spent[-1]["site 0"] <= 3.0
    assert not any(line["failures"] for line in history)


def test_the_targets_rows_are_protected_if_asked_for():
    history = fb.run(blobs(), "fedda-auto", 2, workers=1, record_epsilon=5, record_of="all").history
    assert "target" in history[-1]["epsilon"]
    assert history[-1]["sigma2"] > 0


def test_more_messages_than_planned_for_are_told():
    options = {"evidence": "probe", "probe_batch_size": 2, "batch_size": 8}
    history = fb.run(blobs(), "fedda-auto", 3, workers=1, record_epsilon=3, **options).history
    assert "raise `record_rounds`" in " ".join(history[-1]["notes"])
    enough = {**options, "record_rounds": 6}
    history = fb.run(blobs(), "fedda-auto", 3, workers=1, record_epsilon=3, **enough).history
    assert not any("record_rounds" in note for line in history for note in line["notes"])


def test_a_resumed_run_goes_on_counting_and_has_the_same_bits(tmp_path):
    def go(out, rounds, **more):
        options = {"record_epsilon": 3, "record_rounds": 4, "batch_size": 8}
        return fb.run(blobs(), "fedda-auto", rounds, out=out, workers=1, **options, **more)

    whole = go(tmp_path / "whole", 4)
    go(tmp_path / "parts", 2)
    parts = go(tmp_path / "parts", 4, resume=True)
    assert [line["epsilon"] for line in parts.history] == [one["epsilon"] for one in whole.history]
    for ours, theirs in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_workers_change_no_bit():
    alone, both = (
        fb.run(blobs(), "fedavg", 2, workers=k, record_epsilon=3).history for k in (1, 2)
    )
    assert [line["loss"] for line in alone] == [line["loss"] for line in both]


def test_settings_need_an_epsilon():
    with pytest.raises(OptionError, match="`record_epsilon` beside `record_clip`"):
        fb.run(blobs(), "fedavg", 1, record_clip=1.0)


def test_looks_are_the_steps_at_their_rate():
    on = federation(blobs(rows=40))
    job = private_job(on, epochs=2)
    assert looks_of([job, job], on.bench) == {Look(0.2, 1.0): 20}


def test_borrowed_noise_is_that_of_samples_and_not_what_was_added():
    on = federation(blobs(sources=2))
    vectors = on.gather(1, on.initial, source_noise=True)[0].vectors(align=False)
    added = torch.tensor([1.0, 1.0]).double()
    private = [replace(r, noise=r.noise + added, added=added) for r in vectors.reports]
    inner = torch.zeros(2, 2)
    plain, same = (
        target_noise(one, on.bench.sketch, inner, borrowed=True)
        for one in (vectors, replace(vectors, reports=private))
    )
    torch.testing.assert_close(plain.sigma2, same.sigma2)


def test_the_noise_of_private_updates_counts_as_distance_in_the_evidence_of_probes():
    on = federation(blobs(sources=2))
    on.open(rows=8)
    trained, probed = on.gather(1, on.initial, probe=True)
    vectors = probed.vectors(align=False)
    added = torch.tensor([4.0, 2.0]).double()
    noisy = [(k, replace(outcome, added=added)) for k, outcome in trained.sources]
    plain, private = (
        measure_evidence(vectors, on.rule_blocks, on.bench.sketch, updates=updates)
        for updates in (trained, replace(trained, sources=tuple(noisy)))
    )
    more = (private.source2 - plain.source2)[:, 0]
    torch.testing.assert_close(more, added / trained.sources[0][1].time ** 2)
    torch.testing.assert_close(private.inner, plain.inner)


def test_a_noisy_source_is_trusted_less():
    """Of equal sources, the weight of the rule goes to the ones whose updates are less noisy."""
    task = blobs(rows=60, target_rows=30)

    def trust(**options):
        done = fb.run(task, "fedda-auto", 3, workers=1, batch_size=8, lr=0.05, **options)
        return sum(done.history[-1]["beta"])

    assert trust(record_epsilon=0.3) < 0.5 * trust()
