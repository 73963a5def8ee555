"""Engines: the same bits however many workers there are, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from small import blobs, federation
from torch import nn

from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.engines.local import LocalEngine
from fedbridge.engines.workers import WorkerEngine, make_engine
from fedbridge.training.job import Job, LocalPlan


def jobs_of(fed):
    return [fed.job(1, client, fed.initial, noise="sketch") for client in range(fed.n_sources + 1)]


def run_on(engine, fed):
    done = engine.run(jobs_of(fed), [fed.initial], round=1).value
    return done.outcomes, done.vectors.clone()


def opened(engine, rows=4):
    engine.open(slots=1, rows=rows)
    return engine


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_workers_give_the_same_bits_as_one_process(workers, start_method):
    fed = federation(model="mlp:8")
    local, rows = run_on(opened(LocalEngine(fed.bench)), fed)
    engine = opened(WorkerEngine(fed.bench, workers, start_method=start_method))
    try:
        for _ in range(2):
            outcomes, others = run_on(engine, fed)
            assert torch.equal(rows, others)
            for ours, theirs in zip(local, outcomes, strict=True):
                assert ours.loss == theirs.loss
                assert torch.equal(ours.noise, theirs.noise)
                assert torch.equal(ours.sketches, theirs.sketches)
    finally:
        engine.close()


def test_room_for_many_clients_is_taken_only_as_they_write():
    """A thousand rows of which one is written cost one."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("Linux tells how much shared memory is there")

    def shared():
        line = next(ln for ln in status.read_text().splitlines() if ln.startswith("RssShmem"))
        return 1024 * int(line.split()[1])

    fed = federation(model="mlp:2000")
    before = shared()
    engine = opened(WorkerEngine(fed.bench, 2), rows=1000)
    try:
        whole = 4 * engine._vectors.numel()
        assert whole > 20_000_000
        engine._vectors[0] = 1.0
        assert shared() - before < whole / 10
        assert engine._vectors.is_shared()
    finally:
        engine.close()


def test_the_longest_work_is_handed_out_first():
    fed = federation(blobs(rows=40))
    engine = opened(WorkerEngine(fed.bench, 1), rows=3)
    do, done = engine._crew.do, []
    engine._crew.do = lambda *args: (done.append(event.item) or event for event in do(*args))
    plans = [LocalPlan(batch_size=8, epochs=epochs) for epochs in (1, 5, 3)]
    try:
        engine.run([Job(1, plan, 0) for plan in plans], [fed.initial], round=1)
    finally:
        engine.close()
    assert done == [1, 2, 0]


class DiesAtOneSite(nn.Module):
    """Ends the process that trains on rows with a first entry above 100."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        if self.training and float(x[0, 0]) > 100:
            os._exit(7)
        return self.head(x)


def test_a_worker_that_dies_loses_its_job_only_and_is_replaced():
    task = blobs()
    task.sources[1].x.add_(1000)
    fed = federation(task, model=DiesAtOneSite())
    engine = opened(WorkerEngine(fed.bench, 2), rows=4)
    try:
        for _ in range(2):
            outcomes, _ = run_on(engine, fed)
            assert [outcome.lost for outcome in outcomes] == [False, False, True, False]
            assert "code 7" in outcomes[2].failure
    finally:
        engine.close()


def test_close_ends_all_workers():
    fed = federation()
    engine = opened(WorkerEngine(fed.bench, 2), rows=4)
    processes = [worker.process for worker in engine._crew.children]
    engine.close()
    assert not any(process.is_alive() for process in processes)


def test_more_jobs_than_room_is_refused():
    fed = federation()
    engine = opened(WorkerEngine(fed.bench, 2), rows=2)
    try:
        with pytest.raises(FedbridgeError, match="at most 2 jobs"):
            engine.run(jobs_of(fed), [fed.initial], round=1)
    finally:
        engine.close()


def test_the_engine_follows_the_number_of_workers():
    bench = federation().bench
    assert isinstance(make_engine(bench, workers=1), LocalEngine)
    engine = make_engine(bench, workers=2)
    assert isinstance(engine, WorkerEngine)
    engine.close()
    with pytest.raises(OptionError, match="workers"):
        make_engine(bench, workers=0)


SCRIPT = """
import torch, fedbridge as fb
import sys
x = lambda: (torch.randn(20, 2), torch.arange(20) % 2)
class Mine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.head(x)
task = fb.FederatedTask.from_arrays(sources=[x(), x()], target=x(), test=x())
def show(line):
    print("round", line["round"], flush=True)
rounds = int(sys.argv[1])
fb.run(task, "fedda", rounds, workers=2, model=lambda task: Mine(), callbacks=[show])
print("done", flush=True)
"""


def test_a_script_without_a_main_guard_works(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, str(script), "2"], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "round 1\nround 2\ndone\n"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(textwrap.dedent(SCRIPT))
    parent = subprocess.Popen(
        [sys.executable, str(script), "100000"], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout.readline() == "round 1\n"
    children = children_of(parent.pid)
    assert len(children) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(is_alive(child) for child in children):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)


def children_of(pid):
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
