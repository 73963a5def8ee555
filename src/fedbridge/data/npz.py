"""A folder of ``domain.npz`` files, each with arrays ``X`` and ``y``."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile

from fedbridge.data.arrays import task_from_domains
from fedbridge.data.split import OWN_SPLIT, SplitOptions
from fedbridge.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedbridge.data.task import FederatedTask


def npz_task(
    path: Path,
    target: str | None = None,
    seed: int = 0,
    *,
    split: SplitOptions = OWN_SPLIT,
) -> FederatedTask:
    """A task whose domains are the ``.npz`` files of a folder, by file name.

    Args:
        path: The folder.
        target: The domain that adapts.
        seed: Decides every random choice of rows.
        split: How the target's rows are divided; all its training rows are labelled by default.
    """
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == ".npz")
    return task_from_domains(
        {file.stem: read_domain(file) for file in files},
        target,
        seed,
        path=path,
        split=split,
    )


def read_domain(file: Path) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """``X`` and ``y`` of one file."""
    x, y = read_arrays(file, "X", "y")
    return x, y


def read_arrays(file: Path, *names: str) -> list[NDArray[np.generic]]:
    """The named arrays of a file; arrays of Python objects are refused, since they are pickles."""
    try:
        with file.open("rb") as stream:
            arrays = np.load(stream, allow_pickle=False)
            if not isinstance(arrays, NpzFile):
                raise ValueError("it holds a single array")
            missing = [name for name in names if name not in arrays.files]
            if not missing:
                return [arrays[name] for name in names]
            found = ", ".join(map(repr, arrays.files))
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        example = ", ".join(f"{name}=..." for name in names)
        raise DataError(
            f"Expected {file.name!r} to be an .npz of plain arrays, but it cannot be read "
            f"({error}): save it again with np.savez(file, {example})."
        ) from error
    raise DataError(
        f"Expected arrays {_listed(names)} in {file.name!r}, but {_listed(missing)} is missing; "
        f"it has: {found or 'nothing'}."
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(map(repr, names))
