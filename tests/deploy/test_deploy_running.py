"""A program in the foreground: its words are shown, and nothing of it is left."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest

from fedbridge.deploy.folders import Deployment, SiteFolder
from fedbridge.deploy.running import run_until_stopped, shown

WORDS = """
import os
print('hello', os.environ['FLWR_HOME'], os.environ['FEDBRIDGE_SITE'], flush=True)
raise SystemExit(3)
"""
CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_output_and_exit_status_are_passed_on(tmp_path):
    heard = []
    log = tmp_path / "log"
    log.write_text("of last time\n")
    code = run_until_stopped(["python", "-c", WORDS], SiteFolder(tmp_path), log, heard.append)
    assert code == 3
    assert "".join(heard) == f"hello {tmp_path / 'flower'} {tmp_path}\n"
    assert log.read_text().startswith("of last time\nhello")


def test_control_sequences_are_not_passed_on(tmp_path):
    heard = []
    words = r"print('\x1b[32mINFO\x1b[0m :\tnote \x1b]0;owned\x07\x1b[2J\x9b', flush=True)"
    run_until_stopped(["python", "-c", words], Deployment(tmp_path), tmp_path / "log", heard.append)
    assert "".join(heard) == "INFO :\tnote ]0;owned[2J\n"


def interrupted() -> None:
    raise KeyboardInterrupt


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("stop", [interrupted, terminated])
def test_when_it_is_stopped_its_children_are_gone(tmp_path, stop):
    heard = []

    def listen(text: str) -> None:
        heard.append(text)
        if text.strip():
            stop()

    with nullcontext() if stop is interrupted else pytest.raises(SystemExit):
        command = ["python", "-c", CHILD]
        assert run_until_stopped(command, SiteFolder(tmp_path), tmp_path / "log", listen) == 0
    assert not _lives(int("".join(heard)))


def test_a_command_is_shown_as_one_would_type_it():
    text = shown([["flwr", "run", "my app"]], SiteFolder(Path("/some where")))
    assert "export FLWR_HOME='/some where/flower'\n" in text
    assert text.endswith("export FEDBRIDGE_SITE='/some where'\nflwr run 'my app'")
    assert "export FLWR_TELEMETRY_ENABLED=0" in text


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
