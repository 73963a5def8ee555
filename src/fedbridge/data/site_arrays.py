"""One site's images or arrays as its part of a federation whose other rows are elsewhere.

As with tables, what sites must agree on is told without a row: the shape of a sample, and which
labels there are. With that, each codes its own rows as one machine with all of them would.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch

from fedbridge.base.errors import (
    DataError,
    DisagreementError,
    NotAgreedError,
    UnreadableError,
)
from fedbridge.base.options import check_choice
from fedbridge.data.arrays import (
    SiteRows,
    as_features,
    as_site,
    read_domain,
    select,
    unlabelled_rows,
)
from fedbridge.data.images.folder import IMAGE_SIZE, image_files, image_rows
from fedbridge.data.images.preprocessing import ImagePreprocessing
from fedbridge.data.labels import as_labels, as_values, class_indices, code_labels, show
from fedbridge.data.site_package import LocalSite
from fedbridge.data.split import OWN_SPLIT, SplitOptions, split_target
from fedbridge.data.task import check_finite, check_lengths, check_target_classes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fedbridge.data.labels import Labels
    from fedbridge.data.rows import Features
    from fedbridge.data.site_package import Role

Form = Literal["images", "npz"]
FORMS: tuple[Form, ...] = get_args(Form)
FORMAT = 1
FEW_ROWS = 5
"""A class of fewer rows can point to a person."""
LONGEST = 1000
WORDS = {"images": "a folder with a folder of images per class", "npz": "an .npz with X and y"}


@dataclass(frozen=True)
class ArrayReading:
    """How every site reads what it has.

    Attributes:
        form: ``images``, a folder with a folder of images per class, or ``npz``, a file with ``X``
            and ``y``.
        image_size: Height and width that images are resized to.
        grayscale: One channel instead of three.
    """

    form: Form = "images"
    image_size: int = IMAGE_SIZE
    grayscale: bool = False

    def __post_init__(self) -> None:
        check_choice("form", self.form, FORMS)
        ImagePreprocessing.from_options(self.image_size, self.grayscale, None, IMAGE_SIZE)

    @property
    def how(self) -> ImagePreprocessing | None:
        """How a new image becomes a sample; arrays are samples already."""
        return ImagePreprocessing(self.image_size, self.grayscale) if self.is_images else None

    @property
    def is_images(self) -> bool:
        """Whether samples are image files."""
        return self.form == "images"


@dataclass(frozen=True)
class ArraySummary:
    """A site's rows without any of them, or what all sites agreed on.

    Attributes:
        reading: How they are read.
        shape: Of one sample.
        pixels: Whether a value is a byte of an image.
        labels: The different labels; None for regression.
        outputs: Numbers to predict for a sample; 1 for classes.
    """

    reading: ArrayReading
    shape: tuple[int, ...]
    pixels: bool
    labels: tuple[str, ...] | tuple[int, ...] | None
    outputs: int = 1

    @cached_property
    def class_names(self) -> tuple[str, ...] | None:
        """The labels as texts."""
        return None if self.labels is None else tuple(map(str, self.labels))

    def in_words(self) -> str:
        """What samples and labels are like."""
        kind, names = "images" if self.pixels else "samples", self.class_names
        predicted = "numbers to predict" if names is None else f"{len(names)} classes"
        return f"{kind} of shape {self.shape}, {predicted}"

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> ArraySummary:
        """What ``record`` made; it may come from elsewhere, and anything else is refused.

        Raises:
            ValueError, TypeError, KeyError: for the reader to explain.
        """
        if record["format"] != FORMAT:
            raise ValueError(f"it has format {record['format']!r} and not {FORMAT}")
        reading, labels = record["reading"], record["labels"]
        known = None if labels is None else tuple(labels)
        shape = tuple(record["shape"])
        if not shape or not all(type(n) is int and n > 0 for n in (*shape, record["outputs"])):
            raise ValueError("it needs the shape of a sample")
        if known is not None and (
            {type(label) for label in known} not in ({str}, {int})
            or any(isinstance(label, str) and len(label) > LONGEST for label in known)
        ):
            raise ValueError("it needs labels that are all texts or all whole numbers")
        own = ArrayReading(reading["form"], reading["image_size"], reading["grayscale"])
        return cls(own, shape, bool(record["pixels"]), known, record["outputs"])


@dataclass(frozen=True)
class DescribedArrays:
    """What a site may tell, how many rows it has, and what its owner should think about first."""

    summary: ArraySummary
    rows: int
    cautions: tuple[str, ...]


def describe_arrays(path: Path, site: str, reading: ArrayReading) -> DescribedArrays:
    """Describe a site's rows without any of them."""
    x, labels = _read(path, site, reading)
    known: tuple[Any, ...] | None = None
    cautions: list[str] = []
    if labels.dtype.kind != "f":
        counts = Counter(labels.tolist())
        known = tuple(sorted(counts))
        rare = [label for label in known if counts[label] < FEW_ROWS]
        if rare:
            cautions.append(f"fewer than {FEW_ROWS} rows each have the label {show(rare)}")
    outputs = 1 if labels.ndim == 1 else labels.shape[1]
    pixels = x.dtype == torch.uint8
    summary = ArraySummary(reading, tuple(x.shape[1:]), pixels, known, outputs)
    return DescribedArrays(summary, len(x), tuple(cautions))


def agree_arrays(sites: Mapping[str, ArraySummary]) -> tuple[ArraySummary, list[str]]:
    """What all sites mean by their samples and labels; also which labels some do not have.

    Raises:
        DataError: who has what otherwise.
    """
    first = next(iter(sites.values()))
    kinds = {site: (own.shape, own.pixels, own.outputs) for site, own in sites.items()}
    if len({*kinds.values()}) > 1:
        listed = "; ".join(
            f"{site} has {'images' if pixels else 'numbers'} of shape {shape}"
            for site, (shape, pixels, _) in kinds.items()
        )
        raise DisagreementError(
            f"Expected samples alike at all sites, but {listed}: bring them into one shape."
        )
    raw = {site: _as_array(own.labels) for site, own in sites.items()}
    _, names = code_labels(raw)
    if names is None:
        return first, []
    every: tuple[Any, ...] = tuple(np.unique(np.concatenate([*raw.values()])).tolist())
    notes = [
        f"site {site!r} has no rows with the label {show(lacking)}"
        for site, own in sites.items()
        if (lacking := [label for label in every if label not in (own.labels or ())])
    ]
    return replace(first, labels=every), notes


def _as_array(labels: tuple[str, ...] | tuple[int, ...] | None) -> Labels:
    return np.zeros(1) if labels is None else np.array(labels)


def load_array_site(
    path: Path,
    agreed: ArraySummary,
    name: str,
    role: Role,
    seed: int = 0,
    split: SplitOptions = OWN_SPLIT,
) -> LocalSite:
    """What one site brings to a federation, from its own folder or file and what was agreed.

    Args:
        path: The site's folder of images, or its ``.npz``.
        agreed: What the sites agreed on.
        name: The site.
        role: Whether it is a source or the target.
        seed: Decides the target's split.
        split: How the target's rows are divided; all its training rows are labelled by default.
    """
    x, labels = _read(path, name, agreed.reading)
    if (tuple(x.shape[1:]), x.dtype == torch.uint8) != (agreed.shape, agreed.pixels):
        raise NotAgreedError(
            f"Expected samples of shape {agreed.shape} at site {name!r}, as the sites agreed, but "
            f"{path.name!r} has {tuple(x.shape[1:])} ({x.dtype}): describe it anew and agree again."
        )
    y = as_values(labels) if agreed.labels is None else _coded(labels, agreed.labels, name)
    names = agreed.class_names
    n_classes = None if names is None else len(names)
    rows = SiteRows(x, y, range(len(y)))
    if role == "source":
        return LocalSite(name, role, as_site(name, rows), None, n_classes, names)
    divided = split_target(None if names is None else y.numpy(), len(y), seed, split)
    train = as_site(name, select(rows, divided.labelled))
    test = as_site(f"{name} (test)", select(rows, divided.test))
    if names is not None:
        check_target_classes(train, names)
    loose, _ = unlabelled_rows(rows, divided)
    how = agreed.reading.how
    return LocalSite(name, role, train, test, n_classes, names, how, unlabelled=loose)


def _coded(labels: Labels, known: tuple[Any, ...], site: str) -> torch.Tensor:
    unknown = sorted({*labels.tolist()} - {*known}, key=str)
    if unknown:
        raise NotAgreedError(
            f"Expected labels among {show(known)} at site {site!r}, as the sites agreed, but got "
            f"{show(unknown)}: describe the data anew and agree again."
        )
    return class_indices(labels, {label: index for index, label in enumerate(known)})


def _read(path: Path, site: str, reading: ArrayReading) -> tuple[Features, Labels]:
    """Samples and labels as one machine with everybody's rows would read them."""
    if not (path.is_dir() if reading.is_images else path.is_file()):
        raise UnreadableError(
            f"Expected {WORDS[reading.form]} as the data of site {site!r}, but {str(path)!r} is "
            f"none: correct `data`."
        )
    x: Features
    if reading.how is not None:
        files = image_files(path)
        rows, _ = image_rows(path.parent, {path.name: files}, reading.how, cache=True)
        x, labels = rows[path.name], as_labels([file.parent.name for file in files], site)
    else:
        values, given = read_domain(path)
        x, labels = as_features(values, site), as_labels(given, site)
        check_finite(x, site, "features")
    check_lengths(len(x), len(labels), site)
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise DataError(
            f"Expected finite labels at site {site!r}, but `y` of {path.name!r} holds NaN or Inf: "
            f"leave these rows out."
        )
    return x, labels
