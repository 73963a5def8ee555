"""A site's own log of every message that it answered: one line each, chained by hashes.

A line holds the hash of the line before it and, last, its own: SHA-256 of the line without it. So a
line that was changed, taken out or put in between breaks the chain from there on. What a chain does
not show is that lines are missing at its end: whoever wants to prove that later writes the last
hash down, or sends it to somebody, today.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from fedbridge.base.files import PRIVATE, parse_json, to_json
from fedbridge.deploy.folders import DeploymentError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START = "0" * 64
"""What the first line has in place of the hash before it."""


@dataclass(frozen=True)
class Answered:
    """What there is to say of one message.

    Attributes:
        run: Flower's number of the run.
        app: hash of the run's app and settings, as in ``approve``.
        round: of the run; None where the message says none.
        kind: what was asked for: ``query``, ``train``, ``evaluate``.
        asked: bytes of the question, and
        bytes: of the answer.
        answer: ``sent``, or why not.
        epsilon: what the site's messages have cost so far, where it protects its rows.
    """

    run: str
    app: str
    round: int | None
    kind: str
    asked: int
    bytes: int
    answer: str
    epsilon: float | None


FIELDS = ("number", "time", *(field.name for field in fields(Answered)), "previous", "hash")


class SiteLog:
    """The log of one site.

    Args:
        path: its file, which nothing of ours ever shortens.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, answered: Answered) -> str:
        """Write a line before the answer leaves, and through to the disk; its hash.

        Raises:
            DeploymentError: the log is broken; the message must not be answered.
        """
        with FileLock(self.path.with_name(f".{self.path.name}.lock")):
            last = next(iter(deque(self.lines(), maxlen=1)), None)
            line = {
                "number": 1 if last is None else last["number"] + 1,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                **asdict(answered),
                "previous": START if last is None else last["hash"],
            }
            line["hash"] = hash_of(line)
            opened = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
            try:
                os.write(opened, f"{to_json(line)}\n".encode())
                os.fsync(opened)
            finally:
                os.close(opened)
            return str(line["hash"])

    def lines(self) -> Iterator[dict[str, Any]]:
        """All lines, each checked against the one before it; none where there is no file.

        Raises:
            DeploymentError: the chain is broken; the message names the line.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise DeploymentError(
                f"Expected the log of a site in {str(self.path)!r}, but it cannot be read: {error}."
            ) from error
        before = START
        for number, written in enumerate(text.splitlines(), start=1):
            line = _line(written)
            if line is None or line["hash"] != hash_of(line):
                raise self._broken(number, "it is not as it was written")
            if line["number"] != number or line["previous"] != before:
                raise self._broken(number, "lines before it are missing, or are others")
            before = line["hash"]
            yield line

    def verify(self, known: str | None = None) -> list[dict[str, Any]]:
        """All lines, if the chain is whole and holds the hash that somebody wrote down."""
        lines = list(self.lines())
        if known is not None and known not in [line["hash"] for line in lines]:
            raise DeploymentError(
                f"Expected the line with the hash {known} in {str(self.path)!r}, but it is not "
                f"among its {len(lines)}: lines are missing at the end, or this is another log."
            )
        return lines

    def _broken(self, number: int, why: str) -> DeploymentError:
        return DeploymentError(
            f"Expected an unbroken chain in {str(self.path)!r}, but line {number} does not fit: "
            f"{why}; keep the file for whoever looks into it, and move it away to begin a new log."
        )


def hash_of(line: dict[str, Any]) -> str:
    """The hash of a line: of all that stands before it."""
    said = {name: line[name] for name in FIELDS if name != "hash"}
    return hashlib.sha256(to_json(said).encode()).hexdigest()


def _line(written: str) -> dict[str, Any] | None:
    try:
        line = parse_json(written)
    except ValueError:
        return None
    return line if isinstance(line, dict) and tuple(line) == FIELDS else None
