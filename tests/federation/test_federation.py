"""The federation: seeds, units, buffers, dropout, byte counts."""

from dataclasses import replace

import pytest
import torch
from small import Normed, blobs, federation, line, method, same_model

import fedbridge as fb
from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.engines.local import LocalEngine
from fedbridge.federation.evidence import measure_evidence, target_noise
from fedbridge.federation.federation import TargetFailedError
from fedbridge.federation.loop import SpoiltModelError
from fedbridge.runs.folder import RunFolder
from fedbridge.training.job import Outcome, measurable_batch, seed_of


def test_seeds_differ_by_round_client_and_purpose_and_by_nothing_else():
    seeds = [
        seed_of(0, number, client, purpose)
        for number in (-1, 0, 1, 2)
        for client in (0, 1, 2)
        for purpose in (0, 1)
    ]
    assert len(set(seeds)) == len(seeds)
    assert seed_of(3, 1, 2) == seed_of(3, 1, 2)


def test_updates_are_put_in_the_targets_unit_once():
    fed = federation(lr=0.2, lr_target=0.1, batch_size=8, batch_size_target=4)
    raw, _ = fed.gather(1, fed.initial)
    before = raw.rows.clone()
    vectors = raw.vectors(align=True)
    assert raw.target.time == pytest.approx(3 * 0.1)
    factor = (3 * 0.1) / (5 * 0.2)
    torch.testing.assert_close(vectors.sources, before[1:] * factor)
    torch.testing.assert_close(vectors.target, before[0])
    again, _ = fed.gather(1, fed.initial)
    torch.testing.assert_close(again.vectors(align=False).sources, before[1:])


def test_aligned_source_updates_of_one_gradient_equal_the_targets():
    """With the same data everywhere, one full-batch step each, only the learning rates differ."""
    task = blobs(sources=2, rows=12)
    same = tuple(replace(site, x=task.target.x, y=task.target.y) for site in task.sources)
    fed = federation(
        replace(task, sources=same), lr=0.5, lr_target=0.05, batch_size=12, batch_size_target=12
    )
    gathered, _ = fed.gather(1, fed.initial)
    vectors = gathered.vectors(align=True)
    torch.testing.assert_close(vectors.sources, vectors.target.expand(2, -1), rtol=1e-4, atol=1e-7)


def test_partial_participation_is_seeded_and_never_empty():
    fed = federation(blobs(sources=5), participation=0.4)
    chosen = [fed.participants(number) for number in range(1, 30)]
    assert all(len(there) == 2 for there in chosen)
    assert len({tuple(there) for there in chosen}) > 3
    assert chosen == [fed.participants(number) for number in range(1, 30)]
    assert len(federation(participation=0.01).participants(1)) == 1


def test_a_round_without_the_target_keeps_the_model_and_says_so():
    fed = federation(dropout=0.999999)
    made = method("fedda", fed)
    record = made.run_round(1)
    assert torch.equal(made.state.parameters, fed.initial.parameters)
    assert record.failures == dict.fromkeys(["target", *fed.task.source_names], "dropped out")
    assert "target is missing" in record.notes[0]


def test_a_round_without_sources_is_a_step_of_the_target_and_says_so(monkeypatch):
    fed = federation()
    alone, _ = fed.gather(1, fed.initial, with_sources=False)
    step = alone.rows[0].clone()
    lost = dict.fromkeys(fed.task.source_names, "dropped out")
    monkeypatch.setattr(fed, "present", lambda *_, **__: ([0], dict(lost)))
    for name in ("fedda-joint", "median"):
        made = method(name, fed)
        record = made.run_round(1)
        assert torch.equal(made.state.parameters, fed.initial.parameters + step)
        assert "target alone" in record.notes[0]
        assert record.failures == lost


def test_a_source_that_diverges_is_left_out_and_named():
    task = line()
    task.sources[0].x.mul_(1e20)
    fed = federation(task)
    made = method("fedda", fed)
    record = made.run_round(1)
    assert list(record.failures) == [task.sources[0].name]
    assert "NaN" in record.failures[task.sources[0].name]
    assert record.beta == [None, 0.5]
    assert bool(made.state.parameters.isfinite().all())


def test_a_target_that_diverges_ends_the_run_with_advice():
    task = line()
    task.target.x.mul_(1e20)
    fed = federation(task)
    with pytest.raises(TargetFailedError, match=r"'target' could not train in round 1.*lr_target"):
        method("fedda", fed).run_round(1)


@pytest.mark.parametrize("policy", ["target", "mean", "keep", "frozen"])
def test_buffers_follow_the_policy(policy):
    fed = federation(model=Normed(), buffers=policy)
    gathered, _ = fed.gather(1, fed.initial)
    new = fed.new_buffers(fed.initial, gathered)["norm.running_mean"]
    own = gathered.target.buffers["norm.running_mean"]
    every = [own, *(outcome.buffers["norm.running_mean"] for _, outcome in gathered.sources)]
    expected = {"target": own, "mean": torch.stack(every).mean(0)}
    torch.testing.assert_close(new, expected.get(policy, torch.zeros(2)))


@pytest.mark.parametrize("policy", ["target", "mean"])
def test_the_warm_up_takes_the_statistics_of_the_sources_alone(policy):
    fed = federation(model=Normed(), buffers=policy)
    warm, _ = fed.warm_up(0, fed.initial)
    jobs = [fed.job(0, client, fed.initial) for client in (1, 2, 3)]
    outcomes, _ = fed.do(jobs, [fed.initial])
    means = torch.stack([outcome.buffers["norm.running_mean"] for outcome in outcomes])
    torch.testing.assert_close(warm.buffers["norm.running_mean"], means.mean(0))


def test_bytes_count_one_model_per_client_and_way():
    fed = federation()
    fed.gather(1, fed.initial, noise="size")
    model = 4 * fed.blocks.total
    assert fed.bytes_down == 4 * model
    assert fed.bytes_up == 4 * model + 4 * len(fed.blocks)


def test_a_sketch_adds_kilobytes_not_models():
    fed = federation(model="mlp:512", sketch_size=8, batch_size_target=2)
    fed.gather(1, fed.initial, noise="sketch")
    extra = fed.bytes_up - 4 * 4 * fed.blocks.total
    assert 0 < extra < 4 * fed.blocks.total


def test_validation_rows_are_taken_from_the_targets_training_rows():
    fed = federation(early_stopping=3, validation_fraction=0.25)
    assert len(fed.validation) == 3
    assert len(fed.target_rows) == 9
    together = torch.cat((fed.validation.x, fed.task.target.x[fed.target_rows]))
    assert sorted(together.tolist()) == sorted(fed.task.target.x.tolist())


@pytest.mark.parametrize(
    ("weights", "of_sources", "of_all"),
    [
        (None, [1 / 3] * 3, [12, 120, 40, 40]),
        ("equal", [1 / 3] * 3, [1, 1, 1, 1]),
        ("samples", [0.6, 0.2, 0.2], [12, 120, 40, 40]),
    ],
)
def test_shares_are_the_same_wherever_clients_are_averaged(weights, of_sources, of_all):
    task = blobs()
    big = replace(task.sources[0], x=task.sources[0].x.repeat(3, 1), y=task.sources[0].y.repeat(3))
    fed = federation(replace(task, sources=(big, *task.sources[1:])), weights=weights)
    gathered, _ = fed.gather(0, fed.initial, with_target=False)
    expected = fed.initial.parameters + torch.tensor(of_sources) @ gathered.rows
    state, failures = fed.warm_up(0, fed.initial)
    torch.testing.assert_close(state.parameters, expected)
    assert failures == {}
    for name in ("source-only", "fedavg", "finetune-offline"):
        made = method(name, fed)
        made.run_round(0)
        counts = torch.tensor(of_all if name == "fedavg" else [0, *of_sources], dtype=torch.float)
        together, _ = fed.gather(0, fed.initial)
        moved = fed.initial.parameters + counts / counts.sum() @ together.rows
        found = made.shared if name == "finetune-offline" else made.state
        torch.testing.assert_close(found.parameters, moved)


@pytest.mark.parametrize("usual", [4, 32])
def test_a_small_target_has_enough_batches_to_measure_its_noise(usual):
    for rows in range(4, 120):
        size = measurable_batch(rows, usual)
        assert 1 <= size <= usual
        assert -(-rows // size) >= 4
        if rows > 3 * usual:
            assert size == usual
        elif rows > 13:
            assert rows % size != 1
    assert [measurable_batch(rows, 32) for rows in (15, 30, 60)] == [3, 4, 8]


@pytest.mark.parametrize("method", ["fedda-auto", "fedgp-auto", "fedda-joint", "fedgp-joint"])
def test_rules_that_measure_noise_run_on_few_rows_and_say_how(method):
    first, *others = fb.run(blobs(target_rows=15), method, rounds=2, workers=1).history
    assert first["sigma2"] > 0
    assert "15 rows are trained on in batches of 3 instead of 32" in first["notes"][0]
    assert not any(line["notes"] for line in others)
    said = fb.run(blobs(target_rows=15), method, rounds=1, workers=1, batch_size_target=2)
    assert said.history[0]["notes"] == []


def test_balanced_class_weights_give_every_class_the_same_say():
    task = blobs()
    y = torch.tensor([0] * 30 + [1] * 10)
    uneven = replace(task.sources[0], y=y)
    fed = federation(replace(task, sources=(uneven, *task.sources[1:])), class_weights="balanced")
    weights = torch.tensor(fed.plan(1, 1).class_weights)
    counts = torch.tensor([30.0, 10.0, 0.0])
    torch.testing.assert_close(weights * counts, torch.tensor([20.0, 20.0, 0.0]))
    with pytest.raises(FedbridgeError, match="3 class weights"):
        federation(class_weights=(1.0, 2.0)).plan(0, 1)


def test_rows_set_aside_for_validation_have_no_say_in_class_weights():
    fed = federation(early_stopping=3, validation_fraction=0.4, class_weights="balanced")
    counts = torch.bincount(fed.task.target.y[fed.target_rows])
    assert len(set(counts.tolist())) > 1
    weights = torch.tensor(fed.plan(0, 1).class_weights)
    torch.testing.assert_close(weights * counts, torch.full((3,), counts.sum() / 3))


def test_learning_rate_factor_applies_after_the_warm_up():
    fed = federation(lr=0.4, lr_target=0.2, lr_factor=0.1, warmup=2)
    assert fed.plan(1, 0).lr == pytest.approx(0.4)
    assert fed.plan(1, 1).lr == pytest.approx(0.04)
    assert fed.plan(0, 1).lr == pytest.approx(0.02)


def outcome(noise, samples):
    return Outcome(samples, steps=1, lr=1.0, noise=torch.tensor(noise).double(), batches=3)


def test_borrowed_noise_is_the_sources_variance_per_sample_over_the_targets_count():
    fed = federation(blobs(sources=2))
    gathered, _ = fed.gather(1, fed.initial)
    vectors = replace(
        gathered.vectors(align=False),
        report=outcome([1.0, 8.0], samples=10),
        reports=[outcome([2.0, 1.0], samples=100), outcome([4.0, 1.0], samples=50)],
        scale=torch.tensor([1.0, 0.5]).double(),
    )
    noise = target_noise(vectors, fed.bench.sketch, torch.zeros(2, 2), borrowed=True)
    lent = (2.0 * 100 + 4.0 * 0.25 * 50) / 2 / 10
    assert noise.sigma2.tolist() == pytest.approx([lent, 8.0])
    assert target_noise(
        vectors, fed.bench.sketch, torch.zeros(2, 2), borrowed=False
    ).sigma2.tolist() == [1.0, 8.0]


def test_probe_evidence_takes_the_sources_own_noise_off_and_stays_a_gram_matrix():
    fed = federation(blobs(sources=3))
    fed.open(rows=8)
    trained, probed = fed.gather(1, fed.initial, probe=True)
    vectors = probed.vectors(align=False)
    seen = measure_evidence(vectors, fed.rule_blocks, fed.bench.sketch)
    clean = measure_evidence(vectors, fed.rule_blocks, fed.bench.sketch, updates=trained)
    off = (seen.source2 - clean.source2).sum(0)
    noise = torch.stack([report.noise for report in vectors.reports], 1).sum(0)
    assert bool((off > 0).all())
    assert bool((off <= noise * (1 + 1e-9)).all())
    assert float(torch.linalg.eigvalsh(clean.gram).min()) > -1e-12 * float(clean.gram.max())


def spoilt(monkeypatch, client, change, rounds=(1,)):
    """Let a client's updates come back changed from some rounds."""
    honest = LocalEngine.run

    def run(self, jobs, starts, *, round, **more):
        answer = honest(self, jobs, starts, round=round, **more)
        for job, vector in zip(jobs, answer.value.vectors, strict=True):
            if round in rounds and job.client == client:
                vector.copy_(change(vector))
        return answer

    monkeypatch.setattr(LocalEngine, "run", run)


QUICK = {"model": "mlp:8", "lr": 0.1, "batch_size": 8, "workers": 1}


@pytest.mark.parametrize("change", [lambda v: 1e4 * v, lambda v: v.sign() * 1e30, lambda v: v / 0])
@pytest.mark.parametrize("method", ["fedavg", "fedda", "auto", "fedprox"])
def test_one_bad_update_is_left_out_and_named(monkeypatch, method, change):
    spoilt(monkeypatch, 2, change, rounds=(2,))
    result = fb.run(blobs(), method=method, rounds=3, **QUICK)
    assert [set(line["failures"]) for line in result.history] == [set(), {"site 1"}, set()]
    assert "times as long as the median" in result.history[1]["failures"]["site 1"]
    assert result.history[-1]["accuracy"] > 60


def test_the_bound_is_off_by_a_word_and_says_what_else_it_can_be(monkeypatch):
    spoilt(monkeypatch, 2, lambda vector: 1e4 * vector)
    assert fb.run(blobs(), "fedavg", 1, **QUICK, norm_ratio="off").history[0]["failures"] == {}
    with pytest.raises(OptionError, match="norm_ratio"):
        fb.run(blobs(), "fedavg", 1, **QUICK, norm_ratio="of")
    with pytest.raises(OptionError, match="norm_ratio"):
        fb.run(blobs(), "fedavg", 1, **QUICK, norm_ratio=0.5)


@pytest.mark.parametrize("change", [lambda v: 1e4 * v, lambda v: v.sign() * 1e30])
def test_a_single_source_is_compared_with_the_target(monkeypatch, change):
    spoilt(monkeypatch, 1, change)
    (line,) = fb.run(blobs(sources=1), "fedavg", 1, **QUICK).history
    assert list(line["failures"]) == ["site 0"]
    assert "times as long as the target's" in line["failures"]["site 0"]


def test_where_there_is_nothing_to_compare_the_model_is_the_measure(monkeypatch):
    spoilt(monkeypatch, 1, lambda vector: vector.sign() * 1e30, rounds=(0,))
    warm, _ = fb.run(blobs(sources=1), "fedavg", 1, warmup=1, **QUICK).history
    assert warm["failures"] == {
        "site 0": "its reply was refused: its update is over 1000 times the model"
    }


def test_a_site_that_still_learns_among_others_that_are_done_is_not_taken_for_a_bad_one(
    monkeypatch,
):
    for client in (0, 1, 3):
        spoilt(monkeypatch, client, lambda vector: 1e-6 * vector)
    assert fb.run(blobs(), "fedavg", 1, **QUICK).history[0]["failures"] == {}


def test_a_model_that_is_not_finite_ends_the_run_at_its_last_good_checkpoint(monkeypatch, tmp_path):
    options = {**QUICK, "norm_ratio": "off", "warmup": 3}
    with monkeypatch.context() as patch:
        spoilt(patch, 2, lambda vector: vector / 0, rounds=(0,))
        with pytest.raises(SpoiltModelError, match="round 0"):
            fb.run(blobs(), "fedavg", 4, **options, out=tmp_path / "run")
    checkpoint, history = RunFolder(tmp_path / "run").load_checkpoint()
    assert (checkpoint.round, len(history)) == (-1, 2)
    assert all(bool(tensor.isfinite().all()) for tensor in checkpoint.tensors.values())
    resumed = fb.run(blobs(), "fedavg", 4, **options, out=tmp_path / "run", resume=True)
    assert same_model(resumed.model, fb.run(blobs(), "fedavg", 4, **options).model)
