"""``load_task``: a task by name, or from a user's own file or folder, or as a task ``.toml`` says.

A task ``.toml`` names the data with all their options, so that a task is one file to share::

    [task]
    path = "hospitals.csv"        # relative to this file; or name = "digits-noise"
    target = "Riverside"
    site_column = "hospital"      # and any other option of that kind of task

    [sites.Lakeside]              # what only this site's file needs, as in its site.toml
    rename.AgeYears = "age"

    [run]                         # defaults of the run, all optional
    model = "mlp:32"
    lr = 0.05

A key that means nothing is an error: it was meant to do something. A model given as
``module:function`` runs that function: trust such a file as you would a script.
"""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast, get_args

import numpy as np

from fedbridge.base.errors import (
    DataError,
    OptionError,
    TargetNeededError,
    UnknownNameError,
    UnknownOptionError,
    nearest,
)
from fedbridge.base.files import parse_toml, read_text
from fedbridge.base.options import check_known
from fedbridge.base.places import dataset_folder
from fedbridge.base.registry import Registry
from fedbridge.data.arrays import npz_task
from fedbridge.data.builtin.domainbed import SUITES, VERSIONS, colored_mnist, suite_task
from fedbridge.data.builtin.heart import heart_task
from fedbridge.data.builtin.rbf import rbf_task
from fedbridge.data.builtin.semi_synthetic import (
    ShiftName,
    cifar10_noise,
    digits_task,
    fashion_labels,
    fashion_noise,
    fashion_sources,
)
from fedbridge.data.images.folder import images_task
from fedbridge.data.protocols import FAIR, data_options, entries, follow
from fedbridge.data.split import SplitOptions
from fedbridge.data.store.catalogue import CATALOGUE
from fedbridge.data.tables.load import TABLE_FILES, table_task
from fedbridge.data.task import UntestedTask, chosen_sources, keep_sources, with_positive
from fedbridge.models.resnet import PRETRAINED, RESNETS, imagenet_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fedbridge.data.task import FederatedTask

    TaskFactory: TypeAlias = Callable[..., FederatedTask]

NO_OPTIONS = ("target", "seed")
"""Parameters that every task has."""

KEEP_SOURCES, EXCLUDE, POSITIVE, PROTOCOL = OF_ALL = (
    *("sources", "exclude_sites", "positive", "protocol"),
)
"""Options of every task: keep only the sources that are named, or all but these; which class is
the positive one; follow somebody's settings."""

INSTEAD_OF = {"n_target": "target_fraction", "augment": "backbone"}
"""What a protocol sets, and what somebody may have given that excludes it."""

TABLES = ("task", "run", "sites")
OF_EVERY_TASK = ("path", "name", "target")
RUN_OPTIONS = (
    *("model", "lr", "lr_target", "batch_size", "batch_size_target", "epochs", "epochs_target"),
    *("steps", "steps_target", "optimizer", "momentum", "weight_decay", "class_weights", "warmup"),
    *(
        "lr_factor",
        "align",
        "align_evidence",
        "blocks",
        "weights",
        "buffers",
        "evidence",
        "noise_from",
    ),
    *("probe_batches", "sketch_size", "participation", "dropout", "early_stopping"),
    *("validation_fraction", "norm_ratio", "device", "workers"),
    *("server_momentum", "probe_batch_size"),
    *("record_epsilon", "record_clip", "record_delta", "record_rounds", "record_of"),
)
"""What a task may have defaults for: the fields of ``Settings``, which a test holds equal."""
MAPPINGS = ("rename", "label_map", "recode", "units", "scales", "sites")
"""Options of tables that may be tables of a task file."""
GIVEN_AT_THE_START = ("method", "rounds", "seed", "engine", "out")
"""What belongs to one run and not to a task."""


registry: Registry[TaskFactory] = Registry("task", "fedbridge.tasks")
for _shift in get_args(ShiftName):
    registry.add(f"digits-{_shift}", partial(digits_task, shift=_shift))
registry.add("rbf", rbf_task)
registry.add("fashion-noise", fashion_noise)
registry.add("fashion-labels", fashion_labels)
registry.add("fashion-sources", fashion_sources)
registry.add("cifar10-noise", cifar10_noise)
for _version in VERSIONS:
    registry.add(_version.name, partial(colored_mnist, _version))
registry.add("heart", heart_task)
for _suite in SUITES:
    registry.add(_suite.name, partial(suite_task, _suite))


def load_task(
    name_or_path: str | Path, target: str | None = None, seed: int = 0, **options: object
) -> FederatedTask:
    """A task by its name, or from a ``.csv``, a folder, or a task ``.toml``.

    Args:
        name_or_path: A built-in name; a CSV with a site column; a folder ``domain/class/*.png``,
            of ``domain.npz`` or of one CSV per site; or a ``.toml`` that names one of these.
        target: The site that adapts; needed for own data.
        seed: Decides every random choice of rows.
        **options: What this kind of task takes besides, such as ``n_target``; and of every task
            ``sources``, the names of the sources to keep, as a list or separated by commas,
            ``exclude_sites``, those to leave out, ``positive``, the label of the class, of two,
            that sensitivity, ROC curve and calibration are of (the model is the same for either),
            and ``protocol``, ``fair`` or ``paper``: whose settings of rows and runs.
    """
    if not isinstance(name_or_path, str | Path):
        raise OptionError(
            f"Expected the name of a task, or the path of a file or folder, but got "
            f"{type(name_or_path).__name__}: arrays become a task with FederatedTask.from_arrays."
        )
    options = {option: _own_type(value) for option, value in options.items()}
    if options.get(PROTOCOL) == FAIR:
        del options[PROTOCOL]  # it goes without saying
    if Path(name_or_path).suffix.lower() == ".toml":
        file = read_task_file(Path(name_or_path))
        task = _load(file.source, target or file.target, seed, {**file.options, **options})
        task = replace(
            task, model=file.model or task.model, defaults={**task.defaults, **file.defaults}
        )
    else:
        task = _load(name_or_path, target, seed, options)
    asked = {"task": str(name_or_path), "target": target, "options": dict(options)}
    return replace(task, manifest={**task.manifest, "loaded_as": asked})


def check_weights(name_or_path: str | Path, model: object, options: Mapping[str, object]) -> None:
    """Miss the pretrained weights of a run before images are decoded for it.

    Args:
        name_or_path: What ``load_task`` will take.
        model: Of the run; ``None`` for the task's own.
        options: Of the task.
    """
    if Path(name_or_path).suffix.lower() == ".toml":
        file = read_task_file(Path(name_or_path))
        check_weights(file.source, model or file.model, {**file.options, **options})
        return
    suite = next((suite for suite in SUITES if suite.name == name_or_path), None)
    there = suite and dataset_folder(suite.name, *CATALOGUE[suite.name].other_names)
    usual = suite.model if suite and there and options.get("backbone") is None else None
    name, _, variant = str(model or usual).partition(":")
    if name in RESNETS and variant == PRETRAINED:
        imagenet_file(name)


def under_protocol(task: FederatedTask, protocol: str) -> FederatedTask:
    """The task with a protocol's settings; loaded again if that has rows of its own."""
    entries(protocol)  # an unknown name is an error
    asked: Any = task.manifest.get("loaded_as")
    if protocol == task.protocol:
        return task
    if asked is None or isinstance(task, UntestedTask):  # rows from memory
        return follow(task, protocol)
    options = {**asked["options"], PROTOCOL: protocol}
    return load_task(asked["task"], asked["target"], cast("int", task.manifest["seed"]), **options)


def _own_type(value: object) -> object:
    """Numbers and lists of numpy as Python's own, which configurations and manifests can hold."""
    if isinstance(value, list):
        return [_own_type(part) for part in value]
    if isinstance(value, tuple):
        return tuple(map(_own_type, value))
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def summary_of(name: str) -> str:
    """What a built-in task is, in one line."""
    factory = registry.get(name)
    text = inspect.getdoc(factory.func if isinstance(factory, partial) else factory) or ""
    said = ", ".join(_fixed(factory)) if isinstance(factory, partial) else ""
    return text.partition("\n")[0] + (f" ({said})" if said else "")


def _fixed(factory: partial[FederatedTask]) -> list[str]:
    named = [f"{option} {value}" for option, value in factory.keywords.items()]
    return [*map(str, factory.args), *named]


def possible_targets(name_or_path: str | Path, **options: object) -> tuple[str, ...]:
    """All sites that can be the target: every site of own data, or the one of a built-in task."""
    source: str | Path = name_or_path
    if Path(name_or_path).suffix.lower() == ".toml":
        file = read_task_file(Path(name_or_path))
        source, options = file.source, {**file.options, **options}
    try:
        return (_load(source, None, 0, options).target.name,)
    except TargetNeededError as error:
        own = EXCLUDE in _known_options(_factory(source))  # then it has left them out already
        return tuple(chosen_sources(error.sites, None, None, None if own else options.get(EXCLUDE)))


def _load(
    name_or_path: str | Path, target: str | None, seed: int, options: Mapping[str, object]
) -> FederatedTask:
    factory = _factory(name_or_path)
    known = _known_options(factory)
    _check_options(factory, options, f"task {str(name_or_path)!r}")
    protocol = cast("str", options.get(PROTOCOL, FAIR))
    asked = data_options(protocol, str(name_or_path), target)
    left = {n: v for n, v in asked.items() if options.get(INSTEAD_OF.get(n, ""), None) is None}
    options = {**left, **options}
    own = {name: value for name, value in options.items() if name in known or name not in OF_ALL}
    task = factory(target=target, seed=seed, **_arguments(factory, own))
    usual = {name: value for name, value in known.items() if value is not inspect.Parameter.empty}
    in_force = {**usual, **own}
    if protocol != FAIR:
        task = follow(task, protocol)
        in_force[PROTOCOL] = protocol
    keep, leave_out = (
        None if option in known else options.get(option) for option in (KEEP_SOURCES, EXCLUDE)
    )
    if keep is not None or leave_out is not None:
        task = keep_sources(task, keep, leave_out)
    if options.get(KEEP_SOURCES) is not None:
        in_force[KEEP_SOURCES] = list(task.source_names)
    if options.get(POSITIVE) is not None:
        task = with_positive(task, options[POSITIVE])
        in_force[POSITIVE] = task.positive_name
    return replace(task, manifest={**task.manifest, "options": in_force})


def _factory(name_or_path: str | Path) -> TaskFactory:
    path = Path(name_or_path)
    if isinstance(name_or_path, Path):
        return _own_data(path)
    try:
        return registry.get(name_or_path)
    except UnknownNameError:
        if path.exists() or path.suffix.lower() in TABLE_FILES or len(path.parts) > 1:
            return _own_data(path)
        raise


def _own_data(path: Path) -> TaskFactory:
    """The loader for this file or folder, chosen by what is in it."""
    if not path.exists():
        raise DataError(f"Expected a file or folder at {str(path)!r}, but there is none.")
    if path.is_file():
        if path.suffix.lower() in TABLE_FILES:
            return partial(table_task, path)
        raise DataError(
            f"Expected a .csv, a .parquet, a .toml or a folder, but got {str(path)!r}: convert it "
            f"to one."
        )
    loaders: dict[str, TaskFactory] = {
        "domain.npz": npz_task,
        "one CSV per site": table_task,
        "domain/class/*.png": images_task,
    }
    visible = [entry for entry in path.iterdir() if not entry.name.startswith((".", "__"))]
    found = {
        "domain.npz": any(entry.suffix.lower() == ".npz" for entry in visible),
        "one CSV per site": any(entry.suffix.lower() in TABLE_FILES for entry in visible),
        "domain/class/*.png": any(entry.is_dir() for entry in visible),
    }
    layouts = [layout for layout, present in found.items() if present]
    if len(layouts) != 1:
        raise DataError(
            f"Expected the folder {str(path)!r} to hold one of: {'; '.join(loaders)}; but it holds "
            f"{' and '.join(layouts) or 'none of them'}."
        )
    return partial(loaders[layouts[0]], path)


def _check_options(
    factory: TaskFactory, options: Mapping[str, object], where: str, more: Sequence[str] = ()
) -> None:
    """Refuse options that the task does not have, and anything but text where it expects text."""
    parameters = inspect.signature(factory).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        known = dict.fromkeys((*more, *_known_options(factory), *OF_ALL))
        check_known(options, tuple(known), where)
    for name, value in options.items():
        kind = parameters[name].annotation if name in parameters else None
        empty = value is None and kind == "str | None"
        if kind in ("str", "str | None") and not (isinstance(value, str) or empty):
            raise OptionError(f"Expected `{name}` of {where} to be text, but got {value!r}.")


def _known_options(factory: TaskFactory) -> dict[str, object]:
    """Every option, and what holds when nobody gives it: manifests stay true when that changes."""
    known: dict[str, object] = {}
    for name, parameter in inspect.signature(factory).parameters.items():
        if isinstance(parameter.default, SplitOptions):
            known |= _options_of(parameter.default)
        elif name not in NO_OPTIONS:
            known[name] = parameter.default
    return known


def _arguments(factory: TaskFactory, options: Mapping[str, object]) -> dict[str, object]:
    """The options as the factory takes them: those of the split as one object."""
    arguments = dict(options)
    for name, parameter in inspect.signature(factory).parameters.items():
        if isinstance(parameter.default, SplitOptions):
            own = [option for option in _options_of(parameter.default) if option in arguments]
            given: dict[str, Any] = {option: arguments.pop(option) for option in own}
            arguments[name] = replace(parameter.default, **given)
    return arguments


def _options_of(split: SplitOptions) -> dict[str, object]:
    """What a user may say of a split; where a task decides what tests, that is no option."""
    decided = () if split.test_fraction is not None else ("test_fraction",)
    return {option: value for option, value in asdict(split).items() if option not in decided}


@dataclass(frozen=True)
class TaskFile:
    """What a task file says: where the data are, how to load them, how to run them."""

    source: str | Path
    target: str | None
    options: Mapping[str, object]
    model: str | None
    defaults: Mapping[str, object]


def read_task_file(path: Path) -> TaskFile:
    """Read and check a task file."""
    tables = _read_toml(path)
    for name in tables:
        if name not in TABLES:
            raise DataError(
                f"Expected tables [task], [run] and [sites.NAME] in {path.name!r}, but got "
                f"[{name}].{nearest(name, TABLES)}"
            )
    task, run = _table(tables, "task", path), _table(tables, "run", path)
    if "sites" in tables:
        sites = _dict(tables, "sites", path)
        task["sites"] = {site: _table(sites, site, path) for site in sites}
    if ("path" in task) == ("name" in task):
        raise DataError(
            f"Expected [task] of {path.name!r} to have either `path` (own data) or `name` (a "
            f"built-in task), but it has {'both' if 'path' in task else 'neither'}."
        )
    for table, key in ((task, "path"), (task, "name"), (task, "target"), (run, "model")):
        if not isinstance(table.get(key, ""), str):
            raise OptionError(
                f"Expected `{key}` in {path.name!r} to be text, but got {table[key]!r}: write it "
                f"in quotes."
            )
    source = _source(task, path)
    options = {key: task[key] for key in task if key not in OF_EVERY_TASK}
    _check_options(_factory(source), options, f"[task] of {path.name!r}", OF_EVERY_TASK)
    _check_run(run, path)
    target, model = (
        cast("str | None", part) for part in (task.get("target"), run.pop("model", None))
    )
    return TaskFile(source, target, options, model, run)


def _check_run(run: Mapping[str, object], path: Path) -> None:
    where = f"[run] of {path.name!r}"
    for name in GIVEN_AT_THE_START:
        if name in run:
            raise UnknownOptionError(
                f"Expected options that suit the task in {where}, but got {name!r}, which is "
                f"given where a run is started: as --{name} or {name}=."
            )
    check_known(run, RUN_OPTIONS, f"every run (those of a method are given with it) in {where}")


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return parse_toml(read_text(path))
    except FileNotFoundError as error:
        raise DataError(f"Expected a task file at {str(path)!r}, but there is none.") from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"Expected {str(path)!r} to be a TOML file, but it cannot be read: {error}."
        ) from error


def _table(tables: Mapping[str, object], name: str, path: Path) -> dict[str, object]:
    """One table: text, numbers, true or false, and lists of these, or what is said by name."""
    table = _dict(tables, name, path)
    for key, value in table.items():
        for part in _leaves(value, nested=key.replace("-", "_") in MAPPINGS):
            if not isinstance(part, str | int | float):
                raise DataError(
                    f"Expected text, a number, true or false, or a list of these as `{key}` in "
                    f"[{name}] of {path.name!r}, but got {value!r}."
                )
    return table


def _dict(tables: Mapping[str, object], name: str, path: Path) -> dict[str, object]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise DataError(f"Expected a table [{name}] in {path.name!r}, but got {table!r}.")
    return table


def _leaves(value: object, *, nested: bool) -> Iterator[object]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict) and nested:
        for part in value.values():
            yield from _leaves(part, nested=True)
    else:
        yield value


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
