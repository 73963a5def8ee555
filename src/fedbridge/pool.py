"""Several pieces of work at once, each in one of a few processes.

Processes are started as the worker engine starts its own: a script without a ``__main__`` guard
works, Ctrl-C reaches only the parent, and no process outlives it.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Literal

import torch

from fedbridge.processes import START_METHOD, leave_with_parent, main_script_left_alone

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

Tell = Callable[[object], None]
Work = Callable[[Any, Tell], object]


@dataclass(frozen=True)
class Event:
    """What happened to an item.

    Attributes:
        item: its index.
        kind: ``told`` something on the way, ``done``, or its process ``died``.
        value: what was told, the result, or the exit code.
    """

    item: int
    kind: Literal["told", "done", "died"]
    value: Any


@dataclass
class _Hand:
    process: BaseProcess
    pipe: Connection
    item: int | None = None


def work_in_processes(work: Work, items: Sequence[object], processes: int) -> Generator[Event]:
    """Do ``work(item, tell)`` for all items, ``processes`` at a time, in their order.

    An item whose process dies is not tried again, and the process is replaced. Closing the
    iterator before its end kills what is still at work.
    """
    crew = _Crew(work)
    try:
        crew.grow(min(processes, len(items)))
        yield from crew.do(items)
    finally:
        crew.close()


class _Crew:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._context = multiprocessing.get_context(START_METHOD)
        self._lifeline, self._held_open = self._context.Pipe(duplex=False)
        self._hands: list[_Hand] = []

    def grow(self, count: int) -> None:
        for _ in range(count):
            self._hands.append(self._start())

    def do(self, items: Sequence[object]) -> Iterator[Event]:
        waiting = list(reversed(range(len(items))))
        while True:
            for hand in self._hands:
                if hand.item is None and waiting:
                    hand.item = waiting.pop()
                    with suppress(BrokenPipeError, ConnectionError):  # noticed when receiving
                        hand.pipe.send(items[hand.item])
            busy = {hand.pipe: hand for hand in self._hands if hand.item is not None}
            if not busy:
                return
            for pipe in wait(list(busy)):
                yield self._receive(busy[pipe])  # type: ignore[index]

    def close(self) -> None:
        for hand in self._hands:
            hand.process.kill()
        for hand in self._hands:
            hand.process.join()
            hand.pipe.close()
        self._held_open.close()
        self._lifeline.close()

    def _receive(self, hand: _Hand) -> Event:
        assert hand.item is not None
        item = hand.item
        try:
            kind, value = hand.pipe.recv()
        except (EOFError, ConnectionError):
            hand.process.join()
            hand.pipe.close()
            self._hands[self._hands.index(hand)] = self._start()
            return Event(item, "died", hand.process.exitcode)
        if kind == "done":
            hand.item = None
        return Event(item, kind, value)

    def _start(self) -> _Hand:
        ours, theirs = self._context.Pipe()
        forked = self._context.get_start_method() == "fork"
        inherited = [hand.pipe for hand in self._hands] + [ours, self._held_open]
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_serve,
            args=(self._work, theirs, self._lifeline, inherited if forked else []),
            daemon=True,
        )
        with warnings.catch_warnings(), main_script_left_alone():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of torch, idle here
            process.start()
        theirs.close()
        return _Hand(process, ours)


def _serve(
    work: Work, pipe: Connection, lifeline: Connection, inherited: Sequence[Connection]
) -> None:
    """A process's life: one thread, items from the pipe until it closes."""
    for connection in inherited:
        if not connection.closed:
            connection.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=leave_with_parent, args=(lifeline,), daemon=True).start()
    while True:
        try:
            item = pipe.recv()
        except (EOFError, ConnectionError):
            return
        pipe.send(("done", work(item, lambda message: pipe.send(("told", message)))))
