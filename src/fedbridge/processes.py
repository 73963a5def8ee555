"""Child processes that neither outlive their parent nor run its main script again."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

START_METHOD = "fork" if sys.platform == "linux" else "spawn"
"""Forked children inherit model and data as they are; elsewhere forking is not safe."""


def core_count() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def leave_with_parent(lifeline: Connection) -> None:
    """End this process when the last writing end of a pipe, the parent's, is gone."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


@contextlib.contextmanager
def main_script_left_alone() -> Iterator[None]:
    """Keep a spawned process from running the main script again, guarded or not."""
    main = sys.modules["__main__"]
    hidden = {name: main.__dict__.pop(name) for name in ("__file__",) if name in main.__dict__}
    spec, main.__spec__ = main.__spec__, None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
        main.__spec__ = spec
