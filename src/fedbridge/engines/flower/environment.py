"""What Flower's programs are told by the environment they run in."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FLOWER_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
    "PYTHONUNBUFFERED": "1",
}
"""No telemetry, no installations, and little waiting."""


def programs() -> Path:
    """Where the programs of this Python's environment are."""
    return Path(sys.executable).parent


def flower_environment(home: Path) -> dict[str, str]:
    """Our own environment with Flower's settings; its programs, found by bare name, come first."""
    path = os.pathsep.join(filter(None, [str(programs()), os.environ.get("PATH")]))
    return {
        **os.environ,
        **without_proxy(os.environ),
        **FLOWER_SETTINGS,
        "FLWR_HOME": str(home),
        "PATH": path,
    }


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings by which programs reach this machine itself without a proxy."""
    known = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    hosts = ",".join(filter(None, [known, "127.0.0.1", "localhost"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}
