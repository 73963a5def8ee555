"""Evaluations beside the next round's training: the same bits, and nothing that waits is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from small import Normed, blobs, federation, same_but_for_seconds, same_model

import fedbridge as fb
from fedbridge.engines import workers
from fedbridge.engines.local import LocalEngine
from fedbridge.engines.workers import WorkerEngine
from fedbridge.methods.rule import RuleMethod
from fedbridge.training.state import Blend, State
from fedbridge.training.trainer import Workbench

ROUNDS = 5


@pytest.fixture
def evaluated_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rounds whose models this process has evaluated; small test sets are worth workers' time."""
    monkeypatch.setattr(workers, "WORTH_IT", 1)
    rounds, evaluate, here = [], Workbench.evaluate, os.getpid()

    def noted(self, round, state):
        if os.getpid() == here:
            rounds.append(round)
        return evaluate(self, round, state)

    monkeypatch.setattr(Workbench, "evaluate", noted)
    return rounds


def run(workers: int, **more):
    options = {"rounds": ROUNDS, "workers": workers, "lr": 0.1, **more}
    return fb.run(blobs(), options.pop("method", "fedgp-auto"), **options)


@pytest.mark.parametrize("method", ["fedgp-auto", "fedavg", "ditto", "auto", "alone-logistic"])
def test_the_result_is_the_same(method, evaluated_here):
    alone, beside = run(1, method=method), run(2, method=method)
    assert same_but_for_seconds(alone.history, beside.history)
    assert same_model(alone.model, beside.model)


def test_workers_evaluate_all_rounds_but_the_last(evaluated_here):
    lines = []
    run(2, callbacks=[lines.append], warmup=1)
    assert evaluated_here == [ROUNDS]
    assert [line["round"] for line in lines] == [*range(ROUNDS + 1)]


def test_buffers_are_those_of_the_round(evaluated_here):
    given = Normed()
    results = [run(count, model=given) for count in (1, 2)]
    assert same_but_for_seconds(*(result.history for result in results))


def test_few_test_rows_are_evaluated_at_once(evaluated_here, monkeypatch):
    monkeypatch.setattr(workers, "WORTH_IT", 61)
    run(2)
    assert evaluated_here == [*range(1, ROUNDS + 1)]


def test_nothing_waits_where_the_next_round_depends_on_it(evaluated_here):
    result = run(2, early_stopping=2)
    assert evaluated_here == [line["round"] for line in result.history]


def test_a_blend_is_evaluated_here(evaluated_here):
    fed = federation()
    engine = WorkerEngine(fed.bench, 2)
    engine.open(slots=1, rows=4)
    try:
        initial = fed.initial
        assert engine.postpone(1, initial)
        assert not engine.postpone(1, Blend((initial,), initial.parameters[:1]))
    finally:
        engine.close()


def test_an_engine_knows_what_a_worker_has_found(evaluated_here):
    fed = federation()
    jobs = [fed.job(1, client, fed.initial) for client in range(fed.n_sources + 1)]
    engine = WorkerEngine(fed.bench, 2)
    engine.open(slots=1, rows=4)
    try:
        moved = State(2 * fed.initial.parameters, {})
        assert engine.postpone(3, moved)
        engine.run(jobs, [fed.initial], round=4)
        found = engine.evaluate(3, moved).value
        assert evaluated_here == []
        assert found == LocalEngine(fed.bench).evaluate(3, moved).value
        assert engine.evaluate(3, fed.initial).value != found  # it is told once
    finally:
        engine.close()


def test_a_worker_that_dies_with_it_loses_nothing(evaluated_here, monkeypatch):
    monkeypatch.setattr(workers, "TRAINING_COSTS", 1e-6)  # the longest work comes first
    do_job = workers._do_job

    def dying(bench, starts, results, item, tell):
        if isinstance(item, workers.Postponed) and item.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return do_job(bench, starts, results, item, tell)

    monkeypatch.setattr(workers, "_do_job", dying)
    result = run(2)
    assert evaluated_here == [2, ROUNDS]
    assert not any(line["failures"] for line in result.history)
    assert same_but_for_seconds(result.history, run(1).history)


def test_a_round_that_fails_leaves_the_one_before(evaluated_here, monkeypatch, tmp_path):
    run_round = RuleMethod.run_round

    def failing(self, round):
        if round == 4:
            raise RuntimeError("the lights went out")
        return run_round(self, round)

    monkeypatch.setattr(RuleMethod, "run_round", failing)
    lines = []
    with pytest.raises(RuntimeError, match="lights"):
        run(2, out=tmp_path / "run", callbacks=[lines.append])
    assert [line["round"] for line in lines] == [1, 2, 3]
    monkeypatch.setattr(RuleMethod, "run_round", run_round)
    seen = []
    resumed = run(2, out=tmp_path / "run", resume=True, callbacks=[seen.append])
    assert [line["round"] for line in seen] == [4, 5]
    assert same_but_for_seconds(resumed.history, run(1).history)


def test_a_callback_that_raises_is_heard_once(evaluated_here, tmp_path):
    seen = []

    def tired(line):
        seen.append(line["round"])
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(2, out=tmp_path / "run", callbacks=[tired])
    assert seen == [1, 2]
    resumed = run(2, out=tmp_path / "run", resume=True)
    assert same_but_for_seconds(resumed.history, run(1).history)


def test_a_killed_run_goes_on_to_the_same_bits(evaluated_here, tmp_path):
    script = textwrap.dedent(
        """
        import os, signal, sys
        from small import blobs
        import fedbridge as fb
        from fedbridge.engines import workers
        from fedbridge.federation import loop

        workers.WORTH_IT, loop.PAUSE = 1, 0.0

        def die(line):
            if line["round"] == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        fb.run(blobs(), "fedgp-auto", rounds=5, workers=2, lr=0.1, out=sys.argv[1], callbacks=[die])
        """
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    seen = []
    resumed = run(2, out=tmp_path / "run", resume=True, callbacks=[seen.append])
    assert [line["round"] for line in seen] == [4, 5]
    straight = run(1)
    assert same_but_for_seconds(resumed.history, straight.history)
    assert same_model(resumed.model, straight.model)
