"""The command line: reads arguments, calls a command, says what went wrong in one line."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedbridge._version import __version__
from fedbridge.base.errors import FedbridgeError
from fedbridge.cli import (
    advise,
    bench,
    compare,
    data,
    deploy,
    export,
    names,
    predict,
    report,
    reproduce,
    run,
    watch,
)
from fedbridge.cli.shared import FAILED, HELP, Parser, add_debug, complain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

USER_ERROR, BROKEN_PIPE, INTERRUPTED = 2, 141, 130

NO_MEMORY = (
    "Expected enough memory for the model and the data, but there is not: make one of them, or the "
    "batches, smaller."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    with _short_warnings():
        try:
            args = build_parser().parse_args(words)
            status: int = args.command(args)
            sys.stdout.flush()
        except BrokenPipeError:
            _let_go_of_stdout()
            return BROKEN_PIPE
        except KeyboardInterrupt:
            if debug:
                raise
            return complain(f"stopped{_how_to_go_on(words)}", INTERRUPTED)
        except (FedbridgeError, OSError) as error:
            if debug:
                raise
            return complain(f"error: {_as_typed(str(error), words)}", USER_ERROR)
        except Exception as error:
            if debug:
                raise
            if _lacks_memory(error):
                return complain(f"error: {NO_MEMORY}", USER_ERROR)
            what = f"{type(error).__name__}: {error}"
            return complain(f"internal error: {what} (--debug shows where)", FAILED)
    return status


def _as_typed(text: str, words: Sequence[str]) -> str:
    """A message in which options that were typed are spelt as they were typed."""
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    for flag in flags:
        if "-" in (name := flag[2:]):
            text = text.replace(f"`{name.replace('-', '_')}`", f"`{flag}`")
    return text


def _lacks_memory(error: Exception) -> bool:
    """Whether there was too little memory, which torch says in its own way."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def build_parser() -> Parser:
    """All commands with their arguments."""
    parser = Parser(prog="fedbridge", description=HELP["fedbridge"]["text"])
    parser.add_argument("--version", action="version", version=f"fedbridge {__version__}")
    add_debug(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    compare.add_demo(commands)
    of_runs = (advise, run, compare, reproduce, watch, predict, export, report)
    for family in (*of_runs, data, deploy, bench, names):
        family.add(commands)
    return parser


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Warnings in one line, as errors are."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        complain(f"warning: {message}", USER_ERROR)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _how_to_go_on(words: Sequence[str]) -> str:
    command = next((word for word in words if not word.startswith("-")), "")
    again = shlex.join(["fedbridge", *words])
    if command == "run":
        return f"; to go on: {again}{'' if '--resume' in words else ' --resume'}"
    return f"; to go on: {again}" if command in ("compare", "demo", "data", "reproduce") else ""


def _let_go_of_stdout() -> None:
    """The reader is gone: keep Python from complaining about it when it flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
