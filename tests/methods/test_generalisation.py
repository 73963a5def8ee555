"""Domain generalisation: what its methods share, and what each does where that is known."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small import Normed, blobs, federation, line, method, same_but_for_seconds, same_model
from torch import nn
from torch.nn import functional

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.evaluation.metrics import squared_error
from fedbridge.federation.needs import Need, UnmetNeedError
from fedbridge.methods.generalisation import (
    Aligned,
    Invariant,
    MeanLoss,
    Mixed,
    WorstGroup,
    draw_shares,
    moments_apart,
    partners,
    pooled_plan,
    squared_slope,
)
from fedbridge.models import SplitModel
from fedbridge.training.objective import Batch, StepContext

NAMES = ("erm", "irm", "group-dro", "mixup", "coral")
QUICK = {"rounds": 2, "workers": 1, "model": "mlp:8", "lr": 0.1, "batch_size": 8}


def pooled_context(rows=(5, 4, 7), module=None, **options):
    """A context with a batch of every source, of these sizes."""
    torch.manual_seed(1)
    own, *beside = (Batch(torch.randn(n, 2), torch.randint(3, (n,)), torch.arange(n)) for n in rows)
    chosen = nn.Linear(2, 3) if module is None else module
    given = {"flat": None, "anchor": None, "loss_of": functional.cross_entropy, **options}
    return StepContext(module=chosen, own=own, beside=tuple(beside), lr=0.1, **given)


def losses_apart(context):
    """The loss of every source, each by itself."""
    batches = (context.own, *context.beside)
    return torch.stack([context.loss_of(context.module(batch.x), batch.y) for batch in batches])


def spurious(seed=0):
    """A weak cause of the label, and a stronger sign that turns against it at the target."""
    generator = torch.Generator().manual_seed(seed)

    def site(rows, agree):
        y = (torch.rand(rows, generator=generator) < 0.5).long()

        def sign(kept):
            right = torch.rand(rows, generator=generator) < kept
            return torch.where(right, y, 1 - y) * 2.0 - 1

        x = torch.stack((sign(0.75), sign(agree)), 1)
        return x + 0.1 * torch.randn(rows, 2, generator=generator), y

    return fb.FederatedTask.from_arrays(
        sources={"90%": site(1000, 0.9), "80%": site(1000, 0.8)},
        target=site(20, 0.1),
        test=site(500, 0.1),
    )


class TestAll:
    @pytest.mark.parametrize("name", NAMES)
    def test_needs_the_rows_in_one_place(self, name):
        assert Need.POOLED in fb.methods.needs_of(name)

    @pytest.mark.parametrize("name", NAMES)
    def test_learns_blobs_without_the_target(self, name):
        fed = federation(model="mlp:8")
        fed.task.target.x.fill_(float("nan"))
        made = method(name, fed)
        for number in range(1, 21):
            record = made.run_round(number)
        assert fed.measure(made.state).accuracy > 85
        assert sum(record.beta) == pytest.approx(1)
        assert fed.bytes_up == fed.bytes_down == 0

    @pytest.mark.parametrize("name", NAMES)
    def test_goes_on_to_the_same_bits_after_a_stop(self, name, tmp_path):
        options = {**QUICK, "dropout": 0.3, "seed": 3}
        if name == "irm":
            options["anneal"] = 8
        whole = fb.run(blobs(), name, **{**options, "rounds": 4})
        fb.run(blobs(), name, out=tmp_path / "run", **options)
        resumed = fb.run(
            blobs(), name, out=tmp_path / "run", resume=True, **{**options, "rounds": 4}
        )
        assert same_but_for_seconds(resumed.history, whole.history)
        assert same_model(resumed.model, whole.model)

    @pytest.mark.parametrize("name", NAMES)
    def test_works_with_batches_of_one_row_and_with_one_source(self, name):
        for task, size in ((blobs(rows=9), 1), (blobs(sources=1), 8)):
            result = fb.run(task, name, **{**QUICK, "batch_size": size})
            assert np.isfinite(result.summary["loss"])

    @pytest.mark.parametrize("name", NAMES)
    def test_trains_values_too(self, name):
        options = {**QUICK, "lr": 0.02, "rounds": 20}
        if name == "irm":
            options["penalty"] = 0.1
        first, *_, last = fb.run(line(), name, **options).history
        assert last["loss"] < 0.5 * first["loss"]

    def test_takes_the_steps_of_the_largest_source(self):
        task = fb.FederatedTask.from_arrays(
            sources=[(torch.randn(n, 2), torch.arange(n) % 2) for n in (10, 41)],
            target=(torch.randn(4, 2), torch.arange(4) % 2),
            test=(torch.randn(4, 2), torch.arange(4) % 2),
        )
        fed = federation(task, epochs=3)
        assert pooled_plan(fed, 1, [1, 2]).steps == 3 * (41 // 8)

    def test_balances_classes_over_the_pool(self):
        task = fb.FederatedTask.from_arrays(
            sources=[(torch.randn(6, 2), torch.tensor(y)) for y in ([0] * 6, [0, 0, 1, 1, 1, 1])],
            target=(torch.randn(2, 2), torch.tensor([0, 1])),
            test=(torch.randn(2, 2), torch.tensor([0, 1])),
        )
        plan = pooled_plan(federation(task, class_weights="balanced"), 1, [1, 2])
        assert plan.class_weights == pytest.approx((12 / (2 * 8), 12 / (2 * 4)))

    def test_names_who_is_missing_and_stays_when_all_are(self):
        fed = federation(dropout=0.4)
        made = method("group-dro", fed)
        seen = set()
        for number in range(1, 30):
            before, record = made.state, made.run_round(number)
            seen.add(len(record.failures))
            if len(record.failures) == 3:
                assert made.state is before
                assert record.notes == ["no source is there: the model stays as it was"]
            else:
                there = [beta is not None for beta in record.beta]
                names = [s.name for s in fed.task.sources]
                assert [name not in record.failures for name in names] == there
                assert sum(beta for beta in record.beta if beta is not None) == pytest.approx(1)
        assert seen == {0, 1, 2, 3}

    def test_a_failed_pool_names_every_source_and_leaves_the_model(self):
        fed = federation()
        fed.task.sources[1].x.fill_(float("nan"))
        made = method("erm", fed)
        record = made.run_round(1)
        assert set(record.failures) == {"site 0", "site 1", "site 2"}
        assert "NaN" in record.failures["site 0"]
        assert made.state is fed.initial

    def test_batch_norm_takes_the_statistics_of_the_pool(self):
        fed = federation(model=Normed())
        made = method("erm", fed)
        made.run_round(1)
        assert int(made.state.buffers["norm.num_batches_tracked"]) == 5
        pool = torch.cat([site.x for site in fed.task.sources]).mean(0)
        assert torch.allclose(made.state.buffers["norm.running_mean"], pool * 0.4, atol=0.1)

    @pytest.mark.parametrize(
        ("name", "option", "value"),
        [
            ("irm", "penalty", -1),
            ("irm", "anneal", 1.5),
            ("group-dro", "step_size", -0.1),
            ("mixup", "alpha", float("nan")),
            ("coral", "penalty", "much"),
        ],
    )
    def test_an_option_outside_its_range_is_refused(self, name, option, value):
        with pytest.raises(OptionError, match=f"Expected `{option}`"):
            method(name, federation(model="mlp:8"), **{option: value})


class TestERM:
    def test_is_the_mean_over_sources_whatever_their_rows(self):
        context = pooled_context()
        torch.testing.assert_close(MeanLoss()(context), losses_apart(context).mean())

    @pytest.mark.parametrize("model", ["linear", Normed()])
    def test_with_one_source_is_source_only_to_the_bit(self, model):
        few = {**QUICK, "rounds": 3, "warmup": 1, "model": model}
        ours, theirs = (fb.run(blobs(sources=1), name, **few) for name in ("erm", "source-only"))
        assert same_model(ours.model, theirs.model)


class TestIRM:
    @pytest.mark.parametrize("loss_of", [functional.cross_entropy, squared_error])
    def test_the_penalty_is_the_product_of_two_slopes(self, loss_of):
        torch.manual_seed(0)
        outputs = torch.randn(9, 3, dtype=torch.float64)
        labels = torch.randint(3, (9,))
        if loss_of is squared_error:
            labels = torch.randn(9, 3, dtype=torch.float64)

        def slope(half):
            up, down = (loss_of(w * outputs[half::2], labels[half::2]) for w in (1.00001, 0.99999))
            return float(up - down) / 2e-5

        found = squared_slope(loss_of, outputs, labels)
        assert found.item() == pytest.approx(slope(0) * slope(1), rel=1e-6)

    def test_the_penalty_has_the_gradient_of_its_differences(self):
        torch.manual_seed(0)
        labels = torch.randint(3, (6,))
        outputs = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda z: squared_slope(functional.cross_entropy, z, labels), outputs
        )

    def test_one_row_is_squared(self):
        outputs, labels = torch.tensor([[1.0, -1.0]]), torch.tensor([0])
        slope = -2 * torch.sigmoid(torch.tensor(-2.0))  # of log(1 + exp(−2w))
        found = squared_slope(functional.cross_entropy, outputs, labels)
        torch.testing.assert_close(found, slope.square())

    @pytest.mark.parametrize(("weight", "over"), [(0.0, 1.0), (0.5, 1.0), (100.0, 100.0)])
    def test_is_loss_plus_weighted_penalty_over_a_weight_above_1(self, weight, over):
        context = pooled_context()
        found = Invariant(weight)(context)
        expected = (losses_apart(context).mean() + weight * context.told["penalty"]) / over
        torch.testing.assert_close(found, expected)

    def test_the_whole_penalty_comes_after_annealing(self):
        made = method("irm", federation(), penalty=7.0, anneal=10)
        weights = [made.run_round(number).extra["penalty_weight"] for number in (1, 2, 3, 4)]
        assert weights == [1.0, 1.0, 7.0, 7.0]  # 5 steps a round
        assert made.steps == 20

    def test_at_its_very_step_and_the_optimiser_starts_anew(self):
        fed = federation(optimizer="adam")
        made, jobs, do = method("irm", fed, penalty=7.0, anneal=8), [], fed.do
        fed.do = lambda given, states: (jobs.extend(given), do(given, states))[1]
        for number in (1, 2, 3):
            made.run_round(number)
        trained = [(job.plan.steps, job.objective.weight) for job in jobs]
        assert trained == [(5, 1.0), (3, 1.0), (2, 7.0), (5, 7.0)]
        assert jobs[1].seed != jobs[2].seed
        assert made.steps == 15

    def test_a_restarted_optimiser_takes_steps_of_its_own_length(self):
        """The first step of a new Adam is lr in every entry, whatever the gradients before it."""
        fed = federation(optimizer="adam", lr=0.01, model="linear")
        made = method("irm", fed, penalty=1000.0, anneal=4)
        first_steps, do = [], fed.do

        def watched(given, starts):
            one = [replace(given[0], plan=replace(given[0].plan, steps=1))]
            _, (change,) = do(one, starts)
            first_steps.append(change)
            return do(given, starts)

        fed.do = watched
        made.run_round(1)
        assert len(first_steps) == 2
        torch.testing.assert_close(
            first_steps[1].abs(), torch.full_like(first_steps[1], 0.01), rtol=1e-3, atol=1e-6
        )

    def test_trusts_the_cause_where_erm_trusts_the_stronger_sign(self):
        task = spurious()
        options = {**QUICK, "rounds": 30, "lr": 0.5, "batch_size": 100, "model": "mlp:16"}
        irm = fb.run(task, "irm", penalty=1000, anneal=50, **options)
        erm = fb.run(task, "erm", **options)
        assert erm.accuracy < 20
        assert irm.accuracy > 50


class TestGroupDRO:
    def test_a_step_moves_the_shares_and_weighs_by_them(self):
        context = pooled_context()
        start = torch.tensor([0.5, 0.25, 0.25])
        found = WorstGroup(start.log(), 0.3)(context)
        losses = losses_apart(context)
        moved = start * torch.exp(0.3 * losses.detach())
        shares = moved / moved.sum()
        torch.testing.assert_close(found, (shares * losses).sum())
        torch.testing.assert_close(context.told["log_shares"].exp(), shares)

    def test_goes_on_from_the_shares_of_the_step_before(self):
        context = pooled_context()
        objective = WorstGroup(torch.zeros(3).log_softmax(0), 0.3)
        objective(context)
        objective(context)
        expected = torch.softmax(2 * 0.3 * losses_apart(context).detach(), 0)
        torch.testing.assert_close(context.told["log_shares"].exp(), expected)

    def test_a_step_size_of_0_is_erm(self):
        ours, theirs = (
            fb.run(blobs(), name, **QUICK, **options).model
            for name, options in (("group-dro", {"step_size": 0}), ("erm", {}))
        )
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other)

    def test_favours_the_worst_group(self):
        task = blobs(sources=3, rows=90)
        task.sources[2].y.copy_((task.sources[2].y + 1) % 3)

        def worst_loss(name, **options):
            fed = federation(task, model="mlp:8")
            made = method(name, fed, **options)
            for number in range(1, 31):
                record = made.run_round(number)
            return max(fed.measure(made.state, s).loss for s in fed.task.sources), record.beta

        robust, shares = worst_loss("group-dro", step_size=0.1)
        plain, _ = worst_loss("erm")
        assert shares[2] > 0.4
        assert robust < 0.8 * plain

    def test_a_source_that_is_missing_keeps_its_share(self):
        made = method("group-dro", federation())
        found = torch.tensor([0.9, 0.1]).log()
        shares = made.heed(SimpleNamespace(told={"log_shares": found}), [1, 3])
        torch.testing.assert_close(shares, torch.tensor([0.9, 0.1]))
        expected = torch.tensor([0.6, 1 / 3, 2 / 30])
        torch.testing.assert_close(made.log_shares.exp(), expected)

    def test_no_share_is_lost_for_good(self):
        made = method("group-dro", federation())
        made.log_shares = torch.tensor([0.0, -1e4, -1e4])
        objective = made.objective(1, [2, 3])
        torch.testing.assert_close(objective.log_shares.exp(), torch.tensor([0.5, 0.5]))


class TestMixup:
    def test_shares_of_1_are_erm(self):
        context = pooled_context()
        assert torch.equal(Mixed(0)(context), MeanLoss()(context))
        ours, theirs = (
            fb.run(blobs(), name, **QUICK, **options).model
            for name, options in (("mixup", {"alpha": 0}), ("erm", {}))
        )
        assert same_model(ours, theirs)

    def test_the_loss_is_that_of_mixed_rows_with_both_labels(self):
        context = pooled_context()
        batches = (context.own, *context.beside)
        torch.manual_seed(5)
        found = Mixed(0.4)(context)
        torch.manual_seed(5)
        others, shares = partners(batches), draw_shares(0.4, 3).tolist()
        terms = []
        for a, batch, (x, y) in zip(shares, batches, others, strict=True):
            outputs = context.module(a * batch.x + (1 - a) * x)
            terms.append(
                a * context.loss_of(outputs, batch.y) + (1 - a) * context.loss_of(outputs, y)
            )
        torch.testing.assert_close(found, sum(terms) / 3)

    def test_for_values_it_is_the_loss_on_mixed_values_up_to_a_constant(self):
        torch.manual_seed(0)
        outputs, mine, theirs = (torch.randn(6, 1, requires_grad=True) for _ in range(3))
        a = 0.3
        mixed = a * squared_error(outputs, mine) + (1 - a) * squared_error(outputs, theirs)
        plain = squared_error(outputs, a * mine + (1 - a) * theirs)
        torch.testing.assert_close(
            *(torch.autograd.grad(loss, outputs)[0] for loss in (mixed, plain))
        )

    def test_partners_are_another_source_with_its_own_labels(self):
        batches = [
            Batch(torch.full((n, 1), float(k)), torch.full((n,), k), torch.arange(n))
            for k, n in enumerate((5, 2, 3))
        ]
        seen = [set(), set(), set()]
        for _ in range(30):
            found = partners(batches)
            for k, (x, y) in enumerate(found):
                assert len(x) == len(y) == len(batches[k].y)
                assert torch.equal(x[:, 0].long(), y)
                seen[k].update(y.tolist())
        assert seen == [{1, 2}, {0, 2}, {0, 1}]

    def test_one_source_is_mixed_with_itself(self):
        batch = Batch(torch.arange(20.0)[:, None], torch.arange(20), torch.arange(20))
        ((x, y),) = partners([batch])
        assert sorted(y.tolist()) == list(range(20))
        assert torch.equal(x[:, 0].long(), y)
        assert not torch.equal(y, batch.y)

    def test_shares_follow_their_distribution(self):
        torch.manual_seed(0)
        shares = draw_shares(0.2, 20_000)
        assert float(shares.mean()) == pytest.approx(0.5, abs=0.01)
        assert float(shares.var()) == pytest.approx(1 / (4 * (2 * 0.2 + 1)), abs=0.01)


class TestCORAL:
    def test_needs_features(self):
        with pytest.raises(UnmetNeedError, match="feature extractor; `linear` has none"):
            fb.run(blobs(), "coral", **{**QUICK, "model": "linear"})

    def test_equal_clouds_are_not_apart(self):
        cloud = torch.randn(9, 4)
        assert float(moments_apart([cloud, cloud.flip(0), cloud])) == pytest.approx(0, abs=1e-12)
        assert float(moments_apart([cloud])) == 0

    def test_is_apart_as_numpy_says(self):
        rng = np.random.default_rng(0)
        clouds = [rng.normal(k, k + 1, (n, 4)) for k, n in enumerate((5, 8, 6))]
        pairs = [
            ((a.mean(0) - b.mean(0)) ** 2).mean() + ((np.cov(a.T) - np.cov(b.T)) ** 2).mean()
            for a, b in ((clouds[0], clouds[1]), (clouds[0], clouds[2]), (clouds[1], clouds[2]))
        ]
        found = moments_apart([torch.from_numpy(cloud) for cloud in clouds])
        assert float(found) == pytest.approx(np.mean(pairs), rel=1e-12)

    def test_is_the_mean_loss_plus_what_the_features_are_apart(self):
        context = pooled_context(
            module=SplitModel(nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Linear(4, 3))
        )
        clouds = [context.module.features(batch.x) for batch in (context.own, *context.beside)]
        expected = losses_apart(context).mean() + 2.0 * moments_apart(clouds)
        torch.testing.assert_close(Aligned(2.0)(context), expected)

    def test_without_penalty_it_is_erm(self):
        ours, theirs = (
            fb.run(blobs(), name, **QUICK, **options).model
            for name, options in (("coral", {"penalty": 0}), ("erm", {}))
        )
        assert same_model(ours, theirs)

    def test_brings_the_features_of_sources_together(self):
        task = blobs(sources=2, rows=90)
        task.sources[1].x.add_(torch.tensor([3.0, 0.0]))

        def apart(name, **options):
            fed = federation(task, model="mlp:8", lr=0.05)
            made = method(name, fed, **options)
            for number in range(1, 21):
                made.run_round(number)
            clouds = [
                fed.predict(made.state, site, lambda model, x: model.features(x))
                for site in fed.task.sources
            ]
            spread = torch.cat(clouds).var(0).mean().square() + torch.cat(clouds).square().mean()
            return float(moments_apart(clouds) / spread)

        assert apart("coral", penalty=1.0) < 0.3 * apart("erm")
