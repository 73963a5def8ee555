"""One site's part of a task as a file of its own, which is all that a site's process reads.

A safetensors file: the rows as tensors, everything else as JSON in its header; nothing is pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError
from safetensors.torch import save

from fedbridge.base.errors import DataError
from fedbridge.base.files import PRIVATE, parse_json, to_json, write_atomically
from fedbridge.data.images.preprocessing import read_preprocessing
from fedbridge.data.preparing import prepare_from_record, prepare_to_record
from fedbridge.data.rows import whole
from fedbridge.data.tables.preprocessing import scale_of
from fedbridge.data.task import FederatedTask, Site
from fedbridge.models.weights import stored_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from fedbridge.data.images.preprocessing import ImagePreprocessing
    from fedbridge.data.rows import Features
    from fedbridge.data.tables.preprocessing import Preprocessing

FORMAT = "1"
Role = Literal["source", "target"]


@dataclass(frozen=True, eq=False)
class LocalSite:
    """What one site brings to a federation: its own rows, and nothing of anybody else's.

    Attributes:
        name: the site.
        role: what it is in this federation.
        train: its labelled training rows.
        test: the target's test split; sources have none.
        n_classes: number of classes; None for regression.
        class_names: the labels as the data spell them.
        preprocessing: how the target's new rows are to be treated.
        positive: index of the class, of two, that the target's measures are of.
        unlabelled: more of the target's rows, without labels, for methods that learn from such.
    """

    name: str
    role: Role
    train: Site
    test: Site | None
    n_classes: int | None
    class_names: tuple[str, ...] | None
    preprocessing: Preprocessing | ImagePreprocessing | None = None
    positive: int = 1
    unlabelled: Features | None = None

    def __post_init__(self) -> None:
        if (self.role == "target") != (self.test is not None):
            raise DataError(
                f"Expected a test split at the target and at no other site, but {self.name!r} is "
                f"a {self.role} {'with' if self.test is not None else 'without'} one."
            )


def sites_of(task: FederatedTask, *, unlabelled: bool = True) -> list[LocalSite]:
    """Every site's part of a task, the target first; ``unlabelled`` rows only where wanted."""
    target = LocalSite(
        task.target.name,
        "target",
        task.target,
        task.test,
        task.n_classes,
        task.class_names,
        task.preprocessing,
        task.positive,
        task.unlabelled if unlabelled else None,
    )
    sources = [
        LocalSite(site.name, "source", site, None, task.n_classes, task.class_names)
        for site in task.sources
    ]
    return [target, *sources]


def save_site(path: Path, site: LocalSite) -> None:
    """Write a site's part for its owner's eyes only."""
    what = f"a file with the rows of {site.name!r}"
    tensors = {"train.x": whole(site.train.x, what), "train.y": site.train.y}
    if site.test is not None:
        tensors |= {"test.x": whole(site.test.x, what), "test.y": site.test.y}
    if site.unlabelled is not None:
        tensors["unlabelled.x"] = whole(site.unlabelled, what)
    header = {
        "name": site.name,
        "role": site.role,
        "n_classes": site.n_classes,
        "class_names": site.class_names,
        "positive": site.positive,
        "train": {"name": site.train.name, "prepare": prepare_to_record(site.train.prepare)},
        "test": None
        if site.test is None
        else {"name": site.test.name, "prepare": prepare_to_record(site.test.prepare)},
        "preprocessing": None if site.preprocessing is None else site.preprocessing.to_json(),
    }
    data = save(
        {name: value.contiguous().clone() for name, value in tensors.items()},
        metadata={"format": FORMAT, "site": to_json(header)},
    )
    write_atomically(path, data, mode=PRIVATE)


def load_site(path: Path) -> LocalSite:
    """Read a site's part back."""
    try:
        tensors, about = stored_tensors(path)
        if about.get("format") != FORMAT:
            raise DataError(
                f"Expected a site's data of format {FORMAT} in {str(path)!r}, but it has format "
                f"{about.get('format')}: write it with this version of fedbridge."
            )
        header = parse_json(about["site"])
        return _site(header, tensors)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"Expected one site's data in {str(path)!r}, but it cannot be read: {error}."
        ) from error


def _site(header: dict[str, Any], tensors: dict[str, Tensor]) -> LocalSite:
    def part(which: str) -> Site:
        about = header[which]
        return Site(
            about["name"],
            tensors[f"{which}.x"],
            tensors[f"{which}.y"],
            prepare_from_record(about["prepare"]),
            scale=scale_of(how),
        )

    names, treated = header["class_names"], header["preprocessing"]
    how = None if treated is None else read_preprocessing(treated)
    return LocalSite(
        header["name"],
        header["role"],
        part("train"),
        None if header["test"] is None else part("test"),
        header["n_classes"],
        None if names is None else tuple(names),
        how,
        header.get("positive", 1),
        tensors.get("unlabelled.x"),
    )
