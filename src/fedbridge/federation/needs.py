"""Which rows serve what: what a method needs beyond updates, and what is set aside.

Needs are said before anything runs. Rows that are set aside for validation are trained on by
nobody; rows without labels, and labels that a federation would not have, are seen by no method
that does not declare the need.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedbridge.base.errors import FedbridgeError, ModelError
from fedbridge.data.rows import in_batches
from fedbridge.data.split import round_half_up, stratified_split
from fedbridge.models import linear_head, split_model
from fedbridge.training.job import SPLITTING, TARGET, seed_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fedbridge.data.task import FederatedTask, Site
    from fedbridge.federation.settings import Settings


class Need(Enum):
    """A need, in the words that ``fedbridge methods`` and error messages use."""

    CLASSES = "a task with classes"
    HEAD = "a model with a head"
    FEATURES = "a model with a feature extractor"
    LINEAR_HEAD = "a model that ends in a linear layer"
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
    if need is Need.UNLABELLED and task.unlabelled_site() is None:
        return (
            f"task {task.name!r} has none: label fewer rows (`n_target`, `target_fraction`), or "
            f"give some (`unlabelled`; in a table rows whose label is empty)"
        )
    if need is Need.TARGET_LABELS and task.target_pool is None and task.unlabelled is not None:
        return f"task {task.name!r} has rows of the target that nobody labelled"
    if need is Need.LINEAR_HEAD:
        try:
            linear_head(model)
        except ModelError:
            return (
                f"`{model_name}` has none: use `linear`, `mlp` or `cnn`, or name the last layer of "
                f"your own model `head`"
            )
    if need in (Need.HEAD, Need.FEATURES):
        try:
            features, _ = split_model(model)
        except ModelError:
            features = None
        learns = features is not None and any(True for _ in features.parameters())
        if features is None or (need is Need.FEATURES and not learns):
            return (
                f"`{model_name}` has none: use `mlp` or `cnn`, or name the two parts of your own "
                f"model `features` and `head`"
            )
    return None


def set_validation_aside(
    task: FederatedTask, settings: Settings, seed: int
) -> tuple[Site | None, Tensor | None]:
    """A validation split of the target's training rows, if early stopping needs one.

    Returns the split and the rows that are left; nothing where the target's rows are not known.
    """
    target = task.target
    if settings.early_stopping is None or not len(target.x):
        return None, None
    count = rows_to_train(len(target), settings)
    if count < 1:
        raise FedbridgeError(
            f"Expected enough target rows to set some aside for early stopping, but there "
            f"are {len(target)}: leave `early_stopping` out."
        )
    strata = None if task.n_classes is None else target.y.numpy()
    chooser = np.random.default_rng(seed_of(seed, 0, TARGET, SPLITTING))
    kept, aside = stratified_split(strata, len(target), count, chooser)
    validation = replace(target.select(torch.from_numpy(aside)), name="validation")
    return validation, torch.from_numpy(kept)


def rows_to_train(samples: int, settings: Settings) -> int:
    """How many of the target's rows are left to train on."""
    if settings.early_stopping is None:
        return samples
    return samples - max(1, round_half_up(settings.validation_fraction * samples))


def more_sites(
    task: FederatedTask, needs: Sequence[Need], validation: Site | None = None
) -> dict[Need, Site]:
    """Rows of the target that only a method with such a need gets to see, as sites.

    Rows that are set aside for validation are not among them.
    """
    more: dict[Need, Site] = {}
    if Need.UNLABELLED in needs:
        loose = task.unlabelled_site()
        assert loose is not None
        more[Need.UNLABELLED] = loose
    if Need.TARGET_LABELS in needs:
        pool = task.target if task.target_pool is None else task.target_pool
        if validation is not None:
            pool = pool.select(rows_besides(pool, validation))
        more[Need.TARGET_LABELS] = replace(pool, name=f"{task.target.name} (all labels)")
    return more


def rows_besides(pool: Site, held_back: Site) -> Tensor:
    """Rows of a pool without those of another set that was taken from it.

    One row of the pool goes for each row of the other set, so that equal rows stay as many as
    they are.
    """
    gone = Counter(_contents(held_back))
    stays = []
    for row, content in enumerate(_contents(pool)):
        if gone[content]:
            gone[content] -= 1
        else:
            stays.append(row)
    return torch.tensor(stays, dtype=torch.int64)


def _contents(site: Site) -> Iterator[tuple[bytes, bytes]]:
    """What tells a row and its label from others, without keeping them."""
    rows = (row for batch in in_batches(site.x) for row in batch)
    for x, y in zip(rows, site.y, strict=True):
        yield hashlib.sha256(x.contiguous().numpy().tobytes()).digest(), y.numpy().tobytes()
