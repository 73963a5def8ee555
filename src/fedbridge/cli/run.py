"""``fedbridge run``."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedbridge.cli import shared

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.table import Table

ROUNDS = 50
LEFT_OUT = "left out"
"""How a note begins that says what nothing is learned from."""
NOT_MEASURED = "not measured"
"""The target was not there, or keeps its measures to itself."""


def add(commands: shared.Commands) -> None:
    """The command and its arguments."""
    parser = shared.add_command(commands, "run", run_command, open_options=True)
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("--target", help="the site that adapts")
    parser.add_argument(
        "--method",
        default="auto",
        help="see `fedbridge methods` (default: auto), or module:name of your own",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds (default: {ROUNDS})")
    parser.add_argument(
        "--seed", type=shared.natural, default=0, help="of data split and run (default: 0)"
    )
    parser.add_argument(
        "--engine",
        default="local",
        help="local, flower (a network of processes on this machine) or flower-sim",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    shared.add_unchecked(parser)
    parser.add_argument("--set", action="append", metavar="OPTION=VALUE", help="any option")
    parser.add_argument("--verbose", action="store_true", help="all notes on data and training")
    shared.add_track(parser)
    shared.add_plugin(parser)
    shared.add_output(parser, "runs/<task>-<target>-<method>-<seed>")


def run_command(args: Namespace) -> int:
    """Train, with progress, and show the summary, what it means and what to do next."""
    with shared.results_only(args):
        from fedbridge.base.files import file_name
        from fedbridge.data.load import check_weights, load_task
        from fedbridge.methods import known_as
        from fedbridge.workflows.meaning import what_it_means
        from fedbridge.workflows.run import run
        from fedbridge.workflows.tracking import named

        trackers = named(args.track or ())
        shared.run_plugins(args)
        args.method = known_as(args.method)
        of_run, of_task = shared.sort_options(args, (args.method,))
        with shared.run_options_named():
            check_weights(args.task, of_run.get("model"), of_task)
            task = load_task(args.task, args.target, args.seed, **of_task)
        name = f"{task.name}-{task.target.name}-{args.method}-{args.seed}"
        out = args.out or shared.RUNS / file_name(name)
        with run_progress(args.rounds, quiet=args.quiet or args.json) as update:
            result = run(
                task,
                args.method,
                args.rounds,
                args.seed,
                args.engine,
                out,
                resume=args.resume,
                unchecked=args.unchecked,
                callbacks=[update, *trackers],
                **of_run,
            )
    if args.json:
        shared.write_json({**result.summary, "out": str(out)})
        return 0
    if not args.quiet:
        notes = [*task.notes, *result.history[0]["notes"]]
        shared.say(*(notes if args.verbose else folded(notes)))
    console = shared.results()
    console.print(summary_table(result.summary))
    for line in what_it_means(out):
        console.print(line)
    console.print(f"Next: {next_command(args, out)}", soft_wrap=True)
    for where in filter(None, (tracker.where for tracker in trackers)):
        console.print(f"tracked: {where}", soft_wrap=True)
    page = out / "report.html"
    console.print(f"report: {page}" if page.exists() else f"folder: {out}", soft_wrap=True)
    return 0


def folded(notes: Sequence[str]) -> list[str]:
    """How many notes there are; those in full that say what nothing is learned from."""
    shown = [note for note in notes if note.startswith(LEFT_OUT)]
    more = len(notes) - len(shown)
    counted = f"{more} {'more ' if shown else ''}note{'s' * (more != 1)} on data and training"
    return [*shown, *([f"{counted}: --verbose shows all"] if more else [])]


def next_command(args: Namespace, out: Path) -> str:
    """What to do with the run: see whether more than one split says the same, or use it."""
    from fedbridge.base.own_code import is_named
    from fedbridge.base.values import canonical, spelt
    from fedbridge.methods import is_own
    from fedbridge.models import is_built_in
    from fedbridge.workflows.meaning import is_small_test

    plugins = [word for file in args.plugin or () for word in ("--plugin", str(file))]
    if not is_small_test(out):
        model = str(args.options.get("model", ""))
        named = ["--method", args.method] * (is_own(args.method) and not plugins)
        named += ["--model", model] * (is_named(model) and not is_built_in(model))
        return shlex.join(["fedbridge", "predict", str(out), "NEW_DATA", *plugins, *named])
    options = {**args.options, **({} if args.workers is None else {"workers": args.workers})}
    words = ["fedbridge", "compare", args.task, "--methods", args.method, "--seeds", "5", *plugins]
    words += [] if args.target is None else ["--target", args.target]
    words += ["--rounds", str(args.rounds)] if args.rounds != ROUNDS else []
    for name, value in options.items():
        text = value if isinstance(value, str) else spelt(name, canonical(value))
        words += [f"--{name.replace('_', '-')}", text]
    return shlex.join(words)


@contextmanager
def run_progress(rounds: int, *, quiet: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A callback for every round that keeps a bar up to date."""
    with shared.share_progress(rounds, quiet=quiet) as show:
        yield lambda line: show(max(0, line["round"]), _round_text(line))


def summary_table(summary: Mapping[str, Any]) -> Table:
    """A finished run in a few lines."""
    from rich.table import Table
    from rich.text import Text

    title = f"{summary['task']}: {summary['target']} by {summary['method']}"
    table = Table(title=Text(title), title_justify="left", show_header=False)
    for name, value in summary_lines(summary):
        table.add_row(Text(name), Text(value))
    return table


def summary_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is worth saying of a run, with how sure one can be of it."""
    from fedbridge.evaluation.metrics import SCORED_ROUNDS

    if summary["accuracy"] is None:
        score = summary["score"]
        lines = [
            ("the target's test rows", NOT_MEASURED)
            if score is None
            else ("score (negative test loss)", f"{score:.4f}" if score > -1e4 else f"{score:.5g}")
        ]
    else:
        low, high = summary["accuracy_interval"]
        scored = min(SCORED_ROUNDS, summary["rounds"])
        sure = f"95% interval {low:.1f} to {high:.1f} ({summary['n_test']} test rows)"
        over = f"mean of the last {scored} rounds" if scored > 1 else "one round"
        lines = [
            (f"accuracy ({over})", f"{summary['accuracy']:.1f}%, {sure}"),
            ("accuracy after the last round", _percent(summary["accuracy_last"])),
            ("balanced accuracy", _percent(summary["balanced_accuracy"])),
        ]
    if summary["auc"] is not None:
        lines.append(("area under the ROC curve", f"{summary['auc']:.3f}"))
    stopped = " (stopped early)" if summary["stopped_early"] else ""
    lines.append(("rounds", f"{summary['rounds']}{stopped}"))
    return lines


def _round_text(line: Mapping[str, Any]) -> str:
    parts = [f"round {line['round']}"]
    if line["accuracy"] is not None:
        parts.append(f"accuracy {_percent(line['accuracy'])}")
    else:
        parts.append(NOT_MEASURED if line["loss"] is None else f"loss {line['loss']:.4f}")
    betas = [beta for beta in line["beta"] or [] if beta is not None]
    if betas:
        parts.append(f"mean beta {sum(betas) / len(betas):.2f}")
    return ", ".join(parts)


def _percent(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1f}%"
