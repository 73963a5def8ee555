"""How data sets look in the terminal and in JSON."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from fedbridge.places import dataset_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fedbridge.data.catalogue import DataSet
    from fedbridge.data.fetch import Fetched
    from fedbridge.data.verify import CheckReport


@contextmanager
def download_progress(*, quiet: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """A callback for arriving bytes that keeps a bar up to date; silent where nobody looks."""
    console = Console(stderr=True)
    bar = Progress(
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    with bar:
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
    table = Table(show_lines=True)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    table.add_column("on disk", overflow="fold")
    for entry in entries:
        where = "built in" if entry.layout is None else _folder(entry) or "no"
        table.add_row(Text(entry.name), Text("\n".join(_told(entry))), Text(where))
    return table


def _told(entry: DataSet) -> Iterator[str]:
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
    folder = dataset_folder(entry.name, *entry.other_names)
    return None if folder is None or entry.layout is None else str(folder)
