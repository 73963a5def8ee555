"""Is a data set on disk what it should be? Files are read, never a mark that says so."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from fedbridge.base.places import data_root, dataset_folder
from fedbridge.data.images.folder import folders
from fedbridge.data.images.preprocessing import is_image
from fedbridge.data.store.catalogue import Content, DataSet, Domain, Files, ImageTree, dataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

CHUNK = 1 << 20
GZIP = ".gz"
NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Mismatch:
    """Something that is not as published.

    Attributes:
        where: The file or folder.
        expected: What should be there.
        found: What is there.
        minor: Whether it is too little to throw a download away, as a few images more or less.
    """

    where: str
    expected: str
    found: str
    minor: bool = False

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, but found {self.found}"


@dataclass(frozen=True)
class CheckReport:
    """What a check found; ``counts`` has bytes per file, or images per domain."""

    name: str
    folder: Path | None
    problems: tuple[Mismatch, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether everything is as published."""
        return not self.problems

    @property
    def worth_keeping(self) -> bool:
        """Whether all problems are minor ones."""
        return all(problem.minor for problem in self.problems)

    def to_json(self) -> dict[str, object]:
        """The report as plain values."""
        return {
            "name": self.name,
            "folder": None if self.folder is None else str(self.folder),
            "ok": self.ok,
            "problems": [asdict(problem) for problem in self.problems],
            "counts": dict(self.counts),
        }


def check_dataset(name: str, folder: Path | None = None) -> CheckReport:
    """Compare a data set on disk with what is published of it.

    Args:
        name: Its name in the catalogue.
        folder: Where it is; by default where fedbridge looks for it.
    """
    entry = dataset(name)
    where = folder or dataset_folder(name, *entry.other_names)
    if entry.layout is None:
        return CheckReport(name, None)
    if where is None or not where.is_dir():
        missing = Mismatch(str(where or data_root() / name), "a folder", "none")
        return CheckReport(name, None, (missing,))
    return check_folder(entry, where)


def check_folder(entry: DataSet, folder: Path) -> CheckReport:
    """The same for a folder that is there."""
    if isinstance(entry.layout, Files):
        return _check_files(entry.name, entry.layout, folder)
    if isinstance(entry.layout, ImageTree):
        return _check_images(entry.name, entry.layout, folder)
    return CheckReport(entry.name, folder)


def content_problem(content: Content, file: Path) -> Mismatch | None:
    """What is wrong with the (decompressed) content of a file, if anything."""
    most = None if content.size is None else content.size + 1
    try:
        size, digest = _measure(file, most)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        return Mismatch(content.path, "a whole gzip file", f"a damaged one ({error})")
    except FileNotFoundError:
        return Mismatch(content.path, "a file", "none")
    except OSError as error:
        return Mismatch(content.path, "a file that can be read", error.strerror or str(error))
    if content.size is not None and size != content.size:
        found = f"{size:,}" if size < content.size else "more"
        return Mismatch(content.path, f"{content.size:,} bytes of content", found)
    if not digest.startswith(content.sha256):
        found = digest[: len(content.sha256)]
        return Mismatch(content.path, f"content with sha256 {content.sha256}", found)
    return None


def _measure(file: Path, most: int | None) -> tuple[int, str]:
    """Size and checksum of the content, of which no more than ``most`` bytes are read."""
    digest, size = hashlib.sha256(), 0
    if not file.is_file():
        raise FileNotFoundError(file)
    with gzip.open(file) if file.suffix == GZIP else file.open("rb") as stream:
        while chunk := stream.read(CHUNK if most is None else min(CHUNK, most - size)):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def _check_files(name: str, layout: Files, folder: Path) -> CheckReport:
    problems = []
    sizes = {}
    for content in layout.contents:
        named = [folder / content.path, folder / content.path.removesuffix(GZIP)]
        file = next((path for path in named if path.is_file()), named[0])
        problem = content_problem(content, file)
        if problem is None:
            sizes[content.path] = file.stat().st_size
        else:
            problems.append(problem)
    return CheckReport(name, folder, tuple(problems), sizes)


def _check_images(name: str, layout: ImageTree, folder: Path) -> CheckReport:
    found = {
        domain.name: _images_per_class(folder / domain.name)
        for domain in layout.domains
        if (folder / domain.name).is_dir()
    }
    classes = layout.classes or tuple(sorted({own for counts in found.values() for own in counts}))
    problems: list[Mismatch] = []
    if len(classes) != layout.n_classes:
        expected = f"{layout.n_classes} classes in all domains"
        problems.append(Mismatch(".", expected, str(len(classes)), minor=True))
    for domain in layout.domains:
        if domain.name in found:
            problems += _check_domain(domain, found[domain.name], classes)
        else:
            problems.append(Mismatch(domain.name, "a folder with one folder per class", "none"))
    totals = {domain: sum(counts.values()) for domain, counts in found.items()}
    return CheckReport(name, folder, tuple(problems), totals)


def _check_domain(
    domain: Domain, counts: Mapping[str, int], classes: tuple[str, ...]
) -> Iterator[Mismatch]:
    for own in classes:
        if not counts.get(own):
            yield Mismatch(f"{domain.name}/{own}", "images of this class", "none")
    for own in sorted(counts.keys() - set(classes)):
        known = f"one of the classes {', '.join(classes)}"
        yield Mismatch(f"{domain.name}/{own}", known, own)
    total = sum(counts.values())
    if total not in (domain.images, *domain.also):
        published = " or ".join(f"{count:,}" for count in (domain.images, *domain.also))
        minor = total >= NEARLY_ALL * domain.images
        yield Mismatch(domain.name, f"{published} images", f"{total:,}", minor)


def _images_per_class(domain: Path) -> dict[str, int]:
    """Images that hold any bytes, per class."""
    return {
        own.name: sum(
            is_image(file) and file.is_file() and file.stat().st_size > 0 for file in own.iterdir()
        )
        for own in folders(domain)
    }
