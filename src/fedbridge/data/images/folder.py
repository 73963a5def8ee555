"""A folder ``domain/class/*.png|jpg|jpeg``: images of any size as pixels, or as features.

Without a backbone, images are resized and kept as ``uint8``. With one, every site's images go
through the frozen backbone once, and the federation trains a head on their features: minutes on a
CPU instead of days. Images need not fit into memory: many of them are read from the cache a batch
at a time, and decoded on the fly where there is no room for a cache.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedbridge.base.errors import DataError, OptionError
from fedbridge.base.options import check_choice, check_flag
from fedbridge.data.arrays import task_from_domains
from fedbridge.data.images.cache import KeptRows, cached_rows
from fedbridge.data.images.preprocessing import ImagePreprocessing, is_image
from fedbridge.data.preparing import Augment, InTurn, PixelsToUnit
from fedbridge.data.rows import StoredRows
from fedbridge.data.site_files import check_names
from fedbridge.data.split import OWN_SPLIT, SplitOptions
from fedbridge.data.task import check_target_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedbridge.data.rows import Features
    from fedbridge.data.task import FederatedTask, Site

IMAGE_SIZE = 32
HEAD_DEFAULTS: dict[str, object] = {"optimizer": "adam", "lr": 1e-3, "lr_target": None}
"""What suits a head on frozen features, which learns faster than a whole network should."""

HELD_BYTES = 64 << 20
"""Images of a task that take no more than this are simply held in memory."""

RECENT_BYTES = 256 << 20
"""What images that are decoded on the fly may take, the latest of them."""

AUGMENTED = "training images are cropped, flipped and recoloured at random"
OF_SOURCES = "sources"


def images_task(
    path: Path,
    target: str | None = None,
    seed: int = 0,
    *,
    image_size: int | None = None,
    grayscale: bool = False,
    backbone: str | None = None,
    cache: bool = True,
    augment: bool | str = False,
    split: SplitOptions = OWN_SPLIT,
) -> FederatedTask:
    """A task whose domains are the folders of a folder, with one folder per class in each.

    Args:
        path: The folder.
        target: The domain that adapts.
        seed: Decides every random choice of rows.
        image_size: Height and width that all images are resized to: 32, or the backbone's own.
        grayscale: One channel instead of three.
        backbone: A frozen network, such as ``efficientnet-lite0``, whose features are learned
            from instead of the pixels.
        cache: Keep the decoded images or features on disk for the next time.
        augment: Crop, flip and recolour training images at random, as DomainBed does; ``sources``
            for those of the sources only, as in the paper's scripts.
        split: How the target's images are divided; all that train are labelled by default.
    """
    domains = folders(path)
    check_names(domains, [domain.name for domain in domains])
    files = {domain.name: image_files(domain) for domain in domains}
    check_target_name(target, files)
    check_augment(augment, backbone)
    how = ImagePreprocessing.from_options(image_size, grayscale, backbone, IMAGE_SIZE)
    rows, notes = image_rows(path, files, how, cache=cache)
    task = task_from_domains(
        {site: (rows[site], [file.parent.name for file in own]) for site, own in files.items()},
        target,
        seed,
        path=path,
        split=split,
        ids={site: names_below(path, own) for site, own in files.items()},
    )
    task = augmented(task, augment)
    return replace(
        task,
        model="cnn" if backbone is None else "linear",
        defaults={} if backbone is None else dict(HEAD_DEFAULTS),
        preprocessing=how,
        notes=(*notes, *task.notes),
    )


def check_augment(augment: bool | str, backbone: str | None) -> None:
    """Refuse augmentation where only the features of images are there to train on."""
    check_choice("augment", augment, (False, True, OF_SOURCES))
    if augment and backbone is not None:
        raise OptionError(
            f"Expected pixels to augment, but the backbone {backbone!r} makes features of every "
            f"image once, before any training: leave `augment` or `backbone` out."
        )


def augmented(task: FederatedTask, augment: bool | str) -> FederatedTask:
    """The task with its training images changed at random; the test set stays as it is."""
    if not augment:
        return task

    def changed(site: Site) -> Site:
        return replace(site, prepare=InTurn((PixelsToUnit(), Augment())))

    if augment == OF_SOURCES:
        sources = tuple(map(changed, task.sources))
        return replace(task, sources=sources, notes=(*task.notes, f"{AUGMENTED} at the sources"))
    return replace(task.with_training(changed), notes=(*task.notes, AUGMENTED))


class DecodedImages:
    """Rows of images that are decoded when they are read; the latest few bytes are kept."""

    def __init__(self, files: Sequence[Path], how: ImagePreprocessing, recent: int) -> None:
        self.files, self.how, self.recent = files, how, recent
        self.shape, self.dtype = (len(files), *how.row_shape), how.row_type
        self._row = lru_cache(recent // how.row_bytes)(self._decoded)

    def __reduce__(self) -> tuple[object, ...]:
        return DecodedImages, (self.files, self.how, self.recent)

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.generic]:
        """The rows with these numbers."""
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for place, row in enumerate(rows.tolist()):
            found[place] = self._row(row)
        return found

    def _decoded(self, row: int) -> NDArray[np.generic]:
        return self.how.few_rows(self.files[row : row + 1]).squeeze(0)


def image_rows(
    root: Path, files: Mapping[str, Sequence[Path]], how: ImagePreprocessing, *, cache: bool
) -> tuple[dict[str, Features], tuple[str, ...]]:
    """The rows of every site's images, and what was done to get them.

    Args:
        root: The folder that holds a folder for each site.
        files: The images of every site.
        how: How an image becomes a row.
        cache: Take rows from the cache, and keep there what is not in it.
    """
    check_flag("cache", cache)
    few = sum(map(len, files.values())) * how.row_bytes <= HELD_BYTES
    kept = {
        site: cached_rows(root / site, own, how) if cache else KeptRows()
        for site, own in files.items()
    }
    notes = [how.describe()]
    before = [one.rows.file.parent for one in kept.values() if one.rows and one.before]
    if before:
        notes.append(
            f"images of {len(before)} of {len(kept)} sites were read before, and come from "
            f"{str(before[0])!r}"
        )
    for problem in sorted({one.problem for one in kept.values() if one.problem}):
        notes.append(f"images are read anew each time, since they cannot be kept: {problem}")
    if not few and any(one.rows is None for one in kept.values()):
        notes.append(
            f"images are decoded when a batch needs them; the latest {RECENT_BYTES >> 20} MB of "
            f"them stay in memory"
        )
    rows: dict[str, Features] = {}
    for site, own in files.items():
        mapped, every = kept[site].rows, np.arange(len(own))
        if few:
            found = how.rows(own, site) if mapped is None else mapped.read(every)
            rows[site] = torch.from_numpy(found)
        else:
            store = mapped or DecodedImages(own, how, RECENT_BYTES // len(files))
            rows[site] = StoredRows(store, torch.from_numpy(every))
    return rows, tuple(notes)


def folders(path: Path) -> list[Path]:
    """The folders in a folder, without hidden ones."""
    return sorted(
        entry
        for entry in path.iterdir()
        if entry.is_dir() and not entry.name.startswith((".", "__"))
    )


def image_files(domain: Path) -> list[Path]:
    """All images ``class/*`` of a domain, in the order of their names."""
    files = sorted(
        file for folder in folders(domain) for file in filter(is_image, folder.iterdir())
    )
    if not files:
        raise DataError(
            f"Expected every site to have rows, but the folder of {domain.name!r} holds no images "
            f"as class/*.png, *.jpg or *.jpeg: add some or remove the folder."
        )
    return files


def names_below(root: Path, files: Sequence[Path]) -> list[str]:
    """What the manifest calls the files: their path below the folder, the same everywhere."""
    return [file.relative_to(root).as_posix() for file in files]
