"""Sites whose rows are elsewhere: what a coordinator knows of a task, and what each site knows.

Over a network nobody holds the whole task. The coordinator knows names, sample counts and shapes;
a site knows its own rows as well. Both work with the same ``FederatedTask`` interface, in which
the rows of the others are simply not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedbridge.base.errors import DataError
from fedbridge.data.task import FederatedTask, Site

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, eq=False)
class DistantSite(Site):
    """A site known by name, size and shape only: ``x`` and ``y`` are empty.

    Attributes:
        samples: how many rows it says it has.
    """

    samples: int = 0

    def __post_init__(self) -> None:
        """Nothing to check: there are no rows here."""

    def __len__(self) -> int:
        return self.samples


@dataclass(frozen=True, eq=False)
class DistantTask(FederatedTask):
    """A task of which some sites, or all, are elsewhere."""

    def __post_init__(self) -> None:
        """What can be checked without rows; each site checks its own."""
        names = [self.target.name, *self.source_names]
        if len(names) < 2 or len(set(names)) < len(names):
            raise DataError(
                f"Expected a target and at least one source, each with its own name, but got "
                f"{', '.join(names)}."
            )


def distant_site(
    name: str, samples: int, input_shape: Sequence[int], *, n_classes: int | None, outputs: int = 1
) -> DistantSite:
    """A site that is elsewhere."""
    if n_classes is not None:
        y = torch.empty(0, dtype=torch.int64)
    else:
        y = torch.empty(0) if outputs == 1 else torch.empty(0, outputs)
    return DistantSite(name, torch.empty(0, *input_shape), y, None, samples)
