"""Compare methods over settings and seeds; stop and go on at will.

A comparison is a folder: every cell (setting x method x seed) is an ordinary run with a folder of
its own, and ``comparison.json`` says what belongs together. What is finished stays, what was
interrupted goes on from its checkpoint, and a cell that fails does not stop the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbridge import methods as known_methods
from fedbridge.base.errors import FedbridgeError, OptionError
from fedbridge.base.files import file_name, to_json, write_atomically
from fedbridge.base.options import check_known, check_whole
from fedbridge.base.processes import Event, Tell, core_count, work_in_processes
from fedbridge.core import rules
from fedbridge.data.load import load_task
from fedbridge.federation.needs import UnmetNeedError
from fedbridge.federation.settings import MANY, NAMES, split_options
from fedbridge.methods.controls import FIXED_BETA
from fedbridge.report.result_tables import comparison_table
from fedbridge.report.tables import to_markdown
from fedbridge.runs.comparison import CellResult, Comparison, ComparisonFolder
from fedbridge.runs.folder import RunFolder, fingerprint
from fedbridge.runs.lock import folder_lock
from fedbridge.workflows.run import run

if TYPE_CHECKING:
    from fedbridge.data.task import FederatedTask

MATCHED = "target-only-matched"
CONTROLS = ("source-only", "target-only", MATCHED)
"""Shown in every comparison: without them nobody can tell what a method owes to the sources."""

ALONE = ("alone-logistic", "alone-forest")
"""Shown beside them unless switched off: what a user would try before joining anything."""

CellProgress = Callable[[float, int, str], object]
"""Called with the cells done so far (a running one counts in part), all cells, and which ran."""


@dataclass(frozen=True)
class Setting:
    """A task as a column of the table: how to load it for a seed, and what to call it.

    Attributes:
        label: the column's heading.
        task: a name or path, as ``load_task`` takes it.
        target: the site that adapts; None for the task's own.
        options: options of the task.
        run: options of its runs, which go before those of the comparison.
    """

    label: str
    task: str
    target: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    def load(self, seed: int) -> FederatedTask:
        """The task for a seed."""
        return load_task(self.task, self.target, seed, **self.options)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison, which lies in ``within``."""

    setting: Setting
    method: str
    seed: int
    rounds: int
    options: Mapping[str, Any]
    within: Path | None

    @property
    def name(self) -> str:
        """What to call the run in messages and in the file system."""
        of = f"-{self.options['match']}" if self.method == MATCHED else ""
        return f"{self.setting.label}-{self.method}{of}-{self.seed}"

    @property
    def folder(self) -> Path | None:
        """Where it is kept."""
        return None if self.within is None else self.within / "cells" / file_name(self.name)

    def result(
        self, summary: Mapping[str, Any] | None, error: str | None = None, *, unmet: bool = False
    ) -> CellResult:
        """What became of it."""
        folder = None if self.folder is None else f"cells/{self.folder.name}"
        return CellResult(self.setting.label, self.method, self.seed, folder, summary, error, unmet)


@dataclass(frozen=True)
class ComparisonPlan:
    """What is to be compared, checked when it is made."""

    settings: tuple[Setting, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: int
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        _check_distinct("settings", [setting.label for setting in self.settings])
        _check_distinct("methods", self.methods)
        _check_distinct("seeds", self.seeds)
        check_whole("rounds", self.rounds, least=1, most=MANY)
        of_methods = [name for m in self.methods for name in known_methods.options_of(m)]
        known = dict.fromkeys([*NAMES, *of_methods])
        for options in (self.options, *(setting.run for setting in self.settings)):
            check_known(options, known, "the runs or of one of the methods")

    @classmethod
    def of(
        cls,
        settings: Sequence[Setting],
        methods: Sequence[str],
        seeds: Sequence[int],
        rounds: int,
        options: Mapping[str, Any],
        *,
        alone: bool = True,
    ) -> ComparisonPlan:
        """The plan with the controls that every comparison shows."""
        controls = (*CONTROLS, *(ALONE if alone else ()))
        compared = [name for name in methods if name not in controls]
        return cls(tuple(settings), (*controls, *compared), tuple(seeds), rounds, dict(options))

    @property
    def matched_to(self) -> tuple[str, ...]:
        """The methods that take a shorter step of the target, which the control has to match."""
        return tuple(name for name in self.methods if name in FIXED_BETA)

    @property
    def control_note(self) -> str:
        """What the matched control is matched to, in words."""
        if not self.matched_to:
            return (
                f"{MATCHED} is target-only here: the compared methods take the target's whole "
                f"step, with the same batch size and warm start."
            )
        return (
            f"{MATCHED} is the target alone at 1 - beta of its step, like "
            f"{' and '.join(self.matched_to)}; for the other methods target-only is the matched "
            f"control. What a method gains over its control it owes to the sources."
        )

    def options_for(self, method: str, setting: Setting | None = None) -> dict[str, Any]:
        """The options that this method has; the matched control is told whom to match."""
        own = known_methods.options_of(method)
        every = {**self.options, **({} if setting is None else setting.run)}
        given = {k: v for k, v in every.items() if k in NAMES or k in own}
        if method == MATCHED:
            given = {"match": (*self.matched_to, "auto")[0], **given}
        return given

    def cells(self, folder: Path | None) -> list[PlannedRun]:
        """All runs, setting by setting."""
        return [
            PlannedRun(
                setting, method, seed, self.rounds, self.options_for(method, setting), folder
            )
            for setting, method, seed in product(self.settings, self.methods, self.seeds)
        ]

    def to_json(self) -> dict[str, Any]:
        """The plan for a file."""
        plain: dict[str, Any] = json.loads(
            to_json(
                {
                    "settings": [setting.label for setting in self.settings],
                    "tasks": [_plain(setting) for setting in self.settings],
                    "methods": self.methods,
                    "seeds": self.seeds,
                    "rounds": self.rounds,
                    "options": {k: v for k, v in self.options.items() if k != "workers"},
                }
            )
        )
        return plain


def compare(
    settings: Sequence[Setting],
    methods: Sequence[str],
    seeds: Sequence[int],
    rounds: int = 50,
    out: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    progress: CellProgress | None = None,
    *,
    alone: bool = True,
) -> Comparison:
    """Run every method in every setting with every seed; controls are added.

    Args:
        settings: the columns of the table.
        methods: names of ``fedbridge.methods.names()``, the rows of the table.
        seeds: each decides the split of the data and everything random in training.
        rounds: rounds of every run.
        out: folder of the comparison; one that was stopped goes on, and may grow by settings,
            methods and seeds. None keeps nothing.
        options: options of the runs and of the methods; each method gets those that it has.
            ``workers`` says how many processes are used, one per core by default.
        progress: told how far it is.
        alone: show the stand-alone baselines of scikit-learn too.
    """
    plan = ComparisonPlan.of(settings, methods, seeds, rounds, options or {}, alone=alone)
    _check_first(plan)
    folder = None if out is None else ComparisonFolder(Path(out))
    if folder is not None:
        folder.claim(plan.to_json())
    board = _Board(plan, folder, plan.cells(None if folder is None else folder.path), progress)
    with nullcontext() if folder is None else folder_lock(folder.path):
        board.keep_finished()
        board.play_open()
    return board.comparison()


@dataclass
class _Board:
    """Where the cells of a comparison stand."""

    plan: ComparisonPlan
    folder: ComparisonFolder | None
    cells: Sequence[PlannedRun]
    progress: CellProgress | None
    results: dict[int, CellResult] = field(default_factory=dict)
    under_way: dict[int, float] = field(default_factory=dict)
    kept: int = 0

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
            tuple(filter(known_methods.is_bound, self.plan.methods)),
            self.kept,
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

    def play_open(self) -> None:
        """Run the other cells, several at once if there are enough of them."""
        # Methods that are more than a rule take longest: they start first.
        waiting = [index for index in range(len(self.cells)) if index not in self.results]
        waiting.sort(key=lambda index: self.cells[index].method in rules.names())
        processes = _processes(self.plan.options)
        if processes > 1 and len(waiting) >= processes:
            cells = [self.cells[index] for index in waiting]
            with closing(work_in_processes(_run_alone, cells, processes)) as events:
                for event in events:
                    self._note(waiting[event.item], event)
        else:
            for number in waiting:
                told = partial(self._told, number)
                self._finish(number, run_one(self.cells[number], told))
        self._write()
        if self.folder is not None:
            table = to_markdown(comparison_table(self.comparison()))
            write_atomically(self.folder.path / "table.md", table)

    def _note(self, index: int, event: Event) -> None:
        if event.kind == "told":
            self._told(index, event.value)
        elif event.kind == "done":
            self._finish(index, event.value)
        else:
            reason = f"its process ended with code {event.value}"
            self._finish(index, self.cells[index].result(None, reason))

    def _told(self, index: int, round: object) -> None:
        assert isinstance(round, int)
        self.under_way[index] = max(0, round) / self.plan.rounds
        self._report(self.cells[index].name)

    def _finish(self, index: int, result: CellResult) -> None:
        self.results[index] = result
        self.under_way.pop(index, None)
        self._write()
        self._report(self.cells[index].name)

    def _report(self, name: str) -> None:
        if self.progress is not None:
            done = len(self.results) + sum(self.under_way.values())
            self.progress(done, len(self.cells), name)

    def _write(self) -> None:
        if self.folder is not None:
            self.folder.write(self.plan.to_json(), self.comparison())


def run_one(cell: PlannedRun, tell: Tell, **more: Any) -> CellResult:
    """Run a cell, or go on with it; an error is a result too."""
    try:
        task = cell.setting.load(cell.seed)
        result = run(
            task,
            cell.method,
            cell.rounds,
            cell.seed,
            out=cell.folder,
            resume=True,
            callbacks=[lambda line: tell(line["round"])],
            **{**cell.options, **more},
        )
    except FedbridgeError as error:
        return cell.result(None, str(error), unmet=isinstance(error, UnmetNeedError))
    except Exception as error:
        return cell.result(None, f"{type(error).__name__}: {error}")
    return cell.result(result.summary)


def _run_alone(cell: PlannedRun, tell: Tell) -> CellResult:
    """Run a cell in one of several processes: it has one core and needs no workers."""
    return run_one(cell, tell, workers=1)


def _check_first(plan: ComparisonPlan) -> None:
    """Load one task and check all options before any cell runs: mistakes show at once."""
    task = plan.settings[0].load(plan.seeds[0])
    for setting, method in product(plan.settings, plan.methods):
        given = plan.options_for(method, setting)
        split_options(given, method, known_methods.options_of(method), task.defaults)


def _plain(setting: Setting) -> dict[str, Any]:
    """A setting for a file; without the options of its runs if it has none, as in older files."""
    return {key: value for key, value in asdict(setting).items() if key != "run" or value}


def _check_distinct(what: str, values: Sequence[object]) -> None:
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
    settings, _ = split_options(
        cell.options, cell.method, known_methods.options_of(cell.method), task.defaults
    )
    now = {k: v for k, v in settings.to_json().items() if k != "workers" and v is not None}
    return (
        config is not None
        and config["rounds"] == cell.rounds
        and config["data_sha256"] == data_sha256
        and config["settings"] == json.loads(to_json(now))
        and config["model"]["name"] == (settings.model_name or task.model)
    )


def _processes(options: Mapping[str, Any]) -> int:
    """How many cells may run at once: one per core, or one at a time on another device."""
    if options.get("device", "cpu") != "cpu":
        return 1
    workers = options.get("workers")
    if isinstance(workers, int):
        return workers
    return core_count()
