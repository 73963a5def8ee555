"""Files: written so that nothing leaves half of one behind, read as if they came from an enemy.

Whoever reads checks that there is a regular file of a size that fits into memory before anything
is allocated for it: a pipe would be waited for, a device has no end.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tomllib
import unicodedata
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from fedbridge.base.errors import DataError, FedbridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
USUAL_MEMORY = 8 << 30
GIGABYTE = 10**9


class StorageError(FedbridgeError):
    """A file could not be written (disk full, no permission); what was there before still is."""

    in_words = "the disk is full, or a file could not be written"


PRIVATE = 0o600


def write_atomically(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Write beside the file, flush to disk, then take its place in one step.

    ``mode`` holds from the first byte on, so that what is ``PRIVATE`` never was readable to others.
    """
    data = content.encode() if isinstance(content, str) else content
    partial = path.parent / f".{path.name}.{os.getpid()}.partial"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise OSError("it is no regular file")  # whose place nothing may take: /dev/null
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
    return check_fits(found.st_size)


def check_fits(size: int) -> int:
    """A number of bytes that may be allocated to read something: half of this machine's memory."""
    if size > machine_memory() // 2:
        raise OSError(f"its {size:,} bytes do not fit into half of this machine's memory")
    return size


def check_memory(needed: float, what: str, advice: str) -> None:
    """Refuse what this machine cannot hold, before any of it is read or made."""
    memory = machine_memory()
    if needed > memory:
        raise DataError(
            f"Expected data that fit into memory, {memory / GIGABYTE:,.1f} GB, but {what} would "
            f"take {needed / GIGABYTE:,.1f} GB: {advice}."
        )


@cache
def machine_memory() -> int:
    """Bytes of memory in this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return USUAL_MEMORY


def read_bytes(path: Path) -> bytes:
    """All of a regular file, whose size was looked at before; raises ``OSError``."""
    size = readable_size(path)
    with path.open("rb") as file:
        return file.read(size)


def read_text(path: Path) -> str:
    """The same as text in UTF-8; raises ``OSError`` or ``ValueError``."""
    return read_bytes(path).decode("utf-8").replace("\r\n", "\n")


def parse_json(text: str | bytes) -> Any:
    """JSON of any kind; what is nested too deep is no JSON either, and a ``ValueError``."""
    return _parsed(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """The same for TOML."""
    found: dict[str, Any] = _parsed(tomllib.loads, text)
    return found


def _parsed(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        return parse(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def packaged_text(package: str, name: str) -> str:
    """A text file that comes with the code."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def refuse_overwriting(out: Path, inputs: Iterable[Path]) -> None:
    """Refuse to write over a file that was read, whatever way its name is spelt."""
    with suppress(FileNotFoundError):
        there = out.stat()
        for file in inputs:
            with suppress(OSError):
                if os.path.samestat(file.stat(), there):
                    raise StorageError(
                        f"Expected another file than the input to write to, but {str(out)!r} is "
                        f"{str(file)!r}: choose another file."
                    )


def append_line(path: Path, line: str, *, flush: bool = True) -> None:
    """Append one line and flush it to disk, unless another write will do that."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            if flush:
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise storage_error(path, error) from error


def storage_error(path: Path, error: OSError) -> StorageError:
    """An error that says what to do about it."""
    advice = (
        "free some space and go on (a run with --resume)"
        if error.errno in FULL
        else "check the folder and its permissions, or choose another with --out"
    )
    return StorageError(f"Could not write {path}: {error.strerror or error}; {advice}.")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON without NaN or Inf, which no standard reader accepts: they become null.

    Characters that a terminal would obey, or no encoding can hold, are written as escapes.
    """
    text = json.dumps(_finite(value), indent=indent, allow_nan=False, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_UNSAFE = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


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
