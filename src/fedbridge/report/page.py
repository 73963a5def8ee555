"""The frame of every page: what it consists of, and one file made of it.

A page carries the chart library, so that it draws without a network. Vega, Vega-Lite and Vega-Embed
come out of vl-convert-python, the package that also saves figures: a chart is drawn by the same
code on the page and in a paper. Packing them takes some seconds, so that it is done once and kept
in the user's cache. The page has the library compressed, which makes it a third of the size; the
browser unpacks it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import subprocess
import sys
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from platformdirs import user_cache_path

from fedbridge._version import __version__
from fedbridge.base.errors import ReportError
from fedbridge.base.files import StorageError, packaged_text, write_atomically
from fedbridge.report.charts import Chart, config
from fedbridge.report.charts.maps import Angles, Place, win_map
from fedbridge.report.tables import Table, to_html
from fedbridge.report.text import Html, Piece, counted, markup, tag

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


REPORT_FILE = "report.html"

SMALL_TEST = 100
"""With fewer test samples than this a page says that its accuracy says little."""

PACKAGE = "vl-convert-python"
PACKING = """
import sys, vl_convert
notice = f"/*! vega {vl_convert.get_vega_version()}, BSD-3-Clause, vega.github.io */"
script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
sys.stdout.buffer.write(f"{notice}\\n(() => {{\\n{script}\\n}})();\\n".encode())
"""
"""Packed in a process of its own: a JavaScript engine has no business in one that trains."""

Part: TypeAlias = Html | Chart | Table | None


@dataclass(frozen=True)
class Section:
    """A part of a page under its own heading.

    Attributes:
        title: The heading.
        parts: Text, charts and tables; charts that follow each other stand side by side.
        folded: Whether it waits for those who look for it; print shows it open.
    """

    title: str
    parts: tuple[Part, ...]
    folded: bool = False

    @property
    def anchor(self) -> str:
        """Where a link to the section leads."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")

    def html(self) -> Html:
        """The section as it stands on the page."""
        groups = groupby((part for part in self.parts if part is not None), type)
        parts = [piece for kind, parts in groups for piece in _pieces(kind, list(parts))]
        heading = tag("h2", self.title)
        if self.folded:
            return tag("details", tag("summary", heading), *parts, id=self.anchor)
        return tag("section", heading, *parts, id=self.anchor)


@dataclass(frozen=True)
class Page:
    """A page before it is a file, so that its charts can be had one by one.

    Attributes:
        title: In the window's frame and above everything.
        lead: What a reader sees first.
        sections: The rest; None and sections without parts are left out.
    """

    title: str
    lead: Html
    sections: tuple[Section | None, ...]

    def shown(self) -> list[Section]:
        """The sections that have something to show."""
        return [s for s in self.sections if s is not None and any(p is not None for p in s.parts)]

    @property
    def charts(self) -> list[Chart]:
        """All charts, in their order."""
        return [part for s in self.shown() for part in s.parts if isinstance(part, Chart)]

    def html(self) -> str:
        """The whole file.

        The browser is told to load nothing and to run two scripts only, the page's own and the
        chart library, known by their checksums and without ``eval``: a second defence behind the
        escaping of all text.
        """
        script = packaged_text("fedbridge.report", "page.js")
        allowed = f"'{checksum(script)}' '{library_checksum()}'"
        policy = (
            f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"
        )
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("link", rel="icon", href="data:,"),
            tag("title", self.title),
            tag("style", Html(packaged_text("fedbridge.report", "page.css"))),
        )
        sections = self.shown()
        charts = {chart.key: chart.to_json() for chart in self.charts}
        body = tag(
            "body",
            tag("a", "Skip to the result", href="#result", class_="skip"),
            tag(
                "main",
                tag("header", _bar(), tag("h1", self.title), self.lead, id="result"),
                _contents(sections),
                *(section.html() for section in sections),
            ),
            tag("footer", f"fedbridge {__version__}"),
            data("charts", {"config": config(), "charts": charts}),
            tag("script", Html(packed_library()), type="text/plain", id="library")
            if charts
            else None,
            tag("script", Html(script)),
        )
        return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def data(key: str, content: object) -> Html:
    """Data for the page's script, in which no text can end the element or begin another."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Html(text), type="application/json", id=key)


def paragraph(*children: Piece, class_: str | None = None) -> Html:
    """A paragraph."""
    return tag("p", *children, class_=class_)


def note(*children: Piece) -> Html:
    """A paragraph in small print."""
    return paragraph(*children, class_="note")


def small_test_note(samples: int, so: str) -> Html | None:
    """A warning when the test set is too small to say much, and what follows; None when not."""
    if samples >= SMALL_TEST:
        return None
    start = tag("strong", f"Only {counted(samples, 'test sample')}: the result says little; ")
    return paragraph(start, so, class_="caution")


def map_of_winners(
    title: str, places: Sequence[Place], angles: Angles, marks: str
) -> Chart | Html | None:
    """The map of who wins, or why there is none; None where nothing was measured.

    ``marks`` says what lies on the map.
    """
    ground = (
        "The ground says which rule has the smallest expected error of its update (Delta error) "
        "with one source at this distance, β = ½ where a rule has one"
    )
    drawn = win_map("map-of-winners", title, places, angles, note=f"{ground}; {marks}")
    if drawn is None and places:
        return note("No map of who wins: nowhere are distance and noise both estimated above zero.")
    return drawn


def facts(pairs: Sequence[tuple[str, Piece]], *, class_: str = "facts") -> Html:
    """Names and values one below the other; what has no value is left out."""
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value))
            for name, value in pairs
            if value not in (None, "")
        ),
        class_=class_,
    )


def said(value: object) -> str:
    """A value of a configuration as text."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def code(text: str) -> Html:
    """A block of code that scrolls, with the keyboard too."""
    return tag("pre", tag("code", text), tabindex=0)


def _pieces(kind: type, parts: Sequence[Html | Chart | Table]) -> list[Html]:
    if kind is Chart:
        return [tag("div", *(figure(p) for p in parts if isinstance(p, Chart)), class_="charts")]
    return [to_html(part) if isinstance(part, Table) else Html(part) for part in parts]


def figure(chart: Chart) -> Html:
    """The place of a chart, with its words; the script draws it there."""
    return tag(
        "figure",
        tag("figcaption", chart.title),
        tag(
            "div",
            tag(
                "div",
                tag("noscript", "This chart needs JavaScript; the tables have its numbers."),
                class_="plot",
                data_chart=chart.key,
            ),
            role="img",
            aria_label=f"{chart.title}. {chart.told}",
        ),
        note(chart.note) if chart.note else None,
        class_="chart wide-chart" if chart.wide else "chart",
        id=f"chart-{chart.key}",
    )


def _bar() -> Html:
    """The name of the project and the switch between light and dark."""
    switch = tag("button", "Dark", type="button", id="theme", aria_pressed="false", hidden=True)
    return tag("div", tag("span", "fedbridge", class_="brand"), switch, class_="bar")


def _contents(sections: Sequence[Section]) -> Html | None:
    if len(sections) < 3:
        return None
    links = [tag("a", section.title, href=f"#{section.anchor}") for section in sections]
    return tag("nav", markup(*links), aria_label="Contents")


@cache
def packed_library() -> str:
    """The compressed library as text."""
    return base64.b64encode(_library()).decode()


@cache
def library_checksum() -> str:
    """That of the unpacked library."""
    return checksum(gzip.decompress(_library()).decode())


def checksum(script: str) -> str:
    """The checksum of a script as a content security policy wants it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def cache_folder() -> Path:
    """Where the packed library is kept."""
    return user_cache_path("fedbridge") / "charts"


@cache
def _library() -> bytes:
    """From the cache, or packed and put there; a cache that cannot be written is no error."""
    file = cache_folder() / f"vega-{version(PACKAGE)}.js.gz"
    with suppress(OSError, EOFError, zlib.error):
        kept = file.read_bytes()
        if gzip.decompress(kept):
            return kept
    made = gzip.compress(_packing(), mtime=0)
    with suppress(StorageError):
        write_atomically(file, made)
    return made


def _packing() -> bytes:
    done = subprocess.run([sys.executable, "-c", PACKING], capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ReportError(
            f"Expected {PACKAGE} to hand out the chart library, but it said {said}: install it "
            f"again."
        )
    return done.stdout
