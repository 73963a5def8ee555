"""The runs of a table in a few processes: longest first, and nothing loaded or trained twice."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from small import blobs

import fedbridge as fb
from fedbridge.federation import source_rounds
from fedbridge.federation.federation import Federation
from fedbridge.runs.variant import Variant
from fedbridge.workflows import loaded
from fedbridge.workflows.cells import SCRATCH, Durations, PlannedRun
from fedbridge.workflows.compared import Setting

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = [Setting(name, "digits-noise") for name in ("easy", "hard")]


def planned(*which: tuple[int, str, int]) -> list[PlannedRun]:
    return [
        PlannedRun(SETTINGS[setting], Variant(method), 0, rounds, {}, None)
        for setting, method, rounds in which
    ]


def in_order(lengths: Durations) -> list[int]:
    return sorted(range(len(lengths.cells)), key=lengths, reverse=True)


def test_before_anything_is_known_what_usually_takes_long_comes_first():
    lengths = Durations(
        planned((0, "alone-logistic", 5), (0, "fedavg", 5), (0, "auto", 5), (0, "fedgp", 50))
    )
    assert in_order(lengths) == [3, 2, 1, 0]


def test_what_is_known_puts_the_rest_in_order():
    lengths = Durations(
        planned((0, "auto", 10), (0, "fedgp", 10), (1, "auto", 10), (0, "fedgp", 90), (0, "mme", 1))
    )
    lengths.note(0, 50.0)
    lengths.note(1, 4.0)
    assert lengths(2) == 50.0  # as in the other setting
    assert lengths(3) == 36.0  # by its rounds
    assert lengths(4) == pytest.approx(1.2)  # beside 2.0 and 0.4 for a round of fedavg
    lengths.note(2, 80.0)
    assert lengths(2) == 80.0
    assert lengths(0) == 50.0
    assert in_order(lengths) == [2, 0, 3, 1, 4]


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Lines of all processes: what was loaded and which rounds of the sources were trained."""
    file = tmp_path / "journal"
    load_task, train = loaded.load_task, Federation.sources_round

    def write(line: str) -> None:
        with file.open("a") as lines:
            lines.write(line + "\n")

    def noted_load(name, target, seed, **options):
        write(f"load {os.getpid()} {seed}")
        return load_task(name, target, seed, **options)

    def noted_training(self, round, state):
        write(f"train {self.seed} {round}")
        return train(self, round, state)

    monkeypatch.setattr(loaded, "load_task", noted_load)
    monkeypatch.setattr(Federation, "sources_round", noted_training)
    monkeypatch.setattr(source_rounds, "WORTH_IT", 0)
    loaded._tasks.clear()
    file.touch()
    return file


METHODS = ["fedavg", "fedda", "recalibrate"]


def compared(out, workers=2, **options):
    usual = {"seeds": 2, "rounds": 2, "warmup": 1, "workers": workers, "alone": False}
    return fb.compare("digits-noise", METHODS, out=out, **{**usual, **options})


def test_every_process_loads_a_task_once(journal, tmp_path):
    found = compared(tmp_path / "out")
    assert len(found.frame()) == 12
    loads = [line for line in journal.read_text().splitlines() if line.startswith("load")]
    assert len(loads) == len(set(loads))
    first = [line for line in loads if line.endswith(" 0")]
    assert len(first) == 1  # checked before, and inherited
    assert len(loads) <= 3


@pytest.mark.parametrize("workers", [1, 2])
def test_the_warm_up_is_trained_once_for_all_methods_of_a_seed(journal, tmp_path, workers):
    compared(tmp_path / "out", workers)
    lines = [line for line in journal.read_text().splitlines() if line.startswith("train")]
    wanted = {f"train {seed} {number}" for seed in (0, 1) for number in (0, 1, 2)}
    assert set(lines) == wanted
    at_once = workers  # two that begin together may both train
    assert all(lines.count(line) <= at_once for line in wanted)
    assert not (tmp_path / "out" / SCRATCH).exists()


def test_results_are_those_of_single_runs(journal, tmp_path):
    compared(tmp_path / "out", seeds=1)
    loaded._tasks.clear()
    for method in METHODS:
        alone = fb.run("digits-noise", method, rounds=2, warmup=1, workers=1)
        run = fb.load_run(tmp_path / "out" / "cells" / f"digits-noise-{method}-0")
        history = run.history.to_dict("records")
        assert [line["loss"] for line in history] == [line["loss"] for line in alone.history]
        assert [ln["bytes_up"] for ln in history] == [ln["bytes_up"] for ln in alone.history]


def test_what_a_killed_comparison_left_is_cleared_first(journal, tmp_path):
    compared(tmp_path / "out", seeds=1)
    left = tmp_path / "out" / SCRATCH / ".half.partial"
    left.parent.mkdir()
    left.write_text("half")
    seen = []

    def look(done, all_cells, name):
        seen.append(left.exists())

    compared(tmp_path / "out", progress=look)
    assert seen
    assert not any(seen)
    assert not left.parent.exists()


def test_a_comparison_without_a_folder_shares_too_and_leaves_nothing(
    journal, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    found = fb.compare(blobs(), METHODS, seeds=1, rounds=1, warmup=1, workers=1, alone=False)
    assert len(found.frame()) == 6
    lines = journal.read_text().splitlines()
    assert lines.count("train 0 0") == 1
    assert not list((tmp_path / "temporary").iterdir())
