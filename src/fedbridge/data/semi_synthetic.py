"""A task made of one image data set: clients get shares of it, and one of them sees it shifted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from fedbridge.data.arrays import SiteRows, assemble
from fedbridge.data.options import SHIFTED_TARGET
from fedbridge.data.split import generator, split_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbridge.data.image_sets import Images, ImageSet
    from fedbridge.data.shifts import Shift
    from fedbridge.data.split import Rows, SplitOptions
    from fedbridge.data.task import FederatedTask

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
    )
    return replace(
        task,
        model=setting.model,
        defaults=dict(setting.run_defaults),
        manifest={**task.manifest, "content": f"sha256:{images.digest}"},
        notes=(*images.notes, *((FEW_CLASSES,) if task.notes else ())),
    )


def _rows(images: Images, rows: Rows) -> SiteRows:
    return SiteRows(
        torch.from_numpy(images.pixels[rows]), torch.from_numpy(images.labels[rows]), rows.tolist()
    )
