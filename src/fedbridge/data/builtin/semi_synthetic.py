"""A task made of one image data set: clients get shares of it, and one of them sees it shifted.

Who holds which rows: equal shares, shares of few labels, portions that differ by label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedbridge.data.arrays import SiteRows, assemble
from fedbridge.data.split import generator, split_target, stratified_order
from fedbridge.data.task import SHIFTED_TARGET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fedbridge.data.builtin.image_sets import Images, ImageSet
    from fedbridge.data.builtin.shifts import Shift
    from fedbridge.data.split import Rows, SplitOptions
    from fedbridge.data.task import FederatedTask

    Labels = NDArray[np.integer]

FEW_CLASSES = "not every site has rows of every class: that is how the task is made"
"""Instead of a note on each of the sites."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Who holds which rows: numbers into the training images, and into the test images."""

    sources: Sequence[Rows]
    target: Rows
    test: Rows


@dataclass(frozen=True, eq=False)
class ShiftedSetting:
    """What a task has beside its images, shares and shift.

    Attributes:
        name: What the task is called.
        labelled: How many of the target's rows are labelled unless somebody asks otherwise.
        run_defaults: Options of a run that suit the task.
        model: The model's name.
    """

    name: str
    labelled: SplitOptions
    run_defaults: Mapping[str, object]
    model: str = "cnn"


def shifted_task(
    setting: ShiftedSetting,
    images: ImageSet,
    shares: Shares,
    shift: Shift,
    seed: int,
    split: SplitOptions,
) -> FederatedTask:
    """The task; the target's other rows are unlabelled, its test images shifted like its own."""
    seen = _rows(images.train, shares.target)
    shown = _rows(images.test, shares.test)
    own = replace(seen, x=shift.stored(seen.x, generator(seed, "noise")))
    test = replace(shown, x=shift.stored(shown.x, generator(seed, "test noise")))
    task = assemble(
        {
            f"source {number}": _rows(images.train, rows)
            for number, rows in enumerate(shares.sources, start=1)
        },
        own,
        split_target(own.y.numpy(), len(own.y), seed, split.or_else(setting.labelled), n_test=0),
        name=setting.name,
        origin=images.name,
        seed=seed,
        target_name=SHIFTED_TARGET,
        class_names=images.class_names,
        test=test,
        target_prepare=shift.prepare(own.x),
        model=setting.model,
        defaults=setting.run_defaults,
        digest=images.digest,
    )
    return replace(task, notes=(*images.notes, *((FEW_CLASSES,) if task.notes else ())))


def _rows(images: Images, rows: Rows) -> SiteRows:
    return SiteRows(
        torch.from_numpy(images.pixels[rows]), torch.from_numpy(images.labels[rows]), rows.tolist()
    )


def equal_sizes(n: int, parts: int) -> list[int]:
    """``n`` rows over some parts, the first of which get one more where it does not divide."""
    return [n // parts + (part < n % parts) for part in range(parts)]


def stratified_shares(labels: Labels, sizes: Sequence[int], rng: np.random.Generator) -> list[Rows]:
    """Shares of these sizes, each with the labels in the same proportions, rows ascending."""
    order = stratified_order(labels, len(labels), rng)
    return [np.sort(share) for share in np.split(order[: sum(sizes)], np.cumsum(sizes)[:-1])]


def deal_labels(
    clients: int, n_labels: int, per_client: int, rng: np.random.Generator
) -> list[list[int]]:
    """The labels that each client holds, so that all labels are held about equally often.

    Every client takes the labels that the fewest hold so far, with chance among equals. Compared
    with free draws, no label is left without a holder where there is room for all.
    """
    holders = np.zeros(n_labels, dtype=np.int64)
    hands = []
    for _ in range(clients):
        hand = np.lexsort((rng.random(n_labels), holders))[:per_client]
        holders[hand] += 1
        hands.append(sorted(hand.tolist()))
    return hands


def shares_by_label(
    labels: Labels, hands: Sequence[Sequence[int]], rng: np.random.Generator
) -> list[Rows]:
    """Each label's rows in equal parts among the clients that hold it, rows ascending."""
    shares: list[list[Rows]] = [[] for _ in hands]
    for label in np.unique(labels):
        holding = [share for share, hand in zip(shares, hands, strict=True) if label in hand]
        if holding:
            rows = rng.permutation(np.flatnonzero(labels == label))
            for share, part in zip(holding, np.array_split(rows, len(holding)), strict=True):
                share.append(part)
    return [np.sort(np.concatenate(share)) for share in shares]


def portions_by_label(
    labels: Labels, portion: Mapping[int, float], rng: np.random.Generator
) -> tuple[Rows, Rows]:
    """A portion of each label's rows, and all the others; both ascending."""
    taken = []
    for label, share in sorted(portion.items()):
        rows = rng.permutation(np.flatnonzero(labels == label))
        taken.append(rows[: round(share * len(rows))])
    chosen = np.sort(np.concatenate(taken))
    return chosen, np.setdiff1d(np.arange(len(labels)), chosen)
