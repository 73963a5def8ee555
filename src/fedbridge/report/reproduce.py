"""The command that runs a run again."""

from __future__ import annotations

import json
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedbridge.report.record import RunRecord

PER_LINE = 3


def command(record: RunRecord) -> str:
    """The run on a command line, with every option said.

    All settings are written out, also those at their defaults: a task may bring defaults of its
    own, and another version others, and then leaving one out would run something else.
    """
    config = record.config
    loaded = config.get("loaded_as", {})
    words = ["fedbridge", "run", task_argument(record), "--target", config["target"]]
    words += ["--method", config["method"], "--rounds", str(config["rounds"])]
    words += ["--seed", str(config["seed"]), "--out", "again"]
    named = {"model": config["model"]["name"], **loaded.get("options", {})}
    named |= {**config["settings"], **config["options"]}
    options = [f"--set {shlex.quote(f'{name}={_value(value)}')}" for name, value in named.items()]
    lines = [shlex.join(words)]
    lines += [
        " ".join(options[start : start + PER_LINE]) for start in range(0, len(options), PER_LINE)
    ]
    return " \\\n  ".join(lines)


def task_argument(record: RunRecord) -> str:
    """The name of a built-in task, or the file or folder that the rows came from."""
    loaded = record.config.get("loaded_as", {})
    if "task" in loaded:
        return str(loaded["task"])
    task, origin = str(record.config["task"]), str(record.manifest.get("origin", ""))
    return origin if PurePath(origin).stem == task else task


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
