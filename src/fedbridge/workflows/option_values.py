"""Values of a method's options tried out on next to nothing, before hours are spent on them.

Rules and methods check values themselves, when they mix or are made. So a rule is let mix updates
of two entries, and a method is made for the smallest network that has features and a head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from fedbridge import methods
from fedbridge.base.errors import OptionError, ShapeError
from fedbridge.core import rules
from fedbridge.core.aggregate import aggregate
from fedbridge.federation.federation import Federation
from fedbridge.models import build_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.settings import Settings

SMALLEST = "mlp:1"


def check_values(
    method: str, options: Mapping[str, Any], task: FederatedTask, settings: Settings
) -> None:
    """Refuse a value that the method does not take; whatever else is wrong shows in the run."""
    try:
        if method in rules.names():
            _mix(method, options, len(task.sources))
        else:
            _make(method, options, task, settings)
    except (OptionError, ShapeError) as error:
        raise OptionError(str(error)) from error
    except Exception:  # a need of the method that is not met here, or a limit of what is tried
        return


def _mix(rule: str, options: Mapping[str, Any], n_sources: int) -> None:
    batches = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    sources = torch.ones(n_sources, 2)
    aggregate(rule, target=batches.mean(0), sources=sources, batches=batches, **options)


def _make(method: str, options: Mapping[str, Any], task: FederatedTask, settings: Settings) -> None:
    kind = methods.class_of(method)
    with torch.random.fork_rng(devices=()):
        composed = kind.compose(build_model(SMALLEST, task), task)
    small = replace(settings, model=None, workers=1, early_stopping=None)
    methods.make(method, Federation(task, composed, small, 0, kind.needs), options)
