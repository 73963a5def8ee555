"""The frame of every page: style, script, header and footer in one file."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

import fedbridge
from fedbridge.report.markup import Child, Html, tag

REPORT_FILE = "report.html"

SMALL_TEST = 100
"""With fewer test samples than this a page says that its accuracy says little."""


def page(title: str, lead: Html, *sections: Html | None) -> str:
    """A whole page.

    The browser is told to load nothing and to run one script only, the page's own, known by its
    checksum: a second defence behind the escaping of all text.
    """
    script = _resource("page.js")
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{checksum}'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html(_resource("page.css"))),
    )
    body = tag(
        "body",
        tag("main", tag("header", tag("h1", title), lead), *sections),
        tag("footer", f"fedbridge {fedbridge.__version__}"),
        tag("script", Html(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def section(title: str, *children: Child) -> Html:
    """A part of a page under its own heading."""
    return tag("section", tag("h2", title), *children)


def folded(title: str, *children: Child) -> Html:
    """A part that is there for those who look for it; print shows it open."""
    return tag("details", tag("summary", tag("h2", title)), *children)


def paragraph(*children: Child, class_: str | None = None) -> Html:
    """A paragraph."""
    return tag("p", *children, class_=class_)


def small_test_note(samples: int, so: str) -> Html | None:
    """A warning when the test set is too small to say much, and what follows; None when not."""
    if samples >= SMALL_TEST:
        return None
    plural = "sample" if samples == 1 else "samples"
    start = tag("strong", f"Only {samples} test {plural}: the result says little; ")
    return paragraph(start, so, class_="caution")


def _resource(name: str) -> str:
    return resources.files("fedbridge.report").joinpath(name).read_text(encoding="utf-8")
