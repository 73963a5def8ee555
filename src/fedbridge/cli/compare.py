"""``fedbridge compare``, and ``fedbridge demo``, a comparison that is made up already."""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedbridge.base.errors import FedbridgeError
from fedbridge.cli import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fedbridge.runs.comparison import Comparison
    from fedbridge.runs.variant import Variant

ALL = "all"
LOOK_EVERY = 2.0
USUAL = {"methods": "auto", "seeds": 3, "rounds": 50}
Asked: TypeAlias = (
    "tuple[Sequence[Any], Sequence[Variant], int | Sequence[int], int, dict[str, Any]]"
)
"""Tasks, methods, seeds, rounds and options of a comparison."""


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
    parser.add_argument(
        "--methods",
        metavar="NAME[OPTION=VALUE,...],...",
        help="all, or names separated by commas, each with options of its own in brackets",
    )
    parser.add_argument("--seeds", type=shared.seeds, help="how many (default: 3), or a list 0,1,2")
    parser.add_argument("--rounds", type=int, help="rounds of every run (default: 50)")
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
    parser.add_argument(
        "--resume", action="store_true", help="go on with what is there, which is always done"
    )
    shared.add_track(parser)
    shared.add_plugin(parser)
    shared.add_output(parser, "runs/compare-<task>")


def compare_command(args: Namespace) -> int:
    """Compare, with progress, and show the table."""
    with shared.results_only(args):
        from fedbridge.base.files import file_name
        from fedbridge.workflows.compare import compare
        from fedbridge.workflows.compared import is_comparison_file

        shared.run_plugins(args)
        out = args.out or shared.RUNS / file_name(f"compare-{Path(args.task).stem}")
        quiet = args.quiet or args.json
        with compare_progress(out, quiet=quiet) as update, shared.run_options_named():
            read = _from_file if is_comparison_file(args.task) else _from_words
            tasks, methods, seeds, rounds, options = read(args)
            comparison = compare(
                tasks,
                methods,
                seeds,
                rounds,
                out,
                progress=update,
                alone=args.alone,
                track=args.track or (),
                **options,
            )
    return show_comparison(comparison, out, args)


def _from_words(args: Namespace) -> Asked:
    """What the command line asks for: a setting for every target and every turn of a dial."""
    from fedbridge.workflows.compare import every_variant
    from fedbridge.workflows.compared import Setting

    variants = every_variant(*_said(args, "methods"))
    methods = [variant.method for variant in variants]
    of_run, of_task = shared.sort_options(args, methods)
    settings = [
        Setting(", ".join([target or Path(args.task).stem, *told]), args.task, target, options, run)
        for target in _targets(args, of_task)
        for told, options, run in _varied(args, methods, of_task)
    ]
    return settings, variants, *_said(args, "seeds", "rounds"), of_run


def _from_file(args: Namespace) -> Asked:
    """What a comparison file asks for; the command line goes before it."""
    from fedbridge.workflows.compare import every_variant
    from fedbridge.workflows.compared import read_comparison_file

    for flag in ("target", "targets", "vary"):
        if getattr(args, flag):
            raise shared.UsageError(
                f"Expected no --{flag} beside a comparison file, which says what is compared: "
                f"change [[tasks]] in {args.task!r}."
            )
    found = read_comparison_file(Path(args.task))
    args.alone = args.alone and found.get("alone", True)
    variants = every_variant(*_said(args, "methods", **found))
    options = Namespace(options=found["options"] | args.options, workers=args.workers)
    of_run, of_task = shared.sort_options(options, [variant.method for variant in variants])
    return found["tasks"], variants, *_said(args, "seeds", "rounds", **found), of_run | of_task


def _said(args: Namespace, *names: str, **found: Any) -> list[Any]:
    """What the command line says, or else the file, or what is usual."""
    given = {name: value for name, value in vars(args).items() if value is not None}
    return [{**USUAL, **found, **given}[name] for name in names]


def demo_command(args: Namespace) -> int:
    """Run the embedded comparison and say what it shows."""
    with shared.results_only(args):
        from fedbridge.workflows.demo import ROUNDS, run_demo, what_it_shows

        out = args.out or shared.RUNS / "demo"
        with compare_progress(out, quiet=args.quiet or args.json) as update:
            rounds = ROUNDS if args.rounds is None else args.rounds
            comparison = run_demo(args.seeds, rounds, out, args.workers, update)
    return show_comparison(comparison, out, args, what_it_shows(comparison))


@contextmanager
def compare_progress(
    folder: Path | None = None, *, quiet: bool
) -> Iterator[Callable[[float, int, str], None]]:
    """A callback of a comparison that keeps a bar up to date.

    The time that is left is what ``fedbridge watch`` tells of the ``folder``, if there is one.
    """
    with shared.progress_bar(quiet=quiet, timed=folder is None) as bar:
        shown = bar.add_task("starting", total=None)
        left = None if folder is None or bar.disable else TimeLeft(folder)

        def update(done: float, cells: int, name: str) -> None:
            text = f"{int(done)} of {cells} runs, {name}"
            told = "" if left is None else left.text()
            bar.update(shown, completed=done, total=cells, description=text + told)

        yield update


class TimeLeft:
    """What ``fedbridge watch`` would say of the time left, asked for every few seconds.

    All files of a large comparison take a while to read: at most a twentieth of the time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._text = ""
        self._next = 0.0

    def text(self) -> str:
        """The time left as the end of a line; nothing while nothing tells it."""
        now = time.monotonic()
        if now >= self._next:
            self._text = self._look()
            self._next = now + max(LOOK_EVERY, 20 * (time.monotonic() - now))
        return self._text

    def _look(self) -> str:
        from fedbridge.workflows.watch import look, time_left_text

        try:
            return time_left_text(look(self.folder))
        except FedbridgeError:  # it is being written for the first time
            return ""


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
    return shared.complain_of_failures(
        f"{cell.setting}, {cell.method}, seed {cell.seed} failed: {cell.error}"
        for cell in comparison.failures
    )


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
    from fedbridge.workflows.compared import targets_of

    wanted = ALL if args.targets == ALL else _listed(args.targets)
    return targets_of(args.task, wanted, of_task)


def _listed(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]
