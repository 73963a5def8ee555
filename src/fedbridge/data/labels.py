"""Labels as classes or numbers that mean the same at every site, however they are spelled."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import inf, isfinite, log10
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedbridge.base.errors import DataError, LabelsDisagreeError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Labels: TypeAlias = NDArray[np.generic]

SHOWN = 8
LARGE, MOST_POWERS = 3.0, 18
"""A centre that needs a scale although the spread does not, and powers of ten that a size has."""


def as_labels(values: object, site: str) -> Labels:
    """One site's labels as an array of whole numbers, floats or text."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        labels = np.asarray(values)
    except ValueError as error:
        raise ShapeError(
            f"Expected the labels of site {site!r} as a flat list, but they are ragged: {error}"
        ) from error
    if labels.dtype.kind == "O":
        labels = _from_objects(labels, site)
    if labels.dtype.kind == "b":
        labels = labels.astype(str)
    if labels.dtype.kind not in "iufU":
        raise DataError(
            f"Expected labels as numbers or text, but site {site!r} has {labels.dtype}."
        )
    if labels.ndim == 0 or (labels.dtype.kind != "f" and labels.ndim != 1):
        raise ShapeError(
            f"Expected one class per row as labels of shape (n,), but site {site!r} has shape "
            f"{labels.shape}."
        )
    return labels


def code_labels(
    labels: Mapping[str, Labels], class_names: Sequence[str] | None = None
) -> tuple[dict[str, Tensor], tuple[str, ...] | None]:
    """Class indices of every site and the names behind them; regression has no names.

    Raises:
        LabelsDisagreeError: When sites code the same thing differently ("yes" here, 1 there).
    """
    _check_same_kind(labels)
    if next(iter(labels.values())).dtype.kind == "f":
        return {site: as_values(y) for site, y in labels.items()}, None
    found = np.unique(np.concatenate([*labels.values()]))
    if found.dtype.kind == "U":
        _check_spelling(labels)
    index = _class_index(found, class_names)
    names = tuple(class_names) if class_names is not None else tuple(map(str, index))
    return {site: class_indices(y, index) for site, y in labels.items()}, names


@dataclass(frozen=True)
class Scale:
    """What the numbers that a model learns stand for: ``value = centre + size · number``.

    Steps suit numbers of the order of 1; of prices, a network would make NaN in its first steps.
    All sites have the same scale. It is coarse, a power of ten and a multiple of that, so that it
    says next to nothing of anybody's values.

    Attributes:
        centre: the value of 0.
        size: what one is.
    """

    centre: float = 0.0
    size: float = 1.0

    def __post_init__(self) -> None:
        if not (isfinite(self.centre) and 0 < self.size < inf):
            raise ValueError(f"{self} needs a finite centre and a size above 0")

    @classmethod
    def of(cls, values: Labels) -> Scale:
        """The scale of one site's values."""
        values = values.astype(np.float64)
        spread = float(values.std()) or abs(float(values.mean())) or 1.0
        size = 10.0 ** min(max(round(log10(spread)), -MOST_POWERS), MOST_POWERS)
        return cls(round(float(values.mean()) / size) * size + 0.0, size)

    @classmethod
    def agreed(cls, scales: Iterable[Scale]) -> Scale:
        """One for all sites; values of the order of 1 stay as they are."""
        found = sorted(scales, key=lambda one: one.size)
        if not found:
            return AS_THEY_ARE
        size = found[(len(found) - 1) // 2].size
        centre = round(median(one.centre for one in found) / size) * size + 0.0
        return AS_THEY_ARE if size == 1 and abs(centre) <= LARGE else cls(centre, size)

    def numbers(self, values: Labels) -> Tensor:
        """What a model learns in place of values."""
        scaled = (values.astype(np.float64) - self.centre) / self.size
        return torch.from_numpy(scaled).to(torch.float32)

    def values(self, numbers: Tensor) -> Tensor:
        """What a model's numbers stand for."""
        return numbers if self == AS_THEY_ARE else self.centre + self.size * numbers.double()


AS_THEY_ARE = Scale()
"""The scale of classes too."""


def as_values(labels: Labels) -> Tensor:
    """Numbers to be predicted."""
    return AS_THEY_ARE.numbers(labels)


def class_indices(labels: Labels, index: Mapping[object, int]) -> Tensor:
    """The class of every label, all of which are in the index."""
    distinct, inverse = np.unique(labels, return_inverse=True)
    codes = np.array([index[label] for label in distinct.tolist()], dtype=np.int64)
    return torch.from_numpy(codes[inverse])


def show(values: Iterable[object]) -> str:
    """A short list for a message, cut when it is long."""
    shown = [repr(v.item() if isinstance(v, np.generic) else v) for v in values]
    more = f", ... ({len(shown)} in all)" if len(shown) > SHOWN else ""
    return ", ".join(shown[:SHOWN]) + more


def _class_index(found: Labels, class_names: Sequence[str] | None) -> dict[object, int]:
    """The index of every label: its rank, or its place in ``class_names``."""
    if class_names is None:
        if len(found) < 2:
            raise DataError(
                f"Expected at least two classes, but all sites have only {show(found)}: check "
                f"which column or array holds the labels."
            )
        return {label: index for index, label in enumerate(found.tolist())}
    known: Sequence[object] = class_names if found.dtype.kind == "U" else range(len(class_names))
    unknown = [label for label in found.tolist() if label not in known]
    if unknown:
        raise DataError(
            f"Expected labels among {show(known)}, as `class_names` says, but got {show(unknown)}."
        )
    return {label: index for index, label in enumerate(known)}


def _from_objects(labels: Labels, site: str) -> Labels:
    """Python objects as text, if text is all they are; a mixture would be coded by accident."""
    kinds = {type(label) for label in labels.ravel().tolist()}
    if kinds <= {str}:
        return labels.astype(str)
    raise DataError(
        f"Expected labels of one type, but site {site!r} has "
        f"{', '.join(sorted(kind.__name__ for kind in kinds))}: make them all text or all numbers."
    )


def _check_same_kind(labels: Mapping[str, Labels]) -> None:
    words = {"i": "whole numbers", "u": "whole numbers", "f": "floats", "U": "text"}
    kinds = {site: words[y.dtype.kind] for site, y in labels.items()}
    if len(set(kinds.values())) > 1:
        listed = "; ".join(
            f"{site} has {kind} ({show(np.unique(labels[site]))})" for site, kind in kinds.items()
        )
        raise LabelsDisagreeError(
            f"Expected labels coded in one way at all sites, but {listed}: recode them alike."
        )


def _check_spelling(labels: Mapping[str, Labels]) -> None:
    """Text labels that differ in case or spaces only, or sites that share no label with others."""
    distinct = {site: set(y.tolist()) for site, y in labels.items()}
    spellings: dict[str, set[str]] = defaultdict(set)
    for label in set().union(*distinct.values()):
        spellings[" ".join(label.casefold().split())].add(label)
    alone = [
        site
        for site, own in distinct.items()
        if len(distinct) > 1
        and not own & set().union(*(other for s, other in distinct.items() if s != site))
    ]
    if alone or any(len(variants) > 1 for variants in spellings.values()):
        listed = "; ".join(f"{site} has {show(sorted(own))}" for site, own in distinct.items())
        raise LabelsDisagreeError(
            f"Expected one spelling of every label at all sites, but {listed}: recode them alike."
        )
