"""A task ``.toml``: names the data with all their options, so that a task is one file to share.

Example::

    [task]
    path = "hospitals.csv"        # relative to this file; or name = "digits-noise"
    target = "Riverside"
    site_column = "hospital"      # and any other option of that kind of task

    [run]                         # defaults of the run, all optional
    model = "mlp:32"
    lr = 0.05

A model given as ``module:function`` runs that function: trust such a file as you would a script.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedbridge.errors import DataError, OptionError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fedbridge.data.task import FederatedTask

TABLES = ("task", "run")


@dataclass(frozen=True)
class TaskFile:
    """What a task file says: where the data are, how to load them, how to run them."""

    source: str | Path
    target: str | None
    options: Mapping[str, object]
    run: Mapping[str, object]

    def with_run_defaults(self, task: FederatedTask) -> FederatedTask:
        """The task with the file's run options in front of its own defaults."""
        run = dict(self.run)
        model = run.pop("model", task.model)
        if not isinstance(model, str):
            raise OptionError(f"Expected `model` to be a name, but got {model!r}.")
        return replace(task, model=model, defaults={**task.defaults, **run})


def read_task_file(path: Path) -> TaskFile:
    """Read and check a task file."""
    tables = _read(path)
    for name in tables:
        if name not in TABLES:
            raise DataError(
                f"Expected tables [task] and [run] in {path.name!r}, but got [{name}]."
                f"{nearest(name, TABLES)}"
            )
    task, run = _table(tables, "task", path), _table(tables, "run", path)
    if ("path" in task) == ("name" in task):
        raise DataError(
            f"Expected [task] of {path.name!r} to have either `path` (own data) or `name` (a "
            f"built-in task), but it has {'both' if 'path' in task else 'neither'}."
        )
    options = {key: task[key] for key in task if key not in ("path", "name", "target")}
    target = task.get("target")
    return TaskFile(_source(task, path), None if target is None else str(target), options, run)


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"Expected a task file at {str(path)!r}, but there is none.") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(
            f"Expected {str(path)!r} to be a TOML file, but it cannot be read: {error}."
        ) from error


def _table(tables: Mapping[str, object], name: str, path: Path) -> dict[str, object]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise DataError(f"Expected a table [{name}] in {path.name!r}, but got {table!r}.")
    return table


def _source(task: Mapping[str, object], file: Path) -> str | Path:
    if "name" in task:
        return str(task["name"])
    source = file.parent / str(task["path"])
    if source.suffix.lower() == ".toml":
        raise DataError(
            f"Expected `path` in {file.name!r} to name data, but it names another task file, "
            f"{str(task['path'])!r}."
        )
    return source
