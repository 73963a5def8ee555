"""``fedbridge report``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.cli import shared

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path


def add(commands: shared.Commands) -> None:
    """The command and its arguments."""
    parser = shared.add_command(commands, "report", report_command)
    parser.add_argument("folder", metavar="DIR", type=shared.place)
    parser.add_argument(
        "--out", metavar="FILE", type=shared.place, help="page (default: DIR/report.html)"
    )
    parser.add_argument(
        "--figures", metavar="DIR", type=shared.place, help="charts as SVG, PNG and PDF"
    )
    parser.add_argument(
        "--tables", metavar="DIR", type=shared.place, help="tables as CSV, Markdown, LaTeX"
    )
    shared.add_unchecked(parser)


def report_command(args: Namespace) -> int:
    """Write the page and say where it is."""
    from fedbridge.report import write_report

    page = write_report(args.folder, args.out, unchecked=args.unchecked)
    files = {} if args.figures is None else {"figures": _save_figures(args)}
    if args.tables is not None:
        from fedbridge.report import write_tables

        files["tables"] = write_tables(args.folder, args.tables, unchecked=args.unchecked)
    if args.json:
        shared.write_json({"report": str(page), **{k: list(map(str, v)) for k, v in files.items()}})
    else:
        shared.say(page, *(file for written in files.values() for file in written))
    return 0


def _save_figures(args: Namespace) -> list[Path]:
    from fedbridge.report import read_page, save_figures

    with shared.share_progress(quiet=args.json) as update:
        return save_figures(read_page(args.folder, unchecked=args.unchecked), args.figures, update)
