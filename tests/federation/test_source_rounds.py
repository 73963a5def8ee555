"""Rounds of the sources that several runs share: done once, with the same bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import blobs, federation, same_but_for_seconds, same_model

import fedbridge as fb
from fedbridge.data.preparing import AddNoise
from fedbridge.federation import source_rounds
from fedbridge.federation.federation import Federation
from fedbridge.federation.source_rounds import SourceRounds
from fedbridge.training.state import State

WARM = {"fedgp-auto": 2, "fedavg": 2, "auto": 2, "ditto": 2}
"""Rounds of the sources alone in a run of two rounds after as many of the warm-up."""
SHARED = {**WARM, "recalibrate": 4, "finetune-offline": 4}


@pytest.fixture(autouse=True)
def small_rounds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_rounds, "WORTH_IT", 0)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rounds in which sources alone were really trained."""
    rounds, train = [], Federation.sources_round

    def noted(self, round, state):
        rounds.append(round)
        return train(self, round, state)

    monkeypatch.setattr(Federation, "sources_round", noted)
    return rounds


def run(method: str, task: fb.FederatedTask | None = None, **options):
    usual = {"rounds": 2, "warmup": 2, "workers": 1, "seed": 1}
    return fb.run(blobs() if task is None else task, method, **{**usual, **options})


def test_runs_that_share_them_have_the_same_bits_and_train_once(tmp_path, trained):
    task = blobs()
    apart = {method: run(method, task) for method in SHARED}
    assert len(trained) == sum(SHARED.values())
    trained.clear()
    with SourceRounds(tmp_path).shared():
        together = {method: run(method, task) for method in SHARED}
    assert sorted(trained) == [-1, 0, 1, 2]  # the two that go on share these too
    for method, result in together.items():
        assert same_but_for_seconds(result.history, apart[method].history)
        assert same_model(result.model, apart[method].model)


def test_runs_with_other_targets_share_them_too(tmp_path, trained):
    task = blobs()
    noisy = replace(task, target=replace(task.target, x=task.target.x + 1))
    apart = run("fedgp", noisy)
    trained.clear()
    with SourceRounds(tmp_path).shared():
        run("fedgp", task)
        together = run("fedgp", noisy)
    assert trained == [-1, 0]
    assert same_model(together.model, apart.model)


def test_nothing_is_shared_outside(tmp_path, trained):
    with SourceRounds(tmp_path).shared():
        run("fedavg")
    run("fedavg")
    assert trained == [-1, 0, -1, 0]


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 2},
        {"lr": 0.01},
        {"batch_size": 4},
        {"model": "mlp:8"},
        {"participation": 0.5},
        {"weights": "samples"},
        {"norm_ratio": 500.0},
        {"class_weights": "balanced"},
    ],
    ids=str,
)
def test_what_decides_a_round_tells_it_from_others(tmp_path, trained, other):
    with SourceRounds(tmp_path).shared():
        run("fedavg")
        run("fedavg", **other)
        run("fedavg", lr_factor=0.5, batch_size_target=3)  # what a warm-up does not know
    assert trained == [-1, 0, -1, 0]


def test_other_rows_or_another_preparation_are_another_round(tmp_path, trained):
    task = blobs()
    one = task.sources[0]
    x = one.x.clone()
    x[0, 0] += 1
    noisy = replace(one, prepare=AddNoise(0.1))
    unknown = replace(one, prepare=lambda x, generator: x)
    with SourceRounds(tmp_path).shared():
        for site in (one, replace(one, x=x), noisy, unknown, unknown):
            run("fedavg", replace(task, sources=(site, *task.sources[1:])))
    assert len(trained) == 5 * 2


def test_dropouts_are_shared_and_failures_are_not(tmp_path, trained):
    with SourceRounds(tmp_path).shared():
        for _ in range(2):
            result = run("fedavg", dropout=0.5)
            lost = [line["failures"] for line in result.history[:2]]
    assert lost[0] or lost[1]
    assert same_but_for_seconds(result.history, run("fedavg", dropout=0.5).history)
    assert len(trained) == 2 + 2
    trained.clear()
    task = blobs()
    spoilt = replace(task.sources[0], x=1e30 * task.sources[0].x)
    task = replace(task, sources=(spoilt, *task.sources[1:]))
    with SourceRounds(tmp_path).shared():
        for _ in range(2):
            assert run("fedavg", task).history[0]["failures"]
    assert len(trained) == 4


def test_a_damaged_file_a_full_folder_and_a_missing_one_mean_training(
    tmp_path, trained, monkeypatch
):
    rounds = SourceRounds(tmp_path / "there")
    rounds.folder.mkdir()
    with rounds.shared():
        run("fedavg")
        for file in rounds.folder.iterdir():
            file.write_bytes(file.read_bytes()[:-7])
        run("fedavg")
        assert trained == [-1, 0] * 2
        for file in rounds.folder.iterdir():
            file.unlink()
        monkeypatch.setattr(source_rounds, "MOST_BYTES", 10)
        run("fedavg")
        assert not list(rounds.folder.iterdir())
        rounds.folder.rmdir()
        run("fedavg")
    assert trained == [-1, 0] * 4
    assert not rounds.folder.exists()


def test_small_rounds_are_not_looked_for(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(source_rounds, "WORTH_IT", 10**8)
    with SourceRounds(tmp_path).shared():
        run("fedavg")
    assert not list(tmp_path.iterdir())


def test_a_model_comes_back_as_it_was_put(tmp_path):
    rounds, fed = SourceRounds(tmp_path), federation()
    state = State(fed.initial.parameters, {"norm.mean": torch.rand(3), "n": torch.tensor(7)})
    key = rounds.key(fed, 0, state)
    assert rounds.get(key) is None
    rounds.put(key, state)
    back = rounds.get(key)
    assert torch.equal(back.parameters, state.parameters)
    assert all(torch.equal(back.buffers[name], value) for name, value in state.buffers.items())
    assert rounds.key(fed, 1, state) != key
    assert rounds.key(fed, 0, fed.initial) != key
