"""``fedbridge run``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fedbridge.cli.shared import (
    RUNS,
    add_command,
    add_output,
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
Train a model for the target with the help of the sources.

TASK is a built-in name (see `fedbridge tasks`), a .csv with a site column, a folder
domain/class/*.png, a folder of domain.npz or of one .csv per site, or a task .toml.

Any other option of the task (--n-target, --noise, --site-column, --label-column, --image-size ...),
of the run (--model, --lr, --batch-size, --epochs, --warmup, --evidence, --device ...) or of the
method (--beta, --match ...), and with --engine flower of the network (--timeout, --encoding,
--norm-bound, --dp-clip, --dp-noise ...) is given as `--option value` or `--set option=value`;
lists as 0.1,0.2.

examples:
  fedbridge run digits-noise --noise 0.3 --method auto --rounds 20
  fedbridge run hospitals.csv --site-column hospital --label-column disease --target Northgate
  fedbridge run photos/ --target sketch --image-size 32 --model cnn --rounds 30 --out runs/sketch
  fedbridge run digits-noise --method fedgp --beta 0.3 --out runs/a --resume
  fedbridge run digits-noise --engine flower --rounds 5
"""


def add(commands: Commands) -> None:
    """The command and its arguments."""
    parser = add_command(
        commands, "run", run_command, "train a model for the target", HELP, open_options=True
    )
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("--target", help="the site that adapts")
    parser.add_argument("--method", default="auto", help="see `fedbridge methods` (default: auto)")
    parser.add_argument("--rounds", type=int, default=50, help="rounds (default: 50)")
    parser.add_argument(
        "--seed", type=natural, default=0, help="of data split and run (default: 0)"
    )
    parser.add_argument(
        "--engine",
        default="local",
        help="local, flower (a network of processes on this machine) or flower-sim",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    parser.add_argument("--set", action="append", metavar="OPTION=VALUE", help="any option")
    add_output(parser, "runs/<task>-<target>-<method>-<seed>")


def run_command(args: Namespace) -> int:
    """Train, with progress, and show the summary."""
    with results_only(args):
        from fedbridge.base.files import file_name
        from fedbridge.cli.show import run_progress
        from fedbridge.data.load import load_task
        from fedbridge.workflows.run import run

        of_run, of_task = sort_options(args, (args.method,))
        with run_options_named():
            task = load_task(args.task, args.target, args.seed, **of_task)
        name = f"{task.name}-{task.target.name}-{args.method}-{args.seed}"
        out = args.out or RUNS / file_name(name)
        if not (args.json or args.quiet):
            sys.stdout.write("".join(f"{note}\n" for note in task.notes))
        with run_progress(args.rounds, quiet=args.quiet or args.json) as update:
            result = run(
                task,
                args.method,
                args.rounds,
                args.seed,
                args.engine,
                out,
                resume=args.resume,
                callbacks=[update],
                **of_run,
            )
    if args.json:
        write_json({**result.summary, "out": str(out)})
    else:
        from fedbridge.cli.show import results, summary_table

        console = results()
        console.print(summary_table(result.summary))
        page = out / "report.html"
        console.print(f"report: {page}" if page.exists() else f"folder: {out}", soft_wrap=True)
    return 0
