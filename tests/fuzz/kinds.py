"""All kinds of hostile input, and how many cases ``make fuzz`` tries of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuzz import folders, inputs, network

if TYPE_CHECKING:
    from fuzz.harness import Kind


@dataclass(frozen=True)
class Entry:
    """A kind, and its share of the work."""

    kind: Kind
    cases: int


KINDS = {
    "arguments": Entry(inputs.arguments, 200),
    "task-files": Entry(inputs.task_files, 120),
    "tables": Entry(inputs.tables, 120),
    "arrays": Entry(inputs.arrays, 150),
    "images": Entry(inputs.images, 60),
    "places": Entry(inputs.places, 120),
    "names": Entry(inputs.names, 40),
    "records": Entry(folders.records, 200),
    "swaps": Entry(folders.swaps, 150),
    "tensors": Entry(folders.tensors, 120),
    "overwriting": Entry(folders.overwriting, 30),
    "missing": Entry(folders.missing, 30),
    "kills": Entry(folders.kills, 20),
    "full-disks": Entry(folders.full_disks, 30),
    "replies": Entry(network.replies, 40),
    "requests": Entry(network.requests, 40),
}
