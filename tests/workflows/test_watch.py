"""The state of runs and comparisons from their files, alive, finished and dead."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from small import blobs, line

import fedbridge as fb
from fedbridge.base.files import to_json
from fedbridge.cli.main import main
from fedbridge.cli.watch import keep_looking, view
from fedbridge.runs.lock import FILE, folder_lock
from fedbridge.workflows.compare import Setting, compare
from fedbridge.workflows.watch import CellState, WatchError, look, seconds_left

QUICK = {"steps": 2, "workers": 1}
NOISE = Setting("noise", "digits-noise", options={"n_target": 12})


def shown(watched, width=120):
    console = Console(file=StringIO(), width=width)
    console.print(view(watched))
    return console.file.getvalue()


def interrupted_run(out, task=None, **options):
    """A run of five rounds that ended in its third."""

    def stop(round_line):
        if round_line["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.run(task or blobs(), "fedda", rounds=5, workers=1, out=out, callbacks=[stop], **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished comparison with a run that failed and a method that does not apply."""
    out = tmp_path_factory.mktemp("watch") / "comparison"
    broken = Setting("broken", "digits-noise", options={"n_target": 10**6})
    options = {**QUICK, "model": "linear", "alone": False}
    compare([NOISE, broken], ["fedda", "coral"], [0], 2, out, **options)
    return out


class TestRun:
    def test_one_that_is_finished(self, tmp_path):
        result = fb.run(blobs(), "fedda", rounds=2, workers=1, out=tmp_path / "run")
        watched = look(tmp_path / "run")
        (cell,) = watched.cells
        assert (watched.kind, watched.state, watched.is_over) == ("run", "finished", True)
        assert (cell.state, cell.round, cell.rounds) == ("done", 2, 2)
        assert cell.score == result.accuracy
        assert watched.seconds_left is None

    def test_one_that_stopped_says_how_to_go_on(self, tmp_path):
        interrupted_run(tmp_path / "run")
        watched = look(tmp_path / "run")
        (cell,) = watched.cells
        assert (watched.state, cell.state, cell.round) == ("stopped", "interrupted", 3)
        assert watched.is_over
        assert "with --resume" in shown(watched)

    def test_one_that_runs_shows_its_round_and_the_time_left(self, tmp_path):
        seen = []
        fb.run(
            blobs(),
            "fedda",
            rounds=4,
            workers=1,
            out=tmp_path / "run",
            callbacks=[lambda _: seen.append(look(tmp_path / "run"))],
        )
        assert [watched.cells[0].round for watched in seen] == [1, 2, 3, 4]
        assert {watched.state for watched in seen} == {"running"}
        assert all(watched.seconds_left > 0 for watched in seen[:3])
        assert "round 2 of 4" in shown(seen[1])

    def test_values_have_a_negative_loss(self, tmp_path):
        interrupted_run(tmp_path / "run", line(), model="linear")
        (cell,) = look(tmp_path / "run").cells
        assert cell.score < 0
        assert f"{cell.score:.4f}" in shown(look(tmp_path / "run"))

    def test_a_half_written_last_line_is_left_out(self, tmp_path):
        interrupted_run(tmp_path / "run")
        with (tmp_path / "run" / "history.jsonl").open("a") as file:
            file.write('{"round": 4, "accu')
        assert look(tmp_path / "run").cells[0].round == 3


class TestComparison:
    def test_counts_best_and_errors(self, finished):
        watched = look(finished)
        assert (watched.kind, watched.state) == ("comparison", "finished")
        assert watched.counts == {"done": 4, "does not apply": 1, "failed": 5}
        assert watched.progress == len(watched.cells)
        best = {cell.method: cell.score for cell in watched.cells if cell.setting == "noise"}
        (leader,) = watched.best
        assert leader.setting == "noise"
        assert leader.score == max(score for score in best.values() if score is not None)
        text = shown(watched)
        assert "4 done, 5 failed, 1 does not apply" in text
        assert "failed: broken, fedda, seed 0: " in text

    def test_a_run_that_finished_before_it_was_noted_counts(self, finished, tmp_path):
        file = finished / "comparison.json"
        before = file.read_text()
        content = json.loads(before)
        for cell in content["cells"]:
            cell["summary"] = None
        try:
            file.write_text(to_json(content))
            watched = look(finished)
        finally:
            file.write_text(before)
        assert watched.counts["done"] == 4
        assert watched.best

    def test_a_killed_one_is_not_taken_for_a_running_one(self, tmp_path):
        command = [sys.executable, "-m", "fedbridge", "compare", "digits-noise", "--out", "c"]
        command += ["--methods", "fedda", "--seeds", "1", "--rounds", "5000", "--set", "steps=1"]
        command += ["--quiet", "--workers", "2", "--no-alone"]
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        try:
            watched = wait_for(
                tmp_path / "c", lambda w: sum(cell.round > 1 for cell in w.cells) >= 2
            )
            assert watched.state == "running"
            assert watched.counts == {"running": 2, "waiting": 2}
            assert watched.seconds_left > 0
            text = shown(watched)
            assert "2 running, 2 waiting" in text
            assert "of 5000" in text
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        dead = wait_for(
            tmp_path / "c", lambda w: w.state == "stopped" and "running" not in w.counts
        )
        assert dead.counts == {"interrupted": 2, "waiting": 2}
        assert dead.seconds_left is None
        assert "run the same command again" in shown(dead)
        assert (tmp_path / "c" / FILE).exists()


def wait_for(folder, condition, seconds=60):
    """The first state of a folder that fulfils a condition."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            watched = look(folder)
        except WatchError:
            watched = None
        if watched is not None and condition(watched):
            return watched
        time.sleep(0.05)
    raise AssertionError("it never came to that")


class TestTimeLeft:
    def cell(self, method, state, round=0, seconds=0.0):
        return CellState("s", method, 0, state, round, 10, None, seconds)

    def test_nothing_is_known_before_the_first_round(self):
        assert seconds_left([self.cell("a", "running"), self.cell("b", "waiting")]) is None

    def test_finished_cells_of_the_same_method_tell(self):
        cells = [self.cell("a", "done", 10, 20.0), self.cell("b", "done", 10, 100.0)]
        cells += [self.cell("a", "running", 5, 1.0), self.cell("b", "waiting")]
        assert seconds_left(cells) == pytest.approx(10 + 100)

    def test_rounds_of_running_cells_tell_where_nothing_is_finished(self):
        assert seconds_left([self.cell("a", "running", 4, 8.0)]) == pytest.approx(12)

    def test_an_unknown_method_costs_the_mean_of_the_others(self):
        cells = [self.cell("a", "done", 10, 20.0), self.cell("b", "done", 10, 40.0)]
        assert seconds_left([*cells, self.cell("c", "waiting")]) == pytest.approx(30)

    def test_cells_that_run_at_once_share_the_work_but_the_longest_takes_its_time(self):
        cells = [self.cell("a", "running", 5, 10.0), self.cell("a", "running", 5, 10.0)]
        assert seconds_left(cells) == pytest.approx(10)
        cells += [self.cell("a", "waiting") for _ in range(4)]
        assert seconds_left(cells) == pytest.approx((5 + 5 + 4 * 10) * 2 / 2)


class TestCommand:
    def test_it_looks_once_where_there_is_no_terminal(self, finished, capsys):
        assert main(["watch", str(finished)]) == 0
        assert "finished" in capsys.readouterr().out

    def test_json(self, finished, capsys):
        assert main(["watch", str(finished), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["counts"]["done"] == 4
        assert told["state"] == "finished"
        assert {cell["state"] for cell in told["cells"]} == {"done", "failed", "does not apply"}

    @pytest.mark.parametrize("folder", ["empty", "missing"])
    def test_another_folder_is_an_error(self, folder, tmp_path, capsys):
        (tmp_path / "empty").mkdir()
        assert main(["watch", str(tmp_path / folder)]) == 2
        assert "name the folder that `--out` named" in capsys.readouterr().err
        assert not list((tmp_path / "empty").iterdir())

    def test_in_a_terminal_it_looks_until_the_end(self, tmp_path):
        out = tmp_path / "run"
        console = Console(file=StringIO(), force_terminal=True, width=100)
        interrupted_run(out)
        states = iter(["running", "running", "stopped"])

        def changing(folder, **options):
            return replace(look(folder, **options), state=next(states))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedbridge.workflows.watch.look", changing)
            keep_looking(out, console, every=0)
        text = console.file.getvalue()
        assert "running" in text
        assert "stopped" in text
        assert not list(states)

    def test_one_that_is_about_to_start_is_waited_for(self, tmp_path):
        with folder_lock(tmp_path / "run"):
            watched = look(tmp_path / "run")
        assert watched.state == "starting"
        assert not watched.is_over
        assert "starting" in shown(watched)


def test_names_from_data_cannot_write_to_the_terminal(tmp_path):
    cells = [{"setting": "a\x1b[2Jb\n[bold]", "method": "fedda", "seed": 0, "error": "\x1b[31mno"}]
    plan = {"settings": [cells[0]["setting"]], "methods": ["fedda"], "seeds": [0], "rounds": 1}
    text = to_json({"format": 1, **plan, "cells": cells})
    (tmp_path / "comparison.json").write_text(text)
    seen = shown(look(tmp_path))
    assert "\x1b" not in seen
    assert "[bold]" in seen
