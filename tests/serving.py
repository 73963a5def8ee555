"""A web server on this machine that behaves as badly as a test asks."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Page:
    """What the server has at a path, and how it gives it away.

    Attributes:
        content: The whole file.
        etag: What the server calls this version; None for a server that does not.
        ranges: Whether it can send a part.
        honest: Whether it sends the whole file when asked for a part of another version.
        answers: Statuses to answer with before the content comes.
        drops: After how many bytes each of the next answers breaks off.
        stall: Seconds to wait before the content.
        measured: Whether it says how long the content is.
    """

    content: bytes
    etag: str | None = '"first"'
    ranges: bool = True
    honest: bool = True
    answers: list[int] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)
    stall: float = 0.0
    measured: bool = True


class Server(ThreadingHTTPServer):
    """Pages by path, and a note of every request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, Page] = {}
        self.asked: dict[str, list[str | None]] = defaultdict(list)

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def put(self, path: str, content: bytes, **behaviour: object) -> str:
        self.pages[path] = Page(content, **behaviour)
        return self.address(path)

    def handle_error(self, *_: object) -> None:
        """A client that left early is none of our business."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.path.lstrip("/")
        asked = self.headers.get("Range")
        self.server.asked[path].append(asked)
        page = self.server.pages.get(path)
        if page is None:
            self.send_error(404)
        elif page.answers:
            self.send_error(page.answers.pop(0))
        else:
            time.sleep(page.stall)
            self._send(page, asked)

    def _send(self, page: Page, asked: str | None) -> None:
        same = not page.honest or self.headers.get("If-Range") == page.etag
        start = int(asked[len("bytes=") : -1]) if asked and page.ranges and same else 0
        size = len(page.content)
        if start >= size > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        if page.etag is not None:
            self.send_header("ETag", page.etag)
        if page.measured:
            self.send_header("Content-Length", str(size - start))
        self.end_headers()
        end = start + page.drops.pop(0) if page.drops else size
        self.wfile.write(page.content[start:end])

    def log_message(self, *_: object) -> None:
        """Silent."""


@contextmanager
def serving():
    """A running server."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
