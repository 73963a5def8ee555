"""The command line: reads arguments, calls the library, shows the result.

What a command needs is imported when it runs, not before.
"""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedbridge
from fedbridge.arguments import Parser, UsageError, natural, seeds
from fedbridge.errors import FedbridgeError, UnknownOptionError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping, Sequence

    from fedbridge.comparison import Comparison

USER_ERROR, FAILED, BROKEN_PIPE, INTERRUPTED = 2, 1, 141, 130
RUNS = Path("runs")
ALL = "all"

RUN_HELP = """\
Train a model for the target with the help of the sources.

TASK is a built-in name (see `fedbridge tasks`), a .csv with a site column, a folder
domain/class/*.png, a folder of domain.npz or of one .csv per site, or a task .toml.

Any other option of the task (--n-target, --noise, --site-column, --label-column, --image-size ...),
of the run (--model, --lr, --batch-size, --epochs, --warmup, --evidence, --device ...) or of the
method (--beta, --match ...) is given as `--option value` or `--set option=value`; lists as 0.1,0.2.

examples:
  fedbridge run digits-noise --noise 0.3 --method auto --rounds 20
  fedbridge run hospitals.csv --site-column hospital --label-column disease --target Northgate
  fedbridge run photos/ --target sketch --image-size 32 --model cnn --rounds 30 --out runs/sketch
  fedbridge run digits-noise --method fedgp --beta 0.3 --out runs/a --resume
"""
COMPARE_HELP = """\
Compare methods over targets and seeds; source-only, target-only and the matched control are added.

Run the same command again to go on after a stop: finished runs are kept. Targets, methods and
seeds may be added to a comparison. Options of tasks, runs and methods as in `fedbridge run`; every
method gets those that it has.

examples:
  fedbridge compare digits-contrast --methods fedavg,fedda,auto --seeds 5 --rounds 20
  fedbridge compare hospitals.toml --targets all --methods auto,fedgp --seeds 0,1,2 --out runs/h
"""
DEMO_HELP = """\
All rules on embedded handwritten digits under three shifts, in under a minute and without network.

A second `fedbridge demo` shows the finished table at once; seeds may be added. With another number
of rounds name another folder with --out.

examples:
  fedbridge demo
  fedbridge demo --seeds 5 --out runs/my-demo --json
"""
PREDICT_HELP = """\
Predict for new data with the model of a finished run and its saved preprocessing.

NEW_DATA is of the kind that the run was trained on: a .csv, an .npz with X, an image or a folder of
images. Writes a CSV with the row, the prediction and a probability per class, to stdout by default.

examples:
  fedbridge predict runs/hospitals-Northgate-auto-0 new_patients.csv --out predictions.csv
  fedbridge predict runs/photos new_photos/ --json
"""
REPORT_HELP = """\
Write report.html, one self-contained page, for the folder of a run or of a comparison.

example:
  fedbridge report runs/demo
"""
MAIN_HELP = """\
Data-rich sites help one data-poor site to a good model, and no data moves.

examples:
  fedbridge demo
  fedbridge run hospitals.csv --site-column hospital --label-column disease --target Northgate
  fedbridge compare hospitals.toml --targets all --methods auto,fedgp --seeds 3 --out runs/h
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    with _short_warnings():
        try:
            args = build_parser().parse_args(words)
            status: int = args.command(args)
            sys.stdout.flush()
        except BrokenPipeError:
            _let_go_of_stdout()
            return BROKEN_PIPE
        except KeyboardInterrupt:
            if debug:
                raise
            return _complain(f"stopped{_how_to_go_on(words)}", INTERRUPTED)
        except (FedbridgeError, OSError) as error:
            if debug:
                raise
            return _complain(f"error: {error}", USER_ERROR)
        except Exception as error:
            if debug:
                raise
            what = f"{type(error).__name__}: {error}"
            return _complain(f"internal error: {what} (--debug shows where)", FAILED)
    return status


def build_parser() -> Parser:
    """All commands with their arguments."""
    parser = Parser(prog="fedbridge", description=MAIN_HELP)
    parser.add_argument("--version", action="version", version=f"fedbridge {fedbridge.__version__}")
    _add_debug(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command: Any, short: str, text: str | None = None, **more: Any) -> Parser:
        sub: Parser = commands.add_parser(name, help=short, description=text or short, **more)
        sub.set_defaults(command=command)
        _add_debug(sub)
        sub.add_argument("--json", action="store_true", help="one JSON object on stdout")
        return sub

    demo = add("demo", demo_command, "all rules on embedded data, in a minute", DEMO_HELP)
    demo.add_argument("--rounds", type=int, help="rounds of every run")
    demo.add_argument("--seeds", type=seeds, default=range(3), help="how many, or a list 0,1,2")
    _add_output(demo, "runs/demo")

    run = add("run", run_command, "train a model for the target", RUN_HELP, open_options=True)
    run.add_argument("task", metavar="TASK")
    run.add_argument("--target", help="the site that adapts")
    run.add_argument("--method", default="auto", help="see `fedbridge methods` (default: auto)")
    run.add_argument("--rounds", type=int, default=50, help="rounds (default: 50)")
    run.add_argument("--seed", type=natural, default=0, help="of data split and run (default: 0)")
    run.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    run.add_argument("--set", action="append", metavar="OPTION=VALUE", help="any option")
    _add_output(run, "runs/<task>-<target>-<method>-<seed>")

    compare = add(
        "compare", compare_command, "methods x targets x seeds", COMPARE_HELP, open_options=True
    )
    compare.add_argument("task", metavar="TASK")
    compare.add_argument("--targets", help="all, or names separated by commas")
    compare.add_argument("--target", action="append", help="one name as it is; may be repeated")
    compare.add_argument("--methods", default="auto", help="names separated by commas")
    compare.add_argument("--seeds", type=seeds, default=range(3), help="how many, or a list 0,1,2")
    compare.add_argument("--rounds", type=int, default=50, help="rounds of every run (default: 50)")
    compare.add_argument("--set", action="append", metavar="OPTION=VALUE", help="any option")
    _add_output(compare, "runs/compare-<task>")

    predict = add("predict", predict_command, "predictions with a finished run", PREDICT_HELP)
    predict.add_argument("run_dir", metavar="RUN_DIR", type=Path)
    predict.add_argument("new_data", metavar="NEW_DATA", type=Path)
    predict.add_argument("--out", type=Path, metavar="FILE", help="CSV to write")

    report = add("report", report_command, "HTML page of a run or comparison", REPORT_HELP)
    report.add_argument("folder", metavar="DIR", type=Path)

    add("methods", methods_command, "list all methods")
    add("tasks", tasks_command, "list all built-in tasks")
    return parser


def run_command(args: Namespace) -> int:
    """``fedbridge run``."""
    with _results_only(args):
        from fedbridge.data.load import load_task
        from fedbridge.files import file_name
        from fedbridge.run import run
        from fedbridge.show import run_progress

        of_run, of_task = _sort_options(args, (args.method,))
        with _run_options_named():
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
                out=out,
                resume=args.resume,
                callbacks=[update],
                **of_run,
            )
    if args.json:
        _write_json({**result.summary, "out": str(out)})
    else:
        from fedbridge.show import results, summary_table

        console = results()
        console.print(summary_table(result.summary))
        page = out / "report.html"
        console.print(f"report: {page}" if page.exists() else f"folder: {out}", soft_wrap=True)
    return 0


def compare_command(args: Namespace) -> int:
    """``fedbridge compare``."""
    with _results_only(args):
        from fedbridge.compare import Setting, compare
        from fedbridge.files import file_name
        from fedbridge.show import compare_progress

        methods = tuple(_listed(args.methods))
        of_run, of_task = _sort_options(args, methods)
        short = Path(args.task).stem
        out = args.out or RUNS / file_name(f"compare-{short}")
        with compare_progress(quiet=args.quiet or args.json) as update, _run_options_named():
            settings = [
                Setting(target or short, args.task, target, of_task)
                for target in _targets(args, of_task)
            ]
            comparison = compare(settings, methods, args.seeds, args.rounds, out, of_run, update)
    return _show_comparison(comparison, out, args)


def demo_command(args: Namespace) -> int:
    """``fedbridge demo``."""
    with _results_only(args):
        from fedbridge.demo import ROUNDS, run_demo, what_it_shows
        from fedbridge.show import compare_progress

        out = args.out or RUNS / "demo"
        with compare_progress(quiet=args.quiet or args.json) as update:
            rounds = ROUNDS if args.rounds is None else args.rounds
            comparison = run_demo(args.seeds, rounds, out, args.workers, update)
    return _show_comparison(comparison, out, args, what_it_shows(comparison))


def predict_command(args: Namespace) -> int:
    """``fedbridge predict``."""
    with _results_only(args):
        from fedbridge.files import write_atomically
        from fedbridge.predict import predict

        found = predict(args.run_dir, args.new_data)
        if args.out is not None:
            write_atomically(args.out, found.to_csv())
    if args.json:
        out = None if args.out is None else str(args.out)
        _write_json({"run": str(args.run_dir), "out": out, "predictions": found.to_json()})
    elif args.out is None:
        sys.stdout.write(found.to_csv())
    else:
        sys.stdout.write(f"{len(found.rows)} predictions in {args.out}\n")
    return 0


def report_command(args: Namespace) -> int:
    """``fedbridge report``."""
    from fedbridge.report import write_report

    page = write_report(args.folder)
    if args.json:
        _write_json({"report": str(page)})
    else:
        sys.stdout.write(f"{page}\n")
    return 0


def methods_command(args: Namespace) -> int:
    """``fedbridge methods``."""
    from fedbridge import methods

    return _list_names([(name, methods.summary_of(name)) for name in methods.names()], args)


def tasks_command(args: Namespace) -> int:
    """``fedbridge tasks``."""
    from fedbridge.data.load import registry, summary_of

    return _list_names([(name, summary_of(name)) for name in registry.names()], args)


def _add_debug(parser: Parser) -> None:
    parser.add_argument("--debug", action="store_true", help="show where an error came from")


def _add_output(parser: Parser, default: str) -> None:
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder (default: {default})")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def _sort_options(args: Namespace, methods: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of runs and methods, and those that are left for the task."""
    from fedbridge.methods import options_of
    from fedbridge.settings import NAMES

    options = args.options | ({} if args.workers is None else {"workers": args.workers})
    known = {*NAMES, *(option for method in methods for option in options_of(method))}
    of_run = {name: value for name, value in options.items() if name in known}
    return of_run, {name: value for name, value in options.items() if name not in known}


@contextmanager
def _run_options_named() -> Iterator[None]:
    """An option that the task does not have may be a misspelt one of the run: name those too."""
    try:
        yield
    except UnknownOptionError as error:
        from fedbridge.settings import NAMES

        raise UnknownOptionError(f"{error} Options of every run: {', '.join(NAMES)}.") from error


def _targets(args: Namespace, of_task: Mapping[str, object]) -> Sequence[str | None]:
    """The targets to compare; None for the one that the task has of its own."""
    if args.target and args.targets:
        raise UsageError("Expected either --target or --targets, but got both.")
    if args.target:
        return list(args.target)
    if not args.targets:
        return [None]
    from fedbridge.data.load import possible_targets

    possible = possible_targets(args.task, **of_task)
    if args.targets == ALL:
        return possible
    wanted = _listed(args.targets)
    for name in wanted:
        if name not in possible:
            raise UsageError(f"Expected --targets among {', '.join(possible)}, but got {name!r}.")
    return wanted


def _listed(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


def _show_comparison(
    comparison: Comparison, out: Path, args: Namespace, story: str | None = None
) -> int:
    from fedbridge.report import write_report

    if not comparison.finished:
        raise FedbridgeError(f"no run succeeded; the first said: {comparison.failures[0].error}")
    page = write_report(out)
    if args.json:
        told = {} if story is None else {"summary": story}
        _write_json({**comparison.to_json(), **told, "out": str(out), "report": str(page)})
    else:
        from fedbridge.show import comparison_table, results

        console = results()
        if comparison.kept:
            console.print(f"{comparison.kept} of {len(comparison.cells)} runs were finished before")
        console.print(comparison_table(comparison, styled=console.is_terminal))
        for text in (*comparison.notes(), *([] if story is None else ["", story, ""])):
            console.print(text)
        console.print(f"report: {page}", soft_wrap=True)
    for cell in comparison.failures:
        _complain(f"{cell.setting}, {cell.method}, seed {cell.seed} failed: {cell.error}", FAILED)
    return FAILED if comparison.failures else 0


def _list_names(entries: Sequence[tuple[str, str]], args: Namespace) -> int:
    if args.json:
        _write_json(dict(entries))
    else:
        from fedbridge.show import name_table, results

        results().print(name_table(entries))
    return 0


@contextmanager
def _results_only(args: Namespace) -> Iterator[None]:
    """With --json nothing but the object may reach stdout, whatever a user's model prints."""
    if args.json:
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def _write_json(content: Mapping[str, Any]) -> None:
    from fedbridge.files import to_json

    sys.stdout.write(to_json(dict(content)) + "\n")


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Warnings in one line, as errors are."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        sys.stderr.write(f"fedbridge: warning: {message}\n")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _complain(text: str, status: int) -> int:
    sys.stderr.write(f"fedbridge: {text}\n")
    return status


def _how_to_go_on(words: Sequence[str]) -> str:
    command = next((word for word in words if not word.startswith("-")), "")
    again = shlex.join(["fedbridge", *words])
    if command == "run":
        return f"; to go on: {again}{'' if '--resume' in words else ' --resume'}"
    return f"; to go on: {again}" if command in ("compare", "demo") else ""


def _let_go_of_stdout() -> None:
    """The reader is gone: keep Python from complaining about it when it flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
