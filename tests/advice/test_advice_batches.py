"""Estimates from inner products of batch gradients, and their bootstrap."""

import pytest
import torch
from advice.gradients import gram_of
from helpers import assert_close, random_round

import fedbridge as fb
from fedbridge.advice.batches import BatchGram, Stratum, measures
from fedbridge.base.errors import NoiseUndefinedError, ShapeError
from fedbridge.core.blocks import Blocks

M = 6
WHOLE = Blocks.whole(M)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def two_classes(seed=0):
    """A target of two classes, 4 and 2 batches, whose means differ, and one source."""
    rows = torch.cat((normal(4, M, seed=seed) + 3.0, normal(2, M, seed=seed + 1) - 3.0))
    source = normal(5, M, seed=seed + 2)
    every = torch.cat((rows, source))
    strata = (Stratum(0, 4, 2 / 3, 4), Stratum(0, 2, 1 / 3, 2), Stratum(1, 5))
    return rows, source, BatchGram((every @ every.T)[None], strata)


class TestEstimates:
    def test_noise_and_distances_are_those_of_the_streaming_estimator(self):
        drawn = random_round(3, n=2, m=M, b=5)
        sites = [drawn.batches, *(source[None] for source in drawn.sources)]
        seen = gram_of(sites, WHOLE).as_seen().estimates()
        known = fb.estimate(drawn.batches, drawn.sources)
        assert_close(seen.sigma2, known.sigma2)
        assert_close(seen.d2, known.d2)

    def test_the_noise_of_sources_is_taken_off_their_distance(self):
        target, source = normal(7, M), normal(9, M, seed=1) + 1.0
        seen = gram_of([target, source], WHOLE).as_seen().estimates()
        apart = (target.mean(0) - source.mean(0)).square().sum()
        noise = target.var(0).sum() / 7 + source.var(0).sum() / 9
        assert_close(seen.d2, (apart - noise)[None])

    def test_blocks_add_up(self):
        sites = [normal(4, M), normal(3, M, seed=1)]
        cut = gram_of(sites, Blocks.of_sizes([2, 4]))
        whole = gram_of(sites, WHOLE)
        assert_close(cut.whole().gram, whole.gram)
        assert_close(cut.as_seen().estimates().d2, whole.as_seen().estimates().d2)

    def test_a_cosine_is_that_of_the_true_gradients(self):
        target = torch.tensor([[1.0, 0, 0, 0, 0, 0]] * 3, dtype=torch.float64)
        source = torch.tensor([[1.0, 1, 0, 0, 0, 0]] * 2, dtype=torch.float64)
        seen = gram_of([target, source], WHOLE).as_seen().estimates()
        assert_close(seen.cosine, [0.5**0.5])

    def test_a_length_that_is_lost_in_the_noise_leaves_a_cosine_of_one_or_minus_one(self):
        target = torch.eye(3, M, dtype=torch.float64) - torch.eye(3, M, dtype=torch.float64).mean(0)
        target[0] += 0.01
        seen = gram_of([target, normal(2, M)], WHOLE).as_seen().estimates()
        assert seen.target2 < 0
        assert seen.cosine.abs().item() == 1.0

    def test_one_target_batch_shows_no_noise(self):
        with pytest.raises(NoiseUndefinedError, match="at least two target batches"):
            gram_of([normal(1, M), normal(3, M)], WHOLE).as_seen().estimates()

    def test_rows_and_strata_must_fit(self):
        with pytest.raises(ShapeError, match="Expected inner products of 3 rows"):
            BatchGram(torch.zeros(1, 2, 2), (Stratum(0, 2), Stratum(1, 1)))


class TestStrata:
    def test_only_the_scatter_within_classes_is_noise(self):
        rows, _, batches = two_classes()
        first, second = rows[:4].var(0).sum() / 4, rows[4:].var(0).sum() / 2
        expected = (2 / 3) ** 2 * first + (1 / 3) ** 2 * second
        assert_close(batches.as_seen().estimates().sigma2, expected)
        assert batches.freedom == 4
        assert batches.target_rows == 6

    def test_rules_would_see_the_scatter_between_classes_as_well(self):
        rows, _, batches = two_classes()
        truth = batches.as_seen().truth()
        middle = rows.mean(0)
        between = (
            4 * (rows[:4].mean(0) - middle).square().sum()
            + 2 * (rows[4:].mean(0) - middle).square().sum()
        ) / 6
        assert_close(truth.mistaken.square().sum(), between / 6)
        assert float(truth.mistaken.square().sum()) > float(truth.sigma2.sum())


class TestTruth:
    def test_it_has_the_unbiased_inner_products_where_there_are_such_vectors(self):
        target, source = normal(30, M) + 5.0, normal(40, M, seed=1) + 4.0
        sample = gram_of([target, source], WHOLE).as_seen()
        truth, seen = sample.truth(), sample.estimates()
        assert_close(truth.sigma2.sum(), seen.sigma2)
        assert_close((truth.target - truth.sources[:, 0]).square().sum(), seen.d2[0], rtol=0.1)

    def test_a_negative_distance_becomes_none(self):
        target = normal(4, M)
        same = target.mean(0, keepdim=True).repeat(2, 1)
        truth = gram_of([target, same], WHOLE).as_seen().truth()
        apart = (truth.target - truth.sources[:, 0]).square().sum()
        assert 0 <= float(apart) < float(truth.sigma2.sum())

    def test_more_samples_mean_less_noise(self):
        truth = two_classes()[2].as_seen().truth()
        more = truth.with_samples(4.0)
        assert_close(more.sigma2, truth.sigma2 / 4)
        assert_close(more.mistaken.square().sum(), truth.mistaken.square().sum() / 4)


class TestBootstrap:
    def test_resamples_are_unbiased_for_what_was_seen(self):
        batches = two_classes()[2]
        generator = torch.Generator().manual_seed(0)
        drawn = [batches.resample(generator).estimates() for _ in range(1500)]
        seen = batches.as_seen().estimates()
        assert_close(torch.tensor([d.sigma2 for d in drawn]).mean(), seen.sigma2, rtol=0.1)
        assert_close(torch.stack([d.d2 for d in drawn]).mean(0), seen.d2, rtol=0.1)

    def test_intervals_hold_the_truth_about_as_often_as_they_say(self):
        truth, apart, count = torch.zeros(M), 1.0, 20
        held = {"sigma2": 0, "d2": 0, "cosine": 0}
        worlds = 25
        for world in range(worlds):
            target = truth + 1.0 + normal(count, M, seed=2 * world)
            source = truth + 1.0 + normal(count, M, seed=2 * world + 1)
            source[:, 0] += apart
            found = measures(gram_of([target, source], WHOLE), seed=world)
            cosine = (M + 1) / (M**0.5 * (M + 3) ** 0.5)
            for name, interval, true in (
                ("sigma2", found.sigma2, M / count),
                ("d2", found.d2[0], apart),
                ("cosine", found.cosine[0], cosine),
            ):
                held[name] += interval.low <= true <= interval.high
        assert all(0.85 * worlds <= times <= worlds for times in held.values()), held

    def test_the_same_seed_gives_the_same_interval(self):
        batches = two_classes()[2]
        assert measures(batches, seed=1) == measures(batches, seed=1)
        assert measures(batches, seed=1) != measures(batches, seed=2)

    def test_identical_batches_leave_no_doubt(self):
        target = torch.ones(5, M, dtype=torch.float64)
        found = measures(gram_of([target, 2 * target], WHOLE), seed=0)
        assert found.sigma2.high == pytest.approx(0.0, abs=1e-12)
        assert found.d2[0].low == pytest.approx(M)
        assert found.d2[0].high == pytest.approx(M)
        assert found.weight[0].high == pytest.approx(0.0, abs=1e-12)
