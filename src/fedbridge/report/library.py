"""The chart library that every page carries, so that it draws without a network.

Vega, Vega-Lite and Vega-Embed come out of vl-convert-python, the package that also saves figures:
a chart is drawn by the same code on the page and in a paper. Packing them takes some seconds, so
that it is done once and kept in the user's cache. A page carries the library compressed, which
makes it a third of the size; the browser unpacks it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import subprocess
import sys
import zlib
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from platformdirs import user_cache_path

from fedbridge.base.errors import ReportError
from fedbridge.base.files import StorageError, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = "vl-convert-python"
PACKING = """
import sys, vl_convert
notice = f"/*! vega {vl_convert.get_vega_version()}, BSD-3-Clause, vega.github.io */"
script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
sys.stdout.buffer.write(f"{notice}\\n(() => {{\\n{script}\\n}})();\\n".encode())
"""
"""Packed in a process of its own: a JavaScript engine has no business in one that trains."""


@cache
def packed() -> str:
    """The compressed library as text."""
    return base64.b64encode(_library()).decode()


@cache
def checksum() -> str:
    """What a content security policy knows the unpacked library by."""
    return script_checksum(gzip.decompress(_library()).decode())


def script_checksum(script: str) -> str:
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
