"""The commands that run a run or a comparison again."""

from __future__ import annotations

import json
import shlex
from itertools import product
from typing import TYPE_CHECKING, Any

from fedbridge.base.values import OBJECT_MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fedbridge.runs.comparison import ComparisonRecord
    from fedbridge.runs.record import RunRecord

PER_LINE = 3
ESTIMATORS = ("FederatedClassifier", "FederatedRegressor")
"""What tasks are called whose rows an estimator was fitted to."""


def again(record: RunRecord) -> tuple[str, bool]:
    """What runs it again, and whether that is no command but a call.

    No command can load rows or a network that came from a Python program.
    """
    config = record.config
    by_hand = not config.get("loaded_as") or config["task"] in ESTIMATORS
    if by_hand or config["model"]["name"].startswith(OBJECT_MODEL):
        return python_call(record), True
    return command(record), False


def command(record: RunRecord) -> str:
    """The run on a command line, with every option said.

    All settings are written out, also those at their defaults: a task may bring defaults of its
    own, and another version others, and then leaving one out would run something else.
    """
    config = record.config
    loaded = config["loaded_as"]
    words = ["fedbridge", "run", str(loaded["task"]), "--target", config["target"]]
    words += ["--method", config["method"], "--rounds", str(config["rounds"])]
    words += ["--seed", str(config["seed"]), "--out", "again"]
    named = {"model": config["model"]["name"], **loaded.get("options", {})}
    return _with_options(words, {**named, **config["settings"], **config["options"]})


def python_call(record: RunRecord) -> str:
    """The run as a call, for rows that no command can load."""
    config = record.config
    name = config["model"]["name"]
    said = {"rounds": config["rounds"], "seed": config["seed"], "model": name}
    said |= {**config["settings"], **config["options"]}
    call, first, last = "run", ["task"], ""
    if config["task"] in ESTIMATORS:
        call, first = config["task"], []
        last = ".fit(X, y, sites)" if config["sources"] else ".fit(X, y)"
        said |= {"target": config["target"], **config.get("loaded_as", {}).get("options", {})}
    values = {key: repr(value) for key, value in said.items()}
    if name.startswith(OBJECT_MODEL):
        values["model"] = "model"
    given = [*first, repr(config["method"]), *(f"{key}={value}" for key, value in values.items())]
    return "\n".join([f"fedbridge.{call}(", *(f"    {one}," for one in given), f"){last}"])


def comparison_command(record: ComparisonRecord) -> str | None:
    """The comparison on a command line; None where its settings need more than one.

    That is so when settings are of different tasks, turn options without trying every combination
    of them with every target, or came from a Python program. Every run has its own command.
    """
    tasks, options = record.tasks, record.options
    named = [options.get("model"), *(v.options.get("model") for v in record.comparison.variants)]
    if any(task.get("given") for task in tasks) or any(map(_is_object, named)):
        return None
    turned = [{**task["options"], **task.get("run", {})} for task in tasks]
    if not tasks or any(
        (task["task"], list(options)) != (tasks[0]["task"], list(turned[0]))
        for task, options in zip(tasks, turned, strict=True)
    ):
        return None
    targets = _different([task["target"] for task in tasks])
    values = {name: _different([options[name] for options in turned]) for name in turned[0]}
    dials = {name: several for name, several in values.items() if len(several) > 1}
    planned = list(product(targets, *dials.values()))
    made = [
        (task["target"], *(options[name] for name in dials))
        for task, options in zip(tasks, turned, strict=True)
    ]
    if planned != made or any(isinstance(v, list) for several in dials.values() for v in several):
        return None
    comparison = record.comparison
    words = ["fedbridge", "compare", str(tasks[0]["task"])]
    for target in targets:
        words += [] if target is None else ["--target", str(target)]
    rows = [comparison.variant(method).text for method in comparison.methods]
    words += ["--methods", ",".join(rows)]
    words += ["--seeds", _seeds(comparison.seeds)]
    words += ["--rounds", str(comparison.rounds), "--out", "again"]
    for name, several in dials.items():
        words += ["--vary", f"{name}={','.join(map(_value, several))}"]
    fixed = {name: value for name, value in turned[0].items() if name not in dials}
    return _with_options(words, {**fixed, **record.options})


def _is_object(model: object) -> bool:
    return isinstance(model, str) and model.startswith(OBJECT_MODEL)


def _different(values: Iterable[Any]) -> list[Any]:
    """The values that differ, in their order; they need not be hashable."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _with_options(words: list[str], options: Mapping[str, Any]) -> str:
    said = [_option(name, _value(value)) for name, value in options.items()]
    lines = [shlex.join(words)]
    lines += [" ".join(said[start : start + PER_LINE]) for start in range(0, len(said), PER_LINE)]
    return " \\\n  ".join(lines)


def _option(name: str, value: str) -> str:
    """An option as a user types it; a value that looks like another option is tied to its own."""
    flag = f"--{name.replace('_', '-')}"
    return shlex.quote(f"{flag}={value}") if value[:2] == "--" else shlex.join([flag, value])


def _seeds(seeds: Sequence[int]) -> str:
    """How many they are if they are the first ones, or a list, which has a comma."""
    if list(seeds) == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + "," * (len(seeds) == 1)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
