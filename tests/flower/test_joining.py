"""Sources join and leave while a run goes on; what came of it can be had again from its record."""

from functools import partial
from itertools import pairwise

import pytest
from pretend import PretendGrid, nodes_of
from small import blobs, same_model

from fedbridge import methods
from fedbridge.base.errors import FedbridgeError
from fedbridge.engines import Answer, Finished
from fedbridge.engines.workers import make_engine
from fedbridge.federation.loop import Run
from fedbridge.federation.settings import split_options
from fedbridge.flower import FedBridgeStrategy
from fedbridge.report.model_card import model_card
from fedbridge.runs.folder import RunFolder, RunFolderError, founders
from fedbridge.runs.members import Members, read_members, write_members
from fedbridge.runs.record import read_run
from fedbridge.training.job import Outcome

QUICK = {"model": "linear", "lr": 0.1, "batch_size": 8}
ROUNDS = 6
WHY = "its ethics board says so"


def changing(file, changes):
    """A node's ``spoil`` that changes the members while it trains in some rounds."""

    def spoil(question, answer):
        if question.metadata.message_type.startswith("train"):
            number = question.content.config_records["config"]["server-round"]
            if number in changes:
                write_members(file, changes[number])
        return answer

    return spoil


def run(tmp_path, method, changes, *, rounds=ROUNDS, sites=("site 0", "site 1"), grid=None, **more):
    """A run of two sources of three, in which the third may join."""
    file = tmp_path / "members.json"
    if grid is None:
        nodes = nodes_of(blobs(), tmp_path)
        nodes[0].spoil = changing(file, changes)
        grid = PretendGrid(nodes)
    usual = {"wait": 0.2, "out": tmp_path / "run", "members": file, **QUICK}
    strategy = FedBridgeStrategy(method, target="target", sites=sites, **{**usual, **more})
    strategy.start(grid, num_rounds=rounds)
    return strategy


JOIN = Members(("site 0", "site 1", "site 2"))
JOIN_AND_LEAVE = {2: JOIN, 4: Members(JOIN.sources, {"site 0": WHY})}


def test_the_history_says_who_joined_and_left_when_and_why(tmp_path):
    history = run(tmp_path, "fedda", JOIN_AND_LEAVE).result.history
    assert [line["round"] for line in history] == [1, 2, 3, 4, 5, 6]
    assert "site 2 joins the federation in round 3." in history[2]["notes"]
    assert f"site 0 has left for good: {WHY}." in history[4]["notes"]
    gone = {"site 0": f"has left for good: {WHY}"}
    assert [line["failures"] for line in history] == [{}, {}, {}, {}, gone, gone]
    present = [[beta is not None for beta in line["beta"]] for line in history]
    two, three, others = [True, True, False], [True] * 3, [False, True, True]
    assert present == [two, two, three, three, others, others]
    folder = RunFolder(tmp_path / "run")
    config = folder.config()
    assert config["sources"] == ["site 0", "site 1", "site 2"]
    assert config["joined"] == {"site 2": 3}
    assert {len(line["beta"]) for line in folder.history()} == {3}
    folder.verify()
    assert "site 2" in model_card(read_run(folder.path))
    assert "site 2" in (folder.path / "report.html").read_text()


class Absent:
    """An engine of this machine in which some are absent from some rounds."""

    def __init__(self, bench, failures):
        self.engine, self.bench, self.failures = make_engine(bench, workers=1), bench, failures

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def run(self, jobs, starts, *, round):
        away = self.failures.get(round, {})
        names = [self.bench.sites[job.client].name for job in jobs]
        there = [job for job, name in zip(jobs, names, strict=True) if name not in away]
        done = self.engine.run(there, starts, round=round).value
        vectors = done.vectors.new_zeros(len(jobs), done.vectors.shape[1])
        outcomes, found = [], iter(zip(done.outcomes, done.vectors, strict=True))
        for row, name in enumerate(names):
            if name in away:
                outcomes.append(Outcome(1, failure=away[name], lost=True))
                continue
            outcome, vector = next(found)
            vectors[row] = vector
            outcomes.append(outcome)
        return Answer(Finished(outcomes, vectors))


def replay(record, task, method, out, **options):
    """The run of a record once more on one machine, with its members of every round."""
    config, history = record.config(), record.history()
    joined = config.get("joined", {})
    failures = {line["round"]: line["failures"] for line in history}
    ends = sorted({0, *(number - 1 for number in joined.values()), history[-1]["round"]})
    for _, end in pairwise(ends):
        later = [name for name, number in joined.items() if number > end]
        now = founders(task, later)
        usual = methods.usual_options(method, now, dict(options))
        settings, own = split_options(
            dict(options), method, methods.options_of(method), usual, now.model
        )
        again = Run(
            *(now, method, methods.class_of(method), partial(methods.make, method)),
            *(end, 0, settings, own),
            engine=partial(Absent, failures=failures),
            joined={name: number for name, number in joined.items() if name not in later},
        ).go(RunFolder(out), resume=True)
    return again


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedda", {}),
        ("fedavg", {"participation": 0.5}),
        ("fedda-joint", {"evidence": "init"}),
        ("auto", {}),
    ],
)
def test_a_replay_from_the_record_gives_the_same_numbers(tmp_path, method, more):
    strategy = run(tmp_path, method, JOIN_AND_LEAVE, **more)
    record = RunFolder(tmp_path / "run")
    again = replay(record, blobs(), method, tmp_path / "again", **QUICK, **more)
    same = ("round", "loss", "accuracy", "beta", "failures", "cosine", "d2", "choice")
    for line, expected in zip(strategy.result.history, again.history, strict=True):
        assert {n: line.get(n) for n in same} == {n: expected.get(n) for n in same}
    if method != "auto":
        assert same_model(strategy.result.model, again.model)


def test_who_joins_while_nobody_runs_is_there_from_the_next_round_on(tmp_path):
    run(tmp_path, "fedda", {}, rounds=2)
    history = run(tmp_path, "fedda", {}, rounds=4, sites=JOIN.sources).result.history
    assert [sum(beta is not None for beta in line["beta"]) for line in history] == [2, 2, 3, 3]
    assert RunFolder(tmp_path / "run").config()["joined"] == {"site 2": 3}
    again = run(tmp_path, "fedda", {}, rounds=5, sites=JOIN.sources).result
    assert RunFolder(tmp_path / "run").config()["joined"] == {"site 2": 3}
    assert len(again.history) == 5


def test_without_a_file_of_members_a_run_of_other_sources_is_another_run(tmp_path):
    run(tmp_path, "fedda", {}, rounds=2, members=None)
    with pytest.raises(RunFolderError, match="sources"):
        run(tmp_path, "fedda", {}, rounds=4, sites=JOIN.sources, members=None)


def test_the_targets_own_run_goes_on_too(tmp_path, monkeypatch):
    """Its candidates and its folder belong to the run, not to who is in it."""
    monkeypatch.setenv("FEDBRIDGE_SITE", str(tmp_path))
    out = tmp_path / "coordinator"
    run(tmp_path, "auto", {2: JOIN}, rounds=4, out=out)
    own = RunFolder(tmp_path / "run")
    assert [line["round"] for line in own.history()] == [1, 2, 3, 4]
    assert own.config()["joined"] == {"site 2": 3}
    assert not list(tmp_path.glob("run-*"))


def test_a_newcomer_of_other_rows_is_refused_and_the_run_goes_on(tmp_path):
    nodes = nodes_of(blobs(), tmp_path)
    nodes[0].spoil = changing(tmp_path / "members.json", {1: JOIN})
    other = nodes_of(blobs(), tmp_path)[3]
    other.app = nodes_of(_wider(), tmp_path)[3].app
    nodes[3] = other
    strategy = run(tmp_path, "fedda", {}, rounds=3, grid=PretendGrid(nodes))
    history = strategy.result.history
    assert [[*line["failures"]] for line in history] == [[], ["site 2"], ["site 2"]]
    assert any("unlike the others" in note for line in history for note in line["notes"])


def _wider():
    import fedbridge as fb

    task = blobs()

    def wide(site):
        return site.x.repeat(1, 2), site.y

    return fb.FederatedTask.from_arrays(
        {site.name: wide(site) for site in task.sources}, wide(task.target), wide(task.test)
    )


def test_who_has_left_can_come_back(tmp_path):
    both = Members(("site 0", "site 1"))
    changes = {1: Members(both.sources, {"site 0": WHY}), 2: both}
    history = run(tmp_path, "fedda", changes, rounds=4).result.history
    assert [[*line["failures"]] for line in history] == [[], ["site 0"], [], []]
    assert any("site 0 may take part again" in note for note in history[2]["notes"])


def test_nobody_waits_for_who_has_left(tmp_path):
    write_members(tmp_path / "members.json", Members(("site 0", "site 1"), {"site 0": WHY}))
    nodes = [node for node in nodes_of(blobs(), tmp_path) if node.name != "site 0"]
    strategy = run(tmp_path, "fedda", {}, rounds=1, grid=PretendGrid(nodes), wait=3600)
    assert [*strategy.result.history[0]["failures"]] == ["site 0"]


def test_a_file_of_members_that_is_none_is_refused(tmp_path):
    file = tmp_path / "members.json"
    assert read_members(file) == Members()
    file.write_text('{"format": 2}')
    with pytest.raises(FedbridgeError, match="fedbridge deploy check"):
        read_members(file)
