"""``vlcs``, ``terra``, ``pacs``, ``office-home``, ``domainnet``: DomainBed's image suites.

Folders ``domain/class/*.jpg`` as DomainBed lays them out. 80% of every domain are for training and
20% for testing: sources train on their 80%, the target labels a few of its own and is tested on
its 20%. On a CPU, ``backbone="efficientnet-lite0"`` trains a head on frozen features in minutes,
where a whole residual network takes days.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from math import inf, prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedbridge.base.errors import DataError
from fedbridge.base.places import require_dataset
from fedbridge.data.arrays import SiteRows, assemble, training_rows
from fedbridge.data.images.folder import HEAD_DEFAULTS, image_files, image_rows, names_below
from fedbridge.data.images.preprocessing import ImagePreprocessing
from fedbridge.data.labels import code_labels, show
from fedbridge.data.split import BUILT_IN_SPLIT, SplitOptions, split_target
from fedbridge.data.store.catalogue import CATALOGUE, ImageTree
from fedbridge.data.task import check_target_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fedbridge.data.task import FederatedTask

IMAGE_SIZE = 224
TEST_SHARE = 0.2
GIGABYTE = 10**9


@dataclass(frozen=True)
class Suite:
    """An image suite as the paper uses it; the catalogue has its folders and counts.

    Attributes:
        name: Of the task, and of the data set in the catalogue.
        labelled: How many of the target's training images are labelled.
        model: The pretrained network.
        warmup: Rounds over the sources before the method starts.
        batch_size: Of the sources.
        batch_size_target: Of the target.
    """

    name: str
    labelled: SplitOptions
    model: str
    warmup: int = 2
    batch_size: int = 32
    batch_size_target: int = 16

    def __str__(self) -> str:
        return CATALOGUE[self.name].title

    @property
    def layout(self) -> ImageTree:
        """Its domains and classes."""
        layout = CATALOGUE[self.name].layout
        assert isinstance(layout, ImageTree)
        return layout

    @property
    def run_defaults(self) -> dict[str, object]:
        """Options of a run that suit the pretrained network."""
        return {
            "optimizer": "adam",
            "lr": 5e-5,
            "lr_target": 1e-5,
            "warmup": self.warmup,
            "batch_size": self.batch_size,
            "batch_size_target": self.batch_size_target,
        }


FEW = SplitOptions(target_fraction=0.05)
MORE = SplitOptions(target_fraction=0.15)
SUITES = (
    Suite("vlcs", FEW, "resnet18:pretrained", batch_size_target=4),
    Suite("terra", FEW, "resnet18:pretrained", warmup=5, batch_size_target=8),
    Suite("pacs", MORE, "resnet50:pretrained"),
    Suite("office-home", MORE, "resnet50:pretrained", warmup=5),
    Suite("domainnet", MORE, "resnet50:pretrained", batch_size=128),
)


def suite_task(
    suite: Suite,
    target: str | None = None,
    seed: int = 0,
    *,
    split: SplitOptions = BUILT_IN_SPLIT,
    image_size: int | None = None,
    backbone: str | None = None,
    cache: bool = True,
) -> FederatedTask:
    """Images of several domains, each of which can be the target.

    Args:
        suite: Which one.
        target: The domain that adapts; case, spaces and dashes do not matter.
        seed: Decides which images train, are labelled and test.
        split: How many of the target's training images are labelled; the paper's share by default.
        image_size: Height and width that all images are resized to: 224, or the backbone's own.
        backbone: A frozen network, such as ``efficientnet-lite0``, on whose features a head is
            trained: the way to go without a GPU.
        cache: Keep the decoded images or features on disk for the next time.
    """
    domains = [domain.name for domain in suite.layout.domains]
    target_name = check_target_name(target, domains)
    root = require_dataset(suite.name, *CATALOGUE[suite.name].other_names)
    files = {domain: _domain_files(suite, root, domain) for domain in domains}
    labels = {domain: [file.parent.name for file in own] for domain, own in files.items()}
    classes = _checked_classes(suite, labels)
    codes, _ = code_labels({site: np.array(own) for site, own in labels.items()}, classes)
    split = replace(split.or_else(suite.labelled), test_fraction=TEST_SHARE)
    y = codes[target_name].numpy()
    divided = split_target(y, len(y), seed, split)
    how = ImagePreprocessing.from_options(image_size, False, backbone, IMAGE_SIZE)
    _check_memory(suite, sum(map(len, files.values())), how)
    rows, notes = image_rows(root, files, how, cache=cache)
    sites = {
        domain: SiteRows(torch.from_numpy(rows[domain]), codes[domain], names_below(root, own))
        for domain, own in files.items()
    }
    frozen = backbone is not None
    return assemble(
        {
            name: training_rows(sites[name], TEST_SHARE, seed)
            for name in domains
            if name != target_name
        },
        sites[target_name],
        divided,
        name=suite.name,
        origin=root.name,
        seed=seed,
        target_name=target_name,
        class_names=classes,
        model="linear" if frozen else suite.model,
        defaults=suite.run_defaults | (HEAD_DEFAULTS if frozen else {}),
        preprocessing=how,
        notes=(*_differences(suite, labels), *notes),
    )


def _domain_files(suite: Suite, root: Path, domain: str) -> list[Path]:
    if not (root / domain).is_dir():
        raise DataError(
            f"Expected a folder {domain!r} in {str(root)!r}, one of the domains of {suite.name!r}, "
            f"but there is none: see `fedbridge data check {suite.name}`."
        )
    return image_files(root / domain)


def _checked_classes(suite: Suite, labels: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The classes, which every domain must have; those that are published, where they are few."""
    found = {domain: set(own) for domain, own in labels.items()}
    classes = suite.layout.classes or tuple(sorted(set().union(*found.values())))
    for domain, own in found.items():
        missing, unknown = set(classes) - own, own - set(classes)
        if missing or unknown:
            what = (
                f"no images of {show(sorted(missing))}"
                if missing
                else f"also {show(sorted(unknown))}"
            )
            raise DataError(
                f"Expected images of the same {len(classes)} classes in every domain of "
                f"{suite.name!r}, but {domain!r} has {what}: see `fedbridge data check "
                f"{suite.name}`."
            )
    return classes


def _check_memory(suite: Suite, images: int, how: ImagePreprocessing) -> None:
    """Refuse what would fill the memory, before hours are spent on decoding it."""
    needed = images * prod(how.row_shape) * how.row_type.itemsize / GIGABYTE
    memory = _memory() / GIGABYTE
    if needed > memory:
        raise DataError(
            f"Expected images that fit into memory, {memory:,.1f} GB, but the {images:,} of "
            f"{suite.name!r} take {needed:,.1f} GB at {how.size}x{how.size}: choose a `backbone`, "
            f"or a smaller `image_size`."
        )


def _memory() -> float:
    """Bytes of memory in this machine, where the system says so."""
    if not hasattr(os, "sysconf"):
        return inf
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _differences(suite: Suite, labels: Mapping[str, Sequence[str]]) -> list[str]:
    """What is not as published: not an error here, since a part of a suite is data as well."""
    published = {domain.name: (domain.images, *domain.also) for domain in suite.layout.domains}
    notes = [
        f"{domain!r} has {len(own):,} images, published are {published[domain][0]:,}"
        for domain, own in labels.items()
        if len(own) not in published[domain]
    ]
    n_classes = len(set().union(*labels.values()))
    if n_classes != suite.layout.n_classes:
        notes.append(f"{n_classes} classes, published are {suite.layout.n_classes}")
    return notes
