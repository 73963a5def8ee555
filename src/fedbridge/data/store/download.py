"""``fetch_dataset``: from the official place into the data folder, whole or not at all.

All work happens in ``.fetching/NAME`` beside the destination: downloads arrive in ``parts`` and
stay there until the data set is in place, so that a second try goes on; they are unpacked, arranged
and checked in ``staging``; then one move puts the folder in place. A lock lets one fetch of a data
set work at a time; the next finds it done.

``download`` brings one file over HTTP, patiently: a broken download goes on where it stopped.
``requests`` does the talking. pooch, made for such fetching, throws a partial file away when the
connection breaks and checks the bytes of the wrapper, not of the content: of no use for files
of six gigabytes, and for ``.gz`` files whose wrappers differ from mirror to mirror.

What has arrived is in ``FILE.part``, with a note beside it of where it came from. The rest is asked
for only on the condition that the file is still the same (``If-Range``); else all of it comes anew.
"""

from __future__ import annotations

import json
import shutil
import time
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias

import requests
import urllib3
from filelock import FileLock, Timeout

from fedbridge._version import __version__
from fedbridge.base.errors import DataError, FedbridgeError
from fedbridge.base.files import disk_error, require_space, sha256
from fedbridge.base.places import data_root, dataset_folder
from fedbridge.data.store.catalogue import Files, dataset
from fedbridge.data.store.unpack import arrange, is_archive, unpack
from fedbridge.data.store.verify import CheckReport, check_folder, content_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from fedbridge.data.store.catalogue import DataSet, Download, Route

    Progress: TypeAlias = Callable[[str, int, int | None], None]
    """Is told a file's name, the bytes that are there, and all of them where known."""

WORKPLACE = ".fetching"
CHUNK = 1 << 18
LARGER_THAN_EXPECTED = 4
WORTH_ANOTHER_TRY = 1 << 20
WEB_PAGES = (b"<!doctype html", b"<html")
PASSING_STATUS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
PASSING = (requests.ConnectionError, requests.Timeout, urllib3.exceptions.HTTPError)


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


class DownloadError(FedbridgeError):
    """An address did not give the file; the message says why."""


class _PassingError(DownloadError):
    """The same, and it may help to try again."""


class _WrongFileError(DownloadError):
    """The same, and what arrived is of no use."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server.

    Attributes:
        connect: Seconds until it answers.
        read: Seconds between two pieces.
        tries: How often in a row an address may bring nothing.
        pause: Seconds before the second try; doubled for each further one.
    """

    connect: float = 10.0
    read: float = 30.0
    tries: int = 4
    pause: float = 1.0


def download(
    address: str,
    file: Path,
    size: int,
    progress: Progress | None = None,
    patience: Patience | None = None,
) -> None:
    """Fetch an address into a file, in as many pieces as it takes.

    Args:
        address: Where it is; ``http`` or ``https``.
        file: Where it goes; until it is whole it is beside that, as ``.part``.
        size: Roughly its bytes; many times as much is refused.
        progress: Is told what has arrived.
        patience: How long to wait.

    Raises:
        DownloadError: The address gave something else, or nothing, in spite of all patience.
        StorageError: It could not be written; what has arrived stays.
    """
    if not address.startswith(("http://", "https://")):
        raise DownloadError("only http and https addresses are fetched")
    patience = patience or Patience()
    part = _Part(file)
    fruitless = 0
    with requests.Session() as session:
        session.headers.update(
            {"User-Agent": f"fedbridge/{__version__}", "Accept-Encoding": "identity"}
        )
        while True:
            before = part.size()
            try:
                _fetch_rest(session, address, part, size, progress, patience)
                part.finish()
                return
            except OSError as error:
                raise disk_error(f"write {file.name}", error) from error
            except _WrongFileError:
                part.discard()
                raise
            except _PassingError:
                fruitless = 0 if part.size() - before > WORTH_ANOTHER_TRY else fruitless + 1
                if fruitless >= patience.tries:
                    raise
            time.sleep(patience.pause * 2 ** max(0, fruitless - 1))


@dataclass(frozen=True)
class _Part:
    """What has arrived of a file, and the note of what it is a part of."""

    file: Path

    @property
    def path(self) -> Path:
        return self.file.with_name(f"{self.file.name}.part")

    @property
    def note(self) -> Path:
        return self.file.with_name(f"{self.file.name}.part.json")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def validator(self, address: str) -> str | None:
        """What the server called this version of the file, if the part is of this address."""
        try:
            noted = json.loads(self.note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        fits = isinstance(noted, dict) and noted.get("address") == address
        return noted["validator"] if fits and isinstance(noted.get("validator"), str) else None

    def start(self, address: str, headers: Mapping[str, str]) -> None:
        """Begin anew, and note what the server calls this version."""
        self.path.unlink(missing_ok=True)
        note = json.dumps({"address": address, "validator": _validator(headers)})
        self.note.write_text(note, encoding="utf-8")

    def finish(self) -> None:
        self.path.replace(self.file)
        self.note.unlink(missing_ok=True)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def _fetch_rest(
    session: requests.Session,
    address: str,
    part: _Part,
    size: int,
    progress: Progress | None,
    patience: Patience,
) -> None:
    """One request for all that has not arrived yet."""
    have, validator = part.size(), part.validator(address)
    wanted = {"Range": f"bytes={have}-", "If-Range": validator} if have and validator else {}
    try:
        with session.get(
            address, headers=wanted, stream=True, timeout=(patience.connect, patience.read)
        ) as response:
            _save(response, address, part, size, progress)
    except PASSING as error:
        raise _PassingError(_short(error, part.size() - have, part.size())) from error
    except requests.RequestException as error:
        raise DownloadError(str(error)) from error


def _save(
    response: requests.Response, address: str, part: _Part, size: int, progress: Progress | None
) -> None:
    have = _begin(response, address, part)
    if have is None:
        return
    length = response.headers.get("Content-Length", "")
    total = have + int(length) if length.isdigit() else None
    most = LARGER_THAN_EXPECTED * size + CHUNK
    if total is not None and total <= most:
        require_space(part.path.parent, total - have, f"fetch {part.file.name}")
    with part.path.open("ab") as file:
        for chunk in response.raw.stream(CHUNK, decode_content=False):
            if have == 0 and chunk.lstrip()[:20].lower().startswith(WEB_PAGES):
                raise _WrongFileError("it sent a web page instead of the file")
            have += len(chunk)
            if max(have, total or 0) > most:
                raise _WrongFileError(f"it sends more than {most:,} bytes, not about {size:,}")
            file.write(chunk)
            if progress is not None:
                progress(part.file.name, have, total)
    if total is not None and have < total:
        raise _PassingError(f"the connection broke after {have:,} bytes")


def _begin(response: requests.Response, address: str, part: _Part) -> int | None:
    """Bytes that are there already and that the answer goes on from; None when that is all."""
    status, have = response.status_code, part.size()
    said = response.headers.get("Content-Range", "")
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and said == f"bytes */{have}":
        return None
    same = _validator(response.headers) in (None, part.validator(address))
    if status == HTTPStatus.PARTIAL_CONTENT and said.startswith(f"bytes {have}-") and same:
        return have
    if status in (HTTPStatus.PARTIAL_CONTENT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
        part.discard()
        raise _PassingError("it has another file than the one that had begun to arrive")
    if status != HTTPStatus.OK:
        text = f"it answered {status} {response.reason or ''}".rstrip()
        raise (_PassingError if status >= 500 or status in PASSING_STATUS else DownloadError)(text)
    part.start(address, response.headers)
    return 0


def _validator(headers: Mapping[str, str]) -> str | None:
    """What a server calls this version of a file, strictly enough to join two parts of it."""
    tag = headers.get("ETag", "")
    return headers.get("Last-Modified") if not tag or tag.startswith("W/") else tag


def _short(error: Exception, new: int, arrived: int) -> str:
    """Why a connection ended, without the objects around it."""
    if isinstance(error, requests.Timeout | urllib3.exceptions.TimeoutError):
        return "it did not answer in time"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not valid"
    return f"the connection broke after {arrived:,} bytes" if new else "the connection failed"
