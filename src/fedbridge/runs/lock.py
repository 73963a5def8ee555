"""Whether anybody is at work in a folder: a lock on a file there, which dies with its process.

Nothing has to be written again and again, and a process that was killed is not taken for one that
works: the system itself lets go of its locks.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import storage_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = ".running"
PATIENCE = 5.0
"""Seconds to wait for the lock: one who only looks has it for an instant, and the children of a
process that was killed need a moment to notice."""


class BusyFolderError(FedbridgeError):
    """Another process is at work in the folder."""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Show that this process works in a folder, which is made if need be; nobody else may.

    The sign is taken away afterwards, and so is a folder that is still empty then.
    """
    lock = FileLock(folder / FILE, timeout=PATIENCE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise BusyFolderError(
            f"Expected a folder that nobody works in, but another process is at work in {folder}: "
            f"wait for it (`fedbridge watch` shows how far it is), or choose another with --out."
        ) from None
    except OSError as error:
        raise storage_error(folder / FILE, error) from error
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / FILE).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            folder.rmdir()


def is_locked(folder: Path) -> bool | None:
    """Whether a process works in a folder; None where this may not be found out."""
    if not (folder / FILE).exists():
        return False
    lock = FileLock(folder / FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return True
    except OSError:
        return None
    lock.release()
    return False
