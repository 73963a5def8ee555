"""``fedbridge advise``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedbridge.cli.shared import (
    add_command,
    natural,
    results_only,
    run_options_named,
    sort_options,
    write_json,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from fedbridge.cli.shared import Commands

HELP = """\
Is joining worth it? Which partners help, which hurt, and which rule to use?

Measures all sites once, after a few rounds of the sources, and predicts the error of the update
that every rule would make; a short trial on the target's own rows is the second evidence. TASK and
options are those of `fedbridge run`. The folder of a run works too: its last rounds speak then.
Writes nothing unless --out says where. When the evidence is too thin, it says so and recommends
`auto`.

examples:
  fedbridge advise hospitals.csv --site-column hospital --label-column disease --target Northgate
  fedbridge advise digits-noise --noise 0.3 --samples 30,100,300
  fedbridge advise runs/digits-noise-target-fedda-joint-0 --json
"""


def add(commands: Commands) -> None:
    """The command and its arguments."""
    short = "is joining worth it, who helps, which rule"
    parser = add_command(commands, "advise", advise_command, short, HELP, open_options=True)
    parser.add_argument("task", metavar="TASK|RUN_DIR")
    parser.add_argument("--target", help="the site that asks")
    parser.add_argument(
        "--seed", type=natural, default=0, help="of data split and measuring round (default: 0)"
    )
    parser.add_argument(
        "--after", type=natural, help="rounds of the sources before measuring (default: 10)"
    )
    parser.add_argument(
        "--samples", type=counts, metavar="N,N,...", help="labelled samples to look ahead to"
    )
    parser.add_argument("--set", action="append", metavar="OPTION=VALUE", help="any option")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON to write")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def advise_command(args: Namespace) -> int:
    """Measure, with progress, and show the advice."""
    with results_only(args):
        from fedbridge.advice import advise
        from fedbridge.advice.advise import is_run
        from fedbridge.base.files import to_json, write_atomically
        from fedbridge.cli.show import share_progress
        from fedbridge.data.load import load_task

        of_run, of_task = sort_options(args, ())
        of_run |= {} if args.after is None else {"after": args.after}
        if is_run(Path(args.task)):
            task, target, of_run = args.task, args.target, of_run | of_task
        else:
            with run_options_named():
                task = load_task(args.task, args.target, args.seed, **of_task)
            target = None
        with share_progress(quiet=args.quiet or args.json) as update:
            advice = advise(
                task, target, args.seed, samples=args.samples, progress=update, **of_run
            )
        if args.out is not None:
            write_atomically(args.out, to_json(advice.to_json(), indent=1))
    if args.json:
        write_json(advice.to_json())
    else:
        from fedbridge.advice.view import show_advice
        from fedbridge.cli.show import results

        results().print(show_advice(advice))
    return 0


def counts(text: str) -> list[int]:
    """``30,100,300`` as whole numbers from 1."""
    numbers = [natural(part.strip()) for part in text.split(",") if part.strip()]
    if not numbers or 0 in numbers:
        raise argparse.ArgumentTypeError(f"expected whole numbers from 1, but got {text!r}")
    return numbers
