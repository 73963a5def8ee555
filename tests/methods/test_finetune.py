"""Fine-tuning: what it starts from, and that choices never see the rows they are judged on."""

import pytest
import torch
from small import blobs, federation, method, same_model

import fedbridge as fb
from fedbridge.data.task import Site
from fedbridge.federation.method import Record
from fedbridge.federation.needs import rows_besides
from fedbridge.methods import finetune
from fedbridge.methods.finetune import (
    EPOCHS,
    LR_FACTORS,
    Choice,
    FinetuneSide,
    interpolated,
)

QUICK = {
    "rounds": 3,
    "workers": 1,
    "model": "mlp:8",
    "lr": 0.1,
    "batch_size": 8,
    "batch_size_target": 8,
}


def hostile(**options):
    task = blobs(sources=2, **options)
    for site in task.sources:
        site.y.copy_((site.y + 1) % 3)
    return task


class TestOffline:
    def test_starts_from_the_sources_model_of_every_round(self):
        fed = federation(method="finetune-offline")
        made = method("finetune-offline", fed, finetune_epochs=2)
        made.run_round(1)
        gathered, _ = fed.gather(1, fed.initial, noise="none", with_target=False)
        torch.testing.assert_close(
            made.shared.parameters, fed.averaged(fed.initial, gathered).parameters
        )
        before = made.shared
        made.run_round(2)
        gathered, _ = fed.gather(2, before, noise="none", with_target=False)
        torch.testing.assert_close(
            made.shared.parameters, fed.averaged(before, gathered).parameters
        )

    def test_more_epochs_fit_the_targets_labels_better(self):
        def loss(epochs):
            fed = federation(hostile(), method="finetune-offline")
            made = method("finetune-offline", fed, finetune_epochs=epochs)
            made.run_round(1)
            return fed.measure(made.state, fed.task.target).loss

        assert loss(50) < loss(5) < loss(1)


@pytest.fixture
def few(monkeypatch):
    """A small grid, for tests of how is chosen and not of what."""
    monkeypatch.setattr(finetune, "EPOCHS", (1, 3))
    monkeypatch.setattr(finetune, "LR_FACTORS", (0.1, 1.0))


class TestCrossValidated:
    def test_keeps_the_sources_model_where_it_is_the_best(self):
        result = fb.run(blobs(), "finetune-cv", **{**QUICK, "rounds": 5}, folds=3)
        plain = fb.run(blobs(), "source-only", **{**QUICK, "rounds": 5})
        assert result.accuracy >= plain.accuracy - 2

    def test_leaves_sources_with_other_labels_behind(self):
        task = hostile(target_rows=30)
        tuned = fb.run(task, "finetune-cv", **QUICK, folds=3)
        alone = fb.run(task, "target-only", **{**QUICK, "rounds": 30})
        assert not tuned.history[-1]["choice"].startswith("0%")
        assert tuned.accuracy > alone.accuracy - 10

    def test_no_fold_is_judged_by_a_model_that_saw_it(self, few, monkeypatch):
        fed = federation(method="finetune-cv")
        made = method("finetune-cv", fed, folds=3)
        seen = []
        train = FinetuneSide._train

        def watched(self, starts, lr_factor, epochs, rows):
            seen.append([set(own.tolist()) for own in rows])
            return train(self, starts, lr_factor, epochs, rows)

        monkeypatch.setattr(FinetuneSide, "_train", watched)
        made.adapt(1, Record())
        folds = [set(fold.tolist()) for fold in made.side.folds]
        for rows in seen[:-1]:
            if len(rows) > 1:
                assert all(not own & fold for own, fold in zip(rows, folds * 2, strict=True))

    def test_chooses_every_few_rounds_and_applies_the_choice_in_between(self, few):
        result = fb.run(blobs(), "finetune-cv", **{**QUICK, "rounds": 4}, choose_every=3, folds=2)
        assert [("held_out_loss" in line) for line in result.history] == [True, False, False, True]
        choices = [line["choice"] for line in result.history]
        assert choices[0] == choices[1] == choices[2]

    def test_says_that_trainings_failed(self):
        task = blobs()
        task.target.x.mul_(1e20)
        record = Record()
        fed = federation(task, method="finetune-cv", batch_size_target=12)
        method("finetune-cv", fed, folds=2).adapt(1, record)
        assert "trainings of the target failed" in record.notes[0]

    def test_nothing_of_the_way_is_the_start(self):
        fed = federation(method="finetune-cv")
        made = method("finetune-cv", fed)
        end = fed.initial.moved(torch.ones(fed.blocks.total))
        assert torch.equal(interpolated(fed.initial, end, 0).parameters, fed.initial.parameters)
        made.shared = end
        made.choice = finetune.choices().index(Choice("begin", LR_FACTORS[0], EPOCHS[0], 0.0))
        made.choose_every = 100
        made.adapt(2, Record())
        assert torch.equal(made.state.parameters, fed.initial.parameters)


class TestOracle:
    @staticmethod
    def jobs_of_a_round(monkeypatch, task, **options):
        run_options = {"with_sources": options.pop("with_sources", True)}
        fed = federation(task, method="oracle", **options)
        made, jobs, do = method("oracle", fed, **run_options), [], fed.do

        def watched(given, states):
            jobs.extend(given)
            return do(given, states)

        monkeypatch.setattr(fed, "do", watched)
        return fed, made.run_round(1), jobs

    def test_trains_as_one_source_would_that_had_all_rows(self, monkeypatch):
        task = blobs(rows=40, target_rows=60, n_target=12)
        options = {"lr": 0.2, "lr_target": 0.01, "batch_size": 8, "batch_size_target": 2}
        fed, _, jobs = self.jobs_of_a_round(monkeypatch, task, epochs=2, **options)
        assert [job.beside for job in jobs] == [()] * 4 + [(1, 2, 3)] * 4
        assert [job.plan.batch_size for job in jobs] == [8] * 4 + [2] * 4
        assert {job.plan.lr for job in jobs} == {0.2}
        assert {job.plan.total_steps(60) for job in jobs} == {2 * (60 // 8 + 3 * 40 // 8)}
        assert [fed.bench.samples(job) for job in jobs] == [60, 40, 40, 40] * 2

    def test_the_twins_never_see_the_rows_that_judge_them(self):
        made = method("oracle", federation(blobs(target_rows=60, n_target=12), method="oracle"))
        assert torch.cat(made.thirds).sort().values.tolist() == list(range(60))
        labels = [made.federation.task.target_pool.y[third] for third in made.thirds]
        counts = torch.stack([torch.bincount(third, minlength=3) for third in labels])
        assert bool(((counts == 6) | (counts == 7)).all())

    def test_takes_sources_that_help_and_leaves_sources_that_mislead(self):
        good = blobs(rows=60, target_rows=30, n_target=9, seed=4)
        bad = blobs(rows=60, target_rows=150, n_target=9)
        for site in bad.sources:
            site.y.copy_((site.y + 1) % 3)
        options = {**QUICK, "model": "linear", "rounds": 6}
        helped, misled = (fb.run(task, "oracle", **options) for task in (good, bad))
        assert misled.history[-1]["choice"] == "own"
        assert misled.history[-1]["beta"] == [0, 0, 0]
        assert misled.accuracy > 90
        assert {line["choice"] for line in helped.history} & {"pooled"}

    def test_the_papers_keeps_to_the_targets_rows(self, monkeypatch):
        _, record, jobs = self.jobs_of_a_round(monkeypatch, blobs(), with_sources=False)
        assert [(job.beside, job.rows) for job in jobs] == [((), None)]
        assert record.extra == {"choice": "own"}

    def test_of_few_rows_none_is_kept_back(self, monkeypatch):
        _, record, jobs = self.jobs_of_a_round(monkeypatch, blobs(target_rows=5))
        assert [(job.beside, job.rows) for job in jobs] == [((), None)]
        assert record.failures == {}

    def test_without_any_source_there_goes_on_with_its_own(self, monkeypatch):
        fed = federation(blobs(target_rows=30, n_target=9), method="oracle")
        made = method("oracle", fed)
        monkeypatch.setattr(fed, "present", lambda *_, **__: ([], {"site 0": "dropped out"}))
        record = made.run_round(1)
        assert record.failures == {"site 0": "dropped out"}
        assert made.pooled is fed.initial
        assert made.own is not fed.initial

    def test_trains_on_labels_that_others_do_not_have(self):
        task = blobs(shift=3.0, target_rows=150, n_target=6)
        options = {**QUICK, "rounds": 10}
        oracle, alone = (fb.run(task, name, **options) for name in ("oracle", "target-only"))
        assert oracle.accuracy > alone.accuracy
        assert oracle.history[-1]["bytes_up"] == 0

    def test_trains_on_no_row_that_is_set_aside_for_validation(self):
        task = blobs(target_rows=30, n_target=15)
        fed = federation(task, method="oracle", early_stopping=3, validation_fraction=0.4)
        pool = fed.bench.sites[-1]
        assert len(fed.validation) == 6
        assert len(pool) == 30 - 6
        aside = fed.validation.x.tolist()
        assert not any(x in aside for x in pool.x.tolist())

    def test_of_equal_rows_only_as_many_are_set_aside_as_were_taken(self):
        pool = Site("pool", torch.tensor([[1.0], [1.0], [1.0], [2.0]]), torch.tensor([1, 0, 0, 0]))
        taken = Site("taken", torch.tensor([[1.0]]), torch.tensor([0]))
        assert rows_besides(pool, taken).tolist() == [0, 2, 3]

    def test_balances_the_classes_of_all_its_rows(self, monkeypatch):
        task = blobs(target_rows=30, n_target=15)
        task.target_pool.y[task.target_pool.y == 2] = 1
        options = {"class_weights": "balanced", "with_sources": False}
        _, _, jobs = self.jobs_of_a_round(monkeypatch, task, **options)
        assert jobs[0].plan.class_weights == pytest.approx((1.5, 0.75, 0.0))


@pytest.mark.parametrize("name", ["finetune-offline", "finetune-cv", "ditto", "apfl"])
def test_delivers_a_plain_model(name, few):
    first, second = (fb.run(blobs(), name, **{**QUICK, "rounds": 1}).model for _ in range(2))
    assert same_model(first, second)
    assert type(first).__name__ == "SplitModel"
