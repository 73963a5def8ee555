"""``fedbridge predict``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fedbridge.cli import shared

if TYPE_CHECKING:
    from argparse import Namespace

HELP = """\
Predict for new data with the model of a finished run and its saved preprocessing.

NEW_DATA is of the kind that the run was trained on: a .csv, an .npz with X, an image or a folder of
images. Writes a CSV with the row, the prediction and a probability per class, to stdout by default.

examples:
  fedbridge predict runs/hospitals-Northgate-auto-0 new_patients.csv --out predictions.csv
  fedbridge predict runs/photos new_photos/ --json
  fedbridge predict runs/own new.csv --model my_model:small_net
"""


def add(commands: shared.Commands) -> None:
    """The command and its arguments."""
    short = "predictions with a finished run"
    parser = shared.add_command(commands, "predict", predict_command, short, HELP)
    parser.add_argument("run_dir", metavar="RUN_DIR", type=shared.place)
    parser.add_argument("new_data", metavar="NEW_DATA", type=shared.place)
    parser.add_argument("--out", type=shared.place, metavar="FILE", help="CSV to write")
    parser.add_argument(
        "--model", metavar="MODULE:FUNCTION", help="the run's own model, if you trust that code"
    )
    shared.add_unchecked(parser)


def predict_command(args: Namespace) -> int:
    """Predict, and write a CSV or JSON."""
    with shared.results_only(args):
        from fedbridge.base.files import refuse_overwriting, write_atomically
        from fedbridge.workflows.predict import inputs_of, predict

        if args.out is not None:
            refuse_overwriting(args.out, inputs_of(args.run_dir, args.new_data))
        found = predict(args.run_dir, args.new_data, model=args.model, unchecked=args.unchecked)
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
