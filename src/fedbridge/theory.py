"""Delta errors: closed forms, bounds, simulation: the public path of ``fedbridge.core.theory``."""

from typing import Any

from fedbridge.core import theory
from fedbridge.core.theory import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Everything else that is there."""
    return getattr(theory, name)
