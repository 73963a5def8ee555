"""A few child processes that share out pieces of work, and never outlive their parent.

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
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

Tell = Callable[[object], None]
Work = Callable[[Any, Tell], object]
START_METHOD = "fork" if sys.platform == "linux" else "spawn"


def core_count() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Event:
    """What happened to a piece of work.

    Attributes:
        item: its index.
        kind: ``told`` something on the way, ``done``, or its process ``died``.
        value: what was told, the result, or the exit code.
    """

    item: int
    kind: Literal["told", "done", "died"]
    value: Any


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
    """Children that all do the same kind of work, one piece at a time, on one torch thread each.

    Args:
        work: called in a child with a piece of work and a function that tells the parent something
            on the way; what it returns is the result.
        size: how many children there are.
        start_method: of ``multiprocessing``.
    """

    def __init__(self, work: Work, size: int, start_method: str = START_METHOD) -> None:
        self._work = work
        self._context = multiprocessing.get_context(start_method)
        self._lifeline, self._held_open = self._context.Pipe(duplex=False)
        self.children: list[Child] = []
        for _ in range(size):
            self._start()

    def do(
        self,
        items: Sequence[Any],
        length: Callable[[Any], Any] | None = None,
        *,
        learning: bool = False,
    ) -> Iterator[Event]:
        """Do all pieces of work, the longest first, or in their order without ``length``.

        Where the lengths are ``learning`` from what is done, the longest is looked for again
        whenever a child is free. Work whose child dies is not tried again; the child is replaced.
        """
        waiting = list(range(len(items)))
        busy: dict[Child, int] = {}
        in_order = length is None
        while True:
            for child in self.children:
                if child not in busy and waiting:
                    if length is not None and not in_order:
                        waiting.sort(key=lambda item: length(items[item]), reverse=True)
                        in_order = not learning
                    busy[child] = waiting.pop(0)
                    with contextlib.suppress(ConnectionError):  # noticed when receiving
                        child.pipe.send(items[busy[child]])
            if not busy:
                return
            by_pipe = {child.pipe: child for child in busy}
            for pipe in wait(list(by_pipe)):
                child = by_pipe[pipe]  # type: ignore[index]
                try:
                    kind, value = child.pipe.recv()
                except (EOFError, ConnectionError):
                    kind, value = "died", self._replace(child)
                item = busy[child] if kind == "told" else busy.pop(child)
                yield Event(item, kind, value)

    def close(self, patience: float = 1.0) -> None:
        """End all children."""
        for child in self.children:
            child.stop(patience)
        self.children.clear()
        self._held_open.close()
        self._lifeline.close()

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        forked = self._context.get_start_method() == "fork"
        inherited = [child.pipe for child in self.children] + [ours, self._held_open]
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_live,
            args=(self._work, theirs, self._lifeline, inherited if forked else []),
            daemon=True,
        )
        with warnings.catch_warnings(), _main_script_left_alone():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of torch, idle here
            process.start()
        theirs.close()
        self.children.append(Child(process, ours))

    def _replace(self, child: Child) -> int | None:
        """Bury a child that has died; its exit code."""
        child.stop(patience=1.0)
        self.children.remove(child)
        self._start()
        return child.process.exitcode


def work_in_processes(
    work: Work,
    items: Sequence[Any],
    processes: int,
    length: Callable[[Any], Any] | None = None,
) -> Generator[Event]:
    """Do ``work(item, tell)`` for all items, ``processes`` at a time, in their order.

    With ``length``, which may learn from what is done, the longest comes first. Closing the
    iterator before its end kills what is still at work.
    """
    crew = Crew(work, min(processes, len(items)))
    try:
        yield from crew.do(items, length, learning=True)
    finally:
        crew.close(patience=0.0)


def _live(work: Work, pipe: Connection, lifeline: Connection, inherited: list[Connection]) -> None:
    """A child's life: take a piece of work from the pipe, do it, report, until the pipe closes."""
    for connection in inherited:
        if not connection.closed:
            connection.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_leave_with_parent, args=(lifeline,), daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            item = pipe.recv()
            pipe.send(("done", work(item, lambda message: pipe.send(("told", message)))))


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
