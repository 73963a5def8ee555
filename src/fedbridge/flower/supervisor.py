"""The parent of all processes of a cluster: a small program of its own.

Flower's processes start further processes, some in sessions of their own, and several of them
outlive a SIGTERM to the one that started them. Here they all have one ancestor that can name every
one of them, and that ends them all when told so, or when the process that started it is gone,
however that ended. It runs as ``python -I supervisor.py [gently]`` and needs only the standard
library, so it is there at once. Requests and replies are lines of JSON on its standard input and
output:

    {"id": 1, "do": "start", "name": "link", "command": [...], "log": "...", "environment": {...}}
    {"id": 2, "do": "codes"}                          exit codes by name, null while it runs
    {"id": 3, "do": "end", "names": ["link"], "patience": 1.0}      null: as usual

A reply holds the ``id`` of its request, and ``error`` when it could not be done.

``gently`` is for programs that have to take leave of somebody. A SuperNode that ends without a word
counts as online at its link for another minute, and its successor is not let in; it needs up to
five seconds for its farewell, and a second SIGTERM meanwhile ends it on the spot. There may well be
two, since a service manager sends one to every process of a service. So these programs have more
time, and start with SIGTERM ignored: Flower's handler puts that back when it is called.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TICK = 0.1
LOOK_EVERY = 1.0
PATIENCE = 1.0
FAREWELL = 8.0
GENTLY = "gently"
KILLED_WITHIN = 5.0


class Process(NamedTuple):
    """A process by number and time of birth: numbers are used again, pairs are not."""

    pid: int
    born: str


def process_table() -> dict[Process, int]:
    """The parent's number of every process that lives; those that have ended are left out."""
    return _table_of_proc() if Path("/proc/self/stat").exists() else _table_of_ps()


def _table_of_proc() -> dict[Process, int]:
    table = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                # The name, in parentheses, may itself hold spaces and parentheses.
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    table[Process(int(folder.name), fields[19])] = int(fields[1])
    return table


def _table_of_ps() -> dict[Process, int]:
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,state=,lstart="], capture_output=True, text=True, check=True
    )
    table = {}
    for line in listing.stdout.splitlines():
        pid, parent, state, born = line.split(maxsplit=3)
        if not state.startswith("Z"):
            table[Process(int(pid), born)] = int(parent)
    return table


def descendants(of: set[int], table: dict[Process, int]) -> set[Process]:
    """All processes below those of these numbers."""
    found: set[Process] = set()
    parents = set(of)
    while parents:
        children = {process for process, parent in table.items() if parent in parents} - found
        found |= children
        parents = {child.pid for child in children}
    return found


def _prctl(option: int, value: int) -> bool:
    """Set something that only Linux knows; whether it is set."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)


def adopt_orphans() -> bool:
    """Become the parent of descendants whose own parent ends, where the system can do that."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Be killed with the supervisor, should somebody kill that."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_parent_alone() -> None:
    """The same; and what a program does not handle yet, or no more, does not end it."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Supervisor:
    """Starts processes, knows all that come of them, and ends them.

    Args:
        gently: they have time for a farewell, and being asked twice is being asked once.
    """

    def __init__(self, *, gently: bool = False) -> None:
        self.begin = die_with_parent_alone if gently else die_with_parent
        self.patience = FAREWELL if gently else PATIENCE
        self.ask_again = PATIENCE if gently else float("inf")
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.codes: dict[int, int] = {}
        self.adopts = adopt_orphans()
        self.family: set[Process] = set()
        self.looked = 0.0

    def start(self, name: str, command: list[str], log: str, environment: dict[str, str]) -> int:
        """Start a process in a session of its own, so that a Ctrl-C does not reach it."""
        with Path(log).open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=self.begin,  # safe: there are no threads here
            )
        self.codes.pop(process.pid, None)
        self.started[name] = process
        return process.pid

    def tick(self) -> None:
        """Bury the dead, and remember the living where orphans would be lost from sight."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self.codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
        if not self.adopts and time.monotonic() > self.looked + LOOK_EVERY:
            self.living()

    def living(self) -> set[Process]:
        """All processes that came of those that were started, and still live."""
        table = process_table()
        self.looked = time.monotonic()
        known = self.family & table.keys()
        self.family = known | descendants({os.getpid()} | {one.pid for one in known}, table)
        return self.family

    def code(self, name: str) -> int | None:
        """How a process ended, or None while it runs."""
        return self.codes.get(self.started[name].pid)

    def end(self, names: list[str] | None, patience: float | None = None) -> list[int]:
        """End processes with all that came of them, first asked, then made; those left over."""
        heads = None if names is None else {self.started[name].pid for name in names}
        ask_again = time.monotonic() + self.ask_again
        asked_until = time.monotonic() + (self.patience if patience is None else patience)
        made_until = asked_until + KILLED_WITHIN
        doomed: set[Process] = set()
        asked: set[Process] = set()
        while True:
            self.tick()
            living = self.living()
            if heads is None:
                doomed = living
            else:
                table = process_table()
                doomed |= {one for one in living if one.pid in heads}
                doomed |= descendants({one.pid for one in doomed}, table)
            left = doomed & living
            now = time.monotonic()
            if not left or now > made_until:
                return sorted(one.pid for one in left)
            if now > ask_again:  # who was only just being started may listen by now
                asked, ask_again = set(), now + self.ask_again
            for one in left if now >= asked_until else left - asked:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(one.pid, signal.SIGTERM if now < asked_until else signal.SIGKILL)
            asked |= left
            time.sleep(0.02)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request says."""
        if request["do"] == "start":
            what = ("name", "command", "log", "environment")
            return {"pid": self.start(**{key: request[key] for key in what})}
        if request["do"] == "codes":
            return {"codes": {name: self.code(name) for name in self.started}}
        if request["do"] == "end":
            return {"left": self.end(request["names"], request["patience"])}
        raise ValueError(f"unknown request {request['do']!r}")


class Asked(Exception):  # noqa: N818 (it is no error)
    """Somebody asked the supervisor itself to end."""


def serve(supervisor: Supervisor) -> None:
    """Answer requests until there is nobody left who could send one."""
    parent = os.getppid()
    unread = b""
    while os.getppid() == parent:
        supervisor.tick()
        if not select.select([0], [], [], TICK)[0]:
            continue
        received = os.read(0, 1 << 16)
        if not received:
            return
        *lines, unread = (unread + received).split(b"\n")
        for line in lines:
            request = json.loads(line)
            try:
                reply = supervisor.answer(request)
            except (OSError, ValueError, KeyError) as error:
                reply = {"error": str(error)}
            os.write(1, json.dumps({"id": request["id"], **reply}).encode() + b"\n")


def main() -> None:
    """Serve, and leave nothing behind."""

    def leave(signum: int, frame: object) -> None:
        raise Asked

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, leave)
    supervisor = Supervisor(gently=GENTLY in sys.argv[1:])
    try:
        serve(supervisor)
    except (Asked, BrokenPipeError):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        supervisor.end(None)


if __name__ == "__main__":
    main()
