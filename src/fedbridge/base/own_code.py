"""Code of a user's own, named as ``module:name`` or given as a file, and run because he says so.

Only somebody who is there may name it: no file of a run and no message ever decides what is run.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedbridge.base.errors import FedbridgeError, OptionError

if TYPE_CHECKING:
    from types import ModuleType

_files: dict[Path, ModuleType] = {}


def is_named(text: str) -> bool:
    """Whether a text has the form ``module:name``."""
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(map(str.isidentifier, module.split(".")))


def look_here_too() -> None:
    """Let imports find modules in the current directory."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()


def import_object(
    spec: str, what: str, error_kind: type[FedbridgeError] = OptionError
) -> tuple[object, str]:
    """What ``module:name`` stands for, and where it was looked for.

    Args:
        spec: ``module:name``, of a module that Python finds from the current directory.
        what: what is expected there, for messages.
        error_kind: the error to raise.
    """
    module_name, _, name = spec.partition(":")
    look_here_too()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise error_kind(
            f"Expected to import {module_name!r} for the {what} {spec!r}, but that failed with "
            f"{type(error).__name__}: {error}. Run from the folder that holds it, or install it."
        ) from error
    return getattr(module, name, None), str(getattr(module, "__file__", "built in"))


def run_file(path: Path) -> ModuleType:
    """A Python file as a module of its own name, run once however often it is asked for."""
    file = path.resolve()
    if file in _files:
        return _files[file]
    if not file.is_file() or file.suffix != ".py":
        raise OptionError(
            f"Expected a Python file, such as my_methods.py, but got {str(path)!r}: name one."
        )
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    taken = sys.modules.get(file.stem)
    if taken is not None and getattr(taken, "__file__", None) != str(file):
        raise OptionError(
            f"Expected a file whose name no other module has, but {file.stem!r} is taken: rename "
            f"{path.name!r}."
        )
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[file.stem]
        if isinstance(error, FedbridgeError):
            raise
        raise OptionError(
            f"Expected {str(path)!r} to run, but it failed with {type(error).__name__}: {error}."
        ) from error
    _files[file] = module
    return module
