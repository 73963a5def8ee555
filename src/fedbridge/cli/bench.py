"""``fedbridge bench``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from fedbridge.cli import shared

if TYPE_CHECKING:
    from argparse import Namespace


def add(commands: shared.Commands) -> None:
    """The command and its arguments."""
    parser = shared.add_command(commands, "bench", bench_command)
    parser.add_argument("--quick", action="store_true", help="in small, in a minute or two")
    parser.add_argument(
        "--only", metavar="PARTS", help="some of rules,growth,round,flower,many,methods (all)"
    )
    parser.add_argument(
        "--write",
        metavar="FILE.md",
        type=shared.place,
        help="put the tables between the marks of a document, the growth curves beside it",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def bench_command(args: Namespace) -> int:
    """Measure, and print the ratios."""
    with shared.results_only(args):
        from fedbridge.report.benchmarks import PARTS, write
        from fedbridge.workflows.bench import bench

        parts = args.only.split(",") if args.only else PARTS
        with shared.share_progress(quiet=args.quiet) as tell:
            found = bench(parts, quick=args.quick, tell=tell)
        written = write(found, args.write) if args.write else []
    if args.json:
        shared.write_json(asdict(found))
        return 0
    from fedbridge.report.tables import to_terminal

    console = shared.results()
    for table in found.tables():
        console.print(to_terminal(table, titled=True))
    return shared.say(*(f"written: {file}" for file in written))
