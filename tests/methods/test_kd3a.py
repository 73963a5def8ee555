"""KD3A: who is heard, who is worth listening to, and what the target makes of it."""

import pytest
import torch
from small import Normed, blobs, federation, line, method

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.core.blocks import pooled_buffers
from fedbridge.federation.federation import TargetFailedError
from fedbridge.federation.needs import Need, UnmetNeedError
from fedbridge.methods.kd3a import Distillation, consensus_focus, knowledge_vote
from fedbridge.training.job import TARGET

QUICK = {"workers": 1, "model": "mlp:8", "lr": 0.3, "batch_size": 8}


def unlabelled_blobs(**options):
    return blobs(**{"target_rows": 40, "n_target": 9, **options})


def votes(*rows):
    """Answers (K, 1, 3) of sources to one row."""
    return torch.tensor(rows, dtype=torch.float64)[:, None, :]


class TestVote:
    def test_the_knowledge_is_the_mean_of_those_who_are_sure_and_agree(self):
        answers = votes([0.9, 0.1, 0.0], [0.8, 0.1, 0.1], [0.05, 0.95, 0.0], [0.4, 0.3, 0.3])
        consensus = knowledge_vote(answers, gate=0.75)
        torch.testing.assert_close(consensus.knowledge[0], answers[:2, 0].mean(0))
        assert consensus.supporters.tolist() == [2]
        assert consensus.quality == pytest.approx(1.7)

    def test_where_nobody_is_sure_it_is_the_mean_of_all_without_a_supporter(self):
        answers = votes([0.5, 0.3, 0.2], [0.2, 0.5, 0.3])
        consensus = knowledge_vote(answers, gate=0.8)
        torch.testing.assert_close(consensus.knowledge[0], answers[:, 0].mean(0))
        assert consensus.supporters.tolist() == [0]
        assert consensus.quality == consensus.share == 0

    def test_a_source_is_worth_what_the_vote_loses_without_it(self):
        answers = votes([0.9, 0.1, 0.0], [0.8, 0.1, 0.1], [0.05, 0.95, 0.0], [0.4, 0.3, 0.3])
        focus = consensus_focus(answers, gate=0.75)
        torch.testing.assert_close(focus, torch.tensor([0.75, 0.75, 0.0, 0.0]).double())

    def test_one_source_is_worth_all_of_it(self):
        focus = consensus_focus(votes([0.9, 0.1, 0.0]), gate=0.8)
        assert focus.tolist() == pytest.approx([0.9])

    @pytest.mark.parametrize("gate", [0.0, 1.0])
    def test_no_source_is_worth_less_than_nothing(self, gate):
        generator = torch.Generator().manual_seed(0)
        answers = torch.randn(5, 50, 4, generator=generator).double().softmax(2)
        assert bool((consensus_focus(answers, gate) >= 0).all())


def test_the_gate_rises_linearly_and_stays():
    on = federation(unlabelled_blobs(), method="kd3a")
    made = method("kd3a", on, gate=0.6, last_gate=0.9, gate_rounds=4)
    gates = [made.gate_of(number) for number in (1, 2, 4, 40)]
    assert gates == pytest.approx([0.6, 0.7, 0.9, 0.9])
    assert method("kd3a", on, gate=0.97, gate_rounds=1).gate_of(1) == pytest.approx(0.97)


@pytest.mark.parametrize(
    "wrong",
    [{"gate": 1.2}, {"gate": 0.9, "last_gate": 0.8}, {"gate_rounds": 0}, {"labelled": 1}],
)
def test_options_are_checked_by_name(wrong):
    with pytest.raises(OptionError, match=f"`{list(wrong)[-1]}`"):
        method("kd3a", federation(unlabelled_blobs(), method="kd3a"), **wrong)


def test_a_source_of_random_labels_has_no_weight():
    task = unlabelled_blobs(sources=4)
    labels = task.sources[2].y
    labels.copy_(labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))])
    result = fb.run(task, "kd3a", rounds=15, **QUICK)
    beta = result.history[-1]["beta"]
    assert beta[2] < 0.02
    assert min(beta[0], beta[1], beta[3]) > 0.15
    assert result.accuracy > 90


def test_sources_count_by_samples_while_nobody_is_sure():
    task = unlabelled_blobs(sources=2, rows=31)
    made = method("kd3a", federation(task, method="kd3a"), gate=1.0, last_gate=1.0)
    record = made.run_round(1)
    assert record.extra == {"gate": 1.0, "consensus": 0.0}
    assert record.beta == pytest.approx([31 / (31 + 31 + 31)] * 2)
    assert "samples" in record.notes[0]


def test_distillation_leads_to_the_knowledge_where_it_has_weight():
    task = unlabelled_blobs()
    on = federation(task, method="kd3a", lr=1.0)
    on.open()
    site = on.site_for(Need.UNLABELLED)
    rows = on.bench.sites[site]
    taught = torch.eye(3)[(rows.x[:, 0] > 0).long()]
    weight = torch.ones(len(rows))
    job = on.job(1, site, on.initial, objective=Distillation(taught, weight))
    jobs = [job, on.job(1, site, on.initial, objective=Distillation(taught, 0 * weight))]
    for _ in range(3):
        _, changes = on.do(jobs, [on.initial])
    assert bool((changes[1] == 0).all())
    outputs = on.predict(on.initial.moved(changes[0]), rows)
    assert float((outputs.argmax(1) == taught.argmax(1)).double().mean()) > 0.9


def test_the_targets_labels_play_a_part_only_if_asked():
    task, other = unlabelled_blobs(), unlabelled_blobs()
    other.target.y.copy_((other.target.y + 1) % 3)
    for labelled in (False, True):
        first, second = (
            method("kd3a", federation(one, method="kd3a"), labelled=labelled)
            for one in (task, other)
        )
        first.run_round(1)
        second.run_round(1)
        assert torch.equal(first.state.parameters, second.state.parameters) is not labelled


def test_labels_help_where_sources_mislead():
    task = blobs(sources=1, rows=12, target_rows=60, n_target=12)
    task.sources[0].y.copy_((task.sources[0].y + 1) % 3)
    blind, seeing = (
        fb.run(task, "kd3a", rounds=8, labelled=labelled, gate=1.0, **QUICK).accuracy
        for labelled in (False, True)
    )
    assert blind < 50 < seeing


class TestBatchNorm:
    def test_statistics_are_those_of_all_rows_in_one_place(self):
        generator = torch.Generator().manual_seed(0)
        rows = [torch.randn(n, 4, generator=generator) * n + n for n in (2, 3, 5)]
        models = [
            {"norm.running_mean": part.mean(0), "norm.running_var": part.var(0, correction=0)}
            for part in rows
        ]
        pooled = pooled_buffers(models, [0.2, 0.3, 0.5])
        every = torch.cat(rows)
        torch.testing.assert_close(pooled["norm.running_mean"], every.mean(0))
        torch.testing.assert_close(pooled["norm.running_var"], every.var(0, correction=0))

    def test_counters_stay_whole_and_other_buffers_are_averaged(self):
        models = [{"n": torch.tensor(17), "other": torch.tensor([k])} for k in (1.0, 2.0, 4.0)]
        pooled = pooled_buffers(models, [1 / 3, 1 / 3, 1 / 3])
        assert pooled["n"].dtype == torch.int64
        assert int(pooled["n"]) == 17
        assert float(pooled["other"]) == pytest.approx(7 / 3)

    @pytest.mark.parametrize("buffers", ["target", "keep"])
    def test_the_model_takes_them_unless_they_are_kept(self, buffers):
        on = federation(unlabelled_blobs(), model=Normed(), method="kd3a", buffers=buffers)
        made = method("kd3a", on)
        made.run_round(1)
        kept = all(torch.equal(made.state.buffers[k], v) for k, v in on.initial.buffers.items())
        assert kept is (buffers == "keep")


@pytest.mark.parametrize("options", [{"batch_size": 1, "steps": 5}, {"labelled": True}])
def test_works_with_one_source_and_with_batches_of_one_row(options):
    task = unlabelled_blobs(sources=1)
    result = fb.run(task, "kd3a", rounds=2, **{**QUICK, "model": Normed(), **options})
    assert 0 < result.history[-1]["beta"][0] < 1


def test_only_the_sources_models_cross_the_network():
    on = federation(unlabelled_blobs(), method="kd3a")
    method("kd3a", on).run_round(1)
    assert on.bytes_up == on.bytes_down == 3 * 4 * on.blocks.total


def test_a_missing_target_leaves_the_model_as_it_was(monkeypatch):
    on = federation(unlabelled_blobs(), method="kd3a")
    made = method("kd3a", on)
    monkeypatch.setattr(on, "present", lambda _: ([1, 2, 3], {"target": "dropped out"}))
    record = made.run_round(1)
    assert record.failures == {"target": "dropped out"}
    assert made.state is on.initial


def test_a_target_that_cannot_train_is_named(monkeypatch):
    on = federation(unlabelled_blobs(), method="kd3a")
    made = method("kd3a", on)
    lesson = made._lesson
    nan = torch.full((31, 3), torch.nan)

    def broken(*given):
        job = lesson(*given)
        object.__setattr__(job, "objective", Distillation(nan, torch.ones(31)))
        return job

    monkeypatch.setattr(made, "_lesson", broken)
    with pytest.raises(TargetFailedError, match="target"):
        made.run_round(1)
    assert on.name_of(TARGET) == "target"


def test_needs_classes_and_unlabelled_rows():
    with pytest.raises(UnmetNeedError, match="classes"):
        fb.run(line(), "kd3a", rounds=1)
    with pytest.raises(UnmetNeedError, match="unlabelled rows"):
        fb.run(blobs(), "kd3a", rounds=1)
