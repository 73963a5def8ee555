"""What the file of a comparison says, finished or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedbridge.comparison import CellResult, Comparison
from fedbridge.report.cells import CellHistory, read_cell
from fedbridge.report.errors import ReportError
from fedbridge.report.record import read_json

if TYPE_CHECKING:
    from pathlib import Path

COMPARISON_FILE = "comparison.json"
FORMAT = 1


@dataclass(frozen=True)
class ComparisonRecord:
    """A comparison as its folder tells it.

    Attributes:
        name: Of the folder, for the title.
        comparison: The results so far; it makes the same table as the command line shows.
        notes: What a reader must know to read the table.
        tasks: How every setting was loaded.
        options: Of the runs.
        histories: What the runs' own folders tell of them, as far as they are there.
    """

    name: str
    comparison: Comparison
    notes: tuple[str, ...]
    tasks: tuple[dict[str, Any], ...]
    options: dict[str, Any]
    histories: tuple[CellHistory, ...] = field(default=(), repr=False)

    @property
    def regression(self) -> bool:
        """Whether there are no classes, and so no accuracy."""
        scored = [cell.summary["accuracy"] for cell in self.comparison.finished if cell.summary]
        return bool(scored) and all(accuracy is None for accuracy in scored)

    @property
    def measure(self) -> str:
        """What the scores are; larger is better in both."""
        return "negative test loss" if self.regression else "test accuracy in %"

    def scores(self, setting: str, method: str) -> tuple[float, ...]:
        """The scores of a method in a setting, a seed each."""
        found = [
            cell.score
            for cell in self.comparison.cells
            if (cell.setting, cell.method) == (setting, method)
        ]
        return tuple(score for score in found if score is not None)


def read_comparison(folder: Path) -> ComparisonRecord:
    """Read a comparison's folder."""
    found = read_json(folder / COMPARISON_FILE)
    if found.get("format") != FORMAT:
        raise ReportError(
            f"Expected a comparison of format {FORMAT}, but {folder} has format "
            f"{found.get('format')}: use the version of fedbridge that wrote it."
        )
    try:
        comparison = Comparison(
            settings=tuple(found["settings"]),
            methods=tuple(found["methods"]),
            seeds=tuple(found["seeds"]),
            rounds=found["rounds"],
            cells=tuple(CellResult(**cell) for cell in found["cells"]),
            control_note="",
        )
    except (KeyError, TypeError) as error:
        raise ReportError(
            f"Expected a whole comparison in {folder / COMPARISON_FILE}, but it lacks something: "
            f"{error}."
        ) from error
    return ComparisonRecord(
        name=folder.resolve().name,
        comparison=comparison,
        notes=tuple(found.get("notes", ())),
        tasks=tuple(found.get("tasks", ())),
        options=found.get("options", {}),
        histories=tuple(filter(None, (read_cell(folder, cell) for cell in comparison.cells))),
    )
