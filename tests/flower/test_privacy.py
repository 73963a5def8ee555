"""Local differential privacy: clip and noise hold, epsilon is honest, and every message counts."""

import dataclasses
import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import small
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from fedbridge import Blocks
from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.flower.privacy import (
    LocalPrivacy,
    PrivacyBudget,
    PrivacySpentError,
    clipped,
    epsilon,
    privacy_in,
    protect,
    release,
)
from fedbridge.training import accountant
from fedbridge.training.accountant import Look, composed_epsilon
from fedbridge.training.chance import PIECE, unpredictable_normals
from fedbridge.training.job import ClientResult, Job, LocalPlan, Outcome
from fedbridge.training.record_privacy import RecordPrivacy

SIZES = (3, 5)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed))


def exact_epsilon(privacy, releases):
    """The smallest epsilon of Gaussian noise (Balle and Wang's formula), by root finding.

    Releases of Gaussian noise are together one release in as many dimensions: ``mu = 2√T / z``.
    """
    mu = 2 * math.sqrt(releases) / privacy.noise

    def excess(candidate):
        beyond = math.exp(candidate + stats.norm.logcdf(-mu / 2 - candidate / mu))
        return stats.norm.cdf(mu / 2 - candidate / mu) - beyond - privacy.delta

    return optimize.brentq(excess, 0.0, 1e5) if excess(0.0) > 0 else 0.0


def concentrated_epsilon(privacy, releases):
    """The bound of zero-concentrated differential privacy, ``ρ + 2√(ρ ln 1/δ)``."""
    rho = releases * 2 / privacy.noise**2
    return rho + 2 * math.sqrt(rho * math.log(1 / privacy.delta))


@given(
    st.integers(1, 4),
    st.integers(1, 50),
    st.sampled_from([1e-40, 1e-3, 1.0, 1e6, 1e37]),
    st.sampled_from([1e-6, 0.5, 3.0, 1e9]),
    st.integers(0, 10**6),
)
def test_all_vectors_of_a_message_together_are_no_longer_than_the_clip(n, size, scale, clip, seed):
    vectors = [normal(size, seed=seed + k) * scale for k in range(n)]
    sent = protect(vectors, LocalPrivacy(clip, 0.0))
    assert float(torch.cat(sent).double().norm()) <= clip * (1 + 1e-6)


@given(st.integers(1, 50), st.sampled_from([1e-3, 1.0, 1e6, 1e37]), st.integers(0, 10**6))
def test_what_noise_is_added_to_is_within_the_bound_to_the_last_digits(size, scale, seed):
    assert float(clipped(normal(size, seed=seed) * scale, 0.5).norm()) <= 0.5 * (1 + 1e-14)


def test_a_short_vector_is_not_clipped_and_a_long_one_keeps_its_direction():
    short, long = torch.tensor([0.3, 0.4]), torch.tensor([30.0, 40.0])
    assert torch.equal(protect([short], LocalPrivacy(1.0, 0.0))[0], short)
    torch.testing.assert_close(protect([long], LocalPrivacy(1.0, 0.0))[0], torch.tensor([0.6, 0.8]))


def test_a_long_gradient_does_not_push_a_short_update_aside():
    update, gradient = torch.tensor([0.3, 0.4]), torch.tensor([3e4, 4e4])
    sent = protect([update, gradient], LocalPrivacy(1.0, 0.0))
    assert torch.equal(sent[0], update)
    torch.testing.assert_close(sent[1], torch.tensor([0.6, 0.8]) / math.sqrt(2))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_vector_that_is_not_finite_is_sent_as_zero(bad):
    sent = protect([torch.tensor([1.0, bad]), torch.ones(2)], LocalPrivacy(9.0, 0.0))
    assert torch.equal(sent[0], torch.zeros(2))
    assert torch.equal(sent[1], torch.ones(2))


@pytest.mark.parametrize("generator", [None, seeded(3)], ids=["system", "given"])
def test_every_entry_gets_noise_of_deviation_z_times_the_clip(generator):
    privacy = LocalPrivacy(clip=0.5, noise=3.0)
    vectors = [torch.full((40_000,), 1e-3), torch.zeros(10_000)]
    sent = protect(vectors, privacy, generator)
    added = torch.cat(sent) - torch.cat(vectors)
    assert float(added.std()) == pytest.approx(1.5, rel=0.02)
    assert abs(float(added.mean())) < 5 * 1.5 / math.sqrt(50_000)


def test_numbers_of_the_system_are_normal_across_pieces():
    drawn = unpredictable_normals(PIECE + 1000)
    assert drawn.shape == (PIECE + 1000,)
    assert drawn.dtype == torch.float64
    assert stats.kstest(drawn[-20_000:].numpy(), "norm").pvalue > 1e-6
    assert abs(float((drawn[:-1] * drawn[1:]).mean())) < 6 / math.sqrt(PIECE)
    half = PIECE // 2
    assert abs(float((drawn[:half] * drawn[half : 2 * half]).mean())) < 6 / math.sqrt(half)


def test_no_seed_of_torch_tells_the_noise():
    privacy, vector = LocalPrivacy(1.0, 1.0), torch.zeros(20)
    torch.manual_seed(0)
    first = protect([vector], privacy)[0]
    torch.manual_seed(0)
    assert not torch.equal(first, protect([vector], privacy)[0])


def test_a_message_without_vectors_stays_one():
    assert protect([], LocalPrivacy(1.0, 1.0)) == []


@pytest.mark.parametrize("noise", [0.5, 2.0, 8.0, 50.0])
@pytest.mark.parametrize("rounds", [1, 10, 200])
def test_epsilon_is_an_upper_bound_close_to_the_exact_one(noise, rounds):
    privacy = LocalPrivacy(0.7, noise)
    reported, exact = epsilon(privacy, rounds), exact_epsilon(privacy, rounds)
    assert exact <= reported <= 1.15 * exact
    assert reported <= concentrated_epsilon(privacy, rounds)


@pytest.mark.parametrize("delta", [1e-3, 1e-7])
def test_epsilon_follows_delta(delta):
    privacy = LocalPrivacy(1.0, 5.0, delta)
    exact = exact_epsilon(privacy, 10)
    assert exact <= epsilon(privacy, 10) <= 1.2 * exact


def test_epsilon_does_not_depend_on_the_clip_and_grows_with_messages():
    assert epsilon(LocalPrivacy(0.01, 4.0), 10) == epsilon(LocalPrivacy(100.0, 4.0), 10)
    assert epsilon(LocalPrivacy(1.0, 4.0), 10) == epsilon(LocalPrivacy(1.0, 4.0), 5, 2)
    assert epsilon(LocalPrivacy(1.0, 4.0), 10) < epsilon(LocalPrivacy(1.0, 4.0), 11)


def test_without_a_message_nothing_is_told_and_without_noise_everything():
    assert epsilon(LocalPrivacy(1.0, 4.0), 0) == 0.0
    assert epsilon(LocalPrivacy(1.0, 0.0), 1) == math.inf


def test_a_missing_accountant_is_named_with_its_extra(monkeypatch):
    accountant._cost.cache_clear()
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis.rdp", None)
    with pytest.raises(OptionError, match=r"pip install 'fedbridge\[privacy\]'"):
        epsilon(LocalPrivacy(1.0, 4.0), 1)


@pytest.mark.parametrize(
    "values", [(0, 1), (-1, 1), (math.nan, 1), (1, -1), (1, math.inf), (True, 1), ("1", 1)]
)
def test_clip_and_noise_that_make_no_sense_are_refused(values):
    with pytest.raises(OptionError, match=r"^Expected"):
        LocalPrivacy(*values)


@pytest.mark.parametrize("delta", [0, 1, -0.5, math.nan])
def test_delta_is_a_chance(delta):
    with pytest.raises(OptionError, match="delta"):
        LocalPrivacy(1.0, 1.0, delta)


def test_a_sites_configuration_says_how_it_is_protected():
    assert privacy_in({"site": "A", "data": "x.csv"}) == (None, None)
    given = {"dp-clip": 2, "dp-noise": 0.5, "dp-delta": 1e-6, "dp-budget": 9}
    assert privacy_in(given) == (LocalPrivacy(2.0, 0.5, 1e-6), 9.0)
    given = {"record-epsilon": 3, "record-rounds": 20, "record-clip": 0.5}
    assert privacy_in(given) == (RecordPrivacy(3.0, 20, 0.5), 3.0)


@pytest.mark.parametrize(
    "config",
    [
        {"dp-clip": 1.0},
        {"dp-noise": 1.0},
        {"dp-budget": 1.0},
        {"dp_clip": 1.0, "dp_noise": 1.0},
        {"DP-clip": 1.0},
        {"dp-clip": 1.0, "dp-noise": 1.0, "dp-epsilon": 1.0},
        {"dp-clip": "1", "dp-noise": 1.0},
        {"dp-clip": True, "dp-noise": 1.0},
        {"record-epsilon": 3.0},
        {"record-rounds": 10},
        {"record_epsilon": 3.0, "record-rounds": 10},
        {"record-epsilon": 3.0, "record-rounds": 10, "record-noise": 1.0},
        {"record-epsilon": 0, "record-rounds": 10},
        {"record-epsilon": 3.0, "record-rounds": 1.5},
        {"record-epsilon": 3.0, "record-rounds": 10, "dp-clip": 1.0},
    ],
)
def test_a_site_that_wants_protection_never_goes_without_by_a_slip(config):
    with pytest.raises(OptionError, match=r"dp-|record[-_]"):
        privacy_in(config)


def test_rounds_are_counted_in_whole_numbers():
    with pytest.raises(OptionError, match="rounds"):
        epsilon(LocalPrivacy(1.0, 1.0), -1)
    with pytest.raises(OptionError, match="releases_per_round"):
        epsilon(LocalPrivacy(1.0, 1.0), 1, 0)


def jobs():
    plan = LocalPlan(lr=0.2, batch_size=4, epochs=3, noise="sketch")
    buffers = {"norm.running_mean": torch.zeros(2)}
    return [
        Job(1, plan, seed=0, buffers=buffers),
        Job(1, dataclasses.replace(plan, noise="none"), seed=0, kind="probe", max_batches=2),
        Job(1, dataclasses.replace(plan, noise="none"), seed=0, buffers=buffers),
    ]


def telling(vector):
    """A report that holds everything a site could say about its rows."""
    return ClientResult(
        Outcome(
            10,
            9,
            0.2,
            loss=0.123,
            buffers={"norm.running_mean": torch.ones(2)},
            noise=torch.ones(2).double(),
            batches=3,
            sketches=torch.ones(2, 2, 2, 4),
            told={"entropy": torch.tensor(0.5)},
            seconds=1.5,
        ),
        vector,
    )


def fields_of(outcome):
    """An outcome's fields with tensors as lists, so that they can be compared."""
    return {
        name: value.tolist()
        if isinstance(value, torch.Tensor)
        else {k: v.tolist() for k, v in value.items()}
        if isinstance(value, dict)
        else str(value)
        for name, value in vars(outcome).items()
    }


def test_what_is_reported_besides_depends_on_the_job_and_the_number_of_rows_alone():
    privacy, blocks = LocalPrivacy(1.0, 2.0), Blocks.of_sizes(SIZES)
    rich = [telling(normal(8, seed=k)) for k in range(3)]
    broken = [
        ClientResult(Outcome(10, failure="ValueError: patient 17"), normal(8)) for _ in range(3)
    ]
    ours, theirs = (release(jobs(), results, privacy, blocks) for results in (rich, broken))
    for one, other in zip(ours, theirs, strict=True):
        assert fields_of(one.outcome) == fields_of(other.outcome)
        assert one.outcome.failure is None
        assert math.isnan(one.outcome.loss)
        assert one.outcome.sketches is None
        assert not one.outcome.told
        assert one.outcome.seconds == 0.0


def test_the_noise_that_is_reported_is_the_mechanisms_own():
    privacy = LocalPrivacy(clip=0.5, noise=2.0)
    results = [telling(normal(8)) for _ in range(3)]
    trained, probed, unasked = release(jobs(), results, privacy, Blocks.of_sizes(SIZES))
    assert trained.outcome.noise.tolist() == [3.0, 5.0]
    assert probed.outcome.noise.tolist() == [3.0, 5.0]
    assert unasked.outcome.noise is None
    assert torch.equal(trained.outcome.buffers["norm.running_mean"], torch.zeros(2))


def test_a_failed_training_is_sent_as_zero_with_noise():
    broken = ClientResult(Outcome(10, failure="NaN"), torch.full((8,), 5.0))
    privacy = LocalPrivacy(10.0, 0.0)
    sent = release(jobs()[:1], [broken], privacy, Blocks.of_sizes(SIZES))
    assert torch.equal(sent[0].vector, torch.zeros(8))


def test_vectors_are_clipped_over_the_whole_message():
    results = [telling(100 * normal(8, seed=k)) for k in range(3)]
    sent = release(jobs(), results, LocalPrivacy(1.0, 0.0), Blocks.of_sizes(SIZES))
    together = torch.cat([work.vector for work in sent])
    assert float(together.norm()) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("kind", ["train", "probe"])
@pytest.mark.parametrize("noise", ["none", "size"])
@pytest.mark.parametrize("steps", [None, 2, 50])
def test_counts_in_place_of_the_sites_own_are_the_same_counts(kind, noise, steps):
    on = small.federation()
    plan = LocalPlan(lr=0.1, batch_size=8, steps=steps, epochs=2, noise=noise)
    job = Job(1, plan, seed=0, kind=kind, max_batches=3 if kind == "probe" else None)
    outcomes, rows = on.do([job], [on.initial])
    sent = release([job], [ClientResult(outcomes[0], rows[0])], LocalPrivacy(1.0, 1.0), on.blocks)
    for name in ("samples", "steps", "lr", "batches"):
        assert getattr(sent[0].outcome, name) == getattr(outcomes[0], name)
    assert (sent[0].outcome.noise is None) == (outcomes[0].noise is None)


PRIVACY = LocalPrivacy(clip=1.0, noise=8.0)


def spend(path, privacy=PRIVACY, budget=None):
    PrivacyBudget(path).spend({privacy.look: 1}, privacy.delta, budget)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "site" / "privacy.json"


def test_nothing_sent_has_cost_nothing(path):
    assert PrivacyBudget(path).looks == 0
    assert PrivacyBudget(path).epsilon(1e-5) == 0.0


def test_messages_add_up_over_processes_and_runs(path):
    for _ in range(5):
        spend(path)
    assert PrivacyBudget(path).looks == 5
    assert PrivacyBudget(path).epsilon(1e-5) == epsilon(PRIVACY, 5)


def test_another_noise_is_added_to_what_was_sent_before(path):
    louder = LocalPrivacy(clip=1.0, noise=4.0)
    for privacy in (PRIVACY, louder, louder):
        spend(path, privacy)
    together = PrivacyBudget(path).epsilon(1e-5)
    assert together == composed_epsilon({Look(1.0, 4.0): 1, Look(1.0, 2.0): 2}, 1e-5)
    assert epsilon(louder, 2) < together < epsilon(louder, 3)


def test_a_quarter_of_the_variance_costs_as_much_as_four_messages():
    once, often = composed_epsilon({Look(1.0, 2.0): 1}, 1e-5), {Look(1.0, 4.0): 4}
    assert once == pytest.approx(composed_epsilon(often, 1e-5))


def test_beyond_the_budget_nothing_is_sent_and_nothing_is_counted(path):
    budget = 1.001 * epsilon(PRIVACY, 3)
    for _ in range(3):
        spend(path, budget=budget)
    with pytest.raises(PrivacySpentError, match=r"within an epsilon of .* one more message"):
        spend(path, budget=budget)
    assert PrivacyBudget(path).looks == 3


def test_without_noise_no_budget_is_enough(path):
    with pytest.raises(PrivacySpentError, match="make it inf"):
        spend(path, LocalPrivacy(1.0, 0.0), budget=1e9)


def test_messages_at_the_same_time_are_all_counted(path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: spend(path), range(20)))
    assert PrivacyBudget(path).looks == 20


def test_the_file_is_the_sites_own(path):
    spend(path)
    assert path.stat().st_mode & 0o077 == 0


def content(**changed):
    entry = {"rate": 1.0, "noise": 1.0, "looks": 2}
    return json.dumps({"format": 2, "taken": [entry], **changed})


def test_a_count_of_an_earlier_version_goes_on(path):
    path.parent.mkdir()
    path.write_text(json.dumps({"format": 1, "sent": [{"noise": 8.0, "messages": 2}]}))
    spend(path)
    assert PrivacyBudget(path).looks == 3
    assert PrivacyBudget(path).epsilon(1e-5) == epsilon(PRIVACY, 3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        content(format=3),
        content(format=1),
        content(taken=None),
        content(taken=[{"rate": 1.0, "noise": 1.0, "looks": -2}]),
        content(taken=[{"rate": 1.0, "noise": 1.0, "looks": 1.5}]),
        content(taken=[{"rate": 1.0, "noise": -1.0, "looks": 1}]),
        content(taken=[{"rate": 1.5, "noise": 1.0, "looks": 1}]),
        content(taken=[{"rate": 1.0, "noise": "many", "looks": 1}]),
    ],
)
def test_a_damaged_count_is_never_taken_for_none(path, text):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(FedbridgeError, match="restore the file"):
        spend(path)
    assert path.read_text() == text
