"""What a method needs beyond updates, said before anything runs."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from fedbridge.base.errors import FedbridgeError, ModelError
from fedbridge.models import split_model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from fedbridge.data.task import FederatedTask


class Need(Enum):
    """A need, in the words that ``fedbridge methods`` and error messages use."""

    CLASSES = "a task with classes"
    FEATURES = "a model with a feature extractor"
    UNLABELLED = "unlabelled rows of the target"
    TARGET_LABELS = "the labels of all the target's training rows"
    POOLED = "the rows of several sites in one place"


class UnmetNeedError(FedbridgeError):
    """The task or the model lacks what the method needs."""


def check_needs(
    method: str, needs: Iterable[Need], task: FederatedTask, model: nn.Module, model_name: str
) -> None:
    """Refuse a method whose needs the task or the model does not meet."""
    for need in needs:
        lack = _lack(need, task, model, model_name)
        if lack is not None:
            raise UnmetNeedError(f"`{method}` needs {need.value}; {lack}.")


def _lack(need: Need, task: FederatedTask, model: nn.Module, model_name: str) -> str | None:
    if need is Need.CLASSES and task.n_classes is None:
        return f"task {task.name!r} predicts numbers: choose another method"
    if need is Need.UNLABELLED and task.unlabelled is None:
        return (
            f"task {task.name!r} has none: label fewer rows (`n_target`, `target_fraction`), or "
            f"give some (`unlabelled`)"
        )
    if need is Need.TARGET_LABELS and task.target_pool is None and task.unlabelled is not None:
        return f"task {task.name!r} has rows of the target that nobody labelled"
    if need is Need.FEATURES:
        try:
            split_model(model)
        except ModelError:
            return (
                f"`{model_name}` has none: use `mlp` or `cnn`, or name the two parts of your own "
                f"model `features` and `head`"
            )
    return None
