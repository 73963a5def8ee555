"""What decides the result of one run, and a key for it: same key, same result.

A run that was done under a key need not be done again, whoever asks for it and in whatever table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedbridge.base.errors import OptionError
from fedbridge.base.files import sha256
from fedbridge.base.values import canonical, is_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

GENERATION = 1
"""Counts changes of the code after which the same run has another result."""

CHANGED = {"auto": 9}
"""The same of single methods."""

NO_MATTER = ("workers",)
"""Options that change no result."""


@dataclass(frozen=True)
class CellSpec:
    """Everything that decides what comes out of a run.

    Attributes:
        task: a name or path, as ``load_task`` takes it.
        method: what is run.
        seed: of the split and of everything random in training.
        rounds: rounds after the warm-up.
        target: the site that adapts; None for the task's own.
        task_options: options of the task.
        options: options of the run and of the method.
        data_sha256: the rows (``runs.folder.fingerprint``); None where the task's name and options
            decide them, as for built-in tasks.
    """

    task: str
    method: str
    seed: int
    rounds: int
    target: str | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    data_sha256: str | None = None

    @property
    def record(self) -> dict[str, Any]:
        """The canonical record: order and spelling of options do not matter, nor do workers."""
        plain: dict[str, Any] = canonical(vars(self))
        for name in NO_MATTER:
            plain["options"].pop(name, None)
        every = {**plain["task_options"], **plain["options"]}
        objects = [name for name, value in every.items() if not is_plain(value)]
        if objects:
            raise OptionError(
                f"Expected plain values, which a key can be made of, but {objects[0]!r} is an "
                f"object: name it, as in model='module:function'."
            )
        return {"generation": CHANGED.get(self.method, GENERATION), **plain}

    @property
    def key(self) -> str:
        """64 hexadecimal digits, the same on every machine."""
        text = json.dumps(self.record, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return sha256(text.encode())
