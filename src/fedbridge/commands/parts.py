"""What several commands share: arguments, exit statuses, and how results are written."""

from __future__ import annotations

import sys
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeAlias

    from fedbridge.arguments import Parser

    Commands: TypeAlias = argparse._SubParsersAction[Parser]
    Command: TypeAlias = Callable[[Namespace], int]

FAILED = 1
RUNS = Path("runs")


def add_command(
    commands: Commands, name: str, command: Command, short: str, text: str = "", **more: Any
) -> Parser:
    """A parser for one command, with what every command has."""
    parser = commands.add_parser(name, help=short, description=text or short, **more)
    parser.set_defaults(command=command)
    add_debug(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def add_debug(parser: Parser) -> None:
    """``--debug``, which may stand before or after the name of the command."""
    parser.add_argument("--debug", action="store_true", help="show where an error came from")


def add_output(parser: Parser, default: str) -> None:
    """Options of commands that train and write a folder."""
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder (default: {default})")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


@contextmanager
def results_only(args: Namespace) -> Iterator[None]:
    """With --json nothing but the object may reach stdout, whatever a user's model prints."""
    if args.json:
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def write_json(content: Mapping[str, Any]) -> None:
    """The one object of ``--json``."""
    from fedbridge.files import to_json

    sys.stdout.write(to_json(dict(content)) + "\n")


def complain(text: str, status: int) -> int:
    """Say one line on stderr; returns the exit status."""
    sys.stderr.write(f"fedbridge: {text}\n")
    return status
