"""Run a table or figure of the paper and set ours beside what it prints.

The runs are kept by content: what decides a run's result makes the name of its file, so that
tables which share runs share them, and a reproduction that was stopped goes on. Under ``fair``
the controls that the paper lacks stand among the rows.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbridge import methods as known_methods
from fedbridge._version import __version__
from fedbridge.base.errors import DataError, OptionError
from fedbridge.base.files import parse_json, read_text, to_json, write_atomically
from fedbridge.base.options import check_choice, check_whole
from fedbridge.base.places import data_root, dataset_folder
from fedbridge.data.load import registry
from fedbridge.data.protocols import FAIR, PROTOCOLS, data_options, run_options
from fedbridge.data.store.catalogue import CATALOGUE
from fedbridge.experiments import catalogue
from fedbridge.experiments.catalogue import PaperRow
from fedbridge.experiments.reproduction import (
    ACCURACIES,
    DELTA_ERROR,
    RESULTS,
    CellOutcome,
    Reproduction,
    is_summary,
    summary_of,
)
from fedbridge.experiments.tables import COST
from fedbridge.federation.settings import MANY, NAMES
from fedbridge.methods.controls import FIXED_BETA
from fedbridge.runs.lock import folder_lock
from fedbridge.runs.variant import ROUNDS, Variant
from fedbridge.workflows.cells import SCRATCH, Board, CellProgress, PlannedRun
from fedbridge.workflows.compare import MATCHED, check_distinct, step_of
from fedbridge.workflows.compared import Setting, seeds_of
from fedbridge.workflows.delta_errors import delta_error_of, initial_moments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fedbridge.base.processes import Tell
    from fedbridge.experiments.catalogue import Experiment, PaperColumn
    from fedbridge.federation.loop import RunResult
    from fedbridge.runs.cell import CellSpec
    from fedbridge.runs.comparison import CellResult

PAPER = "paper"
OUT = Path("runs") / "reproduce"
CELLS, PLAN = "cells", "plan.json"
MOMENTS = "delta-errors"
"""In the place of a method: no run, but what the Delta errors of a setting are made of."""
FLAT = 1
"""Axes of a row of a table; images have more."""
TARGET_ONLY, ALONE = "target-only", "alone-logistic"
WEIGHTS = {"resnet18": ("vlcs", "terra"), "resnet50": ("pacs", "office-home", "domainnet")}
"""Pretrained weights that tasks begin with, unless a frozen backbone takes their place."""


class MissingDataError(DataError):
    """Data sets that an experiment needs are not on disk."""


def reproduce(
    name: str,
    protocol: str | None = None,
    seeds: int | Iterable[int] | None = None,
    rounds: int | None = None,
    *,
    quick: bool = False,
    columns: Iterable[str] | None = None,
    rows: Iterable[str] | None = None,
    out: str | Path | None = None,
    results: str | Path | Iterable[str | Path] = (),
    finished: bool = False,
    progress: CellProgress | None = None,
    workers: int | None = None,
) -> Reproduction:
    """Run a table or figure of the paper, or go on with it.

    Args:
        name: of ``fedbridge.experiments.catalogue.names()``, or the path of such a file.
        protocol: ``paper``: its settings; ``fair``: the same for all, with controls.
        seeds: how many, or which; the paper's number unless given.
        rounds: of every run; the paper's unless given.
        quick: the small form, a meaningful answer in minutes.
        columns: only those settings whose names fit one of these patterns, as ``Fashion*``.
        rows: only those methods whose names in the paper fit one of these patterns, as ``FedGP*``.
        out: folder of the results; ``runs/reproduce/NAME`` unless given. Finished runs are kept
            beside it, in ``cells``, for every experiment whose folder is there; those in its own
            ``results.jsonl`` count too.
        results: a file like ``results.jsonl``, or several, whose runs need not be done again.
        finished: show what is there and run nothing.
        progress: told how far it is.
        workers: processes; one per core unless given.
    """
    whole = experiment = load_experiment(name)
    asked = [name]
    for option, patterns, cut in (
        ("--columns", columns, only_columns),
        ("--rows", rows, only_rows),
    ):
        if patterns is not None:
            wanted = tuple(patterns)
            experiment = cut(experiment, wanted)
            for pattern in wanted:  # what begins with - would be taken for an option
                asked += [f"{option}={pattern}"] if pattern[:1] == "-" else [option, pattern]
    protocol = protocol or PAPER
    check_choice("protocol", protocol, PROTOCOLS)
    if workers is not None:
        check_whole("workers", workers, least=1)
    plan = ReproductionPlan.of(experiment, protocol, seeds, rounds, quick=quick, whole=whole)
    if not finished:
        check_data(plan.experiment)
    folder = default_folder(experiment.name, protocol, quick=quick) if out is None else Path(out)
    here = folder / RESULTS
    known, left_out = read_results(here)[0] if here.exists() else {}, 0
    for file in [results] if isinstance(results, str | Path) else results:
        given, damaged = read_results(Path(file))
        plan.check_results(Path(file), given, damaged)
        known, left_out = {**known, **given}, left_out + damaged
    cache = CellCache(folder.parent / CELLS, known)
    with nullcontext() if finished else folder_lock(folder):
        if not finished:
            write_atomically(folder / PLAN, to_json(plan.record(cache.known)) + "\n")
        found = plan.go(cache, folder / SCRATCH, progress, workers, finished=finished)
    return replace(found, asked=tuple(asked), left_out=left_out)


def default_folder(name: str, protocol: str | None, *, quick: bool) -> Path:
    """Where the results of an experiment go unless somebody says otherwise."""
    other = [] if protocol in (None, PAPER) else [str(protocol)]
    parts = [name, *other, *(["quick"] if quick else [])]
    return OUT / "-".join(parts)


def load_experiment(name: str) -> Experiment:
    """An experiment by its name, or from a file of one's own."""
    path = Path(name)
    if path.suffix.lower() == catalogue.SUFFIX:
        try:
            return catalogue.read(path.stem, read_text(path))
        except OSError as error:
            raise DataError(f"Could not read the experiment in {name!r}: {error}.") from error
    return catalogue.load(name)


def only_columns(experiment: Experiment, patterns: Iterable[str]) -> Experiment:
    """The experiment with the columns that fit a pattern; a mean needs all of its group."""
    keys = [column.key for column in experiment.columns if not column.mean]
    part = experiment.with_columns(_fitting("columns", experiment, keys, patterns))
    left = {column.key for column in part.columns}
    few = tuple(key for key in experiment.quick.columns if key in left)
    return replace(part, quick=replace(experiment.quick, columns=few))


def only_rows(experiment: Experiment, patterns: Iterable[str]) -> Experiment:
    """The experiment with the rows that fit a pattern; a map needs all of its own."""
    left = _fitting("rows", experiment, [row.label for row in experiment.rows], patterns)
    few = tuple(label for label in experiment.quick.rows if label in left)
    panels = tuple(panel for panel in experiment.panels if left.issuperset(panel.rows))
    if experiment.panels and not panels:
        needed = "; ".join(", ".join(panel.rows) for panel in experiment.panels)
        raise OptionError(
            f"Expected all `rows` of one map of {experiment.name} ({needed}), but got "
            f"{', '.join(sorted(left))}: somebody must be there to win against."
        )
    return replace(
        experiment,
        rows=tuple(row for row in experiment.rows if row.label in left),
        panels=panels,
        quick=replace(experiment.quick, rows=few),
    )


def _fitting(
    what: str, experiment: Experiment, names: list[str], patterns: Iterable[str]
) -> set[str]:
    """The names that fit a pattern; a pattern that none fits is an error that has them all."""
    found: set[str] = set()
    for pattern in patterns:
        fits = {name for name in names if fnmatchcase(name, pattern)}
        if not fits:
            raise OptionError(
                f"Expected `{what}` of {experiment.name}, but {pattern} fits none of: "
                f"{', '.join(names)}."
            )
        found |= fits
    return found


def needed_data(experiment: Experiment) -> dict[str, bool]:
    """The data sets that an experiment reads, and whether each is on disk."""
    columns = [column for column in experiment.columns if column.task]
    tasks = {column.task for column in columns}
    names = [entry.name for entry in CATALOGUE.values() if entry.layout and tasks & {*entry.tasks}]
    deep = {column.task for column in columns if "backbone" not in column.options}
    names += [weights for weights, its in WEIGHTS.items() if deep & {*its}]
    return {name: dataset_folder(name, *CATALOGUE[name].other_names) is not None for name in names}


def check_data(experiment: Experiment) -> None:
    """Refuse to begin what cannot be finished: say what is not on disk, and how to get it."""
    missing = [name for name, there in needed_data(experiment).items() if not there]
    if missing:
        raise MissingDataError(
            f"Expected the data of {experiment.name} in {str(data_root())!r}, but "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not there: run "
            f"`fedbridge data fetch {' '.join(missing)}`, or set FEDBRIDGE_DATA to the folder that "
            f"holds them; --columns takes the part of a table that has data."
        )


@dataclass(frozen=True)
class CellCache:
    """Results of finished runs, a file each, named by all that decides them.

    Attributes:
        path: The folder of the files.
        known: Summaries of other runs by their keys, which have no file here.
    """

    path: Path
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def file(self, key: str) -> Path:
        """Where the result of the run with this key is, or will be."""
        return self.path / f"{key}.json"

    def get(self, key: str) -> Mapping[str, Any] | None:
        """The summary of a run that is finished; a damaged file counts as none."""
        if key in self.known:
            return self.known[key]
        try:
            found = parse_json(read_text(self.file(key)))
        except (OSError, ValueError):
            return None
        whole = isinstance(found, dict) and found.get("key") == key
        summary = found.get("summary") if whole else None
        return summary if isinstance(summary, dict) and is_summary(summary) else None

    def put(self, spec: CellSpec, summary: Mapping[str, Any]) -> None:
        """Keep a summary, in one line with what it is of."""
        record = {"key": spec.key, "spec": spec.record, "summary": summary, "version": __version__}
        write_atomically(self.file(spec.key), to_json(record) + "\n")


def read_results(file: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """The summaries of the runs in a ``results.jsonl`` by their keys, and lines that are none.

    Lines are none if they are damaged, as the last one of a copy that was cut short, or of an
    earlier version.
    """
    try:
        text = read_text(file)
    except (OSError, ValueError) as error:
        raise DataError(f"Could not read results of runs in {str(file)!r}: {error}.") from error
    lines = [_parsed(line) for line in text.splitlines() if line.strip()]
    found = [summary for line in lines if (summary := summary_of(line)) is not None]
    return dict(found), len(lines) - len(found)


def _parsed(line: str) -> object:
    """What a line holds; nothing if it is damaged, as where a copy of the file was cut short."""
    try:
        return parse_json(line)
    except ValueError:
        return None


@dataclass(frozen=True)
class ReproducedRun(PlannedRun):
    """One run of an experiment, whose settings a protocol decides."""

    protocol: str = PAPER

    def spec(self, data_sha256: str | None = None) -> CellSpec:
        """All that decides its result: what the protocol says is spelt out."""
        task, target = self.setting.task_name, self.setting.target
        usual = (
            {} if self.method == MOMENTS else run_options(self.protocol, task, target, self.method)
        )
        asked = {**data_options(self.protocol, task, target), **self.setting.options}
        known = super().spec(data_sha256)
        return replace(known, task_options=asked, options={**usual, **self.options})


def run_cached(cache: CellCache, cell: PlannedRun, tell: Tell, **more: Any) -> CellResult:
    """Run a cell and keep its summary, unless somebody has done so by now."""

    def work() -> Mapping[str, Any]:
        spec = cell.spec()
        kept = cache.get(spec.key)
        if kept is None:
            kept = _summary(cell, cache.path / spec.key, tell, **more)
            cache.put(spec, kept)
        return kept

    return cell.attempt(work)


def _summary(cell: PlannedRun, room: Path, tell: Tell, **more: Any) -> dict[str, Any]:
    """What is kept of a run: its summary, accuracy and weights by rounds, and seconds a round.

    On images a round takes seconds and a checkpoint milliseconds: such a run goes on where it was
    stopped, in ``room``, which is gone in the end. Other runs take seconds as a whole.
    """
    task = cell.setting.load(cell.seed)
    if cell.method == MOMENTS:
        return {**initial_moments(task, cell.seed), "version": __version__}
    long = len(task.input_shape) > FLAT
    result = cell.go(task, tell, room if long else None, **more)
    shutil.rmtree(room, ignore_errors=True)
    return {**result.summary, **_over_rounds(result)}


def _over_rounds(result: RunResult) -> dict[str, Any]:
    trained = [line for line in result.history if line["round"] >= 1]
    times = ("seconds_train", "seconds_aggregate", "seconds_eval")
    mean = {name: sum(line[name] or 0.0 for line in trained) / len(trained) for name in times}
    betas = [line["beta"] for line in trained]
    varies = any(beta != betas[0] for beta in betas)
    accuracies = [line["accuracy"] for line in trained]
    shown = {} if None in accuracies else {ACCURACIES: [round(one, 2) for one in accuracies]}
    return {**mean, **shown, "beta": betas if varies else betas[:1]}


@dataclass(frozen=True)
class ReproductionPlan:
    """The runs of an experiment.

    Attributes:
        experiment: In the form that is run, with its controls.
        protocol: Whose settings.
        seeds: The seeds.
        controls: Of a row, the row that takes the same steps without sources.
        quick: Whether it is the small form.
        rounds: What somebody asked for.
    """

    experiment: Experiment
    protocol: str
    seeds: tuple[int, ...]
    controls: Mapping[str, str]
    quick: bool
    rounds: int | None

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        protocol: str,
        seeds: int | Iterable[int] | None,
        rounds: int | None,
        *,
        quick: bool,
        whole: Experiment | None = None,
    ) -> ReproductionPlan:
        """What is asked for; what is not said is the paper's.

        Every row of the ``whole`` table has a say in which control is whose.
        """
        plan = experiment.in_quick_form() if quick else experiment
        own = [c.task for c in plan.columns if c.task and c.task not in registry.names()]
        if own:
            raise OptionError(
                f"Expected built-in tasks, whose names and options decide their rows, but got "
                f"{own[0]!r}: compare other data with `fedbridge compare`."
            )
        if protocol == FAIR and plan.rounds_fair is not None:
            plan = replace(plan, rounds=plan.rounds_fair)
        if rounds is not None:
            check_whole(ROUNDS, rounds, least=1, most=MANY)
            rows = tuple(replace(row, rounds=None) for row in plan.rows)
            plan = replace(plan, rounds=rounds, rows=rows)
        controls: dict[str, str] = {}
        if protocol == FAIR and plan.form != COST:
            every = (whole or plan).with_columns([column.key for column in plan.columns]).rows
            if quick or rounds is not None:
                every = tuple(replace(row, rounds=None) for row in every)
            plan, controls = with_controls(plan, every)
        which = seeds_of(plan.seeds if seeds is None else seeds)
        check_distinct("seeds", which)
        return cls(plan, protocol, which, controls, quick, rounds)

    def runs(self) -> list[tuple[str, ReproducedRun]]:
        """Every run with the row that it is of."""
        columns = [column for column in self.experiment.columns if not column.mean]
        rows = [row for row in self.experiment.rows if row.method is not None]
        return [
            (row.label, self.planned(row, column, seed))
            for seed, column, row in product(self.seeds, columns, rows)
        ]

    def record(self, known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Every run for somebody who watches, with the results that have no file of their own."""
        return [
            {
                "row": row,
                "column": run.setting.label,
                "seed": run.seed,
                "rounds": run.rounds,
                "key": (key := run.spec().key),
                "summary": known.get(key),
            }
            for row, run in self.runs()
        ]

    def check_results(self, file: Path, known: Mapping[str, object], left_out: int) -> None:
        """Refuse a file of results that has nothing to do with what is asked for."""
        if left_out and not known:
            raise DataError(
                f"Expected results of runs in {str(file)!r}, but none of its {left_out} lines is "
                f"that of a run of this version: leave `results` out to run them again."
            )
        if not any(run.spec().key in known for _, run in self.runs()):
            seeds = ", ".join(map(str, self.seeds))
            raise DataError(
                f"Expected runs of {self.experiment.name} in {str(file)!r} (protocol "
                f"{self.protocol}, seeds {seeds}, {self.experiment.rounds} rounds), but none of "
                f"its {len(known)} runs is one: name their protocol, seeds and rounds, or leave "
                f"`results` out."
            )

    def planned(self, row: PaperRow, column: PaperColumn, seed: int) -> ReproducedRun:
        """The run of a row in a column."""
        assert row.method is not None
        has = (*NAMES, *known_methods.options_of(row.method))
        options = {name: value for name, value in column.run.items() if name in has}
        rounds = self.experiment.rounds if row.rounds is None else row.rounds
        return ReproducedRun(
            self._setting(column, row.regardless),
            Variant(row.method, {}, row.label),
            seed,
            rounds,
            {**options, **row.options},
            None,
            protocol=self.protocol,
        )

    def _setting(self, column: PaperColumn, regardless: Mapping[str, object]) -> Setting:
        own = {} if self.protocol == FAIR else {"protocol": self.protocol}
        asked = {**column.options, **regardless, **own}
        return Setting(column.key, column.task, column.target, asked)

    def moments(self, column: PaperColumn, seed: int) -> ReproducedRun:
        """What the Delta errors of a column are made of."""
        about = Variant(MOMENTS)
        return ReproducedRun(
            self._setting(column, {}), about, seed, 1, {}, None, protocol=self.protocol
        )

    def go(
        self,
        cache: CellCache,
        scratch: Path,
        progress: CellProgress | None,
        workers: int | None,
        *,
        finished: bool,
    ) -> Reproduction:
        """Run what is open, seed by seed, unless only what is ``finished`` counts; gather all."""
        columns = [column for column in self.experiment.columns if not column.mean]
        rows = [row for row in self.experiment.rows if row.method is not None]
        asked = self.runs()
        predicted = [panel for panel in self.experiment.panels if panel.score == DELTA_ERROR]
        if predicted:
            places = product(self.seeds, columns)
            asked += [(MOMENTS, self.moments(column, seed)) for seed, column in places]
        cells = [cell for _, cell in asked]
        apart = self.experiment.form == COST
        found, kept = _played(
            cells, cache, scratch, progress, workers, finished=finished, apart=apart
        )
        every = [_outcome(label, cell, found) for label, cell in asked]
        outcomes = tuple(one for one in every if one.row != MOMENTS)
        moments = tuple(one for one in every if one.row == MOMENTS and one.summary is not None)
        named = {label for panel in predicted for label in panel.rows}
        deltas = {
            (row.label, column.key): tuple(
                delta_error_of(str(row.method), row.options, one.summary)
                for one in moments
                if one.column == column.key and one.summary is not None
            )
            for row, column in product(rows, columns)
            if row.label in named
        }
        return Reproduction(
            self.experiment,
            self.protocol,
            self.seeds,
            outcomes,
            self.controls,
            quick=self.quick,
            rounds=self.rounds,
            kept=kept,
            deltas=deltas,
            moments=moments,
        )


def _outcome(label: str, cell: PlannedRun, found: Mapping[str, CellResult]) -> CellOutcome:
    spec = cell.spec()
    got = found[spec.key]
    return CellOutcome(
        *(label, cell.setting.label, cell.seed, spec), *(got.summary, got.error, got.unmet)
    )


def _played(
    cells: Iterable[PlannedRun],
    cache: CellCache,
    scratch: Path,
    progress: CellProgress | None,
    workers: int | None,
    *,
    finished: bool,
    apart: bool,
) -> tuple[dict[str, CellResult], int]:
    """What became of these runs by their keys, each done once; and how many were done before.

    Runs that are measured are done ``apart``, one after the other: else one that begins with the
    rounds of the sources alone takes them from another and looks as if it cost nothing.
    """
    by_key = {cell.spec().key: cell for cell in cells}
    board = Board(list(by_key.values()), progress, scratch)
    for number, cell in enumerate(board.cells):
        summary = cache.get(cell.spec().key)
        if summary is not None:
            board.results[number] = cell.result(summary)
    kept = len(board.results)
    waiting = [number for number in range(len(board.cells)) if number not in board.results]
    how: dict[str, Any] = {} if workers is None else {"workers": workers}
    if not finished:
        for some in [[number] for number in waiting] if apart else [waiting]:
            board.play(some, how, partial(run_cached, CellCache(cache.path), **how))
    results = [board.results.get(k, cell.result(None)) for k, cell in enumerate(board.cells)]
    return dict(zip(by_key, results, strict=True)), kept


def with_controls(
    experiment: Experiment, every: Sequence[PaperRow] = ()
) -> tuple[Experiment, dict[str, str]]:
    """The experiment with the controls among its rows, and the control of every row.

    The control of a row is the target alone with the row's own settings: with ``1 − β`` of the
    step beside a fixed rule (``target-only-matched``), else ``target-only``. Of a part of a table
    it is the run that it is in the whole one, which has ``every`` row.
    """
    controls: dict[str, str] = {}
    added: list[tuple[dict[str, Any], PaperRow]] = []
    told = (*every, *experiment.rows)
    alone = PaperRow("Target Only", TARGET_ONLY)
    alone = next((r for r in told if r.method == TARGET_ONLY and not r.options), alone)
    for row in told:
        own = row.method in (TARGET_ONLY, MATCHED, ALONE)
        if row.method is None or own or known_methods.is_bound(row.method):
            continue
        step = {k: v for k, v in step_of(Variant(row.method, row.options)).items() if k != ROUNDS}
        if row.method not in FIXED_BETA:
            step.pop("beta", None)
            if not step and row.rounds == alone.rounds:
                controls[row.label] = alone.label
                continue
        steps = {**step, "fixed": row.method in FIXED_BETA, ROUNDS: row.rounds}
        same = [control for known, control in added if known == steps]
        if not same:
            label, match = f"Target Only, steps of {row.label}", {"match": row.method}
            same = [PaperRow(label, MATCHED, {**match, **step}, alone.regardless, row.rounds)]
            added.append((steps, same[0]))
        controls[row.label] = same[0].label
    controls = {row.label: controls[row.label] for row in experiment.rows if row.label in controls}
    rows = [] if alone in experiment.rows else [alone]
    if all(row.method != ALONE for row in experiment.rows):
        rows.append(PaperRow("Linear model alone", ALONE))
    rows += [row for _, row in added if row.label in controls.values()]
    return replace(experiment, rows=(*experiment.rows, *rows)), controls
