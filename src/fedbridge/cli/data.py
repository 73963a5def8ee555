"""``fedbridge data``: what there is, getting it, and checking it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from fedbridge.cli import shared

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator

    from rich.table import Table

    from fedbridge.data.store.catalogue import DataSet
    from fedbridge.data.store.download import Fetched
    from fedbridge.data.store.verify import CheckReport


def add(commands: shared.Commands) -> None:
    """The three commands and their arguments."""
    own = shared.add_family(commands, "data")
    shared.add_command(own, "data list", list_command)
    fetch = shared.add_command(own, "data fetch", fetch_command)
    check = shared.add_command(own, "data check", check_command)
    for parser in (fetch, check):
        parser.add_argument("names", metavar="NAME", nargs="+", help="see `fedbridge data list`")
        parser.add_argument(
            "--dir",
            type=shared.place,
            metavar="DIR",
            help="folder of all data sets (FEDBRIDGE_DATA)",
        )
    fetch.add_argument("--force", action="store_true", help="fetch anew and replace what is there")


def list_command(args: Namespace) -> int:
    """Show the catalogue."""
    from fedbridge.base.places import data_root
    from fedbridge.data.store.catalogue import CATALOGUE

    if args.json:
        content = {name: described(entry) for name, entry in CATALOGUE.items()}
        shared.write_json({"folder": str(data_root()), "data_sets": content})
    else:
        shared.results().print(catalogue_table(CATALOGUE.values()))
        shared.say(f"folder: {data_root()}")
    return 0


def fetch_command(args: Namespace) -> int:
    """Fetch what is named, one after the other; one that fails does not stop the others."""
    from fedbridge.base.errors import FedbridgeError
    from fedbridge.data.store.catalogue import chosen
    from fedbridge.data.store.download import fetch_dataset

    done, failed = [], {}
    with shared.results_only(args), download_progress(quiet=args.json) as progress:
        for entry in chosen(args.names):
            try:
                done.append(
                    fetch_dataset(entry.name, args.dir, force=args.force, progress=progress)
                )
            except FedbridgeError as error:
                if args.debug:
                    raise
                failed[entry.name] = str(error)
    if args.json:
        there = [{**one.report.to_json(), "already_there": one.already_there} for one in done]
        shared.write_json({"ok": not failed, "data_sets": there, "failed": failed})
    else:
        shared.say(*(line for one in done for line in fetched_lines(one)))
    for message in failed.values():
        shared.complain(f"error: {message}", shared.FAILED)
    return shared.FAILED if failed else 0


def check_command(args: Namespace) -> int:
    """Check what is named; say what is wrong, file by file."""
    from fedbridge.base.places import data_root, dataset_folder
    from fedbridge.data.store.catalogue import chosen
    from fedbridge.data.store.verify import check_dataset

    root = args.dir or data_root()
    reports = []
    for entry in chosen(args.names):
        folder = dataset_folder(entry.name, *entry.other_names, root=root)
        if folder is not None or entry.name in args.names:
            reports.append(check_dataset(entry.name, folder or root / entry.name))
    ok = bool(reports) and all(report.ok for report in reports)
    if args.json:
        shared.write_json({"ok": ok, "data_sets": [report.to_json() for report in reports]})
    elif reports:
        shared.say(*(line for report in reports for line in checked_lines(report)))
    else:
        shared.say(f"no data set is in {str(root)!r}")
    return 0 if ok else shared.FAILED


@contextmanager
def download_progress(*, quiet: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """A callback for arriving bytes that keeps a bar up to date; silent where nobody looks."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with shared.progress_bar(DownloadColumn(), TransferSpeedColumn(), quiet=quiet) as bar:
        shown = bar.add_task("", total=None)
        current = ""

        def update(file: str, have: int, total: int | None) -> None:
            nonlocal current
            if file != current:
                bar.reset(shown, description=file, total=total)
                current = file
            bar.update(shown, completed=have, total=total)

        yield update


def described(entry: DataSet) -> dict[str, object]:
    """All that the catalogue says of a data set, and where it is."""
    folder = _folder(entry)
    return {
        **asdict(entry),
        "download_size": entry.download_size,
        "on_disk": entry.layout is None or folder is not None,
        "folder": folder,
    }


def catalogue_table(entries: Iterable[DataSet]) -> Table:
    """What there is, a row of a few lines per data set."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    table.add_column("on disk", overflow="fold")
    for entry in entries:
        where = "built in" if entry.layout is None else _folder(entry) or "no"
        table.add_row(Text(entry.name), Text("\n".join(_told(entry))), Text(where))
    return table


def _told(entry: DataSet) -> Iterator[str]:
    from rich.filesize import decimal

    yield entry.title
    if entry.tasks:
        sites = "" if entry.sites is None else f"; {entry.sites} sites"
        domains = f": {', '.join(entry.domains)}" if entry.domains else ""
        yield f"tasks: {', '.join(entry.tasks)}{sites}{domains}"
    samples = [] if entry.samples is None else [f"{entry.samples:,} samples"]
    size = [f"{decimal(entry.download_size)} to fetch"] if entry.routes else []
    yield ", ".join([*samples, *size, f"licence: {entry.licence}"])
    if entry.note:
        yield entry.note
    yield f"cite: {entry.citation}"


def fetched_lines(fetched: Fetched) -> list[str]:
    """What became of a data set that was to be fetched."""
    report = fetched.report
    if report.folder is None:
        return [f"{report.name}: built in, nothing to fetch"]
    if not fetched.already_there:
        said = f"fetched into {report.folder}"
    elif report.ok:
        said = f"already there and correct, left alone: {report.folder}"
    else:
        said = f"already there, left alone: {report.folder}"
    return [f"{report.name}: {said}", *_problem_lines(report)]


def checked_lines(report: CheckReport) -> list[str]:
    """What a check says of a data set."""
    if report.ok:
        return [f"{report.name}: as published, {report.folder or 'built in'}"]
    if report.folder is None:
        advice = f"  get it with `fedbridge data fetch {report.name}`"
        return [f"{report.name}: not on disk", *_problem_lines(report), advice]
    return [f"{report.name}: not as published", *_problem_lines(report)]


def _problem_lines(report: CheckReport) -> list[str]:
    return [f"  {problem}" for problem in report.problems]


def _folder(entry: DataSet) -> str | None:
    from fedbridge.base.places import dataset_folder

    folder = dataset_folder(entry.name, *entry.other_names)
    return None if folder is None or entry.layout is None else str(folder)
