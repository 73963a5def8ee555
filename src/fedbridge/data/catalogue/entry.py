"""What the catalogue says of a data set: what it is, where it comes from, what must be in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Arrangement: TypeAlias = Literal["as-packed", "listed", "camera-traps"]
"""How unpacked files become the layout: as they are, only those in lists, or from annotations."""


@dataclass(frozen=True)
class Download:
    """One file to fetch, from the first address that works.

    Attributes:
        file: Its name on disk.
        addresses: The official place first, then mirrors.
        size: Roughly its bytes; a server that sends many times as much is not believed.
    """

    file: str
    addresses: tuple[str, ...]
    size: int


Route: TypeAlias = tuple[Download, ...]
"""Files that together make a data set."""


@dataclass(frozen=True)
class Content:
    """A file that must be in the data set's folder.

    Attributes:
        path: Where, with ``/``; a ``.gz`` may also lie there without its wrapper.
        sha256: Of the decompressed content, since wrappers differ; or its first digits.
        size: Bytes of the decompressed content, where known.
    """

    path: str
    sha256: str
    size: int | None = None


@dataclass(frozen=True)
class Files:
    """A layout of a few known files."""

    contents: tuple[Content, ...]


@dataclass(frozen=True)
class Domain:
    """A folder with one folder per class.

    Attributes:
        name: As DomainBed names the folder.
        images: How many images are published.
        also: Other counts that publications report of the same domain.
    """

    name: str
    images: int
    also: tuple[int, ...] = ()


@dataclass(frozen=True)
class ImageTree:
    """A layout ``domain/class/*.jpg``; ``classes`` may be left out where they are many."""

    domains: tuple[Domain, ...]
    n_classes: int
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """One entry of the catalogue.

    Attributes:
        name: The folder's name, and what a user types.
        title: What it is, in one line.
        tasks: The tasks that read it.
        domains: Names of its domains.
        sites: Sites in those tasks, the target included; None where an option decides.
        samples: Rows or images in all.
        licence: As its publishers state it.
        citation: Whom to cite.
        home: Page of its publishers.
        layout: What must be on disk; None for data that need no files.
        routes: Ways to fetch it, the preferred one first.
        arrangement: How unpacked files become the layout.
        other_names: Names that other software gives the folder.
        note: What else one should know.
    """

    name: str
    title: str
    tasks: tuple[str, ...]
    domains: tuple[str, ...]
    sites: int | None
    samples: int | None
    licence: str
    citation: str
    home: str
    layout: Files | ImageTree | None = None
    routes: tuple[Route, ...] = ()
    arrangement: Arrangement = "as-packed"
    other_names: tuple[str, ...] = ()
    note: str = ""

    @property
    def download_size(self) -> int:
        """Roughly the bytes to fetch."""
        return sum(download.size for download in self.routes[0]) if self.routes else 0
