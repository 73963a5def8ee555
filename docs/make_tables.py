"""Writes the tables of options into the documents: `python docs/make_tables.py`.

They come from the docstrings, and stand between `<!-- options: NAME -->` and `<!-- end -->`.
`tests/test_docs.py` holds documents and docstrings equal.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbridge import methods, rules
from fedbridge.data.load import registry
from fedbridge.data.protocols import Entry, entries
from fedbridge.data.split import OWN_SPLIT, SplitOptions
from fedbridge.data.tables.load import table_task
from fedbridge.federation.settings import Settings
from fedbridge.flower.options import NetworkOptions, config_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DOCS = Path(__file__).parent
TABLE = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
OF_EVERY_TASK = ("target", "seed", "split")
TASKS_OWN = ("lr", "batch_size", "batch_size_target", "warmup")


def described(thing: object, section: str) -> dict[str, str]:
    """What a section of a docstring says of every name in it, in the order of the section."""
    _, _, rest = (inspect.getdoc(thing) or "").partition(f"\n{section}:\n")
    text = rest.partition("\n\n")[0]
    found = re.findall(r"^    (\w[\w, ]*): (.*(?:\n {5,}.*)*)", text, flags=re.MULTILINE)
    return {name: " ".join(words.split()) for names, words in found for name in names.split(", ")}


def settings_table() -> str:
    """The options of every run."""
    return _table(["option", "default", "meaning"], _rows_of(Settings))


def network_table() -> str:
    """The options of a run over a network."""
    return _table(["option", "default", "meaning"], _rows_of(NetworkOptions))


def network_config_table() -> str:
    """The same as an app's configuration writes them."""
    rows = ((config_key(option), *told) for option, *told in _rows_of(NetworkOptions))
    return _table(["key", "default", "meaning"], rows)


def methods_table() -> str:
    """The options of every method that has some."""
    return _table(["method", "option", "default", "meaning"], _method_rows())


def _method_rows() -> Iterator[tuple[str, str, str, str]]:
    for name in methods.names():
        if name in rules.names():
            function = rules.get(name).function
            usual = {
                k: _value(p.default) for k, p in inspect.signature(function).parameters.items()
            }
            told = described(function, "Options")
        else:
            found = described(methods.class_of(name), "Options")
            parts = {k: re.fullmatch(r"(.*) \(([^()]*)\)\.", text) for k, text in found.items()}
            told = {k: f"{part[1]}." for k, part in parts.items() if part}
            usual = {k: f"`{part[2]}`" for k, part in parts.items() if part}
        for option in methods.options_of(name):
            yield f"`{name}`", f"`{option}`", usual[option], told[option]


def travelling_table() -> str:
    """Which methods run over a network, where the target's model is then, and why others do not."""
    told: dict[str, list[str]] = {}
    for name in methods.names():
        kind = methods.class_of(name)
        stays = "yes; the target's model is made at the target and stays there"
        said = stays if kind.decides_at_target() else "yes"
        told.setdefault(said if kind.travels else f"no: {kind.bound_by}", []).append(f"`{name}`")
    return _table(["methods", "over a network"], ((", ".join(n), t) for t, n in told.items()))


def tasks_table() -> str:
    """The options of built-in tasks; tasks of one maker share their rows."""
    makers: dict[Callable[..., object], list[str]] = {}
    for name in registry.names():
        entry: Any = registry.get(name)
        makers.setdefault(entry.func if isinstance(entry, partial) else entry, []).append(name)
    *labelled, tested = _rows_of(SplitOptions, OWN_SPLIT)
    rows = [*(("all", *row) for row in labelled), ("own data", *tested)]
    for maker, names in makers.items():
        given: Any = registry.get(names[0])
        fixed = (*OF_EVERY_TASK, *(given.keywords if isinstance(given, partial) else ()))
        told, tasks = described(maker, "Args"), ", ".join(f"`{name}`" for name in names)
        for option, parameter in inspect.signature(given).parameters.items():
            if option not in fixed:
                rows.append((tasks, f"`{option}`", _value(parameter.default), told[option]))
    return _table(["task", "option", "default", "meaning"], rows)


def own_tables_table() -> str:
    """The options of a user's own tables."""
    told = described(table_task, "Args")
    parameters = inspect.signature(table_task).parameters.items()
    rows = (
        (f"`{name}`", _value(None if parameter.default == () else parameter.default), told[name])
        for name, parameter in parameters
        if name not in (*OF_EVERY_TASK, "path")
    )
    return _table(["option", "default", "meaning"], rows)


def protocols_table() -> str:
    """What the paper's protocol changes, beside the defaults."""
    usual = {field.name: field.default for field in fields(Settings)}
    rows = []
    for entry in entries("paper"):
        tasks = ", ".join(f"`{name}`" for name in entry.tasks) or "all"
        where = f" ({', '.join(entry.targets)})" if entry.targets else ""
        who = ", ".join(f"`{name}`" for name in entry.methods) or "all"
        for option, value in {**entry.data, **entry.run}.items():
            fair = _fair(option, usual, entry)
            rows.append((tasks + where, who, f"`{option}`", fair, _value(value), entry.why))
    return _table(["task", "method", "option", "`fair`", "`paper`", "why"], rows)


def _fair(option: str, usual: dict[str, Any], entry: Entry) -> str:
    """The value by default: the task's own where tasks have one."""
    if option in (*TASKS_OWN, *entry.data) and entry.tasks:
        return "the task's"
    if option in usual:
        return _value(usual[option])
    told = {row[1]: row[2] for row in _method_rows() if row[0] == f"`{entry.methods[0]}`"}
    return told[f"`{option}`"]


TABLES = {
    "protocols": protocols_table,
    "settings": settings_table,
    "network": network_table,
    "network_config": network_config_table,
    "methods": methods_table,
    "travelling": travelling_table,
    "own_tables": own_tables_table,
    "tasks": tasks_table,
}


def filled(text: str) -> str:
    """A document with its tables as the docstrings have them."""
    return TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}{found[3]}", text)


def _rows_of(record: Any, usual: Any = None) -> Iterator[tuple[str, str, str]]:
    told = described(record, "Attributes")
    for field in fields(record):
        default = field.default if usual is None else getattr(usual, field.name)
        yield f"`{field.name}`", _value(default), told[field.name]


def _value(value: object) -> str:
    return "–" if value is None else f"`{value}`"


def _table(heads: list[str], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def main() -> None:
    """Write every document anew."""
    for document in sorted(DOCS.glob("*.md")):
        text = document.read_text(encoding="utf-8")
        document.write_text(filled(text), encoding="utf-8")


if __name__ == "__main__":
    main()
