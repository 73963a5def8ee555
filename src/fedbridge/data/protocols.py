"""Protocols: ``fair``, our own defaults, and ``paper``, what the paper's text and scripts do.

The paper compares rules at different step sizes and batch sizes, each with what suited it. Such a
table can be reproduced (``protocol="paper"``) but says little about rules; the default gives every
method the same. What differs is data, ``builtin/protocols.toml``, with the reason of every entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from fedbridge.base.files import packaged_text, parse_toml
from fedbridge.base.options import check_choice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbridge.data.task import FederatedTask

FAIR = "fair"
PROTOCOLS = (FAIR, "paper")


@dataclass(frozen=True)
class Entry:
    """Some options and what they hold for; without names for everything.

    Attributes:
        why: what is done in this way, and who says so.
        tasks, targets, methods: the names that the entry is for.
        data: options of the task.
        run: options of the run and of the method.
    """

    why: str
    tasks: Sequence[str] = ()
    targets: Sequence[str] = ()
    methods: Sequence[str] = ()
    data: Mapping[str, object] = field(default_factory=dict)
    run: Mapping[str, object] = field(default_factory=dict)

    def is_for(self, task: str, target: str | None = None) -> bool:
        """Whether the entry has a say in a task, or in one with this target."""
        return (not self.tasks or task in self.tasks) and (
            not self.targets or (target or "").casefold() in map(str.casefold, self.targets)
        )


@cache
def entries(protocol: str) -> tuple[Entry, ...]:
    """What a protocol changes; nothing for ``fair``."""
    check_choice("protocol", protocol, PROTOCOLS)
    if protocol == FAIR:
        return ()
    tables = parse_toml(packaged_text("fedbridge.data.builtin", "protocols.toml"))[protocol]
    return tuple(Entry(**table) for table in tables)


def data_options(protocol: str, task: str, target: str | None) -> dict[str, object]:
    """Options with which a protocol loads a built-in task."""
    asked = (entry.data for entry in entries(protocol) if entry.is_for(task, target))
    return {name: value for options in asked for name, value in options.items()}


def follow(task: FederatedTask, protocol: str) -> FederatedTask:
    """The task with the protocol's options of runs; its rows stay as they are."""
    said = [entry for entry in entries(protocol) if entry.is_for(task.name, task.target.name)]
    every: dict[str, object] = {}
    by_method: dict[str, dict[str, object]] = {}
    for entry in said:
        if not entry.methods:
            every.update(entry.run)
        for method in entry.methods:
            by_method.setdefault(method, {}).update(entry.run)
    return replace(
        task, protocol=protocol, defaults={**task.defaults, **every}, of_methods=by_method
    )
