"""Trackers: runs in TensorBoard, MLflow or Weights & Biases, beside their own history.

A tracker is a callback of ``fedbridge.run``; ``named`` makes those that a command line names.
Another package adds its own through an entry point ``fedbridge.trackers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.base.errors import OptionError
from fedbridge.base.registry import Registry
from fedbridge.workflows.tracking.mlflow import MLflow
from fedbridge.workflows.tracking.tensorboard import TensorBoard
from fedbridge.workflows.tracking.tracker import Tracker
from fedbridge.workflows.tracking.wandb import WandB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB", "named", "names"]

_registry: Registry[Callable[[], Tracker]] = Registry("tracker", "fedbridge.trackers")
for _kind in (TensorBoard, MLflow, WandB):
    _registry.add(_kind.name, _kind)
names = _registry.names


def named(wanted: str | Iterable[str]) -> list[Tracker]:
    """The trackers of these names, separated by commas in a text; each is installed and ready."""
    listed = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    found = [str(name).strip() for name in listed]
    if len(set(found)) < len(found) or not all(found):
        raise OptionError(
            f"Expected different names of trackers, of {', '.join(names())}, but got "
            f"{', '.join(found)!r}."
        )
    return [_registry.get(name)() for name in found]
