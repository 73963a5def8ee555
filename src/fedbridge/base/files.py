"""Writing files so that a crash, a full disk or a kill never leaves half of one behind."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import unicodedata
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fedbridge.base.errors import FedbridgeError

if TYPE_CHECKING:
    from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)


class StorageError(FedbridgeError):
    """A file could not be written (disk full, no permission); what was there before still is."""


PRIVATE = 0o600


def write_atomically(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Write beside the file, flush to disk, then take its place in one step.

    ``mode`` holds from the first byte on, so that what is ``PRIVATE`` never was readable to others.
    """
    data = content.encode() if isinstance(content, str) else content
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(os.open(partial, flags, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def readable_size(path: Path) -> int:
    """The size of a file; a pipe, which would be waited for, and a device, without end, are none.

    Raises:
        OSError: for the reader to explain, as it explains a file that is not there.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is no regular file")
    return found.st_size


def append_line(path: Path, line: str) -> None:
    """Append one line and flush it to disk."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise storage_error(path, error) from error


def storage_error(path: Path, error: OSError) -> StorageError:
    """An error that says what to do about it."""
    advice = (
        "free some space and go on with --resume"
        if error.errno in (errno.ENOSPC, errno.EDQUOT)
        else "check the folder and its permissions, or choose another with --out"
    )
    return StorageError(f"Could not write {path}: {error.strerror or error}; {advice}.")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON without NaN or Inf, which no standard reader accepts: they become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def sha256(data: bytes) -> str:
    """Checksum of some bytes."""
    return hashlib.sha256(data).hexdigest()


LONGEST_NAME = 80


def file_name(text: str) -> str:
    """A name for a file or folder that is safe, readable, and differs for different texts.

    Names of sites come from data and may hold anything, such as ``../x``. What a file name should
    not hold is replaced, and a few digits of a checksum then keep different texts apart.
    """
    plain = unicodedata.normalize("NFC", text)
    safe = re.sub(r"[^\w+.-]+", "-", plain).strip(".-")[:LONGEST_NAME]
    return safe if safe and safe == text else f"{safe}-{sha256(text.encode())[:6]}".lstrip("-")


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
