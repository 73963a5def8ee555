"""The paper's synthetic experiment against its loop, written out again in a few plain lines."""

from itertools import combinations

import pytest
import torch
from helpers import assert_close

import fedbridge as fb
from fedbridge.core.blocks import parameter_vector
from fedbridge.training.job import INITIALISING, PROBING, TARGET, seed_of

N_TARGET, ROUNDS, SEED = 20, 12, 3
STEP, MOMENTUM = 0.04, 0.9
SIZES = [(100, 50), (100,), (10, 100), (10,)]
WHOLE = {"scope": "model", "sketch_size": 5000}
"""One weight for the whole model, from the noise itself instead of a sketch of it."""


@pytest.fixture(scope="module")
def task():
    return fb.load_task("rbf", seed=SEED, protocol="paper", n_target=N_TARGET, diff=0.4)


@pytest.fixture(scope="module")
def start():
    """W1, b1, W2 and b2, drawn in this order."""
    torch.manual_seed(seed_of(SEED, 0, 0, INITIALISING))
    for layer in ((50, 100), (100, 10)):
        torch.nn.Linear(*layer)  # draws that the network's usual start has taken before
    return [torch.empty(size).uniform_(-0.5, 0.5) for size in SIZES]


def gradients(parameters, x, y):
    """Of the squared error, summed over outputs and averaged over points."""
    w1, b1, w2, b2 = held = [p.clone().requires_grad_() for p in parameters]
    answers = torch.sigmoid(x @ w1.T + b1) @ w2.T + b2
    return torch.autograd.grad((y - answers).square().sum() / len(x), held)


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors]).double()


def mixed(target, source, beta, project):
    """What a step of the scripts goes along, one parameter tensor at a time."""
    if project:
        reach = max(float((target * source).sum()), 0.0) / float(source.square().sum())
        return (1 - beta) * target + beta * reach * source
    return (1 - beta) * target + beta * source


def trained(task, start, beta, *, project=False, rounds=ROUNDS):
    """The scripts' loop: one velocity for all steps, which are full-batch."""
    parameters, velocities = list(start), [torch.zeros_like(p) for p in start]
    (source,) = task.sources
    for _ in range(rounds):
        own = gradients(parameters, task.target.x, task.target.y)
        theirs = gradients(parameters, source.x, source.y)
        along = [mixed(t, s, beta, project) for t, s in zip(own, theirs, strict=True)]
        velocities = [MOMENTUM * v + u for v, u in zip(velocities, along, strict=True)]
        parameters = [p - STEP * v for p, v in zip(parameters, velocities, strict=True)]
    return flat(parameters)


def paper_beta(task, start, *, project):
    """σ̂²/(σ̂² + max(d̂², 0)) from B stored gradients of two points, as the appendix prints it."""
    generator = torch.Generator().manual_seed(seed_of(SEED, 1, TARGET, PROBING))
    pairs = torch.randperm(N_TARGET, generator=generator).reshape(-1, 2)
    x, y = task.target.x, task.target.y
    batches = torch.stack([flat(gradients(start, x[rows], y[rows])) for rows in pairs])
    source = flat(gradients(start, task.sources[0].x, task.sources[0].y))
    count = len(batches)
    variance = (batches - batches.mean(0)).square().sum() / (count - 1)
    sigma2 = variance / count
    if project:
        unit = source / source.norm()
        batches = batches - (batches @ unit)[:, None] * unit
        variance = (batches - batches.mean(0)).square().sum() / (count - 1)
        source = torch.zeros_like(source)
    apart = (batches - source).square().sum() / count - variance
    return float(sigma2 / (sigma2 + apart.clamp(min=0)))


def run(task, method, **options):
    return fb.run(task, method, rounds=ROUNDS, seed=SEED, workers=1, **options)


@pytest.mark.parametrize(
    ("method", "beta", "project", "options"),
    [
        ("target-only", 0.0, False, {}),
        ("source-only", 1.0, False, {}),
        ("fedda", 0.5, False, {}),
        ("fedgp", 0.5, True, {}),
        ("fedda-auto", None, False, WHOLE),
        ("fedgp-auto", None, True, WHOLE),
    ],
)
def test_a_run_is_the_papers_loop(task, start, method, beta, project, options):
    if beta is None:
        beta = paper_beta(task, start, project=project)
        assert 0.1 < beta < 0.9
    result = run(task, method, **options)
    assert [line["beta"][0] for line in result.history] == [pytest.approx(beta, rel=1e-4)] * ROUNDS
    expected = trained(task, start, beta, project=project)
    found = parameter_vector(result.model).double()
    assert float((found - expected).abs().max()) < 1e-6
    moved = float((expected - flat(start)).abs().max())
    assert moved > 0.1, "or the comparison says nothing"


def test_momentum_that_starts_anew_is_another_run(task, start):
    expected = trained(task, start, 0.5)
    found = parameter_vector(run(task, "fedda", server_momentum=0.0).model).double()
    assert float((found - expected).abs().max()) > 0.1


def test_what_was_measured_at_the_start_stands_in_the_first_round_alone(task, start):
    first, *later = run(task, "fedda-auto", **WHOLE).history
    batches = first["sigma2"] / (first["sigma2"] + first["d2"][0])
    assert first["beta"] == [pytest.approx(batches)]
    assert all(line["sigma2"] is None for line in later)


@pytest.mark.parametrize(
    ("n", "too_large", "ours_too_large"), [(6, 1.0, 1.0), (7, 5 / 4, 7 / 6)], ids=["even", "odd"]
)
def test_the_scripts_noise_and_ours_mean_nearly_the_same(n, too_large, ours_too_large):
    """Theirs: ⌊n/2⌋ pairs drawn freely, about the mean of all. Ours: a split in pairs. Both s²/n.

    The odd one out makes theirs too large by (n−2)/(n−3) and ours by n/(n−1).
    """
    points = torch.randn(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    middle, half = points.mean(0), n // 2
    truth = (points - middle).square().sum() / (n - 1) / n

    def noise(means, centre):
        return (means - centre).square().sum() / (half - 1) / half

    pairs = list(combinations(range(n), 2))
    means = torch.stack([points[list(pair)].mean(0) for pair in pairs])
    theirs = half / len(pairs) * noise(means, middle)
    splits = [
        torch.stack([means[pairs.index(pair)] for pair in split])
        for split in combinations(pairs, half)
        if len({*split[0], *split[1], *split[2]}) == 6
    ]
    ours = sum(noise(split, split.mean(0)) for split in splits) / len(splits)
    assert len(splits) == (15 if n == 6 else 105)
    assert_close(theirs, too_large * truth)
    assert_close(ours, ours_too_large * truth)
