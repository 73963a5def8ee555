"""``fedbridge advise``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbridge.base.text import one_line
from fedbridge.cli import shared

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from rich.console import Group, RenderableType

    from fedbridge.advice.matrix import AdviceMatrix
    from fedbridge.advice.verdict import Advice
    from fedbridge.evaluation.intervals import Interval
    from fedbridge.report.tables import Table

BARS = "▁▂▃▄▅▆▇█"


def add(commands: shared.Commands) -> None:
    """The command and its arguments."""
    parser = shared.add_command(commands, "advise", advise_command, open_options=True)
    parser.add_argument("task", metavar="TASK|RUN_DIR")
    parser.add_argument("--target", help="the site that asks")
    parser.add_argument(
        "--matrix", action="store_true", help="every site the target in turn: who gains from whom"
    )
    parser.add_argument(
        "--targets", metavar="A,B,...", help="with --matrix, these sites only (default: all)"
    )
    parser.add_argument(
        "--labels", type=shared.natural, metavar="N", help="labelled rows of a target, if fewer"
    )
    parser.add_argument(
        "--engine", default="local", help="local, flower or flower-sim (default: local)"
    )
    parser.add_argument(
        "--seed",
        type=shared.natural,
        default=0,
        help="of data split and measuring round (default: 0)",
    )
    parser.add_argument(
        "--after", type=shared.natural, help="rounds of auto before measuring (default: 8)"
    )
    parser.add_argument(
        "--samples", type=counts, metavar="N,N,...", help="labelled samples to look ahead to"
    )
    parser.add_argument("--set", action="append", metavar="OPTION=VALUE", help="any option")
    parser.add_argument(
        "--out", type=shared.place, metavar="FILE", help="JSON to write; with --matrix a folder"
    )
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def advise_command(args: Namespace) -> int:
    """Measure, with progress, and show the advice."""
    from fedbridge.advice.matrix import AdviceMatrix

    with shared.results_only(args):
        of_run, of_task = shared.sort_options(args, ())
        of_run |= {} if args.after is None else {"after": args.after}
        of_run |= {"samples": args.samples, "engine": args.engine}
        if args.labels is not None:
            if "n_target" in of_task:
                raise shared.UsageError("Expected --labels or --n-target, but got both.")
            of_task["n_target"] = args.labels
        found = (_advise_all if args.matrix else _advise)(args, of_run, of_task)
    if isinstance(found, AdviceMatrix):
        return tell_matrix(args, found)
    return tell_advice(args, found)


def tell_advice(args: Namespace, advice: Advice) -> int:
    """Write advice where it is to be, and show it."""
    if args.out is not None:
        from fedbridge.base.files import to_json, write_atomically

        write_atomically(args.out, to_json(advice.to_json(), indent=1))
    if args.json:
        shared.write_json(advice.to_json())
    else:
        shared.results().print(show_advice(advice))
    return 0


def _advise(args: Namespace, of_run: dict[str, Any], of_task: dict[str, Any]) -> Advice:
    from fedbridge.advice.advise import is_run
    from fedbridge.data.load import check_weights, load_task
    from fedbridge.workflows.advise import advise

    if args.targets is not None:
        raise shared.UsageError("Expected --matrix with --targets; one site is a --target.")
    if is_run(Path(args.task)):
        task, target, of_run = args.task, args.target, of_run | of_task
    else:
        with shared.run_options_named():
            check_weights(args.task, of_run.get("model"), of_task)
            task = load_task(args.task, args.target, args.seed, **of_task)
        target = None
    with shared.share_progress(quiet=args.quiet or args.json) as update:
        return advise(task, target, args.seed, progress=update, **of_run)


def _advise_all(args: Namespace, of_run: dict[str, Any], of_task: dict[str, Any]) -> AdviceMatrix:
    from fedbridge.workflows.advise import advise_matrix

    if args.target is not None:
        raise shared.UsageError(
            "Expected no --target with --matrix, where every site is the target in turn: name some "
            "of them with --targets A,B."
        )
    if args.out is not None and args.out.is_file():
        raise shared.UsageError(
            f"Expected a folder to write the matrix to, but {str(args.out)!r} is a file: name "
            f"another with --out."
        )
    targets = "all" if args.targets in (None, "all") else _names(args.targets)
    quiet = args.quiet or args.json
    with shared.share_progress(quiet=quiet) as update, shared.run_options_named():
        return advise_matrix(
            args.task, targets, args.seed, of_task=of_task, progress=update, **of_run
        )


def tell_matrix(args: Namespace, matrix: AdviceMatrix) -> int:
    """Write the matrix where it is to be, and show it."""
    page = None if args.out is None else matrix.write(args.out)
    if args.json:
        told = {} if page is None else {"report": str(page)}
        shared.write_json({**matrix.to_json(), **told})
        return 0
    console = shared.results()
    console.print(show_matrix(matrix))
    if page is not None:
        console.print(f"report: {page}", soft_wrap=True)
    return 0


def show_matrix(matrix: AdviceMatrix) -> Group:
    """Who helps whom and who gains what; what it comes to last."""
    from rich.console import Group
    from rich.text import Text

    from fedbridge.report.tables import to_terminal

    parts: list[RenderableType] = []
    for table in (matrix.helpers(), matrix.gains()):
        parts += [to_terminal(table, titled=True), *map(Text, table.notes), Text("")]
    return Group(*parts, Text(str(matrix), "bold"))


def _names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


def counts(text: str) -> list[int]:
    """``30,100,300`` as whole numbers from 1."""
    numbers = [shared.natural(part.strip()) for part in text.split(",") if part.strip()]
    if not numbers or 0 in numbers:
        raise argparse.ArgumentTypeError(f"expected whole numbers from 1, but got {text!r}")
    return numbers


def show_advice(advice: Advice) -> Group:
    """All that a person wants to see of it; the verdict last, where it stays on the screen."""
    from rich.console import Group
    from rich.text import Text

    from fedbridge.report.tables import to_terminal

    parts: list[RenderableType] = []
    if advice.sigma2 is not None:
        parts += [to_terminal(table, titled=True) for table in _tables(advice)]
    if advice.curve:
        parts.append(Text(curve_line(advice)))
    parts.append(Text(f"Evidence: {advice.evidence}."))
    parts += [Text(f"Note: {note}.") for note in advice.notes]
    return Group(*parts, Text(""), Text(advice.verdict, "bold"))


def _tables(advice: Advice) -> Iterator[Table]:
    """How far the partners are, and what theory says of the rules."""
    from fedbridge.advice.verdict import percent, with_range
    from fedbridge.report.tables import Column, Table

    named = [Column("partner"), Column("rows", "number", digits=0)]
    measured = [
        Column(name, "number") for name in ("distance²/noise", "cosine", "share in the model")
    ]
    yield Table(
        "partners",
        f"Partners of {one_line(advice.target)} (95% intervals)",
        (*named, *measured, Column("it")),
        tuple(
            (
                partner.name,
                "" if partner.samples is None else partner.samples,
                *map(_with_interval, (partner.ratio, partner.cosine)),
                "" if partner.share is None else percent(partner.share),
                partner.role,
            )
            for partner in advice.partners
        ),
    )
    yield Table(
        "rules",
        "In theory: error of one update, as a part of that of training alone",
        (Column("rule"), Column("predicted", "number")),
        tuple(
            (rule.rule, f"{'at most ' * rule.bound}{with_range(rule.relative)}")
            for rule in advice.rules
        ),
    )


def curve_line(advice: Advice) -> str:
    """What joining saves for more and more samples, as a line of bars."""
    from fedbridge.advice.verdict import percent

    saved = [1.0 - point.best / point.alone if point.alone > 0 else 0.0 for point in advice.curve]
    first, last = advice.curve[0].samples, advice.curve[-1].samples
    return (
        f"In theory joining saves with {first} to {last} labelled samples: {sparkline(saved)} "
        f"({percent(max(saved[0], 0.0))} to {percent(max(saved[-1], 0.0))} of that error)"
    )


def sparkline(shares: Sequence[float]) -> str:
    """Shares from 0 to 1 as bars."""
    top = len(BARS) - 1
    return "".join(BARS[min(top, max(0, round(share * top)))] for share in shares)


def _with_interval(number: Interval) -> str:
    return f"{number.value:.2f} ({number.low:.2f} to {number.high:.2f})"
