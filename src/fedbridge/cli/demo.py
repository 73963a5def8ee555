"""``fedbridge demo``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.cli.compare import show_comparison
from fedbridge.cli.shared import RUNS, add_command, add_output, results_only, seeds

if TYPE_CHECKING:
    from argparse import Namespace

    from fedbridge.cli.shared import Commands

HELP = """\
All rules on embedded handwritten digits under three shifts, in under a minute and without network.

A second `fedbridge demo` shows the finished table at once; seeds may be added. With another number
of rounds name another folder with --out.

examples:
  fedbridge demo
  fedbridge demo --seeds 5 --out runs/my-demo --json
"""


def add(commands: Commands) -> None:
    """The command and its arguments."""
    short = "all rules on embedded data, in a minute"
    parser = add_command(commands, "demo", demo_command, short, HELP)
    parser.add_argument("--rounds", type=int, help="rounds of every run")
    parser.add_argument("--seeds", type=seeds, default=range(3), help="how many, or a list 0,1,2")
    add_output(parser, "runs/demo")


def demo_command(args: Namespace) -> int:
    """Run the embedded comparison and say what it shows."""
    with results_only(args):
        from fedbridge.cli.show import compare_progress
        from fedbridge.workflows.demo import ROUNDS, run_demo, what_it_shows

        out = args.out or RUNS / "demo"
        with compare_progress(quiet=args.quiet or args.json) as update:
            rounds = ROUNDS if args.rounds is None else args.rounds
            comparison = run_demo(args.seeds, rounds, out, args.workers, update)
    return show_comparison(comparison, out, args, what_it_shows(comparison))
