"""KD3A: who is heard, who is worth listening to, and what the target makes of it."""

from itertools import combinations, permutations

import pytest
import torch
from small import Normed, blobs, federation, line, method

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.core.blocks import pooled_buffers
from fedbridge.federation.federation import TargetFailedError
from fedbridge.federation.method import Record
from fedbridge.federation.needs import Need, UnmetNeedError
from fedbridge.methods import kd3a
from fedbridge.methods.kd3a import Distillation, Vote, consensus_focus, knowledge_vote
from fedbridge.training.job import TARGET
from fedbridge.training.objective import Batch
from fedbridge.training.state import State

QUICK = {"workers": 1, "model": "mlp:8", "lr": 0.3, "batch_size": 8}


def unlabelled_blobs(**options):
    return blobs(**{"target_rows": 40, "n_target": 9, **options})


def random_answers(sources=4, rows=31):
    generator = torch.Generator().manual_seed(0)
    return (2 * torch.randn(sources, rows, 3, generator=generator).double()).softmax(2)


def votes(*rows):
    """Answers (K, 1, 3) of sources to one row."""
    return torch.tensor(rows, dtype=torch.float64)[:, None, :]


FOUR = votes([0.9, 0.1, 0.0], [0.8, 0.1, 0.1], [0.05, 0.95, 0.0], [0.4, 0.3, 0.3])


def naive_vote(answers, gate):
    """Class of one row, confidence behind it and who is behind it, source by source."""
    sure = [max(source) for source in answers]
    heard = [confidence > gate for confidence in sure]
    ballots = [0.0] * len(answers[0])
    for source, confidence, is_heard in zip(answers, sure, heard, strict=True):
        if is_heard or not any(heard):
            ballots[source.index(confidence)] += confidence
    winner = ballots.index(max(ballots))
    behind = [h and s.index(max(s)) == winner for s, h in zip(answers, heard, strict=True)]
    return winner, max(ballots) if any(heard) else 0.0, behind


def naive_focus(answers, gate):
    """The mean over all orders of the sources of what each adds to those before it."""
    count = len(answers)

    def worth(members):
        if not members:
            return 0.0
        rows = range(len(answers[0]))
        return sum(naive_vote([answers[k][row] for k in members], gate)[1] for row in rows)

    orders = list(permutations(range(count)))
    added = [0.0] * count
    for order in orders:
        for place, source in enumerate(order):
            added[source] += worth(order[: place + 1]) - worth(order[:place])
    return [total / len(orders) for total in added]


class TestVote:
    @pytest.mark.parametrize("gate", [0.0, 0.45, 0.6, 1.0])
    def test_is_the_class_with_most_confidence_among_those_heard(self, gate):
        answers = random_answers()
        consensus = knowledge_vote(answers, gate)
        for row in range(answers.shape[1]):
            winner, _, behind = naive_vote(answers[:, row].tolist(), gate)
            assert int(consensus.classes[row]) == winner
            assert int(consensus.supporters[row]) == sum(behind)

    def test_soft_labels_are_the_mean_of_those_who_are_sure_and_agree(self):
        consensus = knowledge_vote(FOUR, gate=0.75)
        torch.testing.assert_close(consensus.soft[0], FOUR[:2, 0].mean(0))
        assert consensus.supporters.tolist() == [2]
        assert consensus.classes.tolist() == [0]

    def test_where_nobody_is_sure_all_vote_and_nobody_stands_behind_it(self):
        answers = votes([0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.5, 0.3, 0.2])
        consensus = knowledge_vote(answers, gate=0.8)
        torch.testing.assert_close(consensus.soft[0], answers[:, 0].mean(0))
        assert consensus.classes.tolist() == [0]
        assert consensus.supporters.tolist() == [0]
        assert consensus.share == 0


class TestFocus:
    @pytest.mark.parametrize("gate", [0.0, 0.45, 0.6, 1.0])
    def test_is_the_mean_contribution_over_all_orders(self, gate):
        answers = random_answers()
        found = consensus_focus(answers, gate)
        assert found.tolist() == pytest.approx(naive_focus(answers.tolist(), gate))

    def test_in_parts_is_the_same(self, monkeypatch):
        answers = random_answers()
        whole = consensus_focus(answers, 0.5)
        monkeypatch.setattr(kd3a, "AT_ONCE", 16 * 3 * 4)
        torch.testing.assert_close(consensus_focus(answers, 0.5), whole)

    def test_is_fair_to_one_that_repeats_another(self):
        twins = votes([0.9, 0.1, 0.0], [0.9, 0.1, 0.0])
        assert consensus_focus(twins, 0.8).tolist() == pytest.approx([0.9, 0.9])
        against = votes([0.9, 0.1, 0.0], [0.0, 0.9, 0.1])
        assert consensus_focus(against, 0.8).tolist() == pytest.approx([0.45, 0.45])
        assert consensus_focus(against, 0.8, "leave-one-out").tolist() == [0, 0]

    def test_the_cheap_one_is_what_all_lose_without_a_source(self):
        focus = consensus_focus(FOUR, 0.75, "leave-one-out")
        torch.testing.assert_close(focus, torch.tensor([0.75, 0.75, 0.0, 0.0]).double())

    @pytest.mark.parametrize("focus", ["subsets", "leave-one-out"])
    def test_one_source_is_worth_all_of_it(self, focus):
        assert consensus_focus(votes([0.9, 0.1, 0.0]), 0.8, focus).tolist() == pytest.approx([0.9])

    def test_many_sources_are_left_out_one_by_one(self):
        task = unlabelled_blobs(sources=11, rows=9)
        made = method("kd3a", federation(task, method="kd3a"))
        assert len([value for value in made.run_round(1).beta if value is not None]) == 11


class TestSchedule:
    def test_the_gate_rises_linearly_and_stays(self):
        on = federation(unlabelled_blobs(), method="kd3a")
        made = method("kd3a", on, gate=0.6, last_gate=0.9, gate_rounds=3)
        gates = [made.gate_of(number) for number in (1, 2, 3, 4, 40)]
        assert gates == pytest.approx([0.6, 0.7, 0.8, 0.9, 0.9])
        assert method("kd3a", on, gate=0.97).gate_of(1) == pytest.approx(0.97)

    def test_the_learning_rate_of_all_domains_falls_by_a_cosine(self, monkeypatch):
        on = federation(unlabelled_blobs(), method="kd3a", lr=0.3)
        made, jobs, do = method("kd3a", on, gate_rounds=10, last_lr=0.1), [], on.do

        def watched(given, *more):
            jobs.extend(given)
            return do(given, *more)

        monkeypatch.setattr(on, "do", watched)
        weights = torch.nn.Parameter(torch.zeros(1))
        theirs = torch.optim.SGD([weights], lr=0.3)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, 10, eta_min=0.03)
        for number in range(1, 12):
            jobs.clear()
            made.run_round(number)
            assert [job.plan.lr for job in jobs] == pytest.approx(4 * cosine.get_last_lr())
            theirs.step()
            cosine.step()


class TestShares:
    def test_the_first_round_takes_its_own_and_later_ones_follow_slowly(self):
        made = method("kd3a", federation(unlabelled_blobs(), method="kd3a"))
        first = made._shares([0, 1, 2], torch.tensor([3.0, 1.0, 0.0]).double(), 0.8, Record())
        assert first.tolist() == pytest.approx([0.2, 0.6, 0.2, 0.0])
        second = made._shares([0, 1, 2], torch.tensor([0.0, 0.0, 5.0]).double(), 0.4, Record())
        fresh = [0.1, 0.0, 0.0, 0.9]
        expected = [0.9 * old + 0.1 * new for old, new in zip(first.tolist(), fresh, strict=True)]
        assert second.tolist() == pytest.approx(expected)
        assert made.shares.tolist() == pytest.approx(expected)

    def test_who_is_missing_keeps_a_share(self):
        made = method("kd3a", federation(unlabelled_blobs(), method="kd3a"), weight_momentum=0.5)
        made._shares([0, 1, 2], torch.tensor([1.0, 1.0, 2.0]).double(), 1.0, Record())
        found = made._shares([0, 1], torch.tensor([1.0, 0.0]).double(), 1.0, Record())
        before = torch.tensor([0.25, 0.1875, 0.1875]) / 0.625
        fresh = torch.tensor([1 / 3, 2 / 3, 0.0])
        assert found.tolist() == pytest.approx(((before + fresh) / 2).tolist())
        assert float(made.shares[3]) == pytest.approx(0.375)
        assert float(made.shares.sum()) == pytest.approx(1)

    @pytest.mark.parametrize("weights", ["equal", "samples"])
    def test_go_by_rows_if_asked(self, weights):
        task = unlabelled_blobs(sources=2, rows=62)
        made = method("kd3a", federation(task, method="kd3a", weights=weights))
        found = made._shares([0, 1], torch.tensor([1.0, 3.0]).double(), 0.5, Record())
        own = 0.5 * (1 / 3 if weights == "equal" else 31 / (31 + 2 * 62))
        assert found.tolist() == pytest.approx([own, (1 - own) / 4, 3 * (1 - own) / 4])

    def test_sources_count_alike_while_nobody_is_sure(self):
        task = unlabelled_blobs(sources=2, rows=31)
        made = method("kd3a", federation(task, method="kd3a"), gate=1.0, last_gate=1.0)
        record = made.run_round(1)
        assert record.extra == {"gate": 1.0, "consensus": 0.0}
        assert record.beta == pytest.approx([0.5, 0.5])
        assert "no source is sure" in record.notes[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"gate": 1.2},
        {"gate": 0.9, "last_gate": 0.8},
        {"gate_rounds": 0},
        {"last_lr": 0},
        {"mixup": -1},
        {"weight_momentum": 1},
        {"focus": "some"},
        {"labels": "hard"},
        {"heads": "two"},
        {"labelled": 1},
    ],
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


def test_the_vote_adapts_the_model_to_rows_that_the_sources_never_saw():
    options = {**QUICK, "rounds": 12, "seed": 1}
    task = unlabelled_blobs(sources=4, rows=60, target_rows=200, shift=1.2, seed=1)
    labels = task.sources[3].y
    labels.copy_((labels + 1) % 3)
    ours, theirs = (fb.run(task, name, **options).accuracy for name in ("kd3a", "source-only"))
    assert ours > theirs + 5


class TestDistillation:
    def lesson(self, objective):
        torch.manual_seed(3)
        model, rows = torch.nn.Linear(2, 3), torch.tensor([4, 1, 2])
        batch = Batch(torch.randn(3, 2), torch.zeros(3, dtype=torch.long), rows)
        torch.manual_seed(5)
        return model, batch, objective.lesson(model, batch)

    def test_without_mixtures_is_the_weighted_cross_entropy_to_the_vote(self):
        taught, weight = torch.eye(3)[[0, 1, 2, 0, 1]], torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0])
        model, batch, found = self.lesson(Distillation(taught, weight))
        logs = model(batch.x).log_softmax(1)
        torch.testing.assert_close(found, -(logs[0, 1] + logs[2, 2]) / 3)

    def test_mixes_rows_and_labels_but_not_what_a_row_counts_for(self):
        taught, weight = torch.eye(3)[[0, 1, 2, 0, 1]], torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0])
        model, batch, found = self.lesson(Distillation(taught, weight, 2.0))
        torch.manual_seed(5)
        share = float(torch.distributions.Beta(*torch.full((2, 1), 2.0).double()).sample())
        order = torch.randperm(3).tolist()
        losses = []
        for row, other in enumerate(order):
            x = share * batch.x[row] + (1 - share) * batch.x[other]
            logs = model(x).log_softmax(0)
            own, theirs = (int(taught[batch.rows[k]].argmax()) for k in (row, other))
            losses.append(-share * logs[own] - (1 - share) * logs[theirs])
        torch.testing.assert_close(found, (losses[0] + losses[2]) / 3)


@pytest.mark.parametrize("labels", ["one-hot", "soft"])
def test_the_target_learns_classes_or_probabilities(labels):
    answers = random_answers()
    consensus, told = knowledge_vote(answers, 0.9), iter(answers.log())
    vote = Vote.of_models([State(torch.zeros(2), {})] * 4, 0.9, 1, labels=labels)
    objective = vote.taught(lambda *asked, **how: next(told))
    supporters = consensus.supporters.float()
    if labels == "one-hot":
        assert torch.equal(objective.knowledge, torch.eye(3)[consensus.classes])
        assert torch.equal(objective.weight, (supporters > 0).float())
    else:
        torch.testing.assert_close(objective.knowledge, consensus.soft.float())
        torch.testing.assert_close(objective.weight, supporters.clamp(min=0.001) / 4)
    assert 0 < float((supporters > 0).float().mean()) < 1
    assert float(objective.found["heard"]) == consensus.share
    torch.testing.assert_close(objective.found["focus"], consensus_focus(answers, 0.9))


class TestHeads:
    def test_of_its_own_are_shared_by_nobody(self):
        on = federation(unlabelled_blobs(), model="mlp:8", method="kd3a")
        made = method("kd3a", on, heads="own")
        made.run_round(1)
        (start, end), *_ = made.head
        assert made.heads.shape == (4, end - start)
        heads = [made.state.parameters[start:end], *made.heads[1:]]
        assert all(not torch.equal(one, two) for one, two in combinations(heads, 2))
        starts = [made._start(client).parameters for client in (1, 2, 3)]
        assert all(torch.equal(starts[0][:start], other[:start]) for other in starts)
        assert all(
            torch.equal(v[start:end], h) for v, h in zip(starts, made.heads[1:], strict=True)
        )

    def test_of_its_own_learn_too(self):
        task = unlabelled_blobs(target_rows=200, rows=60)
        result = fb.run(task, "kd3a", rounds=12, heads="own", **QUICK)
        assert result.accuracy > 90

    def test_are_averaged_like_the_rest_otherwise(self):
        on = federation(unlabelled_blobs(), model="mlp:8", method="kd3a")
        made = method("kd3a", on)
        made.run_round(1)
        assert made.heads.numel() == 0
        assert torch.equal(made._start(2).parameters, made.state.parameters)


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
