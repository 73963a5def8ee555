"""``fedbridge compare``, and ``fedbridge demo``, a comparison that is made up already."""

from __future__ import annotations

from argparse import Namespace
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from fedbridge.base.errors import FedbridgeError
from fedbridge.cli import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fedbridge.runs.comparison import Comparison

ALL = "all"


def add_demo(commands: shared.Commands) -> None:
    """``fedbridge demo`` and its arguments."""
    parser = shared.add_command(commands, "demo", demo_command)
    parser.add_argument("--rounds", type=int, help="rounds of every run")
    parser.add_argument(
        "--seeds", type=shared.seeds, default=range(3), help="how many, or a list 0,1,2"
    )
    shared.add_output(parser, "runs/demo")


def add(commands: shared.Commands) -> None:
    """``fedbridge compare`` and its arguments."""
    parser = shared.add_command(commands, "compare", compare_command, open_options=True)
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("--targets", help="all, or names separated by commas")
    parser.add_argument("--target", action="append", help="one name as it is; may be repeated")
    parser.add_argument("--methods", default="auto", help="all, or names separated by commas")
    parser.add_argument(
        "--seeds", type=shared.seeds, default=range(3), help="how many, or a list 0,1,2"
    )
    parser.add_argument("--rounds", type=int, default=50, help="rounds of every run (default: 50)")
    parser.add_argument("--set", action="append", metavar="OPTION=VALUE", help="any option")
    parser.add_argument(
        "--vary",
        action="append",
        metavar="OPTION=A,B,...",
        help="a setting for every value of an option of the task or the runs; may be repeated",
    )
    parser.add_argument(
        "--no-alone",
        dest="alone",
        action="store_false",
        help="without the stand-alone baselines alone-logistic and alone-forest",
    )
    shared.add_output(parser, "runs/compare-<task>")


def compare_command(args: Namespace) -> int:
    """Compare, with progress, and show the table."""
    with shared.results_only(args):
        from fedbridge.base.files import file_name
        from fedbridge.workflows.compare import Setting, compare

        methods = tuple(_methods(args.methods))
        of_run, of_task = shared.sort_options(args, methods)
        short = Path(args.task).stem
        out = args.out or shared.RUNS / file_name(f"compare-{short}")
        with compare_progress(quiet=args.quiet or args.json) as update, shared.run_options_named():
            settings = [
                Setting(", ".join([target or short, *told]), args.task, target, options, run)
                for target in _targets(args, of_task)
                for told, options, run in _varied(args, methods, of_task)
            ]
            comparison = compare(
                settings,
                methods,
                args.seeds,
                args.rounds,
                out,
                of_run,
                update,
                alone=args.alone,
            )
    return show_comparison(comparison, out, args)


def demo_command(args: Namespace) -> int:
    """Run the embedded comparison and say what it shows."""
    with shared.results_only(args):
        from fedbridge.workflows.demo import ROUNDS, run_demo, what_it_shows

        out = args.out or shared.RUNS / "demo"
        with compare_progress(quiet=args.quiet or args.json) as update:
            rounds = ROUNDS if args.rounds is None else args.rounds
            comparison = run_demo(args.seeds, rounds, out, args.workers, update)
    return show_comparison(comparison, out, args, what_it_shows(comparison))


@contextmanager
def compare_progress(*, quiet: bool) -> Iterator[Callable[[float, int, str], None]]:
    """A callback of a comparison that keeps a bar up to date."""
    with shared.progress_bar(quiet=quiet) as bar:
        shown = bar.add_task("starting", total=None)

        def update(done: float, cells: int, name: str) -> None:
            text = f"{int(done)} of {cells} runs, {name}"
            bar.update(shown, completed=done, total=cells, description=text)

        yield update


def show_comparison(
    comparison: Comparison, out: Path, args: Namespace, story: str | None = None
) -> int:
    """Write the report, show table, notes and failures; returns the exit status."""
    from fedbridge.report import write_report

    if not comparison.finished:
        said = next(cell.error for cell in comparison.cells if cell.error is not None)
        raise FedbridgeError(f"no run succeeded; the first said: {said}")
    page = write_report(out)
    if args.json:
        told = {} if story is None else {"summary": story}
        shared.write_json({**comparison.to_json(), **told, "out": str(out), "report": str(page)})
    else:
        from fedbridge.report.result_tables import comparison_table
        from fedbridge.report.tables import to_terminal

        console = shared.results()
        if comparison.kept:
            console.print(f"{comparison.kept} of {len(comparison.cells)} runs were finished before")
        console.print(to_terminal(comparison_table(comparison), styled=console.is_terminal))
        for text in (*comparison.notes(), *([] if story is None else ["", story, ""])):
            console.print(text)
        console.print(f"report: {page}", soft_wrap=True)
    for cell in comparison.failures:
        shared.complain(
            f"{cell.setting}, {cell.method}, seed {cell.seed} failed: {cell.error}", shared.FAILED
        )
    return shared.FAILED if comparison.failures else 0


def _varied(
    args: Namespace, methods: Sequence[str], of_task: Mapping[str, object]
) -> list[tuple[list[str], dict[str, object], dict[str, object]]]:
    """Every combination of the values of --vary: in words, as options of the task, of the runs."""
    dials = [shared.dial(text) for text in args.vary or ()]
    _check_dials([name for name, _ in dials], args)
    combinations = []
    for values in product(*(values for _, values in dials)):
        turned = dict(zip((name for name, _ in dials), values, strict=True))
        of_run, rest = shared.sort_options(Namespace(options=turned, workers=None), methods)
        told = [f"{name} {value}" for name, value in turned.items()]
        combinations.append((told, {**of_task, **rest}, of_run))
    return combinations


def _check_dials(names: Sequence[str], args: Namespace) -> None:
    for name in names:
        if name in args.options or names.count(name) > 1:
            raise shared.UsageError(
                f"Expected one way to set {name!r}, but got several: leave one out."
            )


def _targets(args: Namespace, of_task: Mapping[str, object]) -> Sequence[str | None]:
    """The targets to compare; None for the one that the task has of its own."""
    if args.target and args.targets:
        raise shared.UsageError("Expected either --target or --targets, but got both.")
    if args.target:
        return list(args.target)
    if not args.targets:
        return [None]
    from fedbridge.data.load import possible_targets
    from fedbridge.data.task import check_target_name

    possible = possible_targets(args.task, **of_task)
    if args.targets == ALL:
        return possible
    wanted = [check_target_name(name, possible) for name in _listed(args.targets)]
    return list(dict.fromkeys(wanted))


def _methods(text: str) -> list[str]:
    if text != ALL:
        return _listed(text)
    from fedbridge.methods import names

    return names()


def _listed(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]
