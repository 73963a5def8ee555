"""What goes wrong with a disk while large files are written, said so that one can act on it."""

from __future__ import annotations

import errno
import shutil
from typing import TYPE_CHECKING

from fedbridge.files import StorageError

if TYPE_CHECKING:
    from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)


def require_space(folder: Path, needed: int, purpose: str) -> None:
    """Raise when fewer bytes are free than some purpose needs."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(
            f"Expected {needed:,} bytes free in {str(folder)!r} to {purpose}, but there are "
            f"{free:,}: free some space and run the same command again."
        )


def disk_error(purpose: str, error: OSError) -> StorageError:
    """The error for something that could not be written."""
    advice = "free some space" if error.errno in FULL else "check the folder and its permissions"
    where = f" ({error.filename})" if error.filename else ""
    return StorageError(
        f"Could not {purpose}: {error.strerror or error}{where}; {advice} and run the same command "
        f"again."
    )
