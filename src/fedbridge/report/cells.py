"""What the folder of one run of a comparison tells, boiled down to what the page shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbridge.report.record import mean
from fedbridge.rundir import RunFolder
from fedbridge.theory import share_off_line

if TYPE_CHECKING:
    from pathlib import Path

    from fedbridge.comparison import CellResult


@dataclass(frozen=True)
class CellHistory:
    """A run of a comparison over its rounds.

    Attributes:
        setting: Its column.
        method: Its row.
        seed: Its seed.
        curve: ``(round, accuracy)``, or the negative loss where there are no classes.
        sigma2: The target's noise in the first round, before methods went different ways.
        d2: Mean squared distance of the sources in the first round.
        tau2: The share of it that is off the sources' lines.
        entries: Entries of the model's vector; None while the run is not finished.
    """

    setting: str
    method: str
    seed: int
    curve: tuple[tuple[int, float | None], ...]
    sigma2: float | None = None
    d2: float | None = None
    tau2: float | None = None
    entries: int | None = None


def read_cell(folder: Path, cell: CellResult) -> CellHistory | None:
    """Read a run's history; None when the run has not begun or lies outside of the folder."""
    if cell.folder is None:
        return None
    path = (folder / cell.folder).resolve()
    if not path.is_relative_to(folder.resolve()):
        return None
    history = RunFolder(path).history()
    played = [line for line in history if line["round"] >= 1]
    if not played:
        return None
    first = played[0]
    d2 = mean(first.get("d2") or [])
    return CellHistory(
        cell.setting,
        cell.method,
        cell.seed,
        tuple((line["round"], _score(line)) for line in history),
        first.get("sigma2"),
        d2,
        share_off_line(d2, mean(first.get("tau2_d2") or [])),
        None if cell.summary is None else cell.summary.get("parameters"),
    )


def _score(line: dict[str, Any]) -> float | None:
    accuracy: float | None = line.get("accuracy")
    loss: float | None = line.get("loss")
    if accuracy is not None or loss is None:
        return accuracy
    return -loss
