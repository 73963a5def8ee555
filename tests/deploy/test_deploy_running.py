"""A program in the foreground: its words are shown, and nothing of it is left."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest

from fedbridge.deploy import running
from fedbridge.deploy.folders import Deployment, DeploymentError, SiteFolder
from fedbridge.deploy.running import run_node, run_until_stopped, shown
from fedbridge.flower.pki import read_public_key
from fedbridge.flower.programs import LinkUnreachableError, Node

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
    assert "export FEDBRIDGE_SITE='/some where'\n" in text
    assert text.endswith("export PATH='/some where/flower/programs':$PATH\nflwr run 'my app'")
    assert "export FLWR_TELEMETRY_ENABLED=0" in text


class Link:
    """A link that knows some keys."""

    keys: tuple[bytes, ...] = ()

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def nodes(self) -> list[Node]:
        return [Node(1, "A", key, online=False, activated="") for key in self.keys]


@pytest.fixture
def node(made, monkeypatch):
    """Site A, and what its node says and how it ends when it is started, time after time."""
    monkeypatch.setattr(running, "Control", Link)
    monkeypatch.setattr(running, "TRY_AGAIN_AFTER", 0.0)
    monkeypatch.setattr(running, "TRIES", 3)
    monkeypatch.setattr(Link, "keys", ())
    site = made.site("A")

    def start(*starts):
        commands = iter([f"print({words!r}, flush=True); exit({code})" for words, code in starts])
        own = running.run_until_stopped

        def run(_, *args, **how):
            return own(["python", "-c", next(commands)], *args, **how)

        monkeypatch.setattr(running, "run_until_stopped", run)
        heard = []
        return run_node(site, site.settings(), heard.append), "".join(heard)

    return site, start


def test_a_node_whose_key_is_not_registered_is_told_so_before_it_starts(node):
    site, start = node
    with pytest.raises(DeploymentError, match=r"to be registered.*but it is not: send .*node\.pub"):
        start(("never said", 1))
    assert not (site.folder / "node.log").exists()


REFUSED = ("[code: 2004] Failed to activate SuperNode.", 1)


def test_a_node_that_is_never_let_in_is_told_why_that_may_be(node, monkeypatch):
    """Its key is known, or the link does not say; Flower names no reason."""
    site, start = node
    monkeypatch.setattr(Link, "keys", (read_public_key(site.key.public),))
    with pytest.raises(DeploymentError, match=r"did not, 3 times: either another node .* runs"):
        start(REFUSED, REFUSED, REFUSED)


def test_a_node_whose_killed_predecessor_counts_as_online_comes_back_by_itself(node, monkeypatch):
    site, start = node
    monkeypatch.setattr(Link, "keys", (read_public_key(site.key.public),))
    code, heard = start(REFUSED, REFUSED, ("SuperNode terminated gracefully.", 0))
    assert code == 0
    assert heard.count("nothing need be done") == 2
    assert heard.endswith("gracefully.\n")


def test_a_node_that_ends_otherwise_has_its_own_status(node, monkeypatch):
    def nodes(_: object) -> list[Node]:
        raise LinkUnreachableError("it does not say")

    monkeypatch.setattr(Link, "nodes", nodes)
    assert node[1](("something else", 1)) == (1, "something else\n")


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
