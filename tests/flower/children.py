"""Running part of a test in a process of its own, to see what is left when that one ends."""

from __future__ import annotations

import os
import time
import traceback
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fedbridge.base.files import file_name
from fedbridge.flower.supervisor import descendants, process_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fedbridge.flower.cluster import Cluster
    from fedbridge.flower.programs import Node, SupervisedProcesses

PATIENCE = 20.0


def living(pids: Iterable[int]) -> list[int]:
    """Those of the processes that live, and are not only waiting to be buried."""
    numbers = {process.pid for process in process_table()}
    return [pid for pid in pids if pid in numbers]


def family(pid: int) -> list[int]:
    """All processes that came of a process, without itself."""
    return [process.pid for process in descendants({pid}, process_table())]


def pid_of(processes: SupervisedProcesses) -> int:
    """The supervisor's own process."""
    return processes._supervisor.pid


def pids_of(processes: SupervisedProcesses) -> list[int]:
    """All processes below a supervisor that live, of all generations."""
    return sorted(family(pid_of(processes)))


def kill_node(cluster: Cluster, name: str, patience: float = 0.0) -> None:
    """Kill a node and all its processes, as a power cut would; with patience it is asked to leave.

    An app at work that was forked is noticed by the executor, and ends a moment later.
    """
    cluster.processes.end(f"node-{file_name(name)}", patience=patience)


def kill_link(cluster: Cluster) -> None:
    """Kill the link and all its processes, the ServerApp of a run among them."""
    cluster.processes.end("link", patience=0.0)


def nodes_of(cluster: Cluster) -> list[Node]:
    """The nodes that the link knows."""
    with cluster.control() as control:
        return control.nodes()


def wait_until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait until something holds, but not for ever."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)


@contextmanager
def forked(function: Callable[[], object]) -> Iterator[int]:
    """A child that runs a function, and ends with code 0, 130 after Ctrl-C, or 1 after an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of torch, idle here
        pid = os.fork()
    if not pid:
        _run_and_end(function)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def _run_and_end(function: Callable[[], object]) -> None:
    code = 1
    try:
        function()
        code = 0
    except KeyboardInterrupt:
        code = 130
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    """Wait for a child to end."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
