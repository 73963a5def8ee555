"""The catalogue: every data set and pretrained model that fedbridge knows, described as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.data.catalogue.entry import (
    Content,
    DataSet,
    Domain,
    Download,
    Files,
    ImageTree,
)
from fedbridge.data.catalogue.small import CIFAR10, DIGITS, FASHION_MNIST, HEART, MNIST, RBF
from fedbridge.data.catalogue.suites import DOMAIN_NET, OFFICE_HOME, PACS, TERRA, VLCS
from fedbridge.data.catalogue.weights import RESNET18, RESNET50
from fedbridge.errors import UnknownNameError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ALL",
    "CATALOGUE",
    "Content",
    "DataSet",
    "Domain",
    "Download",
    "Files",
    "ImageTree",
    "chosen",
    "dataset",
]

ALL = "all"

CATALOGUE: dict[str, DataSet] = {
    entry.name: entry
    for entry in (
        DIGITS,
        RBF,
        FASHION_MNIST,
        MNIST,
        CIFAR10,
        HEART,
        VLCS,
        TERRA,
        PACS,
        OFFICE_HOME,
        DOMAIN_NET,
        RESNET18,
        RESNET50,
    )
}


def dataset(name: str) -> DataSet:
    """The entry of this name, or an error that suggests the nearest one."""
    if name not in CATALOGUE:
        raise UnknownNameError(
            f"Expected the name of a data set, but got {name!r}.{nearest(name, CATALOGUE)} "
            f"Known: {', '.join(CATALOGUE)}."
        )
    return CATALOGUE[name]


def chosen(names: Sequence[str]) -> list[DataSet]:
    """The entries of these names, each once; ``all`` stands for those that have files."""
    found = [dataset(name) for name in names if name != ALL]
    if ALL in names:
        found += [entry for entry in CATALOGUE.values() if entry.layout is not None]
    return list(dict.fromkeys(found))
