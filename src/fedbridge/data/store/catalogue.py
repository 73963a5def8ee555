"""The catalogue: every data set and pretrained model that fedbridge knows, from ``catalogue.toml``.

An entry says what a data set is, where it comes from, and what must be in it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fedbridge.base.errors import UnknownNameError, nearest
from fedbridge.base.files import packaged_text

if TYPE_CHECKING:
    from collections.abc import Sequence

Arrangement: TypeAlias = Literal["as-packed", "listed", "camera-traps"]
"""How unpacked files become the layout: as they are, only those in lists, or from annotations."""

ALL = "all"


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
        licence: As its publishers state it.
        citation: Whom to cite.
        home: Page of its publishers.
        tasks: The tasks that read it.
        domains: Names of its domains.
        sites: Sites in those tasks, the target included; None where an option decides.
        samples: Rows or images in all.
        layout: What must be on disk; None for data that need no files.
        routes: Ways to fetch it, the preferred one first.
        arrangement: How unpacked files become the layout.
        other_names: Names that other software gives the folder.
        note: What else one should know.
    """

    name: str
    title: str
    licence: str
    citation: str
    home: str = ""
    tasks: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    sites: int | None = None
    samples: int | None = None
    layout: Files | ImageTree | None = None
    routes: tuple[Route, ...] = ()
    arrangement: Arrangement = "as-packed"
    other_names: tuple[str, ...] = ()
    note: str = ""

    @property
    def download_size(self) -> int:
        """Roughly the bytes to fetch."""
        return sum(download.size for download in self.routes[0]) if self.routes else 0


def _entry(name: str, said: dict[str, Any]) -> DataSet:
    """An entry as the file has it; an image suite is a task of its name, its sites are domains."""
    said = dict(said)
    routes = tuple(_route(**route) for route in said.pop("routes", ()))
    if "images" in said:
        counts = said.pop("images").items()
        domains = tuple(Domain(domain, first, tuple(also)) for domain, (first, *also) in counts)
        layout = ImageTree(domains, said.pop("n_classes"), tuple(said.pop("classes", ())))
        said |= {
            "layout": layout,
            "tasks": (name,),
            "domains": tuple(domain.name for domain in domains),
            "sites": len(domains),
            "samples": sum(domain.images for domain in domains),
        }
    elif "files" in said:
        said["layout"] = Files(tuple(Content(**content) for content in said.pop("files")))
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in said.items()
    }
    return DataSet(name=name, routes=routes, **fields)


def _route(downloads: list[dict[str, Any]], mirrors: Sequence[str] = ()) -> Route:
    """The files of a route; one lies at ``mirror/path`` unless its addresses are given."""
    found = []
    for file in downloads:
        path = file.get("path", file["file"])
        addresses = file.get("addresses") or [f"{mirror}/{path}" for mirror in mirrors]
        found.append(Download(file["file"], tuple(addresses), file["size"]))
    return tuple(found)


CATALOGUE: dict[str, DataSet] = {
    name: _entry(name, said)
    for name, said in tomllib.loads(packaged_text("fedbridge.data.store", "catalogue.toml")).items()
}


def dataset(name: str) -> DataSet:
    """The entry of this name, or an error that suggests the nearest one."""
    if name not in CATALOGUE:
        raise UnknownNameError(
            f"Expected the name of a data set, but got {name!r}.{nearest(name, CATALOGUE)} "
            f"Known: {', '.join(CATALOGUE)}."
        )
    return CATALOGUE[name]


def chosen(names: Sequence[str]) -> list[DataSet]:
    """The entries of these names, each once; ``all`` stands for those that have files."""
    found = [dataset(name) for name in names if name != ALL]
    if ALL in names:
        found += [entry for entry in CATALOGUE.values() if entry.layout is not None]
    return list(dict.fromkeys(found))
