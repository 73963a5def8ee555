"""A task from arrays, in memory or as ``domain.npz``; the assembly that all loaders end with."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from fedbridge.base.errors import DataError, DisagreementError, ShapeError
from fedbridge.base.files import check_fits, readable_size
from fedbridge.data.labels import AS_THEY_ARE, Scale, as_labels, code_labels, show
from fedbridge.data.preparing import PixelsToUnit
from fedbridge.data.rows import StoredRows, take, whole
from fedbridge.data.site_files import site_files
from fedbridge.data.split import OWN_SPLIT, SplitOptions, TargetSplit, split_target, split_test
from fedbridge.data.tables.preprocessing import scale_of
from fedbridge.data.task import (
    FederatedTask,
    Site,
    check_finite,
    check_lengths,
    check_target_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedbridge.data.images.preprocessing import ImagePreprocessing
    from fedbridge.data.preparing import Prepare
    from fedbridge.data.rows import Features
    from fedbridge.data.split import Rows
    from fedbridge.data.tables.preprocessing import Preprocessing

NPY = ".npy"
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True, eq=False)
class SiteRows:
    """One site's rows with coded labels, and what the manifest calls each row."""

    x: Features
    y: Tensor
    ids: Sequence[int | str]


def as_features(values: object, site: str) -> Tensor:
    """Rows of numbers as float32; ``uint8`` images ``(n, H, W)`` or ``(n, C, H, W)`` stay so."""
    try:
        if isinstance(values, Tensor):
            x = values.detach().cpu()
        else:
            x = torch.as_tensor(np.require(values, requirements="W"))  # pandas' are read-only
    except (ValueError, TypeError) as error:
        raise ShapeError(
            f"Expected the features of site {site!r} as an array of numbers, but got "
            f"{type(values).__name__}: {error}"
        ) from error
    if x.ndim < 2:
        raise ShapeError(
            f"Expected features of shape (n, ...), one row per sample, but site {site!r} has shape "
            f"{tuple(x.shape)}."
        )
    if x.is_complex():
        raise ShapeError(f"Expected real features, but site {site!r} has {x.dtype}.")
    return x if x.dtype == torch.uint8 and x.ndim in (3, 4) else x.to(torch.float32)


def task_from_arrays(
    sources: Mapping[str, tuple[object, object]] | Sequence[tuple[object, object]],
    target: tuple[object, object],
    test: tuple[object, object] | None = None,
    *,
    name: str = "arrays",
    origin: str = "arrays",
    seed: int = 0,
    split: SplitOptions = OWN_SPLIT,
    unlabelled: object | None = None,
    target_name: str = "target",
    class_names: Sequence[str] | None = None,
    ids: Mapping[str, Sequence[int | str]] | None = None,
) -> FederatedTask:
    """See :meth:`FederatedTask.from_arrays`; loaders say more.

    Where the rows come from (``origin``, a file or folder) and what each of them is called
    (``ids``, by site; row numbers by default) goes into the manifest; ``split`` says how the
    target's rows are divided, of which some test only without ``test``.
    """
    named = _named_sources(sources)
    test_name = f"{target_name} (test)"
    pairs = {**named, target_name: target} | ({} if test is None else {test_name: test})
    if target_name in named or test_name in named:
        raise DataError(
            f"Expected a target name that no source has, but {target_name!r} is taken: choose "
            f"another `target_name`."
        )
    features: dict[str, Features] = {}
    raw = {}
    for site, pair in pairs.items():
        x, y = _pair(pair, site)
        features[site] = x if isinstance(x, StoredRows) else as_features(x, site)
        raw[site] = as_labels(y, site)
        check_lengths(len(features[site]), len(raw[site]), site)
    _check_same_type(features)
    labels, names = code_labels(raw, class_names)
    rows = {
        site: SiteRows(x, labels[site], ids[site] if ids else range(len(x)))
        for site, x in features.items()
    }
    divided = split_target(
        None if names is None else labels[target_name].numpy(),
        len(features[target_name]),
        seed,
        split,
        n_test=None if test is None else 0,
    )
    more = None if unlabelled is None else as_features(unlabelled, "unlabelled")
    return assemble(
        {site: rows[site] for site in named},
        rows[target_name],
        divided,
        name=name,
        origin=origin,
        seed=seed,
        target_name=target_name,
        class_names=names,
        test=None if test is None else rows[test_name],
        unlabelled=None if more is None else (more, range(len(more))),
    )


def task_from_domains(
    domains: Mapping[str, tuple[object, object]],
    target: str | None,
    seed: int,
    *,
    path: Path,
    split: SplitOptions,
    ids: Mapping[str, Sequence[int | str]] | None = None,
) -> FederatedTask:
    """A task from several domains, one of which is the target and the others its sources."""
    target_name = check_target_name(target, domains)
    return task_from_arrays(
        {name: pair for name, pair in domains.items() if name != target_name},
        domains[target_name],
        name=path.name,
        origin=path.name,
        seed=seed,
        split=split,
        target_name=target_name,
        ids=ids,
    )


def assemble(
    sources: Mapping[str, SiteRows],
    target: SiteRows,
    split: TargetSplit,
    *,
    name: str,
    origin: str,
    seed: int,
    target_name: str,
    class_names: tuple[str, ...] | None,
    test: SiteRows | None = None,
    unlabelled: tuple[Tensor, Sequence[int | str]] | None = None,
    target_prepare: Prepare | None = None,
    model: str = "mlp",
    defaults: Mapping[str, object] | None = None,
    preprocessing: Preprocessing | ImagePreprocessing | None = None,
    digest: str | None = None,
    notes: Sequence[str] = (),
    one_class: bool = False,
) -> FederatedTask:
    """Give every row its role, write the manifest, and note classes that sites do not share.

    Args:
        sources: Rows of each source, all of which train.
        target: Rows of the target, to be divided.
        split: How to divide them.
        name: What to call the task.
        origin: File or folder of the rows, for the manifest.
        seed: The seed of the split, for the manifest.
        target_name: What to call the target.
        class_names: Names by class index; ``None`` for regression.
        test: A test set of its own; ``None`` takes the one of ``split``.
        unlabelled: More target rows, which never had a label, and their names.
        target_prepare: What happens to each batch of the target's rows, when it differs.
        model: Name of the model that suits the task.
        defaults: Options of a run that suit it.
        preprocessing: What the target's later rows go through.
        digest: SHA-256 of a published data set as it was read, for the manifest.
        notes: What the loader has to say before the classes that sites do not share.
        one_class: Whether labelled rows of a single class are meant.
    """
    own_test = test is not None
    test = test if test is not None else select(target, split.test)
    loose, loose_ids = unlabelled_rows(target, split, unlabelled)
    pool = select(target, split.training)
    sites = tuple(as_site(source, rows) for source, rows in sources.items())
    labelled = select(target, split.labelled)
    scale = scale_of(preprocessing)
    return FederatedTask(
        name=name,
        sources=sites,
        target=as_site(target_name, labelled, target_prepare, scale),
        test=as_site(f"{target_name} (test)", test, target_prepare, scale),
        n_classes=None if class_names is None else len(class_names),
        unlabelled=loose,
        target_pool=as_site(target_name, pool, target_prepare, scale)
        if len(split.unlabelled)
        else None,
        class_names=class_names,
        model=model,
        defaults=dict(defaults or {}),
        preprocessing=preprocessing,
        manifest={
            "origin": origin,
            "seed": int(seed),
            "sources": {source: list(rows.ids) for source, rows in sources.items()},
            "target": list(labelled.ids),
            "unlabelled": loose_ids,
            "test": list(test.ids),
            "test_is": "a set of its own" if own_test else f"rows of {target_name}",
            **({} if digest is None else {"content": f"sha256:{digest}"}),
        },
        notes=(
            *notes,
            *_class_notes(sites, labelled.y, class_names or ()),
            *([] if class_names or preprocessing else _size_notes([*sites, as_site("", labelled)])),
        ),
        one_class=one_class,
    )


def _named_sources(
    sources: Mapping[str, tuple[object, object]] | Sequence[tuple[object, object]],
) -> dict[str, tuple[object, object]]:
    if hasattr(sources, "items"):
        return {str(name): pair for name, pair in sources.items()}
    return {f"source {index}": pair for index, pair in enumerate(sources)}


def _pair(pair: object, site: str) -> tuple[object, object]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ShapeError(
            f"Expected the data of site {site!r} as a pair (X, y), but got {type(pair).__name__}."
        )
    return pair[0], pair[1]


def _check_same_type(features: Mapping[str, Features]) -> None:
    if len({x.dtype for x in features.values()}) > 1:
        listed = "; ".join(f"{site} has {x.dtype}" for site, x in features.items())
        raise DisagreementError(
            f"Expected images as uint8 (0 to 255) at all sites or as floats at all, but {listed}: "
            f"convert them alike."
        )


def select(rows: SiteRows, which: Rows) -> SiteRows:
    """Some of a site's rows, copied if they are in memory."""
    index = torch.from_numpy(which)
    return SiteRows(take(rows.x, index), rows.y[index], [rows.ids[row] for row in which])


def training_rows(rows: SiteRows, test_share: float, seed: int) -> SiteRows:
    """The part of a source's rows that trains; it leaves as much aside as the target does."""
    n = len(rows.y)
    which, _ = split_test(rows.y.numpy(), n, round(n * test_share), seed)
    return select(rows, which)


def unlabelled_rows(
    target: SiteRows, split: TargetSplit, more: tuple[Tensor, Sequence[int | str]] | None = None
) -> tuple[Features | None, list[int | str]]:
    """Training rows whose label is withheld, then those that never had one."""
    withheld = select(target, split.unlabelled)
    x, ids = withheld.x, [*withheld.ids]
    if more is not None:
        check_finite(more[0], "unlabelled", "features")
        x = torch.cat([whole(x, "the target's rows"), more[0]])
        ids += more[1]
    return (x, ids) if ids else (None, [])


def as_site(
    name: str, rows: SiteRows, prepare: Prepare | None = None, scale: Scale = AS_THEY_ARE
) -> Site:
    """Rows as a site; of bytes of images, models get 255ths."""
    if prepare is None and rows.x.dtype == torch.uint8:
        prepare = PixelsToUnit()
    return Site(name, rows.x, rows.y, prepare, scale=scale)


def _size_notes(sites: Sequence[Site]) -> list[str]:
    """Whether values are of a size that steps suit; nobody would turn them back if they were not.

    (Those of tables are learned in a scale that is kept with the model.)
    """
    scale = Scale.agreed(Scale.of(site.y.numpy()) for site in sites)
    if scale == AS_THEY_ARE:
        return []
    told = (
        f"values are about {scale.centre:g}, give or take {scale.size:g}: training may end in NaN "
        f"or take long, since its steps suit values of the order of 1; divide them, or lower lr"
    )
    return [told]


def _class_notes(
    sources: tuple[Site, ...], target: Tensor, class_names: tuple[str, ...]
) -> tuple[str, ...]:
    """Who has which classes that others have not; regression has none."""
    if not class_names:
        return ()
    at_target = set(target.tolist())
    notes = []
    for site in sources:
        here = set(site.y.tolist())
        for missing, text in (
            (here - at_target, "has classes that the target has no labelled rows of"),
            (at_target - here, "has no rows of classes that the target has"),
        ):
            if missing:
                names = show(class_names[index] for index in sorted(missing))
                notes.append(f"site {site.name!r} {text}: {names}")
    return tuple(notes)


def npz_task(
    path: Path,
    target: str | None = None,
    seed: int = 0,
    *,
    split: SplitOptions = OWN_SPLIT,
) -> FederatedTask:
    """A task whose domains are the ``.npz`` files of a folder, by file name.

    Args:
        path: The folder.
        target: The domain that adapts.
        seed: Decides every random choice of rows.
        split: How the target's rows are divided; all its training rows are labelled by default.
    """
    return task_from_domains(
        {site: read_domain(file) for site, file in site_files(path, ".npz").items()},
        target,
        seed,
        path=path,
        split=split,
    )


def read_domain(file: Path) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """``X`` and ``y`` of one file."""
    x, y = read_arrays(file, "X", "y")
    return x, y


def read_arrays(file: Path, *names: str) -> list[NDArray[np.generic]]:
    """The named arrays of a file; arrays of Python objects are refused, since they are pickles."""
    try:
        readable_size(file)
        with ZipFile(file) as archive:
            held = {member.removesuffix(NPY): member for member in archive.namelist()}
            missing = [name for name in names if name not in held]
            if not missing:
                return [_read_array(archive, held[name]) for name in names]
    except MemoryError:
        raise
    except Exception as error:  # damaged archives raise whatever their decoders do
        example = ", ".join(f"{name}=..." for name in names)
        raise DataError(
            f"Expected {file.name!r} to be an .npz of plain arrays, but it cannot be read "
            f"({error}): save it again with np.savez(file, {example})."
        ) from error
    raise DataError(
        f"Expected arrays {_listed(names)} in {file.name!r}, but {_listed(missing)} is missing; "
        f"it has: {', '.join(map(repr, held)) or 'nothing'}."
    )


def _read_array(archive: ZipFile, member: str) -> NDArray[np.generic]:
    """One array, for which nothing is allocated before its header was found to be true."""
    with archive.open(member) as stream:
        read_header = HEADERS[np.lib.format.read_magic(stream)]
        shape, _, kind = read_header(stream)
        size, there = prod(shape) * kind.itemsize, archive.getinfo(member).file_size
        if kind.hasobject or min(shape, default=0) < 0 or size != there - stream.tell():
            raise ValueError(f"{member} claims {kind} of shape {shape}, which it does not hold")
        check_fits(size)
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(map(repr, names))
