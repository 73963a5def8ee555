"""Aggregation rules by name: the public path of ``fedbridge.core.rules``."""

from typing import Any

from fedbridge.core import rules
from fedbridge.core.rules import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Everything else that is there."""
    return getattr(rules, name)
