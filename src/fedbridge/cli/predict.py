"""``fedbridge predict``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fedbridge.cli import shared

if TYPE_CHECKING:
    from argparse import Namespace


def add(commands: shared.Commands) -> None:
    """The command and its arguments."""
    parser = shared.add_command(commands, "predict", predict_command)
    parser.add_argument("run_dir", metavar="RUN_DIR", type=shared.place)
    parser.add_argument("new_data", metavar="NEW_DATA", type=shared.place)
    parser.add_argument("--out", type=shared.place, metavar="FILE", help="CSV to write")
    parser.add_argument("--decimal", help="of the new table, if it is another than in training")
    parser.add_argument("--thousands", help="the same")
    parser.add_argument("--percent", action="store_true", default=None, help="the same")
    shared.add_saved_run(parser)


def predict_command(args: Namespace) -> int:
    """Predict, and write a CSV or JSON."""
    with shared.results_only(args):
        from fedbridge.base.files import refuse_overwriting, write_atomically
        from fedbridge.workflows.predict import inputs_of, predict

        shared.run_own_code(args)
        if args.out is not None:
            refuse_overwriting(args.out, inputs_of(args.run_dir, args.new_data))
        spelt = {name: getattr(args, name) for name in ("decimal", "thousands", "percent")}
        found = predict(
            args.run_dir,
            args.new_data,
            model=args.model,
            unchecked=args.unchecked,
            numbers={name: value for name, value in spelt.items() if value is not None},
        )
        if args.out is not None:
            write_atomically(args.out, found.to_csv())
    if args.json:
        out = None if args.out is None else str(args.out)
        shared.write_json({"run": str(args.run_dir), "out": out, "predictions": found.to_json()})
    elif args.out is None:
        sys.stdout.write(found.to_csv())
    else:
        shared.say(f"{len(found.rows)} predictions in {args.out}")
    return 0
