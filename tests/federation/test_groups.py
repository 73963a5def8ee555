"""Updates of very many sources are added up as they come: less room, the same round."""

import pytest
import torch
from small import blobs, same_model, same_numbers

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.core.rulebook import Mix, Rule, registry
from fedbridge.engines.local import LocalEngine
from fedbridge.federation import groups

QUICK = {"model": "mlp:8", "lr": 0.1, "batch_size": 8, "workers": 1}
ADDED = ("fedavg", "fedda", "source-only", "fedprox")
SIZE = 3


def told(result):
    """All of a history but times and what is rounded otherwise."""
    exact = ("seconds_train", "seconds_aggregate", "seconds_eval", "cosine", "d2", "tau2_d2")
    return [{k: v for k, v in line.items() if k not in exact} for line in result.history]


@pytest.fixture
def jobs_at_a_time(monkeypatch):
    """Groups of a few sources; how many jobs the engine is given at a time."""
    monkeypatch.setattr(groups, "GROUP", SIZE)
    seen, plain = [], LocalEngine.run

    def run(self, jobs, starts, *, round):
        seen.append((round, [job.client for job in jobs]))
        return plain(self, jobs, starts, round=round)

    monkeypatch.setattr(LocalEngine, "run", run)
    return seen


def kept_and_added(monkeypatch, method, task=None, rounds=2, **options):
    """A run with all updates kept, and the same with groups."""
    task = blobs(sources=8) if task is None else task
    with monkeypatch.context() as patch:
        patch.setattr(groups, "GROUP", 100)
        kept = fb.run(task, method, rounds, **{**QUICK, **options})
    return kept, fb.run(task, method, rounds, **{**QUICK, **options})


def assert_equal_but_for_rounding(kept, added):
    pairs = zip(kept.model.parameters(), added.model.parameters(), strict=True)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in pairs)
    for before, now in zip(kept.history, added.history, strict=True):
        same_numbers(
            *({k: line[k] for k in ("cosine", "beta", "sigma2")} for line in (before, now))
        )
        assert now["failures"] == before["failures"]
        assert now["bytes_up"] == before["bytes_up"]
        assert now["notes"] == before["notes"]


@pytest.mark.parametrize("method", ADDED)
def test_a_round_in_groups_is_the_same_round_with_room_for_one_group(
    monkeypatch, jobs_at_a_time, method
):
    options = {"warmup": 1, "weights": "samples", "participation": 0.9}
    kept, added = kept_and_added(monkeypatch, method, **options)
    assert_equal_but_for_rounding(kept, added)
    rounds = [len(clients) for _, clients in jobs_at_a_time]
    assert max(rounds[:3]) == 8  # seven sources and the target, all kept
    assert max(rounds[3:]) == SIZE + 1
    assert sum(rounds[:3]) == sum(rounds[3:])


@pytest.mark.parametrize("options", [{"dropout": 0.4}, {"beta": [0.1 * k for k in range(8)]}])
def test_who_is_missing_or_trusted_less_counts_as_before(monkeypatch, jobs_at_a_time, options):
    kept, added = kept_and_added(monkeypatch, "fedda", rounds=4, **options)
    assert_equal_but_for_rounding(kept, added)


@pytest.mark.parametrize("method", ["fedgp", "fedgp-auto", "median", "auto"])
def test_rules_that_measure_first_keep_all_updates(monkeypatch, jobs_at_a_time, method):
    fb.run(blobs(sources=8), method, 1, **QUICK)
    assert max(len(clients) for _, clients in jobs_at_a_time) >= 9


def test_the_number_of_workers_changes_no_bit(jobs_at_a_time):
    one, two = (
        fb.run(blobs(sources=8), "fedda", 2, **{**QUICK, "workers": workers}) for workers in (1, 2)
    )
    assert same_model(one.model, two.model)
    assert told(one) == told(two)
    assert one.history[-1]["d2"] == two.history[-1]["d2"]


def longer(monkeypatch, clients, factor=1e5):
    """Let the updates of some clients come back longer."""
    honest = LocalEngine.run

    def run(self, jobs, starts, *, round):
        answer = honest(self, jobs, starts, round=round)
        for job, vector in zip(jobs, answer.value.vectors, strict=True):
            if job.client in clients:
                vector.mul_(factor)
        return answer

    monkeypatch.setattr(LocalEngine, "run", run)


@pytest.mark.parametrize("clients", [{5}, {1, 2, 3}, {2, 3, 5}])
def test_one_who_stands_out_is_left_out_whenever_that_is_seen(monkeypatch, jobs_at_a_time, clients):
    """In a group of whom most are too long that is seen later, and the group trains again."""
    longer(monkeypatch, clients)
    kept, added = kept_and_added(monkeypatch, "fedavg", rounds=1)
    assert set(added.history[0]["failures"]) == {f"site {k - 1}" for k in clients}
    assert_equal_but_for_rounding(kept, added)
    asked = [clients for _, clients in jobs_at_a_time[1:]]
    again = [[1, 2, 3]] if clients == {1, 2, 3} else []
    assert asked == [[0, 1, 2, 3], [4, 5, 6], [7, 8], *again]


def test_a_target_that_stands_out_leaves_the_model_as_it_was(monkeypatch, jobs_at_a_time):
    longer(monkeypatch, {0})
    result = fb.run(blobs(sources=8), "fedavg", 1, **QUICK)
    assert result.history[0]["notes"][0].startswith("the target is missing")
    assert list(result.history[0]["failures"]) == ["target"]


def test_a_rule_whose_weights_depend_on_who_else_is_there_is_told(monkeypatch, jobs_at_a_time):
    def first_half(geometry):
        count = geometry.n_sources
        mine = torch.ones(len(geometry.blocks), dtype=torch.float64)
        theirs = (torch.arange(count) < count / 2).to(torch.float64).expand(len(mine), -1)
        return Mix(mine, theirs, theirs)

    monkeypatch.setitem(
        registry._entries, "first-half", Rule("first-half", first_half, reads="shares")
    )
    with pytest.raises(OptionError, match=r"'first-half'.*leave `reads` out"):
        fb.run(blobs(sources=8), "first-half", 1, **QUICK)
