"""Processes that are all gone when their owner is: our end of the line to the supervisor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fedbridge.engines.flower import supervisor
from fedbridge.errors import FedbridgeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

LAST_LINES = 12
LONGEST_TAIL = 16_384


class OperationError(FedbridgeError):
    """A Flower process that did not start, went away, or was refused; with its last words."""


class Supervised:
    """Processes with names, each with a log file, under one supervisor."""

    def __init__(self) -> None:
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._requests = 0

    @property
    def pid(self) -> int:
        """The supervisor's own process."""
        return self._supervisor.pid

    def start(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> int:
        """Start a process under this name, the log added to what the file holds; its number."""
        log.parent.mkdir(parents=True, exist_ok=True)
        reply = self._ask(
            do="start",
            name=name,
            command=list(command),
            log=str(log),
            environment=dict(environment),
        )
        return int(reply["pid"])

    def exit_codes(self) -> dict[str, int | None]:
        """How each process ended, or None while it runs."""
        codes: dict[str, int | None] = self._ask(do="codes")["codes"]
        return codes

    def exit_code(self, name: str) -> int | None:
        """How one process ended, or None while it runs."""
        return self.exit_codes()[name]

    def end(self, *names: str, patience: float = supervisor.PATIENCE) -> None:
        """End processes and all that came of them: asked first, killed when patience is over."""
        _check_gone(self._ask(do="end", names=names, patience=patience)["left"])

    def pids(self) -> list[int]:
        """All processes that live, of all generations."""
        return [int(pid) for pid in self._ask(do="pids")["pids"]]

    def close(self, patience: float = supervisor.PATIENCE) -> None:
        """End everything, the supervisor last."""
        left: Iterable[int] = ()
        try:
            with suppress(OperationError):  # with the supervisor all it started is gone
                left = self._ask(do="end", names=None, patience=patience)["left"]
        finally:
            assert self._supervisor.stdin is not None
            assert self._supervisor.stdout is not None
            with suppress(BrokenPipeError):
                self._supervisor.stdin.close()
            self._supervisor.wait()
            self._supervisor.stdout.close()
        _check_gone(left)

    def _ask(self, **request: object) -> dict[str, Any]:
        """Send a request and read its reply; one left over from an interrupted call is skipped."""
        self._requests += 1
        line = json.dumps({"id": self._requests, **request}).encode() + b"\n"
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        try:
            self._supervisor.stdin.write(line)
            self._supervisor.stdin.flush()
            reply: dict[str, Any] = {"id": 0}
            while reply["id"] != self._requests:
                reply = json.loads(self._supervisor.stdout.readline())
        except (OSError, ValueError) as error:
            raise OperationError(
                "Expected the supervisor of the Flower processes to be there, but it has ended, "
                "and they with it: start the operation again."
            ) from error
        if "error" in reply:
            raise OperationError(
                f"Expected to {request['do']} {request.get('name', 'a process')}, "
                f"but got an error: {reply['error']}; is the flower extra installed?"
            )
        return reply


def tail(log: Path, lines: int = LAST_LINES) -> str:
    """The last lines of a file, however long it is; nothing if there is none."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_TAIL))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    return ""


def _check_gone(left: Iterable[int]) -> None:
    if numbers := ", ".join(str(pid) for pid in left):
        raise OperationError(
            f"Expected all Flower processes to end, but these live on: {numbers}; "
            "end them with kill -9."
        )
