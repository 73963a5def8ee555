"""Several pieces of work at once, each in one of a few processes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from fedbridge.processes import Child, Crew

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


def work_in_processes(work: Work, items: Sequence[object], processes: int) -> Generator[Event]:
    """Do ``work(item, tell)`` for all items, ``processes`` at a time, in their order.

    An item whose process dies is not tried again, and the process is replaced. Closing the
    iterator before its end kills what is still at work.
    """
    crew = Crew()
    try:
        yield from _do(crew, partial(_serve, work), items, min(processes, len(items)))
    finally:
        crew.close(patience=0.0)


def _do(
    crew: Crew, serve: Callable[[Connection], None], items: Sequence[object], processes: int
) -> Iterator[Event]:
    waiting = list(reversed(range(len(items))))
    busy: dict[Child, int] = {}
    for _ in range(processes):
        crew.start(serve)
    while True:
        for child in crew.children:
            if child not in busy and waiting:
                busy[child] = waiting.pop()
                with suppress(BrokenPipeError, ConnectionError):  # noticed when receiving
                    child.pipe.send(items[busy[child]])
        if not busy:
            return
        by_pipe = {child.pipe: child for child in busy}
        for pipe in wait(list(by_pipe)):
            child = by_pipe[pipe]  # type: ignore[index]
            try:
                kind, value = child.pipe.recv()
            except (EOFError, ConnectionError):
                kind, value = "died", crew.dismiss(child)
                crew.start(serve)
            item = busy[child] if kind == "told" else busy.pop(child)
            yield Event(item, kind, value)


def _serve(work: Work, pipe: Connection) -> None:
    """One item: take it from the pipe, work, report."""
    item = pipe.recv()
    pipe.send(("done", work(item, lambda message: pipe.send(("told", message)))))
