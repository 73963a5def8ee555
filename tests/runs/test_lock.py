"""One process at a time works in a folder, and a dead one is not taken for it."""

import signal
import subprocess
import sys

import pytest
from small import blobs

import fedbridge as fb
from fedbridge.base.files import StorageError
from fedbridge.runs.lock import FILE, BusyFolderError, folder_lock, is_locked

HOLD = """
import sys, time
from pathlib import Path
from fedbridge.runs.lock import folder_lock
with folder_lock(Path("work")):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other_process(tmp_path):
    """Another process that is at work in ``work``."""
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_who_works_is_seen_and_leaves_no_trace(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").touch()
    assert is_locked(tmp_path / "work") is False
    with folder_lock(tmp_path / "work"):
        assert (tmp_path / "work" / FILE).exists()
    assert is_locked(tmp_path / "work") is False
    assert [file.name for file in (tmp_path / "work").iterdir()] == ["file"]


def test_a_folder_that_was_made_for_nothing_goes_away(tmp_path):
    with pytest.raises(KeyError), folder_lock(tmp_path / "work"):
        raise KeyError
    assert not (tmp_path / "work").exists()


def test_another_process_is_seen_until_it_is_killed(tmp_path, other_process):
    assert is_locked(tmp_path / "work") is True
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()
    assert (tmp_path / "work" / FILE).exists()
    assert is_locked(tmp_path / "work") is False


def test_nobody_else_may_work_there(tmp_path, other_process, monkeypatch):
    monkeypatch.setattr("fedbridge.runs.lock.PATIENCE", 0.1)
    with pytest.raises(BusyFolderError, match="another process is at work"):
        fb.run(blobs(), "fedda", rounds=1, workers=1, out=tmp_path / "work")


def test_what_a_dead_process_leaves_is_no_hindrance(tmp_path, other_process):
    other_process.kill()
    other_process.wait()
    fb.run(blobs(), "fedda", rounds=1, workers=1, out=tmp_path / "work")
    assert not (tmp_path / "work" / FILE).exists()


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "work").touch()
    with pytest.raises(StorageError, match="Could not write"), folder_lock(tmp_path / "work"):
        pass
