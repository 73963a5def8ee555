"""Are the sites' programs alike? What differs a little can fail late or change results."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = ("fedbridge", "flwr", "torch")


def own_versions() -> dict[str, str]:
    """What runs here: Python to the minor version, packages without the build's label."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in PACKAGES:
        try:
            found[package] = version(package).partition("+")[0]
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """What another machine has otherwise, such as ``flwr 1.42.0 (here 1.41.0)``."""
    return [
        f"{name} {there.get(name, 'unknown')} (here {own})"
        for name, own in here.items()
        if there.get(name) != own
    ]
