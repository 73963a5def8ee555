"""Child processes that neither outlive their parent nor run its main script again.

Children are forked where that is safe: they inherit model and data as they are, and a script
without an ``if __name__ == "__main__"`` guard works. Elsewhere they are spawned without running
the main script again. They end with their parent, however it ends: each holds the reading end of
a pipe that nobody writes to, and leaves when its last writing end, the parent's, is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

START_METHOD = "fork" if sys.platform == "linux" else "spawn"


def core_count() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(eq=False)
class Child:
    """A child process and the parent's end of the pipe to it."""

    process: BaseProcess
    pipe: Connection

    def stop(self, patience: float) -> None:
        """Close the pipe, give the child a moment to leave, then make it."""
        self.pipe.close()
        self.process.join(timeout=patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Crew:
    """Starts children, each with a pipe of its own, and lets none of them be left behind."""

    def __init__(self, start_method: str = START_METHOD) -> None:
        self._context = multiprocessing.get_context(start_method)
        self._lifeline, self._held_open = self._context.Pipe(duplex=False)
        self.children: list[Child] = []

    def start(self, serve: Callable[[Connection], object]) -> Child:
        """Start a child that serves its pipe on one torch thread until the pipe closes."""
        ours, theirs = self._context.Pipe()
        forked = self._context.get_start_method() == "fork"
        inherited = [child.pipe for child in self.children] + [ours, self._held_open]
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_live,
            args=(serve, theirs, self._lifeline, inherited if forked else []),
            daemon=True,
        )
        with warnings.catch_warnings(), _main_script_left_alone():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of torch, idle here
            process.start()
        theirs.close()
        child = Child(process, ours)
        self.children.append(child)
        return child

    def dismiss(self, child: Child) -> int | None:
        """End a child, or bury one that has died; its exit code."""
        child.stop(patience=1.0)
        self.children.remove(child)
        return child.process.exitcode

    def close(self, patience: float = 1.0) -> None:
        """End all children."""
        for child in self.children:
            child.stop(patience)
        self.children.clear()
        self._held_open.close()
        self._lifeline.close()


def _live(
    serve: Callable[[Connection], object],
    pipe: Connection,
    lifeline: Connection,
    inherited: list[Connection],
) -> None:
    """A child's life."""
    for connection in inherited:
        if not connection.closed:
            connection.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_leave_with_parent, args=(lifeline,), daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            serve(pipe)


def _leave_with_parent(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


@contextlib.contextmanager
def _main_script_left_alone() -> Iterator[None]:
    """Keep a spawned process from running the main script again, guarded or not."""
    main = sys.modules["__main__"]
    hidden = {name: main.__dict__.pop(name) for name in ("__file__",) if name in main.__dict__}
    spec, main.__spec__ = main.__spec__, None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
        main.__spec__ = spec
