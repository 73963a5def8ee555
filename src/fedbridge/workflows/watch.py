"""Where a run, comparison or reproduction stands, from its files alone, whoever runs it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import parse_json, read_text
from fedbridge.methods import is_bound
from fedbridge.report.text import duration
from fedbridge.runs.comparison import (
    COMPARISON_FILE,
    CellResult,
    finished_summary,
    read_comparison,
    score_of_round,
)
from fedbridge.runs.folder import RunFolder
from fedbridge.runs.lock import is_locked
from fedbridge.workflows.reproduce import CELLS, PLAN, CellCache

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedbridge.runs.comparison import Comparison

RunState = Literal["done", "running", "interrupted", "waiting", "failed", "does not apply"]
Whole = Literal["finished", "running", "starting", "stopped", "unknown"]
Kind = Literal["run", "comparison", "reproduction"]
TIMES = ("seconds_train", "seconds_aggregate", "seconds_eval")


class WatchError(FedbridgeError):
    """A folder in which there is nothing to watch."""


@dataclass(frozen=True)
class CellState:
    """Where one run stands.

    Attributes:
        setting: the column of the comparison's table, or the target of a single run.
        method: what is run.
        seed: with which seed.
        state: ``interrupted`` has rounds but nobody works on it, ``waiting`` has none.
        round: the last round that was run; 0 before the first.
        rounds: how many there are to be.
        score: accuracy in percent or negative loss: the run's, or that of its last round.
        seconds: spent on it so far.
        error: why it failed, or does not apply.
    """

    setting: str
    method: str
    seed: int
    state: RunState
    round: int
    rounds: int
    score: float | None = None
    seconds: float = 0.0
    error: str | None = None

    @property
    def name(self) -> str:
        """What to call the run."""
        return f"{self.setting}, {self.method}, seed {self.seed}"

    @property
    def is_open(self) -> bool:
        """Whether there is anything left to do."""
        return self.state in ("running", "interrupted", "waiting")


@dataclass(frozen=True)
class Best:
    """The method that leads a setting, by the runs that are finished."""

    setting: str
    method: str
    score: float
    spread: float | None
    count: int


@dataclass(frozen=True)
class Watched:
    """A run, comparison or reproduction as its files show it.

    Attributes:
        folder: where it is.
        kind: what it is.
        state: ``stopped`` is not finished and nobody works on it; ``unknown`` if that may not be
            found out.
        cells: its runs; one for a run.
        best: who leads each setting so far.
        seconds_left: an estimate from what finished and running cells took; None when there is
            nothing to tell it from, or nobody at work.
    """

    folder: Path
    kind: Kind
    state: Whole
    cells: tuple[CellState, ...]
    best: tuple[Best, ...] = ()
    seconds_left: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.state not in ("running", "starting")

    @property
    def counts(self) -> dict[str, int]:
        """Cells by state."""
        return dict(Counter(cell.state for cell in self.cells))

    @property
    def progress(self) -> float:
        """Cells that are over, running ones in part."""
        return sum(
            cell.round / cell.rounds if cell.is_open else 1.0 for cell in self.cells if cell.rounds
        )

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            **asdict(self),
            "folder": str(self.folder),
            "counts": self.counts,
            "progress": self.progress,
        }


def look(folder: Path, *, unchecked: bool = False) -> Watched:
    """Look at the folder of a run, comparison or reproduction, finished, running or dead.

    With ``unchecked`` also at a finished run whose files are not as they were written.
    """
    if (folder / COMPARISON_FILE).exists():
        return _look_at_comparison(folder)
    if (folder / PLAN).exists():
        return _look_at_reproduction(folder)
    if (folder / "config.toml").exists():
        if not is_locked(folder):
            RunFolder(folder).verify(unchecked=unchecked)
        return _look_at_run(folder)
    if is_locked(folder):
        return Watched(folder, "run", "starting", ())
    raise WatchError(
        f"Expected the folder of a run (config.toml), of a comparison ({COMPARISON_FILE}) or of a "
        f"reproduction ({PLAN}), but {folder} has none: name the folder that `--out` named."
    )


def time_left_text(watched: Watched) -> str:
    """The time left as the end of a line, wherever it is told; nothing while nothing tells it."""
    if watched.seconds_left is None:
        return ""
    return f", about {duration(round(watched.seconds_left))} left"


def seconds_left(cells: Sequence[CellState]) -> float | None:
    """What is left, from what cells of the same method took, shared by the cells that run at once.

    Where no cell of a method is finished, its rounds so far tell; where there are none, the mean of
    the other methods does.
    """
    done = [(c.method, c.seconds) for c in cells if c.state == "done"]
    begun = [c for c in cells if c.is_open and c.round > 0]
    extrapolated = [(c.method, c.seconds / c.round * c.rounds) for c in begun]
    known = {**_means(extrapolated), **_means(done)}
    if not known:
        return None
    usual = fmean(known.values())
    left = [
        known.get(cell.method, usual) * (1 - cell.round / cell.rounds)
        for cell in cells
        if cell.is_open
    ]
    at_once = max(1, sum(cell.state == "running" for cell in cells))
    return max(sum(left) / at_once, max(left, default=0.0))


def _means(costs: Sequence[tuple[str, float]]) -> dict[str, float]:
    """The mean cost of every method."""
    methods = dict.fromkeys(method for method, _ in costs)
    return {name: fmean(cost for method, cost in costs if method == name) for name in methods}


def _look_at_run(folder: Path) -> Watched:
    config = RunFolder(folder).config(whole=True)
    assert config is not None
    summary = finished_summary(folder, config["rounds"])
    result = CellResult(config["target"], config["method"], config["seed"], summary=summary)
    cell = _cell_state(folder, result, config["rounds"], is_locked(folder))
    return _watched(folder, "run", (cell,), is_locked(folder))


def _look_at_comparison(folder: Path) -> Watched:
    comparison = read_comparison(folder, is_bound).comparison
    cells = []
    for result in comparison.cells:
        place = None if result.folder is None else folder / result.folder
        alive = False if place is None else is_locked(place)
        rounds = comparison.rounds_of(result.method)
        cells.append(_cell_state(place, result, rounds, alive))
    watched = _watched(folder, "comparison", tuple(cells), is_locked(folder))
    return replace(watched, best=tuple(_best(comparison)))


def _look_at_reproduction(folder: Path) -> Watched:
    try:
        plan = parse_json(read_text(folder / PLAN))
        asked = [
            (CellResult(run["column"], run["row"], run["seed"]), run["rounds"], run) for run in plan
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise WatchError(
            f"Could not read the plan of a reproduction in {str(folder / PLAN)!r} ({error}): the "
            f"command that made it writes it anew."
        ) from error
    cache = CellCache(folder.parent / CELLS)
    cells = []
    for blank, rounds, run in asked:
        result = replace(blank, summary=run["summary"] or cache.get(run["key"]))
        place = cache.path / run["key"]
        cells.append(_cell_state(place, result, rounds, is_locked(place)))
    return _watched(folder, "reproduction", tuple(cells), is_locked(folder))


def _watched(
    folder: Path,
    kind: Kind,
    cells: tuple[CellState, ...],
    alive: bool | None,
) -> Watched:
    state: Whole
    if not any(cell.is_open for cell in cells):
        state = "finished"
    elif alive is None:
        state = "unknown"
    else:
        state = "running" if alive else "stopped"
    left = seconds_left(cells) if state == "running" else None
    return Watched(folder, kind, state, cells, seconds_left=left)


def _cell_state(
    folder: Path | None, result: CellResult, rounds: int, alive: bool | None
) -> CellState:
    """Where a cell stands: if it is not over, as the rounds in its folder tell."""
    blank = CellState(result.setting, result.method, result.seed, "waiting", 0, rounds)
    if result.error is not None:
        state: RunState = "does not apply" if result.unmet else "failed"
        return replace(blank, state=state, error=result.error)
    summary = result.summary
    if summary is not None:
        return replace(
            blank,
            state="done",
            round=summary["rounds"],
            rounds=max(1, summary["rounds"]),
            score=result.score,
            seconds=summary.get("seconds") or 0.0,
        )
    history = [] if folder is None else RunFolder(folder).history()
    if not history:
        return replace(blank, state="running" if alive else "waiting")
    last = history[-1]
    return replace(
        blank,
        state="running" if alive else "interrupted",
        round=max(0, last["round"]),
        score=score_of_round(last),
        seconds=sum(line.get(name) or 0.0 for line in history for name in TIMES),
    )


def _best(comparison: Comparison) -> list[Best]:
    """The leader of every setting that has a finished run; the first of those that look equal."""
    rows = comparison.rows(so_far=True)
    found = []
    for column, setting in enumerate(comparison.settings):
        for row in rows:
            entry = row.entries[column]
            if entry.best and entry.mean is not None:
                found.append(Best(setting, row.method, entry.mean, entry.spread, entry.count))
                break
    return found
