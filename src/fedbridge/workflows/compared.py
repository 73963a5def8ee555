"""What is compared, in whatever form somebody says it, and the file that says it.

A comparison file is TOML; ``fedbridge compare FILE.toml`` reads it, and the folder of a comparison
holds its own as ``comparison.toml``::

    seeds = 5                             # how many, or a list
    rounds = 50
    alone = true                          # false: without the stand-alone baselines
    methods = ["auto", "fedgp[beta=1]", "fedgp-auto[batch_size_target=4,lr_factor=0.1]"]

    [options]                             # of all runs, of methods that have them, of all tasks
    lr = 0.05

    [[tasks]]
    task = "hospitals.csv"                # relative to this file, or the name of a built-in task
    targets = "all"                       # or target = "Riverside", or a list of targets
    options = { site_column = "hospital", label_column = "disease" }

A method may also be a table: ``{ method = "fedgp", options = { beta = 1 }, label = "FedGP" }``.
TOML has no null: ``"none"`` stands for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import tomli_w

from fedbridge.base.errors import DataError, OptionError, UnknownOptionError
from fedbridge.base.files import parse_toml, read_text, to_json
from fedbridge.base.options import LARGEST, MOST_SEEDS, check_flag, check_known, check_whole
from fedbridge.base.values import TEXTS, canonical, for_file, is_plain
from fedbridge.data.load import possible_targets, registry
from fedbridge.data.protocols import FAIR
from fedbridge.data.task import FederatedTask, check_target_name
from fedbridge.workflows.loaded import load_once

if TYPE_CHECKING:
    from fedbridge.runs.variant import Variant

ALL = "all"
FILE = "comparison.toml"
KEYS = ("tasks", "methods", "seeds", "rounds", "alone", "options")
"""What a comparison file may say."""
TASK_KEYS = ("task", "target", "targets", "options", "run", "label")
TAKEN = ("name_or_path", "task", "seed")
"""What ``load_task`` calls other arguments, which no option can be called."""
TABLES = ("options", "run")
"""Entries of a task that are tables."""


@dataclass(frozen=True)
class Setting:
    """A task as a column of the table: how to load it for a seed, and what to call it.

    Attributes:
        label: the column's heading.
        task: a name or path, as ``load_task`` takes it, or a task that is loaded already and is
            the same for every seed.
        target: the site that adapts; None for the task's own.
        options: options of the task.
        run: options of its runs, which go before those of the comparison.
    """

    label: str
    task: str | FederatedTask
    target: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def task_name(self) -> str:
        """The task in words."""
        return self.task if isinstance(self.task, str) else self.task.name

    def load(self, seed: int) -> FederatedTask:
        """The task for a seed."""
        if isinstance(self.task, str):
            return load_once(self.task, self.target, seed, self.options)
        return self.task

    def with_options(self, options: Mapping[str, Any]) -> Setting:
        """The setting with more options of its task; its own go before them."""
        if options and not isinstance(self.task, str):
            raise UnknownOptionError(
                f"Expected options of the runs or of the methods for task {self.label!r}, which is "
                f"loaded already, but got {', '.join(options)}: give them to load_task."
            )
        return replace(self, options={**options, **self.options})

    @property
    def protocol(self) -> str:
        """Whose settings the task's runs have."""
        loaded = self.task.protocol if isinstance(self.task, FederatedTask) else FAIR
        return str(self.options.get("protocol", loaded))

    def to_json(self) -> dict[str, Any]:
        """A record for a file; what older files did not have is left out where it says nothing."""
        record = {"label": self.label, "task": self.task_name, "target": self.target}
        plain = {**record, "options": for_file(self.options)}
        plain |= {"run": for_file(self.run)} if self.run else {}
        return plain if isinstance(self.task, str) else {**plain, "given": True}


AnyTask: TypeAlias = "str | Path | FederatedTask | Setting | tuple[Any, Mapping[str, Any]]"
"""A task as a user says it; a record with the entries of ``TASK_KEYS`` too."""


def settings_of(tasks: AnyTask | Mapping[str, Any] | Iterable[Any]) -> list[Setting]:
    """The settings that a user means by one task or several."""
    if isinstance(tasks, str | Path | FederatedTask | Setting | Mapping) or _is_pair(tasks):
        return _settings_of(tasks)
    if not isinstance(tasks, Iterable):
        raise _no_task(tasks)
    return _told_apart([setting for task in tasks for setting in _settings_of(task)])


def _told_apart(settings: list[Setting]) -> list[Setting]:
    """The settings, with what differs in the labels of those that would be called the same."""
    found = []
    for setting in settings:
        alike = [_said(other) for other in settings if other.label == setting.label]
        said = _said(setting)
        told = [f"{k} {said[k]}" for k in said if any(o.get(k) != said[k] for o in alike)]
        found.append(replace(setting, label=", ".join([setting.label, *told])))
    return found


def _said(setting: Setting) -> dict[str, Any]:
    return {"task": Path(setting.task_name).stem, **setting.options, **setting.run}


def _is_pair(entry: object) -> bool:
    """Whether it is ``(task, options)``, and not two tasks."""
    return (
        isinstance(entry, tuple)
        and len(entry) == 2
        and isinstance(entry[1], Mapping)
        and not isinstance(entry[0], Mapping | Setting)
    )


def _settings_of(entry: Any) -> list[Setting]:
    if isinstance(entry, Setting):
        return [entry]
    if _is_pair(entry):
        return _of_record({"task": entry[0], "options": entry[1]})
    return _of_record(entry if isinstance(entry, Mapping) else {"task": entry})


def _of_record(record: Mapping[str, Any]) -> list[Setting]:
    """The settings of one task, a target each."""
    check_known(record, TASK_KEYS, "an entry of `tasks`")
    options, run = ({**_table(record.get(name, {}), name)} for name in TABLES)
    target = record.get("target", options.pop("target", None))
    task, label = record.get("task"), record.get("label")
    if not isinstance(label, str | None):
        raise OptionError(f"Expected the `label` of a task to be text, but got {label!r}.")
    if "targets" in record and target is not None:
        raise OptionError("Expected either `target` or `targets`, but got both.")
    if isinstance(task, FederatedTask):
        if options or target not in (None, task.target.name) or "targets" in record:
            raise OptionError(
                f"Expected neither target nor options for task {task.name!r}, which is loaded "
                f"already: give them to load_task."
            )
        return [Setting(label or task.name, task, task.target.name, {}, run)]
    if not (isinstance(task, str | Path) and isinstance(target, str | None)):
        raise _no_task(record)
    for name in TAKEN:
        if name in options:
            raise OptionError(f"Expected options of task {str(task)!r}, but {name!r} is none.")
    if "targets" not in record:
        return [Setting(label or target or Path(task).stem, str(task), target, options, run)]
    return [
        Setting(f"{label}, {name}" if label else name, str(task), name, options, run)
        for name in targets_of(str(task), record["targets"], options)
    ]


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise OptionError(f"Expected `{name}` to be names and values, but got {value!r}.")
    return value


def _no_task(found: object) -> OptionError:
    return OptionError(
        f"Expected a task as its name, a path, a loaded task, a pair (name, options) or a record "
        f"with `task`, `target` and `options`, but got {found!r}."
    )


def targets_of(task: str, wanted: object, options: Mapping[str, Any]) -> list[str]:
    """The sites that ``targets`` names, or all that can be the target."""
    possible = possible_targets(task, **options)
    if wanted == ALL:
        return list(possible)
    if isinstance(wanted, str) or not isinstance(wanted, Sequence):
        raise OptionError(f"Expected `targets` to be 'all' or a list of names, but got {wanted!r}.")
    return list(dict.fromkeys(check_target_name(name, possible) for name in wanted))


def seeds_of(seeds: object) -> tuple[int, ...]:
    """So many seeds from 0 on, or these."""
    if isinstance(seeds, Iterable) and not isinstance(seeds, str):
        return tuple(check_whole("seeds", seed, least=0, most=LARGEST) for seed in seeds)
    return tuple(range(check_whole("seeds", seeds, least=0, most=MOST_SEEDS)))


def is_comparison_file(task: str) -> bool:
    """Whether a path names a comparison file, and not a task file or data."""
    path = Path(task)
    if path.suffix.lower() != ".toml" or not path.is_file():
        return False
    try:
        found = parse_toml(read_text(path))
    except (OSError, ValueError):
        return False  # the reader of task files says what is wrong
    return "task" not in found and any(key in found for key in KEYS)


def read_comparison_file(path: Path) -> dict[str, Any]:
    """What a comparison file says, as arguments of ``compare``: tasks, methods, options ..."""
    try:
        found = parse_toml(read_text(path))
    except (OSError, ValueError) as error:
        raise DataError(
            f"Expected {str(path)!r} to be a comparison file, but it cannot be read: {error}."
        ) from error
    where = f"a comparison file ({path.name!r})"
    check_known(found, KEYS, where)
    check_flag("alone", found.get("alone", True))
    tasks = found.get("tasks", [])
    if not isinstance(tasks, list) or not tasks:
        raise DataError(
            f"Expected tables [[tasks]] in {path.name!r}, each with `task`, but got {tasks!r}."
        )
    methods = found.get("methods")
    if isinstance(methods, list):
        found["methods"] = [_with_values(entry) for entry in methods]
    return {
        **found,
        "tasks": [_from_file(entry, path.parent) for entry in tasks],
        "options": _values(_table(found.get("options", {}), "options")),
    }


def _from_file(entry: Any, folder: Path) -> dict[str, Any]:
    """A task with its path as seen from here."""
    record = dict(entry) if isinstance(entry, Mapping) else {"task": entry}
    task = record.get("task")
    if isinstance(task, str) and task not in registry.names():
        record["task"] = str(folder / task)
    found: dict[str, Any] = _with_values(record)
    return found


def _with_values(entry: Any) -> Any:
    """An entry of a file whose tables of options hold what is meant."""
    if not isinstance(entry, Mapping):
        return entry
    return {k: _values(_table(v, k)) if k in TABLES else v for k, v in entry.items()}


def _values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a file, in which ``"none"`` stands for what TOML cannot say."""
    return {k: None if v == "none" and k not in TEXTS else v for k, v in options.items()}


def comparison_file(
    settings: Sequence[Setting],
    variants: Sequence[Variant],
    seeds: Sequence[int],
    rounds: int,
    options: Mapping[str, Any],
    folder: Path,
    *,
    alone: bool,
) -> str | None:
    """The file of a comparison as it lies in ``folder``; None where no file can name its parts.

    That is so for rows and networks that came from a Python program.
    """
    tables = [options, *(v.options for v in variants), *(s.options for s in settings)]
    tables += [setting.run for setting in settings]
    plain = all(is_plain(canonical(value)) for table in tables for value in table.values())
    if not plain or not all(isinstance(setting.task, str) for setting in settings):
        return None
    content = {
        "rounds": rounds,
        **({} if alone else {"alone": False}),
        "seeds": list(seeds),
        "methods": [variant.text for variant in variants],
        "options": options,
        "tasks": [_for_file(setting, folder) for setting in settings],
    }
    return tomli_w.dumps(_with_none_said(json.loads(to_json(canonical(content)))))


def _for_file(setting: Setting, folder: Path) -> dict[str, Any]:
    record = {k: v for k, v in setting.to_json().items() if v is not None and v != {}}
    task = setting.task_name
    if task not in registry.names():
        record["task"] = Path(os.path.relpath(task, folder)).as_posix()
    return record


def _with_none_said(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_none_said(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_none_said(part) for part in value]
    return "none" if value is None else value
