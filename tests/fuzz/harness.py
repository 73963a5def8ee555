"""One case: a process of its own with limits, and the judge of what became of it."""

from __future__ import annotations

import os
import random
import re
import resource
import select
import shutil
import signal
import stat
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from zlib import crc32

from fedbridge.base.errors import FedbridgeError
from fedbridge.cli.main import main

SECONDS = 30.0
MEGABYTES = 500
ADDRESS_SPACE = 3 << 30
CRASHED = 99
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


_BUG = re.compile("Traceback|internal error")


@dataclass(frozen=True)
class Answer:
    """What became of a case; ``status`` None means that it hung."""

    status: int | None
    out: str
    err: str
    megabytes: float = 0.0

    @property
    def refused(self) -> bool:
        return self.status == 2


@dataclass(frozen=True)
class Case:
    """Something hostile to do.

    Attributes:
        what: the case in words, for the report of a failure.
        do: words of a command line, or a function.
        writes: paths below the case's folder that may be written.
        statuses: exit statuses that are right.
        check: what is wrong with the answer besides, if anything.
        logs: stderr is the log of a site, which quotes what came, with tracebacks.
    """

    what: str
    do: list[str] | Callable[[], object]
    writes: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (0, 2)
    check: Callable[[Answer], str | None] = field(default=lambda answer: None)
    logs: bool = False


Kind = Callable[[random.Random, Path], Case]
"""Makes a case from random numbers in an empty folder."""


def rng_of(kind: str, seed: int, number: int) -> random.Random:
    """Random numbers of one case, the same whatever else is run."""
    return random.Random(crc32(f"{kind} {seed} {number}".encode()))


def tried(kind: Kind, rng: random.Random, place: Path) -> tuple[Case, Answer, list[str]]:
    """Make a case, run it, judge it; the folder is gone afterwards."""
    place.mkdir(parents=True)
    try:
        inside = place / "here"
        inside.mkdir()
        case = kind(rng, inside)
        before = snapshot(inside)
        answer = run(case.do, inside, place)
        wrong = judge(case, answer, before, snapshot(inside))
        return case, answer, wrong
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run(do: list[str] | Callable[[], object], inside: Path, logs: Path) -> Answer:
    """Run a case in a forked process with limits, alone in its group."""
    out, err = logs / "out", logs / "err"
    pid = os.fork()
    if pid == 0:
        _be_the_case(do, inside, out, err)
    watch = os.pidfd_open(pid)
    ready, _, _ = select.select([watch], [], [], SECONDS)
    os.close(watch)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    _, code, usage = os.wait4(pid, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return Answer(
        os.waitstatus_to_exitcode(code) if ready else None,
        out.read_text(errors="replace"),
        err.read_text(errors="replace"),
        usage.ru_maxrss / 1024 - _own_megabytes(),
    )


def _be_the_case(do: list[str] | Callable[[], object], inside: Path, out: Path, err: Path) -> None:
    status = CRASHED
    try:
        os.setsid()
        for number, file in ((1, out), (2, err)):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)
            for number, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE,) * 2)
        os.chdir(inside)
        warnings.resetwarnings()  # those of the tests make errors of them
        status = main(do) if isinstance(do, list) else _called(do)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else CRASHED
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _called(do: Callable[[], object]) -> int:
    try:
        do()
    except FedbridgeError as error:
        sys.stderr.write(f"fedbridge: error: {error}\n")
        return 2
    return 0


def _own_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def judge(case: Case, answer: Answer, before: dict[str, str], after: dict[str, str]) -> list[str]:
    """All that is wrong with an answer."""
    if answer.status is None:
        return [f"hung for more than {SECONDS:g} seconds"]
    wrong = []
    said = answer.err.strip().splitlines()
    if answer.status == CRASHED or (not case.logs and _BUG.search(answer.err)):
        wrong.append(f"raised {said[-1]}")
    elif answer.status not in case.statuses:
        wrong.append(f"ended with {answer.status}: {said[-1:] or ['nothing said']}")
    elif answer.refused and sum(line.startswith("fedbridge: error: ") for line in said) != 1:
        wrong.append(f"refused without one error: {answer.err!r}")
    if answer.megabytes > MEGABYTES:
        wrong.append(f"took {answer.megabytes:.0f} MB")
    for name, text in (("stdout", answer.out), ("stderr", "" if case.logs else answer.err)):
        if found := CONTROL.search(text):
            wrong.append(f"wrote {found[0]!r} to {name}")
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path) and not path.startswith(case.writes or ("\0",)):
            wrong.append(f"{'changed' if path in before else 'left'} {path}")
        elif path not in before and path.endswith((".partial", ".running")):
            wrong.append(f"left {path}")
    if not wrong and (more := case.check(answer)):
        wrong.append(more)
    return wrong


def snapshot(folder: Path) -> dict[str, str]:
    """Every file below a folder, and what is in it."""
    found = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and path.stat().st_size < 1 << 26:
            found[str(path.relative_to(folder))] = sha256(path.read_bytes()).hexdigest()
        elif not stat.S_ISDIR(mode):
            found[str(path.relative_to(folder))] = str(stat.S_IFMT(mode))
    return found
