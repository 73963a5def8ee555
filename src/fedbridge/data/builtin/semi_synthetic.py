"""``digits-*``, ``fashion-*``, ``cifar10-noise``: clients share a data set, one sees it shifted.

Who holds which rows: equal shares, shares of few labels, portions that differ by label. Then the
tasks that the paper makes in this way, and a small one that needs no download.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch

from fedbridge.base.options import check_choice, check_flag, check_number, check_whole
from fedbridge.data.arrays import SiteRows, assemble
from fedbridge.data.builtin.image_sets import (
    CIFAR_CLASSES,
    DIGITS,
    FASHION_CLASSES,
    cifar10,
    fashion_mnist,
)
from fedbridge.data.builtin.shifts import Contrast, NoiseDraw, NoShift, Rotation, noise_shift
from fedbridge.data.preparing import InTurn, PixelsToUnit, ShiftAndFlip
from fedbridge.data.rows import whole
from fedbridge.data.split import (
    BUILT_IN_SPLIT,
    SplitOptions,
    generator,
    split_target,
    stratified_order,
)
from fedbridge.data.task import SHIFTED_TARGET, check_shifted_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fedbridge.data.builtin.image_sets import ImageSet
    from fedbridge.data.builtin.shifts import Shift
    from fedbridge.data.split import Rows
    from fedbridge.data.task import FederatedTask, Site

    Labels = NDArray[np.integer]

ShiftName = Literal["noise", "contrast", "rotation", "none"]
Deal = Literal["even", "random"]

FEW_CLASSES = "not every site has rows of every class: that is how the task is made"
"""Instead of a note on each of the sites."""

MOVED = "training images are moved by up to 4 pixels and mirrored at random"

DIGITS_SOURCES = 4
DIGITS_TARGET_SHARE = 0.4
DIGITS_TEST_SHARE = 0.6
DIGITS_LABELLED = SplitOptions(n_target=30)
DIGITS_DEFAULTS = {"lr": 0.1, "epochs": 1, "batch_size": 16, "batch_size_target": 4}

SOURCES = 9
RARE_AT_SOURCES = (6, 8, 9)
"""The paper's D1: shirts, bags and ankle boots."""

FASHION_LABELLED = SplitOptions(n_target=100)
FASHION_DEFAULTS = {
    "optimizer": "adam",
    "lr": 0.01,
    "lr_target": 0.005,
    "batch_size": 64,
    "batch_size_target": 16,
    "epochs": 1,
    "warmup": 2,
}
CIFAR_DEFAULTS = FASHION_DEFAULTS | {"lr": 0.005, "lr_target": 0.0025}


@dataclass(frozen=True, eq=False)
class Shares:
    """Who holds which rows: numbers into the training images, and into the test images."""

    sources: Sequence[Rows]
    target: Rows
    test: Rows


def shifted_task(
    name: str,
    images: ImageSet,
    shares: Shares,
    shift: Shift,
    seed: int,
    split: SplitOptions,
    defaults: Mapping[str, object],
) -> FederatedTask:
    """The task; the target's other rows are unlabelled, its test images shifted like its own."""
    train, shown = images.train, images.test
    seen = _rows(train.pixels, train.labels, shares.target)
    test = _rows(shown.pixels, shown.labels, shares.test)
    own = replace(seen, x=shift.stored(whole(seen.x, "images"), generator(seed, "noise")))
    task = assemble(
        {
            f"source {number}": _rows(train.pixels, train.labels, rows)
            for number, rows in enumerate(shares.sources, start=1)
        },
        own,
        split_target(own.y.numpy(), len(own.y), seed, split, n_test=0),
        name=name,
        origin=images.name,
        seed=seed,
        target_name=SHIFTED_TARGET,
        class_names=images.class_names,
        test=replace(test, x=shift.stored(whole(test.x, "images"), generator(seed, "test noise"))),
        target_prepare=shift.prepare(own.x),
        model="cnn",
        defaults=defaults,
        digest=images.digest,
    )
    return replace(task, notes=(*images.notes, *((FEW_CLASSES,) if task.notes else ())))


def _rows(pixels: NDArray[np.generic], labels: Labels, rows: Rows) -> SiteRows:
    return SiteRows(torch.from_numpy(pixels[rows]), torch.from_numpy(labels[rows]), rows.tolist())


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


def draw_labels(
    clients: int, n_labels: int, per_client: int, rng: np.random.Generator
) -> list[list[int]]:
    """The labels that each client holds, drawn freely: its own number, the others by chance.

    So deals the benchmark of Li et al. (2022), whose procedure the paper follows. With ten clients
    every label has a holder; how many others hold what one of them does differs widely.
    """
    hands = []
    for client in range(clients):
        first = client % n_labels
        others = rng.permutation(np.delete(np.arange(n_labels), first))[: per_client - 1]
        hands.append(sorted([first, *others.tolist()]))
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


def digits_task(
    target: str | None = None,
    seed: int = 0,
    *,
    shift: ShiftName = "noise",
    noise: float = 0.4,
    noise_draw: NoiseDraw = "fixed",
    contrast: float = 1.0,
    angle: float = 90.0,
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """Digits over four sources and a target with shifted images.

    scikit-learn's 1797 embedded images of 8x8 pixels need no download. Four sources share 60% of
    them as they are; the target holds the other 40%, shifted, labels few and tests on 60% of its
    own: the paper's noisy-target protocol at a size that runs in seconds.

    Args:
        target: ``None`` or ``"target"``: the shifted client is the target.
        seed: Decides who holds which image, and the noise.
        shift: What happens to the target's images: Gaussian ``noise``, ``contrast`` (inverted),
            ``rotation``, or ``none``.
        noise: Standard deviation of the noise on pixels in [0, 1].
        noise_draw: One ``fixed`` draw per image, or ``redrawn`` at every access.
        contrast: 1 inverts the images, 0 leaves them, 0.5 makes them all grey.
        angle: Degrees of the rotation, counter-clockwise.
        split: How many of the target's training images are labelled; 30 unless it says so.
    """
    check_shifted_target(target)
    check_choice("shift", shift, get_args(ShiftName))
    shifts: dict[ShiftName, Shift] = {
        "noise": noise_shift(noise, noise_draw),
        "contrast": Contrast(contrast),
        "rotation": Rotation(angle),
        "none": NoShift(),
    }
    images, labels = _digits()
    n_own = round(len(labels) * DIGITS_TARGET_SHARE)
    n_test = round(n_own * DIGITS_TEST_SHARE)
    sizes = [n_own, *equal_sizes(len(labels) - n_own, DIGITS_SOURCES)]
    target_rows, *others = stratified_shares(labels, sizes, generator(seed, "sites"))
    seen = _rows(images, labels, target_rows)
    own = replace(seen, x=shifts[shift].stored(whole(seen.x, "images"), generator(seed, "noise")))
    return assemble(
        {
            f"source {number}": _rows(images, labels, share)
            for number, share in enumerate(others, start=1)
        },
        own,
        split_target(own.y.numpy(), n_own, seed, split.or_else(DIGITS_LABELLED), n_test),
        name=f"digits-{shift}",
        origin="scikit-learn digits",
        seed=seed,
        target_name=SHIFTED_TARGET,
        class_names=DIGITS,
        target_prepare=shifts[shift].prepare(own.x),
        defaults=DIGITS_DEFAULTS,
    )


@cache
def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    # Imported here: it takes longer to import than all of fedbridge, and few tasks need it.
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    images = (bunch.images / 16).astype(np.float32)[:, None]
    return images, bunch.target.astype(np.int64)


def fashion_noise(
    target: str | None = None,
    seed: int = 0,
    *,
    noise: float = 0.4,
    noise_draw: NoiseDraw = "redrawn",
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """Fashion-MNIST over nine sources and a target with noisy images.

    The 60,000 training images go to ten clients; the last is the target. It is tested on official
    test images, so that all its other rows may serve as unlabelled ones.

    Args:
        target: ``None`` or ``"target"``: the noisy client is the target.
        seed: Decides who holds which image, which are labelled, and a fixed noise.
        noise: Standard deviation of the noise on pixels in [0, 1].
        noise_draw: ``redrawn`` at every access, as the paper does, or one ``fixed`` draw per image.
        split: How many of the target's 6000 images are labelled; 100 unless it says so.
    """
    check_shifted_target(target)
    shift = noise_shift(noise, noise_draw)
    images = fashion_mnist()
    *sources, own = _equal_shares(images, seed)
    return shifted_task(
        "fashion-noise",
        images,
        Shares(sources, own, np.arange(len(images.test))),
        shift,
        seed,
        split.or_else(FASHION_LABELLED),
        FASHION_DEFAULTS,
    )


def fashion_labels(
    target: str | None = None,
    seed: int = 0,
    *,
    eta: float = 0.3,
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """Fashion-MNIST over nine sources and a target with other classes in the majority.

    Shirts, bags and ankle boots are D1, the seven other classes D2. The target holds ``1 - eta``
    of D1 and ``eta`` of D2; the sources share the rest.

    Args:
        target: ``None`` or ``"target"``: the client with the other classes is the target.
        seed: Decides who holds which image and which are labelled.
        eta: From 0 (no class in common) to 0.5 (no shift).
        split: How many of the target's images are labelled; by default 0.15 of them.
    """
    check_shifted_target(target)
    eta = check_number("eta", eta, least=0, most=0.5)
    images = fashion_mnist()
    portions = {
        label: 1 - eta if label in RARE_AT_SOURCES else eta for label in range(len(FASHION_CLASSES))
    }
    own, rest = portions_by_label(images.train.labels, portions, generator(seed, "sites"))
    test, _ = portions_by_label(images.test.labels, portions, generator(seed, "test images"))
    shared = stratified_shares(
        images.train.labels[rest], equal_sizes(len(rest), SOURCES), generator(seed, "sources")
    )
    return shifted_task(
        "fashion-labels",
        images,
        Shares([rest[rows] for rows in shared], own, test),
        NoShift(),
        seed,
        split.or_else(SplitOptions(target_fraction=0.15)),
        FASHION_DEFAULTS,
    )


def fashion_sources(
    target: str | None = None,
    seed: int = 0,
    *,
    labels_per_source: int = 3,
    noise: float = 0.4,
    noise_draw: NoiseDraw = "redrawn",
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """Fashion-MNIST over nine sources with few labels each and a target with noisy images.

    The target holds what it holds in ``fashion-noise``; only the sources differ from each other.

    Args:
        target: ``None`` or ``"target"``: the noisy client is the target.
        seed: Decides who holds which label and image, which are labelled, and a fixed noise.
        labels_per_source: How many of the ten labels each source holds; the paper has 3, 5, 7, 9.
        noise: Standard deviation of the target's noise on pixels in [0, 1].
        noise_draw: ``redrawn`` at every access, as the paper does, or one ``fixed`` draw per image.
        split: How many of the target's 6000 images are labelled; 100 unless it says so.
    """
    check_shifted_target(target)
    shift = noise_shift(noise, noise_draw)
    check_whole("labels_per_source", labels_per_source, least=2, most=len(FASHION_CLASSES))
    images = fashion_mnist()
    *others, own = _equal_shares(images, seed)
    rest = np.sort(np.concatenate(others))
    rng = generator(seed, "sources")
    hands = deal_labels(SOURCES, len(FASHION_CLASSES), labels_per_source, rng)
    shared = shares_by_label(images.train.labels[rest], hands, rng)
    return shifted_task(
        "fashion-sources",
        images,
        Shares([rest[rows] for rows in shared], own, np.arange(len(images.test))),
        shift,
        seed,
        split.or_else(FASHION_LABELLED),
        FASHION_DEFAULTS,
    )


def _equal_shares(images: ImageSet, seed: int) -> list[Rows]:
    labels = images.train.labels
    sizes = equal_sizes(len(labels), SOURCES + 1)
    return stratified_shares(labels, sizes, generator(seed, "sites"))


def cifar10_noise(
    target: str | None = None,
    seed: int = 0,
    *,
    noise: float = 0.4,
    noise_draw: NoiseDraw = "redrawn",
    labels_per_site: int = 4,
    deal: Deal = "even",
    augment: bool = False,
    split: SplitOptions = BUILT_IN_SPLIT,
) -> FederatedTask:
    """CIFAR-10 over nine sources and a target with noisy images, four classes at each site.

    Args:
        target: ``None`` or ``"target"``: the noisy client is the target.
        seed: Decides who holds which label and image, which are labelled, and a fixed noise.
        noise: Standard deviation of the noise on pixels in [0, 1].
        noise_draw: ``redrawn`` at every access, as the paper does, or one ``fixed`` draw per image.
        labels_per_site: How many of the ten classes each site holds; 10 gives all to everybody.
        deal: ``even``: every class at as many sites; or ``random``, as the paper does.
        augment: Move and mirror training images at random, as the paper's scripts do.
        split: How many of the target's 5000 images are labelled; by default 0.1 of them.
    """
    check_shifted_target(target)
    shift = noise_shift(noise, noise_draw)
    check_whole("labels_per_site", labels_per_site, least=2, most=len(CIFAR_CLASSES))
    check_choice("deal", deal, get_args(Deal))
    images = cifar10()
    rng = generator(seed, "sites")
    dealt = deal_labels if deal == "even" else draw_labels
    hands = dealt(SOURCES + 1, len(CIFAR_CLASSES), labels_per_site, rng)
    *sources, own = shares_by_label(images.train.labels, hands, rng)
    test = np.flatnonzero(np.isin(images.test.labels, hands[-1]))
    check_flag("augment", augment)
    task = shifted_task(
        "cifar10-noise",
        images,
        Shares(sources, own, test),
        shift,
        seed,
        split.or_else(SplitOptions(target_fraction=0.1)),
        CIFAR_DEFAULTS,
    )
    return _augmented(task) if augment else task


def _augmented(task: FederatedTask) -> FederatedTask:
    """The task with training images moved and mirrored, before there is noise on them."""

    def changed(site: Site) -> Site:
        prepare = site.prepare
        steps = prepare.steps if isinstance(prepare, InTurn) else (prepare,) if prepare else ()
        first = sum(isinstance(step, PixelsToUnit) for step in steps)
        return replace(site, prepare=InTurn((*steps[:first], ShiftAndFlip(), *steps[first:])))

    return replace(task.with_training(changed), notes=(*task.notes, MOVED))
