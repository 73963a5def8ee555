"""``fetch_dataset``: from the official place into the data folder, whole or not at all.

All work happens in ``.fetching/NAME`` beside the destination: downloads arrive in ``parts`` and
stay there until the data set is in place, so that a second try goes on; they are unpacked, arranged
and checked in ``staging``; then one move puts the folder in place. A lock lets one fetch of a data
set work at a time; the next finds it done.
"""

from __future__ import annotations

import shutil
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from fedbridge.base.errors import DataError
from fedbridge.base.files import disk_error, sha256
from fedbridge.base.places import data_root, dataset_folder
from fedbridge.data.store.catalogue import Files, dataset
from fedbridge.data.store.download import DownloadError, download
from fedbridge.data.store.unpack import arrange, is_archive, unpack
from fedbridge.data.store.verify import CheckReport, check_folder, content_problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fedbridge.data.store.catalogue import DataSet, Download, Route
    from fedbridge.data.store.download import Patience, Progress

WORKPLACE = ".fetching"


class FetchError(DataError):
    """A data set could not be had; the message names all addresses, and the way by hand."""


@dataclass(frozen=True)
class Fetched:
    """What the check of a data set says, and whether it was there before."""

    report: CheckReport
    already_there: bool


def fetch_dataset(
    name: str,
    root: Path | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
    patience: Patience | None = None,
) -> Fetched:
    """Put a data set into ``root/name``, unless it is there and correct.

    Args:
        name: Its name in the catalogue.
        root: The folder of all data sets; by default ``FEDBRIDGE_DATA``.
        force: Fetch it anew, and replace what is there once the new one is whole.
        progress: Is told the bytes of every file as they arrive.
        patience: How long to wait for servers.
    """
    entry = dataset(name)
    if not entry.routes:
        return Fetched(CheckReport(name, None), already_there=True)
    root = root or data_root()
    try:
        if not force and (there := _what_is_there(entry, root)):
            return Fetched(there, already_there=True)
        fetch = _Fetch(entry, root, progress, patience)
        with fetch.alone():
            if not force and (there := _what_is_there(entry, root)):
                return Fetched(there, already_there=True)
            return Fetched(fetch.into_place(), already_there=False)
    except OSError as error:
        raise disk_error(f"fetch {name}", error) from error


def _what_is_there(entry: DataSet, root: Path) -> CheckReport | None:
    """The check of the data set where it is; one that is wrong is not replaced unasked."""
    folder = dataset_folder(entry.name, *entry.other_names, root=root)
    if folder is None or not any(folder.iterdir()):
        return None
    report = check_folder(entry, folder)
    if not report.worth_keeping:
        raise FetchError(
            f"Expected {str(folder)!r} to be the data set {entry.name!r} or not to be there, but "
            f"{report.problems[0]}: add --force to replace it."
        )
    return report


@dataclass(frozen=True)
class _Fetch:
    """One data set on its way into a folder."""

    entry: DataSet
    root: Path
    progress: Progress | None
    patience: Patience | None

    @property
    def workplace(self) -> Path:
        return self.root / WORKPLACE / self.entry.name

    @property
    def staging(self) -> Path:
        return self.workplace / "staging"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock, and leave nothing but partial downloads behind."""
        self.workplace.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.workplace.with_suffix(".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            warnings.warn(f"{self.entry.name} is being fetched already: waiting.", stacklevel=4)
            lock.acquire()
        try:
            shutil.rmtree(self.staging, ignore_errors=True)
            yield
        finally:
            shutil.rmtree(self.staging, ignore_errors=True)
            with suppress(OSError):
                self.workplace.rmdir()
            lock.release()

    def into_place(self) -> CheckReport:
        """Try every route until one leads to the whole data set; then move that into place."""
        failures: list[str] = []
        for number, route in enumerate(self.entry.routes):
            arranged = self.staging / f"route-{number}"
            try:
                report = self._gather(route, arranged, failures)
            except DataError as error:
                failures.append(str(error))
                continue
            self._replace(arranged)
            shutil.rmtree(self.workplace, ignore_errors=True)
            return replace(report, folder=self.root / self.entry.name)
        raise FetchError(self._story(failures))

    def _gather(self, route: Route, arranged: Path, failures: list[str]) -> CheckReport:
        unpacked = arranged.with_name(f"{arranged.name}-unpacked")
        for wanted in route:
            self._obtain(wanted, unpacked / wanted.file, failures)
        try:
            arrange(self.entry, unpacked, arranged)
            report = check_folder(self.entry, arranged)
            if not report.worth_keeping:
                raise DataError(f"Expected the published content, but got {report.problems[0]}.")
        except DataError:
            for wanted in route:
                for address in wanted.addresses:
                    self._kept(wanted, address).unlink(missing_ok=True)
            raise
        return report

    def _kept(self, wanted: Download, address: str) -> Path:
        """Where a file from an address stays until the data set is in place."""
        return self.workplace / "parts" / sha256(address.encode())[:12] / wanted.file

    def _obtain(self, wanted: Download, folder: Path, failures: list[str]) -> None:
        """Fetch a file from the first address that has it, and unpack it into a folder."""
        for address in wanted.addresses:
            kept = self._kept(wanted, address)
            kept.parent.mkdir(parents=True, exist_ok=True)
            try:
                if not kept.exists():
                    download(address, kept, wanted.size, self.progress, self.patience)
                self._accept(kept, folder)
                return
            except DownloadError as error:
                failures.append(f"{address}: {error}")
            except DataError as error:
                kept.unlink()
                failures.append(f"{address}: {error}")
        raise DataError(f"Expected {wanted.file}, but no address has it.")

    def _accept(self, file: Path, folder: Path) -> None:
        """Unpack an archive; check the content of any other file that the catalogue knows."""
        if is_archive(file):
            unpack(file, folder)
            return
        layout = self.entry.layout
        for content in layout.contents if isinstance(layout, Files) else ():
            if content.path == file.name and (problem := content_problem(content, file)):
                raise DataError(f"Expected the published content, but got {problem}.")
        folder.mkdir(parents=True)
        shutil.copyfile(file, folder / file.name)

    def _replace(self, arranged: Path) -> None:
        """Put the new folder where the old one was; that comes back if it cannot be."""
        place, old = self.root / self.entry.name, self.staging / "replaced"
        if place.exists():
            place.replace(old)
        try:
            arranged.replace(place)
        except OSError:
            if old.exists():
                old.replace(place)
            raise

    def _story(self, failures: list[str]) -> str:
        """Every address with its reason, and how to place the files by hand."""
        entry = self.entry
        tried = "\n".join(f"  {failure}" for failure in failures)
        files = ", ".join(wanted.file for wanted in entry.routes[0])
        layout = (
            ", ".join(content.path for content in entry.layout.contents)
            if isinstance(entry.layout, Files)
            else f"DOMAIN/CLASS/*.jpg with the domains {', '.join(entry.domains)}"
        )
        return (
            f"Could not fetch {entry.name!r}. Tried:\n{tried}\n"
            f"By hand: get {files} (see {entry.home}), put {layout} into "
            f"{str(self.root / entry.name)!r}, then run `fedbridge data check {entry.name}`."
        )
