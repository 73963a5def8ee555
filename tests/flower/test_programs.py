"""Ports that a server can have, and processes that are all gone when their owner is."""

import json
import os
import signal
import socket
import sys
from itertools import islice

import pytest
from flower.children import forked, living, pid_of, pids_of, wait_until

from fedbridge.flower.programs import (
    CANDIDATES,
    LOOPBACK,
    OperationError,
    SupervisedProcesses,
    free_ports,
    is_free,
    tail,
)


def test_ports_are_different_and_can_be_listened_on():
    ports = list(islice(free_ports(), 20))
    assert len(set(ports)) == 20
    assert set(ports) <= set(CANDIDATES)
    with socket.create_server((LOOPBACK, ports[0])):
        pass


def test_a_port_with_a_server_is_not_free():
    port = next(free_ports())
    assert is_free(port)
    with socket.create_server((LOOPBACK, port)):
        assert not is_free(port)


ENVIRONMENT = dict(os.environ)
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
script, what, *rest = sys.argv[1:]
if rest:
    command = [sys.executable, "-c", script, script, *rest]
    subprocess.Popen(command, start_new_session=True)
print("pid", os.getpid(), flush=True)
time.sleep(1000 if what == "stay" else 0.1)
"""


def stubborn(*generations: str) -> list[str]:
    """A process, its child in a session of its own, and so on; none of them heeds SIGTERM."""
    return [sys.executable, "-c", STUBBORN, STUBBORN, *generations]


FAMILY = stubborn("stay", "leave", "stay")
"""The grandchild loses its parent."""


@pytest.fixture
def processes():
    under = SupervisedProcesses()
    yield under
    under.close(patience=0.0)


def said(log) -> list[int]:
    """The numbers that the members of a family have written down."""
    words = log.read_text().split() if log.exists() else []
    return [int(word) for word in words[1::2]]


def run(processes, name, code, log, **environment) -> int:
    command = [sys.executable, "-c", code]
    return processes.start(name, command, log, {**ENVIRONMENT, **environment})


def test_output_and_environment_are_the_processs_own(processes, tmp_path):
    log = tmp_path / "logs" / "one.log"
    run(processes, "one", "import os; print(os.environ['SITE'])", log, SITE="A")
    wait_until(lambda: processes.exit_code("one") is not None)
    assert log.read_text() == "A\n"


def test_exit_codes_tell_how_each_process_ended(processes, tmp_path):
    run(processes, "fails", "raise SystemExit(3)", tmp_path / "log")
    run(processes, "stays", "import time; time.sleep(1000)", tmp_path / "log")
    wait_until(lambda: processes.exit_code("fails") is not None)
    assert processes.exit_codes() == {"fails": 3, "stays": None}


def test_one_is_ended_with_its_family_and_the_others_stay(processes, tmp_path):
    log = tmp_path / "log"
    processes.start("family", stubborn("stay", "stay", "stay"), log, ENVIRONMENT)
    other = run(processes, "other", "import time; time.sleep(1000)", tmp_path / "other")
    wait_until(lambda: len(said(log)) == 3)
    processes.end("family", patience=0.1)
    assert living([*said(log), other]) == [other]
    assert processes.exit_code("family") == -signal.SIGKILL


def test_a_polite_process_is_asked_before_it_is_killed(processes, tmp_path):
    code = "import signal, time; signal.signal(15, lambda *_: exit(7)); print(1, flush=True)"
    run(processes, "polite", f"{code}; time.sleep(1000)", tmp_path / "log")
    wait_until(lambda: tail(tmp_path / "log") == "1")
    processes.end("polite", patience=10.0)
    assert processes.exit_code("polite") == 7


FAREWELL = """
import signal, sys, time

def leave(signum, frame):
    signal.signal(signum, before)  # as Flower does
    print("asked", flush=True)
    sys.exit()

before = signal.signal(signal.SIGTERM, leave)
print("here", flush=True)
try:
    time.sleep(1000)
finally:
    time.sleep(1.5)
    print("farewell", flush=True)
"""


def test_who_takes_leave_has_time_for_it_and_may_be_asked_twice(tmp_path):
    """As where a service manager asks every process, and we ask what we have started."""
    log, processes = tmp_path / "log", SupervisedProcesses(gently=True)
    pid = run(processes, "node", FAREWELL, log)
    wait_until(lambda: tail(log) == "here")
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: "asked" in tail(log))
    processes.close()
    assert tail(log).splitlines() == ["here", "asked", "farewell"]


def test_closing_ends_all_generations(tmp_path):
    log = tmp_path / "log"
    processes = SupervisedProcesses()
    processes.start("family", FAMILY, log, ENVIRONMENT)
    wait_until(lambda: len(said(log)) == 3 and len(living(said(log))) == 2)
    assert pids_of(processes) == sorted(living(said(log)))
    processes.close(patience=0.1)
    assert living([*said(log), pid_of(processes)]) == []


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_all_end_with_their_owner(tmp_path, signum):
    log, supervisor = tmp_path / "log", tmp_path / "supervisor"

    def own() -> None:
        processes = SupervisedProcesses()
        processes.start("family", FAMILY, log, ENVIRONMENT)
        supervisor.write_text(str(pid_of(processes)))
        signal.pause()

    with forked(own) as owner:
        wait_until(lambda: len(said(log)) == 3)
        os.kill(owner, signum)
        wait_until(lambda: not living([*said(log), int(supervisor.read_text())]))


def test_a_program_that_is_not_there_is_an_error(processes, tmp_path):
    with pytest.raises(OperationError, match=r"Expected to start link, but .*no-such-program"):
        processes.start("link", ["no-such-program"], tmp_path / "log", ENVIRONMENT)


def test_a_supervisor_that_was_killed_is_an_error_and_takes_its_children_along(tmp_path):
    processes = SupervisedProcesses()
    child = processes.start("child", stubborn("stay"), tmp_path / "log", ENVIRONMENT)
    os.kill(pid_of(processes), signal.SIGKILL)
    with pytest.raises(OperationError, match="but it has ended"):
        wait_until(lambda: processes.exit_codes()["child"] is not None)
    processes.close()
    if sys.platform == "linux":
        wait_until(lambda: not living([child]))


def test_the_reply_to_an_interrupted_call_is_not_taken_for_the_next(processes):
    late = {"id": 0, "do": "end", "names": [], "patience": 0.0}
    processes._supervisor.stdin.write(json.dumps(late).encode() + b"\n")
    assert processes.exit_codes() == {}


def test_the_tail_of_a_log_is_its_last_lines(tmp_path):
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_text("".join(f"{number}\n" for number in range(100_000)))
    assert tail(log, lines=2) == "99998\n99999"
