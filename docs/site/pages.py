"""A hook of the site (`mkdocs.yml`): what lies outside `docs/` and is linked to becomes a page.

Documents link to each other as they lie in the repository, so that they can be read there. The site
has a tree of its own: `docs/` is its root, the README its first page, and everything else that a
page links to is where it is in the repository. Code is shown on a page; a folder is its README.
"""

from __future__ import annotations

import re
from os.path import relpath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, InclusionLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?P<path>[^)#:\s]+)(?=[)#])")
CODE = {".py": "python", ".toml": "toml", ".json": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and the pages that these link to."""
    wanted = [ROOT / "README.md", *(ROOT / name for name in _named(config.nav))]
    wanted += [Path(file.abs_src_path) for file in files.documentation_pages()]
    seen = set()
    while wanted:
        path = wanted.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        if files.get_file_from_path(uri := site_uri(path)) is None:
            shown = (
                {"content": _content(path)} if uri.endswith(".md") else {"abs_src_path": str(path)}
            )
            files.append(File.generated(config, uri, **shown, inclusion=InclusionLevel.NOT_IN_NAV))
        if path.suffix == ".md":
            wanted += [place for _, place in _links(path.read_text("utf-8"), path)]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between places of the repository into links between pages."""
    here = repository_path(page.file.src_uri)
    folder = PurePosixPath(page.file.src_uri).parent
    for link, place in dict(_links(markdown, here)).items():
        to = relpath(site_uri(place), folder)
        markdown = re.sub(rf"(?<=\]\(){re.escape(link)}(?=[)#])", to, markdown)
    return markdown


def site_uri(path: Path) -> str:
    """Where the site has a file of the repository."""
    if path == ROOT / "README.md":
        return "index.md"
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    uri = path.relative_to(ROOT).as_posix()
    return f"{uri}.md" if path.suffix in CODE else uri


def repository_path(uri: str) -> Path:
    """Where the repository has a page of the site."""
    if uri == "index.md":
        return ROOT / "README.md"
    inside = ROOT / "docs" / uri
    return inside if inside.exists() else ROOT / uri


def _named(nav: object) -> Iterator[str]:
    """The files that a navigation names."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list | dict):
        for part in nav if isinstance(nav, list) else nav.values():
            yield from _named(part)


def _links(markdown: str, page: Path) -> Iterator[tuple[str, Path]]:
    """The links of a page to files of the repository, as they are written and where they lead."""
    for found in LINK.finditer(markdown):
        place = (page.parent / found["path"]).resolve()
        place = place / "README.md" if place.is_dir() else place
        if place.is_file() and place.is_relative_to(ROOT):
            yield found["path"], place


def _content(path: Path) -> str:
    text = path.read_text("utf-8")
    if path.suffix not in CODE:
        return text
    return f"# {path.relative_to(ROOT)}\n\n``````{CODE[path.suffix]}\n{text}``````\n"
