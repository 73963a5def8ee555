"""Compare methods over settings and seeds; stop and go on at will.

A comparison is a folder: every cell (setting x method x seed) is an ordinary run with a folder of
its own, and ``comparison.json`` says what belongs together. What is finished stays, what was
interrupted goes on from its checkpoint, and a cell that fails does not stop the others.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbridge import methods as known_methods
from fedbridge.base.errors import OptionError
from fedbridge.base.files import to_json, write_atomically
from fedbridge.base.options import check_known, check_whole
from fedbridge.base.values import canonical, for_file
from fedbridge.data.load import check_weights
from fedbridge.data.protocols import entries
from fedbridge.federation.loop import PAUSE
from fedbridge.federation.settings import MANY, NAMES, split_options
from fedbridge.methods.controls import EQUAL_TRUST, FIXED_BETA
from fedbridge.report.result_tables import comparison_table
from fedbridge.report.tables import to_markdown
from fedbridge.runs.comparison import CellResult, Comparison, ComparisonFolder, variant_records
from fedbridge.runs.folder import RunFolder, fingerprint
from fedbridge.runs.lock import folder_lock
from fedbridge.runs.record import told_positive
from fedbridge.runs.variant import ROUNDS, Entry, Variant, variants_of
from fedbridge.workflows.cells import SCRATCH, Board, CellProgress, PlannedRun, run_one
from fedbridge.workflows.compared import (
    ALL,
    FILE,
    AnyTask,
    Setting,
    comparison_file,
    seeds_of,
    settings_of,
)
from fedbridge.workflows.option_values import check_values
from fedbridge.workflows.tracking import named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fedbridge.data.task import FederatedTask

MATCHED = "target-only-matched"
CONTROLS = ("source-only", "target-only", MATCHED)
"""Shown in every comparison: without them nobody can tell what a method owes to the sources."""
CONTROL_VARIANTS = tuple(map(Variant, CONTROLS))
DECIDE_A_STEP = (
    *("model", "lr", "lr_target", "batch_size", "batch_size_target", "epochs", "epochs_target"),
    *("steps", "steps_target", "optimizer", "momentum", "weight_decay", "class_weights", "warmup"),
    *("lr_factor", "buffers", "server_momentum", "early_stopping", "validation_fraction"),
)
"""Options of runs that decide how the target trains, which its control then does as well."""

ALONE = ("alone-logistic", "alone-forest")
"""Shown beside them unless switched off: what a user would try before joining anything."""
ALONE_VARIANTS = tuple(map(Variant, ALONE))


@dataclass(frozen=True)
class ComparisonPlan:
    """What is to be compared, checked when it is made."""

    settings: tuple[Setting, ...]
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    rounds: int
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        check_distinct("settings", [setting.label for setting in self.settings])
        check_distinct("seeds", self.seeds)
        check_whole("rounds", self.rounds, least=1, most=MANY)
        for variant in self.variants:
            _check_variant(variant)
        check_distinct("methods", self.methods)
        _check_different(self.variants)
        known = dict.fromkeys(known_options(self.variants))
        for options in (self.options, *(setting.run for setting in self.settings)):
            check_known(options, known, "the runs or of one of the methods")
        _check_folders(self.cells(Path()))

    @classmethod
    def of(
        cls,
        settings: Sequence[Setting],
        methods: str | Iterable[Entry] | Mapping[str, Entry],
        seeds: Sequence[int],
        rounds: int,
        options: Mapping[str, Any],
        *,
        alone: bool = True,
    ) -> ComparisonPlan:
        """The plan with the controls that every comparison shows."""
        controls = (*CONTROL_VARIANTS, *(ALONE_VARIANTS if alone else ()))
        compared = [v for v in every_variant(methods) if v not in controls]
        return cls(tuple(settings), (*controls, *compared), tuple(seeds), rounds, dict(options))

    @property
    def methods(self) -> tuple[str, ...]:
        """What the rows are called."""
        return tuple(variant.name for variant in self.variants)

    @property
    def matched_to(self) -> tuple[Variant, ...]:
        """The variants that take a shorter step of the target, which the control has to match.

        It can match one step: that of the first of them, and of those that do not differ from it
        in what decides a step.
        """
        usual = {"beta": self.options.get("beta", EQUAL_TRUST), ROUNDS: self.rounds}
        shorter = [variant for variant in self.variants if variant.method in FIXED_BETA]
        steps = [{**usual, **step_of(variant)} for variant in shorter]
        return tuple(v for v, step in zip(shorter, steps, strict=True) if step == steps[0])

    @property
    def control_note(self) -> str:
        """What the matched control is matched to, in words."""
        matched, apart = self.matched_to, self._apart()
        owes = "What a method gains over its control it owes to the sources."
        said = f"is the target alone at 1 - beta of its step, like {_listed(matched)}"
        if not matched:
            said = "is target-only here: no compared rule shortens the target's step"
        if not apart:
            return f"{MATCHED} {said}; target-only is the control of the other methods. {owes}"
        controls = [
            f"{Variant(MATCHED, {'match': variant.method, **step_of(variant)}).name} "
            f"matches {variant.name}"
            for variant in apart
        ]
        return (
            f"{MATCHED} {said}; target-only is the control of the other methods, except where the "
            f"target trains in a way of their own: {'; '.join(controls)}. {owes}"
        )

    def _apart(self) -> list[Variant]:
        """Variants whose step of the target neither control has."""
        plain = (*CONTROL_VARIANTS, *ALONE_VARIANTS, *self.matched_to)
        changed = {
            method
            for setting in self.settings
            for entry in entries(setting.protocol)
            if {*entry.run} & {*DECIDE_A_STEP}
            and entry.is_for(setting.task_name, setting.target or (*entry.targets, None)[0])
            for method in entry.methods
        }
        return [
            variant
            for variant in self.variants
            if variant not in plain
            and (variant.method in {*FIXED_BETA, *changed} or step_of(variant))
        ]

    def options_for(self, variant: Variant, setting: Setting | None = None) -> dict[str, Any]:
        """The options that this method has; the matched control is told whom to match."""
        has = (*NAMES, *known_methods.options_of(variant.method))
        every = {**self.options, **({} if setting is None else setting.run)}
        given = {name: value for name, value in every.items() if name in has}
        if variant == Variant(MATCHED):
            leader = (*self.matched_to, Variant("auto"))[0]
            step = {k: v for k, v in step_of(leader).items() if k != ROUNDS}
            given = {"match": leader.method, **given, **step}
        return {**given, **variant.of_run}

    def rounds_of(self, variant: Variant) -> int:
        """Rounds of its runs."""
        leads = self.matched_to if variant == Variant(MATCHED) else ()
        rounds: int = (*leads, variant)[0].options.get(ROUNDS, self.rounds)
        return rounds

    def cells(self, folder: Path | None) -> list[PlannedRun]:
        """All runs, setting by setting."""
        leader = (*self.matched_to, Variant("auto"))[0]
        return [
            PlannedRun(
                setting,
                variant,
                seed,
                self.rounds_of(variant),
                self.options_for(variant, setting),
                folder,
                f"-{leader.folder}" if variant == Variant(MATCHED) else "",
            )
            for setting, variant, seed in product(self.settings, self.variants, self.seeds)
        ]

    def to_json(self) -> dict[str, Any]:
        """The plan for a file."""
        plain: dict[str, Any] = json.loads(
            to_json(
                {
                    "settings": [setting.label for setting in self.settings],
                    "tasks": [setting.to_json() for setting in self.settings],
                    "methods": self.methods,
                    "seeds": self.seeds,
                    "rounds": self.rounds,
                    "options": for_file(self._kept_options),
                }
            )
        )
        return plain

    def to_toml(self, folder: Path) -> str | None:
        """The plan as a comparison file in ``folder``, if one can say it."""
        options = self._kept_options
        return comparison_file(
            self.settings,
            self.variants,
            self.seeds,
            self.rounds,
            options,
            folder,
            alone={*ALONE} <= {*self.methods},
        )

    @property
    def _kept_options(self) -> dict[str, Any]:
        """Those that a file says: the number of workers changes nothing."""
        return {name: value for name, value in self.options.items() if name != "workers"}


def compare(
    tasks: AnyTask | Mapping[str, Any] | Iterable[Any],
    methods: str | Iterable[Entry] | Mapping[str, Entry],
    seeds: int | Iterable[int] = 5,
    rounds: int = 50,
    out: str | Path | None = None,
    *,
    progress: CellProgress | None = None,
    alone: bool = True,
    track: str | Iterable[str] = (),
    **options: Any,
) -> Comparison:
    """Run every method on every task with every seed; controls are added.

    Args:
        tasks: the columns of the table: what ``load_task`` takes, a loaded task (the same rows for
            every seed), a pair ``(name, options)``, a record with ``task``, ``target`` (or
            ``targets``), ``options``, ``run`` and ``label``, or a list of these.
        methods: the rows of the table: names of ``fedbridge.methods.names()``, alone or with
            options, as ``"fedgp[beta=0.5]"`` or ``("fedgp", {"beta": 0.5})``, and one's own as
            ``run`` takes them; a mapping gives each a label; ``"all"`` is every method.
        seeds: how many, or which; each decides the split of the data and everything random in
            training.
        rounds: rounds of every run, where a method has no ``rounds`` of its own.
        out: folder of the comparison; one that was stopped goes on, and may grow by tasks,
            methods and seeds. None keeps nothing but what is returned.
        progress: told how far it is.
        alone: show the stand-alone baselines of scikit-learn too.
        track: names of trackers (``fedbridge.tracking``) that are told of every run.
        **options: options of the runs, of the methods (each gets those that it has) and of the
            tasks. ``workers`` says how many processes are used, one per core by default.

    Example:
        >>> found = compare("digits-noise", ["fedgp[beta=1]"], seeds=1, rounds=1, workers=1)
        >>> found.frame().method.tolist()[-1]
        'fedgp[beta=1]'
    """
    trackers = [tracker.name for tracker in named(track)]
    variants = every_variant(methods)
    known = known_options(variants)
    of_task = {name: value for name, value in options.items() if name not in known}
    of_run = {name: value for name, value in options.items() if name in known}
    settings = [setting.with_options(of_task) for setting in settings_of(tasks)]
    plan = ComparisonPlan.of(settings, variants, seeds_of(seeds), rounds, of_run, alone=alone)
    _check_first(plan)
    folder = None if out is None else ComparisonFolder(Path(out))
    if folder is not None:
        folder.claim({**plan.to_json(), "variants": variant_records(plan.variants)})
    board = _Board(plan, folder, progress, trackers)
    with nullcontext() if folder is None else folder_lock(folder.path):
        board.keep_finished()
        board.play_open()
    return board.comparison()


def every_variant(methods: str | Iterable[Entry] | Mapping[str, Entry]) -> list[Variant]:
    """The variants that a user means; ``all`` stands for every method."""
    every = list(map(Variant, known_methods.names()))
    found = [
        every if variant == Variant(ALL) else [_with_known_name(variant)]
        for variant in variants_of(_with_names(methods))
    ]
    return list(chain.from_iterable(found))


def _with_names(methods: Any) -> Any:
    """The entries of a list or a mapping with names for classes and functions of one's own."""
    if isinstance(methods, Mapping):
        return {label: _with_name(entry) for label, entry in methods.items()}
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        return [known_methods.known_as(methods)] if callable(methods) else methods
    return [_with_name(entry) for entry in methods]


def _with_name(entry: Any) -> Any:
    if callable(entry):
        return known_methods.known_as(entry)
    if isinstance(entry, tuple) and len(entry) == 2 and callable(entry[0]):
        return known_methods.known_as(entry[0]), entry[1]
    return entry


def _with_known_name(variant: Variant) -> Variant:
    return replace(variant, method=known_methods.known_as(variant.method))


def known_options(variants: Iterable[Variant]) -> set[str]:
    """The options of every run, and those of these methods."""
    own = [option for v in variants for option in known_methods.options_of(v.method)]
    return {*NAMES, *own}


class _Board(Board):
    """Where the cells of a comparison stand."""

    def __init__(
        self,
        plan: ComparisonPlan,
        folder: ComparisonFolder | None,
        progress: CellProgress | None,
        trackers: Sequence[str],
    ) -> None:
        path = None if folder is None else folder.path
        super().__init__(plan.cells(path), progress, None if path is None else path / SCRATCH)
        self.plan, self.folder, self.kept = plan, folder, 0
        self.trackers = trackers
        self.written = 0.0

    def comparison(self) -> Comparison:
        """The results so far."""
        return Comparison(
            tuple(setting.label for setting in self.plan.settings),
            self.plan.methods,
            self.plan.seeds,
            self.plan.rounds,
            tuple(
                self.results.get(index, cell.result(None)) for index, cell in enumerate(self.cells)
            ),
            self.plan.control_note,
            tuple(v.name for v in self.plan.variants if known_methods.is_bound(v.method)),
            self.kept,
            self.plan.variants,
        )

    def keep_finished(self) -> None:
        """Take over the runs that are finished and were made of the same data and options."""
        summaries = {k: s for k, s in enumerate(map(_summary, self.cells)) if s is not None}
        by_task: dict[tuple[str, int], list[int]] = {}
        for index in summaries:
            cell = self.cells[index]
            by_task.setdefault((cell.setting.label, cell.seed), []).append(index)
        for indices in by_task.values():
            first = self.cells[indices[0]]
            task = first.setting.load(first.seed)
            checksum = fingerprint(task)
            for index in indices:
                if _is_same_run(self.cells[index], task, checksum):
                    self.results[index] = self.cells[index].result(summaries[index])
        self.kept = len(self.results)
        self._write()
        text = None if self.folder is None else self.plan.to_toml(self.folder.path)
        if self.folder is not None and text is not None:
            write_atomically(self.folder.path / FILE, text)

    def play_open(self) -> None:
        """Run the other cells."""
        waiting = [index for index in range(len(self.cells)) if index not in self.results]
        try:
            self.play(waiting, self.plan.options, partial(run_one, track=self.trackers))
        finally:
            self._write()
        if self.folder is not None:
            table = to_markdown(comparison_table(self.comparison()))
            write_atomically(self.folder.path / "table.md", table)

    def finish(self, index: int, result: CellResult) -> None:
        """Take a result and write it down, but not all results again many times a second."""
        super().finish(index, result)
        if time.monotonic() >= self.written + PAUSE:
            self._write()

    def _write(self) -> None:
        if self.folder is not None:
            self.folder.write(self.plan.to_json(), self.comparison())
            self.written = time.monotonic()


def _check_variant(variant: Variant) -> None:
    """Refuse options that the method does not have, and a label that means something else."""
    own = known_methods.options_of(variant.method)
    if "protocol" in variant.options:
        raise OptionError(
            f"Expected options of runs and methods for {variant.name!r}, but a protocol also "
            f"decides what is loaded: give it to the task, or compare both as columns "
            f"(--vary protocol=fair,paper)."
        )
    known = (ROUNDS, *(name for name in NAMES if name != "workers"), *own)
    check_known(variant.options, known, f"the runs or of method {variant.method!r}")
    if ROUNDS in variant.options:
        with _about(variant):
            check_whole(ROUNDS, variant.options[ROUNDS], least=1, most=MANY)
    if variant.label in known_methods.names():
        raise OptionError(
            f"Expected a label of its own for {variant.method!r}, but {variant.label!r} is the "
            f"name of another method: choose another."
        )


def _check_first(plan: ComparisonPlan) -> None:
    """Load one task and check all options before any cell runs: mistakes show at once."""
    for setting, variant in product(plan.settings, plan.variants):
        if isinstance(setting.task, str):
            model = plan.options_for(variant, setting).get("model")
            check_weights(setting.task, model, setting.options)
    task = plan.settings[0].load(plan.seeds[0])
    loaded = _data(plan.settings[0])
    named_first = sorted(plan.variants, key=lambda variant: not variant.options)
    for setting, variant in product(plan.settings, named_first):
        given, own = plan.options_for(variant, setting), known_methods.options_of(variant.method)
        with _about(variant):
            usual = known_methods.usual_options(variant.method, task, given)
            settings, of_method = split_options(given, variant.method, own, usual, task.model)
            if of_method and _data(setting) == loaded:
                check_values(variant.method, of_method, task, settings)


def _data(setting: Setting) -> tuple[object, ...]:
    return setting.task, setting.target, setting.options


@contextmanager
def _about(variant: Variant) -> Iterator[None]:
    """Errors about options say of which variant they are."""
    try:
        yield
    except OptionError as error:
        if not variant.options:
            raise
        raise type(error)(f"{variant.name}: {error}") from error


def step_of(variant: Variant) -> dict[str, Any]:
    """The options of a variant that decide the target's step, which a control can have too."""
    known = (ROUNDS, *DECIDE_A_STEP, *known_methods.options_of(MATCHED))
    return {name: value for name, value in variant.options.items() if name in known}


def _listed(variants: Sequence[Variant]) -> str:
    return " and ".join(variant.name for variant in variants)


def _check_different(variants: Sequence[Variant]) -> None:
    for place, variant in enumerate(variants):
        for other in variants[:place]:
            if replace(other, label=variant.label) == variant:
                raise OptionError(
                    f"Expected different `methods`, but {other.name!r} and {variant.name!r} are "
                    f"the same: leave one out."
                )


def _check_folders(cells: Sequence[PlannedRun]) -> None:
    counted = Counter(cell.folder for cell in cells)
    for folder, count in counted.items():
        if folder is not None and count > 1:
            raise OptionError(
                f"Expected a folder for every run, but {folder.name!r} would be that of {count}: "
                f"give their settings or methods other labels."
            )


def check_distinct(what: str, values: Sequence[object]) -> None:
    """Refuse an empty list and one with something twice."""
    if not values:
        raise OptionError(f"Expected at least one of `{what}`, but got none.")
    repeated = sorted({str(value) for value in values if values.count(value) > 1})
    if repeated:
        raise OptionError(f"Expected different `{what}`, but got {', '.join(repeated)} twice.")


def _summary(cell: PlannedRun) -> dict[str, Any] | None:
    return None if cell.folder is None else RunFolder(cell.folder).summary(whole=True)


def _is_same_run(cell: PlannedRun, task: FederatedTask, data_sha256: str) -> bool:
    """Whether the cell's folder holds the run that the cell would be now."""
    assert cell.folder is not None
    config = RunFolder(cell.folder).config(whole=True)
    settings, own = split_options(
        cell.options,
        cell.method,
        known_methods.options_of(cell.method),
        known_methods.usual_options(cell.method, task, cell.options),
        task.model,
    )
    now = {k: v for k, v in settings.to_json().items() if k != "workers" and v is not None}
    return (
        config is not None
        and config["method"] == cell.method
        and config["options"] == {k: v for k, v in canonical(own).items() if v is not None}
        and config["rounds"] == cell.rounds
        and config["data_sha256"] == data_sha256
        and told_positive(config, task) == task.positive_name
        and config["settings"] == json.loads(to_json(now))
        and config["model"]["name"] == (settings.model_name or task.model)
    )
