"""The runs of a table: each planned, all done in a few processes, several at once.

A run that fails is a result too and does not stop the others.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import file_name
from fedbridge.base.processes import Event, Tell, core_count, work_in_processes
from fedbridge.federation.needs import UnmetNeedError
from fedbridge.federation.source_rounds import SourceRounds
from fedbridge.runs.cell import CellSpec
from fedbridge.runs.comparison import CellResult
from fedbridge.workflows.run import run
from fedbridge.workflows.tracking import named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.loop import RunResult
    from fedbridge.runs.variant import Variant
    from fedbridge.workflows.compared import Setting

SCRATCH = "shared-rounds"
"""What the folder of a table calls the rounds that its runs share while they last."""
ANY = ""
"""In place of the name of a setting."""
USUAL = {
    "finetune-cv": 8.0,
    "finetune-offline": 5.0,
    "fada": 5.0,
    "auto": 2.5,
    "fedrep": 2.0,
    "target-only": 0.2,
    "target-only-matched": 0.2,
    "alone-logistic": 0.2,
    "alone-forest": 0.5,
}
"""Rounds over those of ``fedavg``, about, where they differ much (docs/methods.md): a guess."""

CellProgress = Callable[[float, int, str], object]
"""Called with the cells done so far (a running one counts in part), all cells, and which ran."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison, which lies in ``within``."""

    setting: Setting
    variant: Variant
    seed: int
    rounds: int
    options: Mapping[str, Any]
    within: Path | None
    beside: str = ""

    @property
    def method(self) -> str:
        """What is run."""
        return self.variant.method

    @property
    def name(self) -> str:
        """What to call the run in messages and in the file system; of a control, beside whom."""
        return f"{self.setting.label}-{self.variant.folder}{self.beside}-{self.seed}"

    @property
    def folder(self) -> Path | None:
        """Where it is kept."""
        return None if self.within is None else self.within / "cells" / file_name(self.name)

    def spec(self, data_sha256: str | None = None) -> CellSpec:
        """All that decides its result, which its key is made of."""
        return CellSpec(
            self.setting.task_name,
            self.method,
            self.seed,
            self.rounds,
            self.setting.target,
            self.setting.options,
            self.options,
            data_sha256,
        )

    def go(
        self,
        task: FederatedTask,
        tell: Tell,
        out: Path | None,
        track: Sequence[str] = (),
        **more: Any,
    ) -> RunResult:
        """Run it on its loaded task, or go on with it in ``out``; the rounds are told."""
        return run(
            task,
            self.method,
            self.rounds,
            self.seed,
            out=out,
            resume=True,
            callbacks=[lambda line: tell(line["round"]), *named(track)],
            **{**self.options, **more},
        )

    def result(
        self, summary: Mapping[str, Any] | None, error: str | None = None, *, unmet: bool = False
    ) -> CellResult:
        """What became of it."""
        folder = None if self.folder is None else f"cells/{self.folder.name}"
        return CellResult(
            self.setting.label, self.variant.name, self.seed, folder, summary, error, unmet
        )

    def attempt(self, work: Callable[[], Mapping[str, Any]]) -> CellResult:
        """The summary that ``work`` makes of it, or why it makes none."""
        try:
            return self.result(work())
        except FedbridgeError as error:
            return self.result(None, str(error), unmet=isinstance(error, UnmetNeedError))
        except Exception as error:
            return self.result(None, f"{type(error).__name__}: {error}")


Doing = Callable[..., CellResult]
"""Does a planned run, called with it, with somebody to tell the rounds to, and more options."""


def run_one(cell: PlannedRun, tell: Tell, **more: Any) -> CellResult:
    """Run a cell in its folder, or go on with it."""

    def work() -> Mapping[str, Any]:
        return cell.go(cell.setting.load(cell.seed), tell, cell.folder, **more).summary

    return cell.attempt(work)


@dataclass
class Durations:
    """How long runs take, by those that are done: in seconds, or in rounds of ``fedavg`` before.

    Attributes:
        cells: the runs.
        seconds: of a round of those that are done, by setting (and ``ANY``) and method.
    """

    cells: Sequence[PlannedRun]
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    scales: dict[str, list[float]] = field(default_factory=dict)

    def note(self, number: int, seconds: float) -> None:
        """A run took so long."""
        cell = self.cells[number]
        spent = seconds / cell.rounds
        for setting in (cell.setting.label, ANY):
            self.seconds.setdefault((setting, cell.variant.name), []).append(spent)
            self.scales.setdefault(setting, []).append(spent / _usual(cell))

    def __call__(self, number: int) -> float:
        """As the runs of this method in its setting; else as it usually is beside others there.

        What nothing is known of in its setting is taken from the other settings.
        """
        cell = self.cells[number]
        for setting in (cell.setting.label, ANY):
            known = self.seconds.get((setting, cell.variant.name))
            if known:
                return cell.rounds * mean(known)
        scales = self.scales.get(cell.setting.label) or self.scales.get(ANY) or [1.0]
        return cell.rounds * _usual(cell) * median(scales)


def _usual(cell: PlannedRun) -> float:
    return USUAL.get(cell.method, 1.0)


@dataclass
class Board:
    """Where the runs of a table stand.

    Attributes:
        cells: the runs.
        progress: told how far they are.
        scratch: a folder for what runs share while they last; None for one that the system names.
    """

    cells: Sequence[PlannedRun]
    progress: CellProgress | None
    scratch: Path | None = None
    results: dict[int, CellResult] = field(default_factory=dict)
    under_way: dict[int, float] = field(default_factory=dict)

    def play(self, waiting: Sequence[int], options: Mapping[str, Any], do: Doing = run_one) -> None:
        """Run these cells, several at once, the longest first, if there are enough of them."""
        if not waiting:
            return
        processes = _processes(options)
        with _scratch_folder(self.scratch) as folder:
            shared = SourceRounds(folder)
            if processes > 1 and len(waiting) >= processes:
                # They are told numbers: tasks and networks that are here already are not sent.
                work = partial(_run_alone, do, self.cells, shared)
                lengths = Durations(self.cells)
                in_turn = work_in_processes(work, waiting, processes, lengths)
                with closing(in_turn) as events:
                    for event in events:
                        self._note(waiting[event.item], event, lengths)
            else:
                with shared.shared():
                    for number in waiting:
                        self.finish(number, do(self.cells[number], partial(self._told, number)))

    def finish(self, index: int, result: CellResult) -> None:
        """Take a result."""
        self.results[index] = result
        self.under_way.pop(index, None)
        self._report(self.cells[index].name)

    def _note(self, index: int, event: Event, lengths: Durations) -> None:
        if event.kind == "told":
            self._told(index, event.value)
        elif event.kind == "done":
            result, seconds = event.value
            lengths.note(index, seconds)
            self.finish(index, result)
        else:
            reason = f"its process ended with code {event.value}"
            self.finish(index, self.cells[index].result(None, reason))

    def _told(self, index: int, round: object) -> None:
        assert isinstance(round, int)
        self.under_way[index] = max(0, round) / self.cells[index].rounds
        self._report(self.cells[index].name)

    def _report(self, name: str) -> None:
        if self.progress is not None:
            done = len(self.results) + sum(self.under_way.values())
            self.progress(done, len(self.cells), name)


def _run_alone(
    do: Doing, cells: Sequence[PlannedRun], shared: SourceRounds, number: int, tell: Tell
) -> tuple[CellResult, float]:
    """Run a cell in one of several processes: it has one core and needs no workers.

    Its seconds are those of the processor, whatever else the machine does.
    """
    begun = time.process_time()
    with shared.shared():
        result = do(cells[number], tell, workers=1)
    return result, time.process_time() - begun


@contextmanager
def _scratch_folder(path: Path | None) -> Iterator[Path]:
    """An empty folder that is gone in the end; what a killed process has left there goes first."""
    if path is None:
        with TemporaryDirectory(prefix="fedbridge-") as made:
            yield Path(made)
        return
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # a full disk: then nothing is shared
        path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _processes(options: Mapping[str, Any]) -> int:
    """How many cells may run at once: one per core, or one at a time on another device."""
    if options.get("device", "cpu") != "cpu":
        return 1
    workers = options.get("workers")
    if isinstance(workers, int):
        return workers
    return core_count()
