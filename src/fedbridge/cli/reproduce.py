"""``fedbridge reproduce``: the paper's tables and figures, ours beside theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedbridge.cli import shared
from fedbridge.cli.compare import compare_progress

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from fedbridge.experiments.reproduction import Reproduction

ALL = "all"


def add(commands: shared.Commands) -> None:
    """The command and its arguments."""
    parser = shared.add_command(commands, "reproduce", reproduce_command)
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="one of --list, all of them (all), or a file of your own (FILE.toml)",
    )
    parser.add_argument("--list", action="store_true", help="name every table and figure")
    parser.add_argument(
        "--protocol", help="paper: its settings (default); fair: the same for all, with controls"
    )
    parser.add_argument("--seeds", type=shared.seeds, help="how many, or a list 0,1,2")
    parser.add_argument("--rounds", type=int, help="rounds of every run")
    parser.add_argument("--quick", action="store_true", help="a meaningful answer in minutes")
    parser.add_argument(
        "--columns",
        action="append",
        metavar="PATTERN",
        help="only these settings, as 'Fashion*', or --columns=-90%%; may be repeated",
    )
    parser.add_argument(
        "--rows",
        action="append",
        metavar="PATTERN",
        help="only these methods, as 'FedGP*'; may be repeated",
    )
    parser.add_argument(
        "--finished", action="store_true", help="show what is finished and run nothing"
    )
    parser.add_argument(
        "--results",
        action="append",
        default=[],
        type=shared.place,
        metavar="FILE",
        help="a results.jsonl whose runs need not be done again; may be repeated",
    )
    shared.add_output(parser, "runs/reproduce/<name>[-fair][-quick]")


def reproduce_command(args: Namespace) -> int:
    """Run what is named, or go on with it, and show ours beside the paper's."""
    if args.list:
        return _list(args)
    if args.name is None:
        raise shared.UsageError(
            "Expected the name of a table or figure: `fedbridge reproduce --list` has them all."
        )
    return _all(args) if args.name == ALL else _show(*_reproduced(args.name, args.out, args), args)


def _reproduced(name: str, out: Path | None, args: Namespace) -> tuple[Reproduction, Path]:
    """Run one of them and write its files; what was found, and where it is."""
    with shared.results_only(args):
        from fedbridge.experiments.page import write_results
        from fedbridge.workflows.reproduce import default_folder, load_experiment, reproduce

        known = load_experiment(name).name
        out = out or default_folder(known, args.protocol, quick=args.quick)
        with compare_progress(quiet=args.quiet or args.json) as update:
            found = reproduce(
                name,
                args.protocol,
                args.seeds,
                args.rounds,
                quick=args.quick,
                columns=args.columns,
                rows=args.rows,
                out=out,
                results=args.results,
                finished=args.finished,
                progress=update,
                workers=args.workers,
            )
        write_results(found, out)
    return found, out


def _all(args: Namespace) -> int:
    """Everything that there are data for, one after the other."""
    from fedbridge.experiments import catalogue
    from fedbridge.workflows.reproduce import MissingDataError

    done, left_out, status = [], {}, 0
    for name in catalogue.names():
        try:
            found, out = _reproduced(name, args.out and args.out / name, args)
        except MissingDataError as error:
            left_out[name] = str(error)
            shared.complain(f"{name} is left out: {error}", shared.FAILED)
            continue
        done.append(_record(found, out))
        status = max(status, _told(found, out, args))
    if args.json:
        shared.write_json({"reproductions": done, "left_out": left_out})
    return status


def _show(found: Reproduction, out: Path, args: Namespace) -> int:
    if args.json:
        shared.write_json(_record(found, out))
    return _told(found, out, args)


def _record(found: Reproduction, out: Path) -> dict[str, Any]:
    from fedbridge.report.page import REPORT_FILE

    return {**found.to_json(), "out": str(out), "report": str(out / REPORT_FILE)}


def _told(found: Reproduction, out: Path, args: Namespace) -> int:
    """Tables and notes, where no program reads, and failures; returns the exit status."""
    if not args.json:
        from fedbridge.experiments.tables import gain_tables, result_tables
        from fedbridge.report.page import REPORT_FILE
        from fedbridge.report.tables import to_terminal

        console = shared.results()
        if found.kept:
            console.print(f"{found.kept} runs were finished before")
        for table in (*result_tables(found), *gain_tables(found)):
            console.print(to_terminal(table, styled=console.is_terminal, titled=True))
        for text in found.notes():
            console.print(text)
        console.print(f"report: {out / REPORT_FILE}", soft_wrap=True)
    return shared.complain_of_failures(
        f"{one.column}, {one.row}, seed {one.seed} failed: {one.error}" for one in found.failures
    )


def _list(args: Namespace) -> int:
    """Every table and figure, and whether its data are here."""
    from fedbridge.base.files import to_json
    from fedbridge.experiments import catalogue

    entries = [_described(name) for name in catalogue.names()]
    if args.json:
        return shared.say(to_json(entries))
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading in ("name", "in the paper", "what it shows", "data"):
        table.add_column(heading)
    for entry in entries:
        data = "generated" if not entry["data"] else "on disk"
        if entry["missing"]:
            data = f"missing:\nfedbridge data fetch {' '.join(entry['missing'])}"
        words = (entry["name"], entry["where"], entry["title"], data)
        table.add_row(*map(Text, words))
    shared.results().print(table)
    return 0


def _described(name: str) -> dict[str, Any]:
    from fedbridge.experiments import catalogue
    from fedbridge.workflows.reproduce import needed_data

    experiment = catalogue.load(name)
    needed = needed_data(experiment)
    missing = [data for data, there in needed.items() if not there]
    return {
        "name": name,
        "title": experiment.title,
        "where": experiment.where,
        "label": experiment.label,
        "form": experiment.form,
        "data": [*needed],
        "missing": missing,
        "on_disk": not missing,
        "rounds": experiment.rounds,
        "seeds": experiment.seeds,
    }
