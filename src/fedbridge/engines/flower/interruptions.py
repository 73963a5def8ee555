"""Signals around a block of work that must clean up after itself."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

TERMINATIONS = [one for one in signal.Signals if one.name in ("SIGTERM", "SIGHUP")]


@contextmanager
def termination_as_exit() -> Iterator[None]:
    """Let SIGTERM and SIGHUP, which would end Python on the spot, end the block as an exception.

    A handler that somebody else has set is left alone, as are signals that are ignored. Only the
    main thread can do this; elsewhere nothing changes.
    """
    taken = [one for one in TERMINATIONS if signal.getsignal(one) is signal.SIG_DFL]
    with _handlers(dict.fromkeys(taken, _leave)):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let nobody who presses Ctrl-C again keep a few seconds of cleaning up from their end."""
    with _handlers(dict.fromkeys((signal.SIGINT, *TERMINATIONS), signal.SIG_IGN)):
        yield


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


@contextmanager
def _handlers(wanted: dict[signal.Signals, signal._HANDLER]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, handler) for signum, handler in wanted.items()}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
