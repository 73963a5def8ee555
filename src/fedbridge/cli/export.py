"""``fedbridge export``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.cli import shared

if TYPE_CHECKING:
    from argparse import Namespace


def add(commands: shared.Commands) -> None:
    """The command and its arguments."""
    parser = shared.add_command(commands, "export", export_command)
    parser.add_argument("run_dir", metavar="RUN_DIR", type=shared.place)
    parser.add_argument("--onnx", type=shared.place, metavar="FILE", help="graph to write")
    parser.add_argument(
        "--torch",
        type=shared.place,
        metavar="PLACE",
        help="folder, or file .safetensors, for the weights and a script that loads them",
    )
    shared.add_saved_run(parser)


def export_command(args: Namespace) -> int:
    """Write a graph, or weights and a script; say what was written and how it was checked."""
    with shared.results_only(args):
        from fedbridge.workflows.export import export

        shared.run_own_code(args)
        done = export(
            args.run_dir,
            onnx=args.onnx,
            torch=args.torch,
            model=args.model,
            unchecked=args.unchecked,
        )
    if args.json:
        shared.write_json({"run": str(args.run_dir), **done.to_json()})
        return 0
    return shared.say(*str(done).splitlines())
