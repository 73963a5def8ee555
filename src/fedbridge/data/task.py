"""What a federation trains on: the sources, the target, the target's test split.

A task packs every site's role with its data, so that nothing downstream can mistake a test row
for a training row, or see target rows that a method has no right to. A task is checked when it
is made: whoever holds one may rely on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from fedbridge.base.errors import (
    DataError,
    NonFiniteError,
    OneClassError,
    OptionError,
    ShapeError,
    TargetNeededError,
    UnknownTargetError,
    nearest,
)
from fedbridge.base.text import block
from fedbridge.data.labels import AS_THEY_ARE, Scale
from fedbridge.data.rows import take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fedbridge.data.images.preprocessing import ImagePreprocessing
    from fedbridge.data.preparing import Prepare
    from fedbridge.data.rows import Features
    from fedbridge.data.tables.preprocessing import Preprocessing

MOST_NAMES = 6
"""Names of sites, classes or columns that are listed when a task is shown."""
SHIFTED_TARGET = "target"
"""What tasks that shift one client call this client."""


@dataclass(frozen=True, eq=False, repr=False)
class Site:
    """One client's training data, or a test set.

    Attributes:
        name: The client, as messages and tables show it.
        x: The rows ``(n, ...)`` in any dtype; images may stay ``uint8``, and many of them on disk:
            such ``StoredRows`` are read by their index, a batch at a time.
        y: Class indices ``(n,)`` as int64, or regression values ``(n,)`` or ``(n, k)`` as float32.
        prepare: Applied to every batch of ``x`` on its device: turns ``uint8`` into floats, draws
            noise anew. Must be picklable (a frozen dataclass with ``__call__``, or a ``Drawing``
            of ``preparing``), because worker processes receive it. ``None`` leaves batches as they
            are.
        scale: What numbers in ``y`` stand for; measures are of what they stand for.
    """

    name: str
    x: Features
    y: Tensor
    prepare: Prepare | None = None
    scale: Scale = field(default=AS_THEY_ARE, kw_only=True)

    def __post_init__(self) -> None:
        check_lengths(len(self.x), len(self.y), self.name)
        if isinstance(self.x, Tensor):  # those on disk are images, or features of them: finite
            check_finite(self.x, self.name, "features")
        check_finite(self.y, self.name, "labels")

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        """Name and size, never rows."""
        return f"<{type(self).__name__} {self.name!r}: {len(self)} rows>"

    def select(self, rows: Tensor) -> Site:
        """The site with some of its rows, which are not read if they are on disk."""
        return replace(self, x=take(self.x, rows), y=self.y[rows])


@dataclass(frozen=True, eq=False, repr=False)
class FederatedTask:
    """Sources and one target that train together, and the target's test split.

    Attributes:
        name: What the task is called.
        sources: The data-rich sites.
        target: The target's *labelled* training rows, and no others.
        test: The target's test split; no training ever sees it.
        n_classes: Number of classes; ``None`` means regression.
        unlabelled: Target rows without labels, for methods that declare that they need them.
            They go through ``target.prepare`` like the target's other rows.
        target_pool: All training rows of the target with labels, for the oracle bound only;
            ``None`` when ``target`` already holds them all.
        class_names: The labels as the data spell them, by class index.
        positive: Index of the class, of two, that sensitivity, ROC curve and calibration are of: a
            matter of what is reported, never of what is trained.
        model: Name of the model used unless the run names another.
        defaults: Run options (``lr``, ``epochs``, ``batch_size``, ...) that suit this task.
        of_methods: Run and method options that suit some methods on this task, by their name.
        protocol: Whose settings these are; see ``fedbridge.data.protocols``.
        manifest: Which rows are where, ready for JSON; saved with each run.
        preprocessing: What ``predict`` needs to treat new rows or images as these were treated.
        notes: What the loader did, in plain words, printed before training.
        one_class: Whether labelled target rows of one class only are meant, as in a published
            split; otherwise they are refused.
    """

    name: str
    sources: tuple[Site, ...]
    target: Site
    test: Site
    n_classes: int | None
    unlabelled: Features | None = None
    target_pool: Site | None = None
    class_names: tuple[str, ...] | None = None
    positive: int = 1
    model: str = "mlp"
    defaults: Mapping[str, object] = field(default_factory=dict)
    of_methods: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    protocol: str = "fair"
    manifest: Mapping[str, object] = field(default_factory=dict)
    preprocessing: Preprocessing | ImagePreprocessing | None = None
    notes: tuple[str, ...] = ()
    one_class: bool = False
    needs_source: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.needs_source and not self.sources:
            raise DataError(
                f"Expected at least one source beside the target {self.target.name!r}, but got "
                f"none: a federation needs a partner."
            )
        names = [*self.source_names, self.target.name]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise DataError(f"Expected every site to have its own name, but got {repeated} twice.")
        self._check_shapes()
        for site in self._labelled_sites():
            self._check_labels(site)
        if self.n_classes is not None and not self.one_class:
            check_target_classes(self.target, self.class_names)

    def __repr__(self) -> str:
        """Five lines, and no rows."""
        target, test = self.target, self.test
        loose = 0 if self.unlabelled is None else len(self.unlabelled)
        more = f", {loose} without a label" if loose else ""
        listed = [f"{site.name} ({len(site)})" for site in self.sources[:MOST_NAMES]]
        listed += [f"{len(self.sources) - MOST_NAMES} more"] * (len(self.sources) > MOST_NAMES)
        return block(
            f"{self.name}: {self._predicted()}",
            f"target: {target.name}, {len(target)} labelled rows{more}, {len(test)} to test",
            f"sources: {', '.join(listed)}",
            f"samples: shape {self.input_shape}{self._columns()}",
            f"model: {self.model}; {len(self.notes)} notes in .notes",
        )

    def _predicted(self) -> str:
        if self.n_classes is None:
            return f"regression, {self.outputs} value{'s' * (self.outputs != 1)}"
        names = self.class_names or tuple(map(str, range(self.n_classes)))
        shown = ", ".join(map(repr, names[:MOST_NAMES])) + ", ..." * (len(names) > MOST_NAMES)
        positive = "" if self.positive_name is None else f", positive {self.positive_name!r}"
        return f"{self.n_classes} classes ({shown}{positive})"

    def _columns(self) -> str:
        names = [column.name for column in getattr(self.preprocessing, "columns", ())]
        shown = ", ".join(names[:MOST_NAMES]) + ", ..." * (len(names) > MOST_NAMES)
        return f" from {len(names)} columns: {shown}" if names else ""

    def defaults_for(self, method: str) -> dict[str, object]:
        """Options of a run with this method unless it is given others."""
        return {**self.defaults, **self.of_methods.get(method, {})}

    @classmethod
    def from_arrays(
        cls,
        sources: Mapping[str, tuple[object, object]] | Sequence[tuple[object, object]],
        target: tuple[object, object],
        test: tuple[object, object] | None = None,
        *,
        name: str = "arrays",
        seed: int = 0,
        n_target: int | None = None,
        target_fraction: float | None = None,
        unlabelled: object | None = None,
        target_name: str = "target",
        class_names: Sequence[str] | None = None,
        positive: object = None,
    ) -> FederatedTask:
        """A task from numpy arrays, torch tensors or nested lists.

        Labels of any whole numbers or strings become class indices, the same at all sites;
        labels that are floats mean regression.

        Args:
            sources: ``{"A": (X, y), ...}``, or a list of such pairs.
            target: The target's ``(X, y)``.
            test: Its test set ``(X, y)``; without one, 30% of the target's rows are set aside,
                stratified by class.
            name: What to call the task.
            seed: Decides every random choice of rows.
            n_target: How many of the target's training rows keep their label; the others become
                ``unlabelled``.
            target_fraction: The same, as a fraction in (0, 1].
            unlabelled: More target rows, which never had a label.
            target_name: What to call the target.
            class_names: Names in the order of the class indices; then whole-number labels are
                taken as these indices.
            positive: The label, of two, that sensitivity, ROC curve and calibration are of; by
                default the second.
        """
        from fedbridge.data.arrays import task_from_arrays
        from fedbridge.data.split import TEST_FRACTION, SplitOptions

        task = task_from_arrays(
            sources,
            target,
            test,
            name=name,
            seed=seed,
            split=SplitOptions(n_target, target_fraction, TEST_FRACTION),
            unlabelled=unlabelled,
            target_name=target_name,
            class_names=class_names,
        )
        return task if positive is None else with_positive(task, positive)

    def with_training(self, change: Callable[[Site], Site]) -> FederatedTask:
        """The task with every site that trains changed; the test set stays as it is."""
        pool = self.target_pool
        return replace(
            self,
            sources=tuple(map(change, self.sources)),
            target=change(self.target),
            target_pool=None if pool is None else change(pool),
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.target.x.shape[1:])

    @property
    def in_pixels(self) -> bool:
        """Whether samples are images of bytes, of which a model gets 255ths."""
        return self.target.x.dtype == torch.uint8

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of one label: ``()`` for a class or a single value."""
        return tuple(self.target.y.shape[1:])

    @property
    def kind(self) -> Literal["classification", "regression"]:
        """Whether labels are classes or values."""
        return "regression" if self.n_classes is None else "classification"

    @property
    def outputs(self) -> int:
        """How many numbers the model must return per sample."""
        if self.n_classes is not None:
            return self.n_classes
        return self.label_shape[0] if self.label_shape else 1

    @property
    def positive_name(self) -> str | None:
        """What the positive of two classes is called; None where there are not two."""
        if self.n_classes != 2:
            return None
        return (self.class_names or ("0", "1"))[self.positive]

    @property
    def source_names(self) -> tuple[str, ...]:
        """The sources' names, in order."""
        return tuple(site.name for site in self.sources)

    def two_samples(self) -> Tensor:
        """A batch of two samples as a model receives it, to try one out."""
        site = self.target
        one = site.x[:1] if len(site.x) else torch.zeros(1, *self.input_shape)
        samples = one.repeat(2, *(1 for _ in self.input_shape))
        if site.prepare is None:
            return samples
        return site.prepare(samples, torch.Generator().manual_seed(0))

    def unlabelled_site(self) -> Site | None:
        """The target's rows without labels as a site, whose labels say nothing; None for none."""
        if self.unlabelled is None:
            return None
        own = self.target
        nothing = own.y[:1].repeat(len(self.unlabelled), *(1 for _ in own.y.shape[1:])) * 0
        return replace(own, name=_unlabelled(own.name), x=self.unlabelled, y=nothing)

    def _labelled_sites(self) -> tuple[Site, ...]:
        pool = () if self.target_pool is None else (self.target_pool,)
        return (*self.sources, self.target, self.test, *pool)

    def _check_shapes(self) -> None:
        shapes = {site.name: tuple(site.x.shape[1:]) for site in self._labelled_sites()}
        if self.unlabelled is not None:
            shapes["unlabelled"] = tuple(self.unlabelled.shape[1:])
        if len(set(shapes.values())) > 1:
            listed = "; ".join(f"{name}: {shape}" for name, shape in shapes.items())
            raise ShapeError(f"Expected samples of one shape at all sites, but got {listed}.")

    def _check_labels(self, site: Site) -> None:
        if self.n_classes is None:
            if not site.y.is_floating_point() or site.y.shape[1:] != self.target.y.shape[1:]:
                raise ShapeError(
                    f"Expected regression labels of shape (n, {self.outputs}) or (n,) as floats "
                    f"at all sites, but site {site.name!r} has {site.y.dtype} of shape "
                    f"{tuple(site.y.shape)}."
                )
            return
        if site.y.dtype != torch.int64 or site.y.ndim != 1:
            raise ShapeError(
                f"Expected class indices of shape (n,) as int64, but site {site.name!r} has "
                f"{site.y.dtype} of shape {tuple(site.y.shape)}."
            )
        low, high = int(site.y.min()), int(site.y.max())
        if low < 0 or high >= self.n_classes:
            raise DataError(
                f"Expected labels from 0 to {self.n_classes - 1}, but site {site.name!r} has "
                f"{low if low < 0 else high}."
            )


@dataclass(frozen=True, eq=False, repr=False)
class DistantSite(Site):
    """A site known by name, size and shape only: ``x`` and ``y`` are empty.

    Attributes:
        samples: how many rows it says it has.
    """

    samples: int = 0

    def __post_init__(self) -> None:
        """Nothing to check: there are no rows here."""

    def __len__(self) -> int:
        return self.samples


@dataclass(frozen=True, eq=False, repr=False)
class DistantTask(FederatedTask):
    """A task of which some sites, or all, are elsewhere.

    Over a network nobody holds the whole task. The coordinator knows names, sample counts and
    shapes; a site knows its own rows as well. Both work with the same interface, in which the rows
    of the others are simply not there.

    Attributes:
        n_unlabelled: how many rows without labels the target says that it has.
    """

    n_unlabelled: int = 0

    def unlabelled_site(self) -> Site | None:
        """The target's rows without labels, or what is known of them."""
        if self.unlabelled is not None or not self.n_unlabelled:
            return super().unlabelled_site()
        own = self.target
        name, shape = _unlabelled(own.name), own.x.shape[1:]
        return distant_site(
            name, self.n_unlabelled, shape, n_classes=self.n_classes, outputs=self.outputs
        )

    def __post_init__(self) -> None:
        """What can be checked without rows; each site checks its own."""
        names = [self.target.name, *self.source_names]
        if len(names) < 2 or len(set(names)) < len(names):
            raise DataError(
                f"Expected a target and at least one source, each with its own name, but got "
                f"{', '.join(names)}."
            )


@dataclass(frozen=True, eq=False, repr=False)
class UntestedTask(FederatedTask):
    """A task of which every row trains: somebody else tests what comes out.

    ``test`` is a site without rows (``distant_site``), so nothing is measured. There may be no
    source either, for methods that need none.
    """

    needs_source: ClassVar[bool] = False

    def _labelled_sites(self) -> tuple[Site, ...]:
        return (*self.sources, self.target)


def _unlabelled(target: str) -> str:
    return f"{target} (unlabelled)"


def distant_site(
    name: str, samples: int, input_shape: Sequence[int], *, n_classes: int | None, outputs: int = 1
) -> DistantSite:
    """A site that is elsewhere."""
    if n_classes is not None:
        y = torch.empty(0, dtype=torch.int64)
    else:
        y = torch.empty(0) if outputs == 1 else torch.empty(0, outputs)
    return DistantSite(name, torch.empty(0, *input_shape), y, None, samples)


def check_lengths(n_rows: int, n_labels: int, site: str) -> None:
    """Refuse a site without rows, or with more or fewer labels than rows."""
    if n_rows != n_labels:
        raise ShapeError(
            f"Expected one label per row, but site {site!r} has {n_rows} rows and {n_labels} "
            f"labels."
        )
    if n_rows == 0:
        raise DataError(
            f"Expected every site to have rows, but site {site!r} has none: leave it out or check "
            f"how its rows are selected."
        )


def check_target_classes(target: Site, class_names: Sequence[str] | None) -> None:
    """Refuse a target whose labelled rows all have one class: it could learn nothing else."""
    if bool((target.y != target.y[0]).any()):
        return
    index = int(target.y[0])
    name = str(index) if class_names is None else class_names[index]
    raise OneClassError(
        f"Expected at least two classes at the target {target.name!r}, but its {len(target)} "
        f"labelled rows all have class {name!r}: label some rows of another class, or raise "
        f"n_target."
    )


def check_finite(values: Tensor, site: str, what: str) -> None:
    """Refuse NaN and Inf in features or labels, naming the site and the first such row."""
    if not values.is_floating_point():
        return
    bad = ~values.reshape(len(values), -1).isfinite().all(dim=1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise NonFiniteError(
            f"Expected finite {what}, but {int(bad.sum())} of {len(values)} rows of site {site!r} "
            f"hold NaN or Inf, first row {row} (from 0): impute or remove them."
        )


def check_target_name(target: str | None, sites: Iterable[str]) -> str:
    """The site that the user means by ``target``; own data have no target of their own.

    Where only one site can be meant, case, spaces and dashes do not matter, and signs may be words:
    ``real-world`` is ``Real World``, and ``minus90``, which a shell likes better, is ``-90%``.
    """
    names = list(sites)
    listed = ", ".join(map(repr, names))
    if target is None:
        raise TargetNeededError(
            f"Expected `target` to name the site that adapts: one of {listed}.", names
        )
    found = _meant(str(target), names)
    if found is None:
        raise UnknownTargetError(
            f"Expected `target` to be a site, but got {target!r}.{nearest(str(target), names)} "
            f"Sites: {listed}."
        )
    return found


def chosen_sources(
    sources: Sequence[str], target: str | None, keep: object = None, leave_out: object = None
) -> list[str]:
    """The sources to use, in their own order: those of ``keep``, without those of ``leave_out``.

    Either is a list of names, or text with commas between them; names are understood as those of
    targets are. Without a ``target`` (nobody has said yet who that is) all sites are ``sources``.
    """
    if target is None and leave_out is None:
        return list(sources)
    kept = list(sources) if keep is None else _named_sources("sources", keep, sources, target)
    if leave_out is None:
        return [name for name in sources if name in kept]
    gone = _named_sources("exclude_sites", leave_out, sources, target)
    left = [name for name in sources if name in kept and name not in gone]
    if not left:
        raise OptionError(
            f"Expected `exclude_sites` to leave at least one source, but it leaves none. Sources: "
            f"{', '.join(map(repr, sources))}."
        )
    return left


def _named_sources(
    option: str, which: object, sources: Sequence[str], target: str | None
) -> list[str]:
    """The sources that an option names, each once."""
    listed = f"Sources: {', '.join(map(repr, sources))}."
    if isinstance(which, str):
        parts = (part.strip() for part in which.split(","))
        asked = [which] if _meant(which, sources) else [part for part in parts if part]
    elif isinstance(which, list | tuple):
        asked = [str(name) for name in which]
    elif type(which) is int:
        asked = [str(which)]
    else:
        raise OptionError(f"Expected `{option}` to be a list of names, but got {which!r}. {listed}")
    if not asked:
        raise OptionError(
            f"Expected `{option}` to name at least one source, but got none. {listed}"
        )
    named: list[str] = []
    for name in asked:
        found = _meant(name, sources)
        if found is None and target is not None and _meant(name, [target]):
            raise OptionError(
                f"Expected `{option}` other than the target, but got {name!r}, which is the target "
                f"itself. {listed}"
            )
        if found is None:
            raise OptionError(
                f"Expected `{option}` to name sources of the task, but got {name!r}."
                f"{nearest(name, sources)} {listed}"
            )
        if found in named:
            raise OptionError(f"Expected every source in `{option}` once, but got {found!r} twice.")
        named.append(found)
    return named


def keep_sources(
    task: FederatedTask, which: object = None, leave_out: object = None
) -> FederatedTask:
    """The task with only the sources that are asked for; all else stays as it was."""
    kept = chosen_sources(task.source_names, task.target.name, which, leave_out)
    gone = [name for name in task.source_names if name not in kept]
    rows = task.manifest.get("sources")
    manifest = dict(task.manifest)
    if isinstance(rows, dict):
        manifest["sources"] = {name: own for name, own in rows.items() if name in kept}
    about_them = tuple(f"site {name!r}" for name in gone)
    notes = [note for note in task.notes if not note.startswith(about_them)]
    return replace(
        task,
        sources=tuple(site for site in task.sources if site.name in kept),
        manifest=manifest,
        notes=(*notes, *left_out_notes(gone)),
    )


def left_out_notes(sites: Sequence[str]) -> list[str]:
    """Which sites have no part in the task, if there are any."""
    return [f"left out of the sources: {', '.join(map(repr, sites))}"] if sites else []


def with_positive(task: FederatedTask, label: object) -> FederatedTask:
    """The task with measures of this class, of two; its rows stay as they are."""
    names = (task.class_names or ("0", "1")) if task.n_classes == 2 else ()
    found = class_called(label, names, f"task {task.name!r}", task.n_classes)
    note = f"positive class: {names[found]!r}"
    return replace(task, positive=found, notes=(*task.notes, note))


def class_called(
    label: object, names: Sequence[str], whose: str, n_classes: int | None = None
) -> int:
    """Number of the class, of two, that is called so."""
    if len(names) != 2:
        many = len(names) or n_classes
        found = "values to predict" if not many else f"{many} classes"
        raise OptionError(
            f"Expected two classes, one of which is `positive`, but {whose} has {found}: leave it "
            f"out."
        )
    meant = _meant(str(label), names)
    if meant is None:
        raise OptionError(
            f"Expected `positive` to be one of the labels {', '.join(map(repr, names))}, but got "
            f"{label!r}.{nearest(str(label), names)}"
        )
    return names.index(meant)


def _meant(name: str, names: Iterable[str]) -> str | None:
    """The one of some names that a user means; None if there is none, or more than one."""
    known = list(names)
    if name in known:
        return name
    alike = [other for other in known if _plain_name(other) == _plain_name(name)]
    return alike[0] if len(alike) == 1 else None


def check_shifted_target(target: str | None) -> None:
    """Refuse any target but the shifted client, for tasks that are made with one target."""
    if target not in (None, SHIFTED_TARGET):
        raise UnknownTargetError(
            f"Expected the target {SHIFTED_TARGET!r}, the shifted client, but got {target!r}: "
            f"leave `target` out."
        )


def _plain_name(name: str) -> str:
    """Letters and digits of a name in lower case, behind the word for a sign at its front."""
    sign = {"+": "plus", "-": "minus"}.get(name[:1], "")
    return sign + "".join(filter(str.isalnum, name.casefold()))


def check_is_task(task: object) -> None:
    """Refuse what is neither a task nor what one can be loaded from."""
    if not isinstance(task, str | Path | FederatedTask):
        raise OptionError(
            f"Expected a task, or what load_task takes (a name or a path), but got "
            f"{type(task).__name__}: make one with fedbridge.load_task or "
            f"FederatedTask.from_arrays."
        )
