"""Noise and distances: the paper's formulas, without bias, in one pass."""

from types import SimpleNamespace

import pytest
import torch
from helpers import assert_close, random_round, rounds, tensor
from hypothesis import given

import fedbridge as fb
from fedbridge import Blocks, Estimate, NoiseStream, Sketch, measure
from fedbridge.base.errors import FedbridgeError, NoiseUndefinedError, NonFiniteError, ShapeError
from fedbridge.core.estimators import measure_noise, noise_from_sketches
from fedbridge.core.theory import Problem


def paper_sigma2(batches):
    """1/((B−1)B) Σ_j ‖g^j − g‖², as printed in the paper's appendix."""
    mean = sum(batches) / len(batches)
    spread = sum((update - mean).square().sum() for update in batches)
    return spread / ((len(batches) - 1) * len(batches))


def paper_d2(batches, source):
    """(1/B Σ_j ‖g_i − g^j‖²) − 1/(B−1) Σ_j ‖g^j − g‖²."""
    mean_distance = sum((source - update).square().sum() for update in batches) / len(batches)
    return mean_distance - len(batches) * paper_sigma2(batches)


def paper_tau2_d2(batches, source):
    """(1/B Σ_j ‖g^j_TS‖²) − 1/(B−1) Σ_j ‖g^j_TS − 1/B Σ_k g^k_TS‖², g^j_TS = g^j − ⟨g^j, u⟩ u."""
    unit = source / source.norm() if source.any() else source
    off = [update - (update @ unit) * unit for update in batches]
    mean_square = sum(part.square().sum() for part in off) / len(batches)
    return mean_square - len(batches) * paper_sigma2(torch.stack(off))


@given(rounds())
def test_estimates_equal_the_papers_formulas(drawn):
    found = fb.estimate(drawn.batches, drawn.sources)
    size = float(drawn.batches.square().sum(1).mean() + drawn.sources.square().sum(1).max())
    close = {"rtol": 1e-9, "atol": 1e-13 * size}
    assert isinstance(found.sigma2, float)
    assert_close(found.sigma2, paper_sigma2(drawn.batches), **close)
    assert_close(found.d2, [paper_d2(drawn.batches, s) for s in drawn.sources], **close)
    assert_close(found.tau2_d2, [paper_tau2_d2(drawn.batches, s) for s in drawn.sources], **close)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_estimates_equal_the_papers_formulas_at_extreme_scales(scale):
    drawn = random_round(0, m=40)
    found = fb.estimate(scale * drawn.batches, scale * drawn.sources)
    assert_close(found.sigma2 / scale**2, paper_sigma2(drawn.batches), rtol=1e-9)
    assert_close(
        found.tau2_d2 / scale**2,
        [paper_tau2_d2(drawn.batches, s) for s in drawn.sources],
        rtol=1e-9,
    )


def test_estimates_by_hand():
    found = fb.estimate(tensor([5.0, 3.0], [3.0, 1.0]), tensor([2.0, 0.0], [0.0, -1.0]))
    assert found.sigma2 == 2.0
    assert_close(found.d2, [8.0 - 2.0, 25.0 - 2.0])
    assert_close(found.along, [1.0, 1.0])
    assert_close(found.tau2_d2, [4.0 - (2.0 - 1.0), 16.0 - (2.0 - 1.0)])


def test_a_zero_source_has_no_direction():
    batches = tensor([5.0, 3.0], [3.0, 1.0])
    found = fb.estimate(batches, torch.zeros(1, 2, dtype=torch.float64))
    assert found.along.tolist() == [0.0]
    assert_close(found.d2, [20.0 - 2.0])
    assert_close(found.tau2_d2, [20.0 - 2.0])


def test_estimates_may_be_negative():
    found = fb.estimate(tensor([1.0, 1.0], [-1.0, 1.0]), tensor([0.0, 1.0]))
    assert_close(found.d2, [-1.0])
    assert_close(found.tau2_d2, [-1.0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_mean_of_short_types_is_not_rounded_to_them(dtype):
    drawn = random_round(2, n=2, m=50, b=7)
    batches, sources = drawn.batches.to(dtype), drawn.sources.to(dtype)
    found = fb.estimate(batches, sources)
    exact = fb.estimate(batches.double(), sources.double())
    assert_close(found.d2, exact.d2, rtol=1e-6)
    assert_close(found.tau2_d2, exact.tau2_d2, rtol=1e-6)


@pytest.fixture(scope="module")
def estimates_over_draws():
    """Estimates of 800 draws of one problem whose noise is strong along one source."""
    generator = torch.Generator().manual_seed(0)
    sources = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    factor = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    factor[:, 0] += sources[0]
    problem = Problem(tensor(1.0, -1.0, 0.5, 0.0, 2.0), sources, factor)
    draws = [fb.estimate(problem.draw(4, generator), sources) for _ in range(800)]
    return problem, draws


@pytest.mark.parametrize("name", ["sigma2", "d2", "tau2_d2", "along"])
def test_estimates_are_unbiased(estimates_over_draws, name):
    problem, draws = estimates_over_draws
    found = torch.stack([torch.as_tensor(getattr(one, name)) for one in draws])
    error = (found.mean(0) - torch.as_tensor(getattr(problem, name))).abs()
    assert bool((error <= 4 * found.std(0) / len(draws) ** 0.5).all())


def test_one_batch_leaves_the_noise_undefined():
    with pytest.raises(NoiseUndefinedError, match="B = 1"):
        fb.estimate(torch.ones(1, 3), torch.ones(2, 3))


@given(rounds())
def test_fedda_weights_are_the_shrinkage_towards_the_source(drawn):
    found = fb.estimate(drawn.batches, drawn.sources)
    apart = (drawn.sources - drawn.target).square().sum(1)
    assert_close(fb.auto_beta("fedda", found), (found.sigma2 / apart).clamp(max=1.0), rtol=1e-9)


@given(rounds())
def test_fedgp_weights_are_the_shrinkage_towards_the_line(drawn):
    found = fb.estimate(drawn.batches, drawn.sources)
    unit = torch.nn.functional.normalize(drawn.sources, dim=1)
    off = (drawn.target - (unit @ drawn.target)[:, None] * unit).square().sum(1)
    along = ((drawn.batches - drawn.target) @ unit.T).square().sum(0)
    along /= len(drawn.batches) * (len(drawn.batches) - 1)
    expected = (found.sigma2 / (off + along)).clamp(max=1.0)
    assert_close(fb.auto_beta("fedgp", found), expected, rtol=1e-9)


def test_weights_of_a_target_without_noise_are_0():
    found = fb.estimate(torch.ones(3, 2), torch.tensor([[1.0, 1.0], [2.0, 0.0]]))
    assert fb.auto_beta("fedda", found).tolist() == [0.0, 0.0]
    assert fb.auto_beta("fedgp", found).tolist() == [0.0, 0.0]


def test_weights_exist_for_fedda_and_fedgp_only():
    found = fb.estimate(tensor([1.0], [2.0]), tensor([3.0]))
    with pytest.raises(FedbridgeError, match="'fedda' or 'fedgp', but got 'fedavg'"):
        fb.auto_beta("fedavg", found)


@given(rounds())
def test_the_stream_equals_the_formulas_on_all_batches(drawn):
    batches, sources, m = drawn.batches, drawn.sources, drawn.sources.shape[1]
    cut = Blocks.of_sizes([1, m - 1] if m > 1 else [1])
    mean, noise = measure_noise(batches, sources, cut)
    deviations = batches - drawn.target
    pairs = len(batches) * (len(batches) - 1)
    size = float(batches.square().sum()) + 1.0
    assert_close(mean, drawn.target, atol=1e-14 * size)
    for k, part in enumerate(cut.slices()):
        seen = deviations[:, part] @ sources[:, part].T
        agreeing = (batches[:, part] @ sources[:, part].T > 0).double().mean(0)
        assert_close(noise.sigma2[k], deviations[:, part].square().sum() / pairs, rtol=1e-9)
        scale = size * float(sources.square().sum()) + 1e-300
        assert_close(noise.covariance[k], seen.T @ seen / pairs, rtol=1e-9, atol=1e-14 * scale)
        assert_close(noise.agreement[k], agreeing)
    everywhere = deviations @ sources.T
    assert_close(
        noise.whole_covariance[0],
        everywhere.T @ everywhere / pairs,
        rtol=1e-9,
        atol=1e-14 * scale,
    )


def test_a_small_spread_around_a_large_mean_survives_streaming():
    spread = tensor([1.0], [-1.0], [2.0], [-2.0])
    stream = NoiseStream(Blocks.whole(1))
    for update in 1e6 + spread:
        stream.add(update)
    assert_close(stream.noise().sigma2, [10.0 / 12.0], rtol=1e-9)


def test_the_stream_keeps_one_vector_whatever_the_number_of_batches():
    def entries_kept(count):
        stream = NoiseStream(Blocks.whole(1000))
        for update in torch.randn(count, 1000):
            stream.add(update)
        return sum(x.numel() for x in vars(stream).values() if isinstance(x, torch.Tensor))

    assert entries_kept(2) == entries_kept(9) < 1010


def test_the_stream_does_not_keep_hold_of_or_change_the_updates():
    update = tensor(1.0, 2.0)
    stream = NoiseStream(Blocks.whole(2))
    stream.add(update)
    assert stream.noise() is None
    assert update.tolist() == [1.0, 2.0]
    update.zero_()
    assert stream.mean.tolist() == [1.0, 2.0]


def test_without_directions_the_stream_measures_the_size_of_the_noise_only():
    stream = NoiseStream(Blocks.whole(2))
    for update in tensor([5.0, 3.0], [3.0, 1.0]):
        stream.add(update)
    noise = stream.noise()
    assert noise.sigma2.tolist() == [2.0]
    assert (noise.covariance, noise.agreement, noise.batches) == (None, None, 2)


def test_the_stream_refuses_other_lengths_and_names_the_block_of_a_nan():
    stream = NoiseStream(Blocks(("head", "tail"), (1, 2)))
    with pytest.raises(ShapeError, match=r"3 entries.*\(2,\)"):
        stream.add(torch.zeros(2))
    stream.add(torch.zeros(3))
    stream.add(tensor(0.0, 0.0, float("nan")))
    with pytest.raises(NonFiniteError, match=r"target.*'tail'"):
        stream.noise()


def test_estimates_of_a_round_measured_by_blocks_are_those_of_the_whole_model():
    drawn = random_round(6, n=3, m=9)
    cut = Blocks.of_sizes([2, 7])
    mean, noise = measure_noise(drawn.batches, drawn.sources, cut)
    by_blocks = Estimate.of(measure(mean, drawn.sources, cut, noise=noise))
    expected = [paper_tau2_d2(drawn.batches, s) for s in drawn.sources]
    assert_close(by_blocks.tau2_d2, expected, rtol=1e-9)


def sketched_noise(drawn, blocks, size, seed=0):
    """What the server finds, from nothing but the batch sketches and the updates."""
    sketch = Sketch(blocks, size, seed)
    stream = NoiseStream(blocks, sketch=sketch)
    for update in drawn.batches:
        stream.add(update)
    inner = torch.stack([drawn.sources[:, c] @ drawn.target[c] for c in blocks.slices()])
    sketches = torch.stack(stream.sketches)
    return noise_from_sketches(sketch, sketches, drawn.sources, inner, stream.noise().sigma2)


def test_noise_from_sketches_is_exact_on_small_blocks():
    drawn = random_round(4, n=3, m=9)
    cut = Blocks.of_sizes([5, 4])
    _, noise = measure_noise(drawn.batches, drawn.sources, cut)
    found = sketched_noise(drawn, cut, size=5)
    for name, value in vars(noise).items():
        assert_close(getattr(found, name), value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["covariance", "whole_covariance"])
def test_sketched_covariance_is_right_on_average_over_seeds(name):
    drawn = random_round(5, n=2, m=40, b=4)
    cut = Blocks.of_sizes([10, 30])
    _, noise = measure_noise(drawn.batches, drawn.sources, cut)
    found = torch.stack([getattr(sketched_noise(drawn, cut, 8, seed), name) for seed in range(400)])
    assert torch.equal(found, found.mT)
    error = (found.mean(0) - getattr(noise, name)).abs()
    assert bool((error <= 4 * found.std(0) / len(found) ** 0.5).all())


def test_batches_that_clearly_agree_are_counted_from_their_sketches():
    """A sketch of 64 numbers errs by an eighth of the lengths; these inner products are larger."""
    generator = torch.Generator().manual_seed(3)
    source = torch.randn(1, 4000, generator=generator, dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])
    noise = torch.randn(5, 4000, generator=generator, dtype=torch.float64)
    batches = signs[:, None] * source + 0.5 * noise
    drawn = SimpleNamespace(batches=batches, sources=source, target=batches.mean(0))
    found = sketched_noise(drawn, Blocks.of_sizes([1500, 2500]), size=64)
    assert_close(found.agreement, [[0.6], [0.6]])
    assert_close(found.whole_agreement, [[0.6]])


def test_the_wire_carries_a_few_numbers_per_batch():
    blocks = Blocks.whole(5000)
    stream = NoiseStream(blocks, sketch=Sketch(blocks, size=16))
    for update in torch.randn(6, 5000):
        stream.add(update)
    assert [one.shape for one in stream.sketches] == [(1, 2, 16)] * 5
