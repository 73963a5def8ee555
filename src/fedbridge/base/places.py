"""Where data sets lie on this machine: one folder each under ``FEDBRIDGE_DATA``."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path

from fedbridge.base.errors import DataError

VARIABLE = "FEDBRIDGE_DATA"


def data_root() -> Path:
    """The folder that ``FEDBRIDGE_DATA`` names, or one in the user's cache."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else user_cache_path("fedbridge")


def dataset_folder(name: str, *other_names: str, root: Path | None = None) -> Path | None:
    """Where a data set is: under its name here, or under one that other software gives it."""
    folders = [(root or data_root()) / own for own in (name, *other_names)]
    return next((folder for folder in folders if folder.is_dir()), None)


def require_dataset(name: str, *other_names: str) -> Path:
    """The folder of a data set, or an error that says how to get it."""
    folder = dataset_folder(name, *other_names)
    if folder is None:
        raise DataError(
            f"Expected the data set {name!r} in {str(data_root() / name)!r}, but there is no such "
            f"folder: run `fedbridge data fetch {name}`, or set {VARIABLE} to the folder that "
            f"holds {name!r}."
        )
    return folder
