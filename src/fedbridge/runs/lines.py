"""A line of the history: what it says of sources, in memory and, of very many, on disk.

In memory a round has a list per measure with a value for every source. A thousand of them in full
digits would be 70 kB a round that nobody can read. So of more than ``GROUPED`` sources six digits
are kept, and on disk a list becomes a record: the weightiest sources by name, how the others lie,
and all values packed (JSON, zlib, base64). Whoever reads a folder gets the lists back.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import TYPE_CHECKING, Any

from fedbridge.base.files import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PER_SOURCE = ("beta", "d2", "tau2_d2", "cosine")
"""Entries of a round that have a value for every source."""

GROUPED, NAMED = 100, 10
"""Of more sources than the first only so many are named where people read."""

DIGITS = 6
LONGEST = 2**26
"""Bytes that a packed list may have: some millions of sources."""

Line = dict[str, Any]


def rounded(line: Mapping[str, Any]) -> Line:
    """A round with no more digits of very many sources than are kept on disk."""
    return {**line, **{name: _rounded(values) for name, values in _long_lists(line)}}


def packed(line: Mapping[str, Any], sources: Sequence[str]) -> Line:
    """A round as it is written, given the names of the sources."""
    weights = line.get("beta") or ()
    order = sorted(range(len(weights)), key=lambda k: -(weights[k] or 0.0))
    return {
        **line,
        **{name: _packed(values, order, sources) for name, values in _long_lists(line)},
    }


def unpacked(line: Line) -> Line:
    """A round as it was before it was written.

    Raises:
        ValueError: a packed list is none.
    """
    found = {name: line[name] for name in PER_SOURCE if isinstance(line.get(name), dict)}
    return {**line, **{name: _unpacked(record) for name, record in found.items()}}


def _long_lists(line: Mapping[str, Any]) -> list[tuple[str, list[float | None]]]:
    lists = ((name, line.get(name)) for name in PER_SOURCE)
    return [(name, own) for name, own in lists if isinstance(own, list) and len(own) > GROUPED]


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    """Values of so many digits; what is not finite is none, as everywhere on disk."""
    known = (value is not None and math.isfinite(value) for value in values)
    return [
        float(f"{value:.{DIGITS}g}") if there else None
        for value, there in zip(values, known, strict=True)
    ]


def _packed(values: Sequence[float | None], order: Sequence[int], names: Sequence[str]) -> Line:
    values = _rounded(values)
    present = [k for k in order or range(len(values)) if values[k] is not None]
    rest = [value for k in present[NAMED:] if (value := values[k]) is not None]
    text = json.dumps(values, separators=(",", ":"))
    return {
        "top": {
            names[k] if len(names) == len(values) else str(k): values[k] for k in present[:NAMED]
        },
        "others": {
            "count": len(rest),
            "least": min(rest, default=None),
            "mean": _rounded([sum(rest) / len(rest)])[0] if rest else None,
            "most": max(rest, default=None),
        },
        "packed": base64.b64encode(zlib.compress(text.encode(), 9)).decode(),
    }


def _unpacked(record: Mapping[str, Any]) -> Any:
    text = record.get("packed")
    if not isinstance(text, str):
        raise ValueError("a list of values for the sources is missing")
    try:
        reader = zlib.decompressobj()
        content = reader.decompress(base64.b64decode(text, validate=True), LONGEST)
    except zlib.error as error:
        raise ValueError(f"values for the sources cannot be unpacked ({error})") from error
    if not reader.eof:
        raise ValueError("values for the sources are cut off")
    return parse_json(content)
