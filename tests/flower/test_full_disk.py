"""A site whose disk is full says so; the run goes on without it, or ends and goes on later."""

import errno
import os
from pathlib import Path

import pytest
from pretend import PretendGrid, nodes_of, run_over_pretended_flower
from small import blobs, same_model

import fedbridge as fb
from fedbridge.base.errors import FedbridgeError

QUICK = {"model": "linear", "lr": 0.1, "batch_size": 8}
SAID = "the disk is full, or a file could not be written at the site, whose own log says more"
REASON = f"SiteError: {SAID}"


@pytest.fixture
def full(monkeypatch):
    """Folders on disks without space: nothing that is written there reaches the disk."""
    folders: set[Path] = set()
    flush = os.fsync

    def no_space(file):
        written = Path(f"/proc/self/fd/{file}").readlink()
        if any(folder in written.parents for folder in folders):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(file)

    if not Path("/proc/self/fd").exists():
        pytest.skip("this system does not tell which file it is")
    monkeypatch.setattr(os, "fsync", no_space)
    return folders


def at_round(number, do):
    """A node's ``spoil`` that does something after the site has trained in a round."""

    def spoil(question, answer):
        about = question.content.config_records.get("config", {})
        if question.metadata.message_type == "train" and about.get("server-round") == number:
            do()
        return answer

    return spoil


def test_a_source_with_a_full_disk_is_left_out_until_there_is_space(tmp_path, full, caplog):
    nodes = nodes_of(blobs(), tmp_path)
    nodes[1].spoil = at_round(1, lambda: full.add(tmp_path / "site 0"))
    nodes[2].spoil = at_round(2, full.clear)
    strategy, _ = run_over_pretended_flower(
        blobs(), "fedda", 3, tmp_path, PretendGrid(nodes), **QUICK
    )
    failures = [line["failures"] for line in strategy.result.history]
    assert failures == [{}, {"site 0": REASON}, {}]
    assert "No space left on device; free some space" in caplog.text


@pytest.mark.parametrize("method", ["fedda", "auto"])
def test_a_target_with_a_full_disk_loses_nothing(method, tmp_path, full):
    """The run ends before anything is written that is not so, and later comes to its end."""
    task, out = blobs(), tmp_path / "run"
    nodes = nodes_of(task, tmp_path)
    nodes[1].spoil = at_round(2, lambda: full.add(tmp_path / "target"))

    def run():
        grid = PretendGrid(nodes)
        return run_over_pretended_flower(
            task, method, 9, tmp_path, grid, out=out, timeout=5.0, **QUICK
        )[0].result

    with pytest.raises(FedbridgeError):
        run()
    assert not (out / "summary.json").exists(), "a run without its target is not finished"
    full.clear()
    nodes[1].spoil = lambda question, answer: answer
    result = run()
    assert [line["round"] for line in result.history] == [*range(1, 10)]
    assert result.history[-1]["failures"] == {}
    assert result.history[-1]["loss"] is not None
    if method == "fedda":  # which has no memory of the rounds that its target has missed
        assert same_model(result.model, fb.run(task, method, 9, workers=1, **QUICK).model)
