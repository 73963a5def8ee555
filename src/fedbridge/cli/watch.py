"""``fedbridge watch``."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedbridge.cli.shared import add_command, write_json

if TYPE_CHECKING:
    from argparse import Namespace

    from rich.console import Console

    from fedbridge.cli.shared import Commands

EVERY = 1.0
HELP = """\
Show how far a run or comparison is, from its files alone: what is done, running and failed, who
leads, how long it will take. In a terminal it keeps looking until the end (leave with Ctrl-C;
nothing stops by that); elsewhere it looks once.

examples:
  fedbridge watch runs/h
  fedbridge watch runs/h --once
"""


def add(commands: Commands) -> None:
    """The command and its arguments."""
    short = "how far a run or comparison is"
    parser = add_command(commands, "watch", watch_command, short, HELP)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--once", action="store_true", help="look once")


def watch_command(args: Namespace) -> int:
    """Look, once or until it is over."""
    from fedbridge.cli.show import results
    from fedbridge.cli.watch_view import view
    from fedbridge.workflows.watch import look

    if args.json:
        write_json(look(args.folder).to_json())
        return 0
    console = results()
    if args.once or not console.is_terminal:
        console.print(view(look(args.folder)))
    else:
        with suppress(KeyboardInterrupt):
            keep_looking(args.folder, console)
    return 0


def keep_looking(folder: Path, console: Console, every: float = EVERY) -> None:
    """Show the state, up to date, until there is nothing more to wait for."""
    from rich.live import Live

    from fedbridge.cli.watch_view import view
    from fedbridge.workflows.watch import look

    watched = look(folder)
    with Live(view(watched), console=console, auto_refresh=False) as live:
        while not watched.is_over:
            time.sleep(every)
            watched = look(folder)
            live.update(view(watched), refresh=True)
