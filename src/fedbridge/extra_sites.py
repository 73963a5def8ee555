"""Rows of the target that only a method with such a need gets to see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedbridge.needs import Need

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fedbridge.data.task import FederatedTask, Site


def more_sites(
    task: FederatedTask, needs: Sequence[Need], validation: Site | None = None
) -> dict[Need, Site]:
    """Rows of the target that only a method with such a need gets to see, as sites.

    Rows that are set aside for validation are not among them.
    """
    more: dict[Need, Site] = {}
    if Need.UNLABELLED in needs:
        assert task.unlabelled is not None
        count = len(task.unlabelled)
        no_labels = task.target.y[:1].repeat(count, *(1 for _ in task.target.y.shape[1:])) * 0
        more[Need.UNLABELLED] = replace(
            task.target, name=f"{task.target.name} (unlabelled)", x=task.unlabelled, y=no_labels
        )
    if Need.TARGET_LABELS in needs:
        pool = task.target if task.target_pool is None else task.target_pool
        if validation is not None:
            rows = rows_besides(pool, validation)
            pool = replace(pool, x=pool.x[rows], y=pool.y[rows])
        more[Need.TARGET_LABELS] = replace(pool, name=f"{task.target.name} (all labels)")
    return more


def rows_besides(pool: Site, held_back: Site) -> Tensor:
    """Rows of a pool without those of another set that was taken from it.

    One row of the pool goes for each row of the other set, so that equal rows stay as many as
    they are.
    """
    stays = torch.ones(len(pool), dtype=torch.bool)
    for x, y in zip(held_back.x, held_back.y, strict=True):
        same_x = (pool.x == x).reshape(len(pool), -1).all(1)
        same_y = (pool.y == y).reshape(len(pool), -1).all(1)
        stays[(stays & same_x & same_y).nonzero()[:1]] = False
    return stays.nonzero()[:, 0]
