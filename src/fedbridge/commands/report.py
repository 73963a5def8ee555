"""``fedbridge report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedbridge.commands.parts import add_command, write_json

if TYPE_CHECKING:
    from argparse import Namespace

    from fedbridge.commands.parts import Commands

HELP = """\
Write report.html, one self-contained page, for the folder of a run or of a comparison.

example:
  fedbridge report runs/demo
"""


def add(commands: Commands) -> None:
    """The command and its arguments."""
    short = "HTML page of a run or comparison"
    parser = add_command(commands, "report", report_command, short, HELP)
    parser.add_argument("folder", metavar="DIR", type=Path)


def report_command(args: Namespace) -> int:
    """Write the page and say where it is."""
    from fedbridge.report import write_report

    page = write_report(args.folder)
    if args.json:
        write_json({"report": str(page)})
    else:
        sys.stdout.write(f"{page}\n")
    return 0
