"""Values of options as text: read as one means them, and spelt so that they read the same."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

from fedbridge.base.files import parse_json

TEXTS = (
    *("site_column", "label_column", "id_column", "columns", "drop_columns", "keep_columns"),
    *("categorical", "rename", "label_map", "positive", "sources", "exclude_sites"),
    *("model", "match"),
)
"""Options whose values stay as they are typed: a column may be called 3, or none."""
EXACT = 2**53
"""Floats below it that have no fraction are whole numbers, to the last digit."""
APART = set('[]{},="')
"""Characters that mean something where options are listed: text that has one is quoted."""

OBJECT_MODEL = "object "
"""How the name of what came as an object begins: no ``module:function`` has a space."""


def literal(text: str) -> Any:
    """A value as one means it: a number, true, false, none, a list of numbers, else the text."""
    if text.lower() in ("none", "null"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text[:1] in ("[", "{", '"'):
        try:
            return parse_json(text)
        except ValueError:
            return _numbers(text[1:-1], text) if text[0] + text[-1] == "[]" else text
    return _numbers(text, text) if "," in text else _number(text, text)


def _numbers(listed: str, text: str) -> Any:
    """The numbers between commas, or the ``text`` when there is something else."""
    found = [_number(part, None) for part in listed.split(",")]
    return text if None in found else found


def _number(text: str, otherwise: Any) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return otherwise


def value_of(name: str, text: str) -> Any:
    """What an option is given by a text; some options are texts themselves, or lists of texts."""
    if name not in TEXTS:
        return literal(text)
    with suppress(ValueError):
        if text[:1] in ("[", "{"):
            return parse_json(text)
    return text


def canonical(value: Any) -> Any:
    """A value in the one form that all spellings of it share: ``1.0`` is 1, a tuple is a list.

    Arrays and tensors become lists; what is no plain value (a network) stays as it is.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < EXACT else value
    if isinstance(value, Mapping):
        return {str(key): canonical(part) for key, part in value.items()}
    if isinstance(value, list | tuple | range):
        return [canonical(part) for part in value]
    return str(value) if isinstance(value, PurePath) else value


def is_plain(value: Any) -> bool:
    """Whether a file can hold a canonical value, and somebody else find it there."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def spelt(name: str, value: Any) -> str:
    """A canonical value of an option as the text that is read as this value."""
    if isinstance(value, str):
        bare = value == value.strip() and value.isprintable() and not APART & {*value}
        return value if value and bare and value_of(name, value) == value else json.dumps(value)
    if value is None:
        return "none"
    return json.dumps(value, separators=(",", ":"), default=object_name)


def object_name(value: object) -> str:
    """What to call a network or a function that came as an object; it cannot be found again."""
    described = value if inspect.isroutine(value) else type(value)
    return f"{OBJECT_MODEL}{described.__module__}.{described.__qualname__}"


def for_file(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in canonical form, with names for what no file can hold."""
    plain = {name: canonical(value) for name, value in options.items()}
    return {k: value if is_plain(value) else object_name(value) for k, value in plain.items()}
