"""DomainBed's tasks: the image suites, such as ``pacs``, and ``colored-mnist``.

80% of every domain are for training and 20% for testing: sources train on their 80%, the target
labels a few of its own and is tested on its 20%.

The image suites are folders ``domain/class/*.jpg`` as DomainBed lays them out. On a CPU,
``backbone="efficientnet-lite0"`` trains a head on frozen features in minutes, where a whole
residual network takes days.

Coloured MNIST has three domains, to which 70,000 digits are dealt out in turn. The label says
whether the digit is below 5 and is wrong for a quarter of the images; the colour agrees with the
label for 90% or 80% of them, or disagrees for 90%. Whoever trusts the colour fails in the third.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedbridge.base.errors import DataError
from fedbridge.base.places import require_dataset
from fedbridge.data.arrays import SiteRows, assemble, training_rows
from fedbridge.data.builtin.image_sets import mnist
from fedbridge.data.images.folder import (
    HEAD_DEFAULTS,
    augmented,
    check_augment,
    image_files,
    image_rows,
    names_below,
)
from fedbridge.data.images.preprocessing import ImagePreprocessing
from fedbridge.data.labels import code_labels, show
from fedbridge.data.split import BUILT_IN_SPLIT, SplitOptions, generator, split_target
from fedbridge.data.store.catalogue import CATALOGUE, ImageTree
from fedbridge.data.task import check_target_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedbridge.data.builtin.image_sets import ImageSet
    from fedbridge.data.split import Rows
    from fedbridge.data.task import FederatedTask

IMAGE_SIZE = 224
TEST_SHARE = 0.2

COLOUR_FLIPS = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
"""The domains, and how often the colour differs from the label in each."""

LABEL_FLIPS = 0.25
FIRST_HIGH_DIGIT = 5
CLASS_NAMES = ("5 to 9", "0 to 4")
COLORED_LABELLED = SplitOptions(target_fraction=0.001)
COLORED_DEFAULTS = {
    "optimizer": "adam",
    "lr": 1e-3,
    "lr_target": 2e-4,
    "batch_size": 64,
    "batch_size_target": 2,
    "epochs": 1,
    "warmup": 2,
}


@dataclass(frozen=True)
class Suite:
    """An image suite as the paper uses it; the catalogue has its folders and counts.

    Attributes:
        name: Of the task, and of the data set in the catalogue.
        labelled: How many of the target's training images are labelled.
        model: The pretrained network.
        warmup: Rounds over the sources before the method starts.
        batch_size: Of the sources.
    """

    name: str
    labelled: SplitOptions
    model: str
    warmup: int = 2
    batch_size: int = 32

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
            "batch_size_target": 16,
        }


FEW = SplitOptions(target_fraction=0.05)
MORE = SplitOptions(target_fraction=0.15)
SUITES = (
    Suite("vlcs", FEW, "resnet18:pretrained"),
    Suite("terra", FEW, "resnet18:pretrained", warmup=5),
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
    augment: bool | str = False,
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
        augment: Crop, flip and recolour training images at random, as DomainBed does; ``sources``
            for those of the sources only, as in the paper's scripts.
    """
    check_augment(augment, backbone)
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
    rows, notes = image_rows(root, files, how, cache=cache)
    sites = {
        domain: SiteRows(rows[domain], codes[domain], names_below(root, own))
        for domain, own in files.items()
    }
    frozen = backbone is not None
    task = assemble(
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
    return augmented(task, augment)


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


@dataclass(frozen=True)
class Version:
    """A size of the images and the model for it; every ``stride``-th pixel is kept."""

    name: str
    model: str
    stride: int
    described: str

    def __str__(self) -> str:
        """What sets it apart, for lists of tasks."""
        return self.described


VERSIONS = (
    Version("colored-mnist", "mnist-cnn", 1, "2x28x28, for the CNN of the paper"),
    Version("colored-mnist-14", "mlp:256", 2, "2x14x14, every second pixel, for a small network"),
)


def colored_mnist(
    version: Version,
    target: str | None = None,
    seed: int = 0,
    *,
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """Coloured MNIST in three domains.

    Args:
        version: Which size.
        target: The domain that adapts: +90%, +80% or -90%; also plus90, plus80, minus90.
        seed: Decides who holds which image, labels, colours, and the splits.
        split: How many of the target's training images are labelled; by default 0.001 of them.
    """
    target_name = check_target_name(target, COLOUR_FLIPS)
    images = mnist()
    domains = _domains(images, version.stride, seed)
    own = domains[target_name]
    n_own = len(own.y)
    return assemble(
        {
            name: training_rows(rows, TEST_SHARE, seed)
            for name, rows in domains.items()
            if name != target_name
        },
        own,
        split_target(
            own.y.numpy(), n_own, seed, split.or_else(COLORED_LABELLED), round(n_own * TEST_SHARE)
        ),
        name=version.name,
        origin="mnist, training then test images",
        seed=seed,
        target_name=target_name,
        class_names=CLASS_NAMES,
        model=version.model,
        defaults=COLORED_DEFAULTS,
        digest=images.digest,
        notes=images.notes,
    )


def _domains(images: ImageSet, stride: int, seed: int) -> dict[str, SiteRows]:
    """All rows of each domain; chance decides by image, so that it is the same for any target."""
    grey = np.concatenate([images.train.pixels, images.test.pixels])[:, 0, ::stride, ::stride]
    digits = np.concatenate([images.train.labels, images.test.labels])
    order = generator(seed, "domains").permutation(len(digits))
    wrong = generator(seed, "label noise").random(len(digits)) < LABEL_FLIPS
    labels = (digits < FIRST_HIGH_DIGIT) ^ wrong
    chance = generator(seed, "colours").random(len(digits))
    domains = {}
    for number, (name, flips) in enumerate(COLOUR_FLIPS.items()):
        rows = np.sort(order[number :: len(COLOUR_FLIPS)])
        colours = labels[rows] ^ (chance[rows] < flips)
        domains[name] = _coloured(grey, rows, labels, colours)
    return domains


def _coloured(
    grey: NDArray[np.uint8], rows: Rows, labels: NDArray[np.bool_], colours: NDArray[np.bool_]
) -> SiteRows:
    """The rows with their grey values in the channel of their colour and nothing in the other."""
    pixels = np.zeros((len(rows), 2, *grey.shape[1:]), dtype=np.uint8)
    pixels[np.arange(len(rows)), colours.astype(np.int64)] = grey[rows]
    return SiteRows(
        torch.from_numpy(pixels), torch.from_numpy(labels[rows].astype(np.int64)), rows.tolist()
    )
