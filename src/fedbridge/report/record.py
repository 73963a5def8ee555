"""What the files of a run say, finished or not."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedbridge.diagnostics import Diagnosis, diagnose
from fedbridge.intervals import Estimate, Evidence, evidence, wilson_interval
from fedbridge.report.errors import ReportError
from fedbridge.rundir import RunFolder
from fedbridge.tested import Tested, read_tested

if TYPE_CHECKING:
    from pathlib import Path

Values = list[float | None]


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder tells it.

    Attributes:
        config: What was run.
        history: One line per round so far.
        summary: The result; None while the run is not finished.
        manifest: Which rows are where.
        tested: Outputs of the delivered model; None where the test rows were not at hand.
    """

    config: dict[str, Any]
    history: list[dict[str, Any]]
    summary: dict[str, Any] | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    tested: Tested | None = None

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """What the test rows show of the delivered model; None while there is none."""
        if self.tested is None or self.summary is None or len(self.tested) == 0:
            return None
        return diagnose(self.tested.outputs, self.tested.labels, self.n_classes)

    @property
    def sources(self) -> list[str]:
        """Names of the sources, in the order of the history's lists."""
        return list(self.config["sources"])

    @property
    def played(self) -> list[dict[str, Any]]:
        """The rounds after the warm-up."""
        return [line for line in self.history if line["round"] >= 1]

    @property
    def n_classes(self) -> int | None:
        """How many classes there are; None for regression."""
        found: int | None = self.config.get("model", {}).get("n_classes")
        return found

    @property
    def regression(self) -> bool:
        """Whether there are no classes, and so no accuracy."""
        return self.n_classes is None

    @property
    def class_names(self) -> list[str]:
        """What the classes are called, by number where they have no names."""
        count = self.n_classes or 0
        names = self.config["model"].get("class_names") or []
        return [str(names[k]) if k < len(names) else str(k) for k in range(count)]

    @property
    def result(self) -> dict[str, Any]:
        """The measures of the finished run, or of the last round so far."""
        return self.summary or (self.history[-1] if self.history else {})

    @property
    def n_test(self) -> int | None:
        """Size of the test set, which the manifest knows before the summary does."""
        if self.summary is not None:
            return int(self.summary["n_test"])
        return len(self.manifest["test"]) if "test" in self.manifest else None

    def interval(self, accuracy: float | None) -> tuple[float, float] | None:
        """Confidence interval of an accuracy on this run's test set."""
        if accuracy is None or not self.n_test:
            return None
        return wilson_interval(accuracy, self.n_test)

    @property
    def evidence(self) -> Evidence | None:
        """How much the test set can say of the result; None where nothing tells."""
        accuracy, rows = self.result.get("accuracy"), self.n_test
        interval = self.interval(accuracy)
        if accuracy is not None and rows is not None and interval is not None:
            return evidence(Estimate(accuracy, *interval, rows))
        return None if self.diagnosis is None else self.diagnosis.evidence

    @property
    def untested(self) -> list[str]:
        """Classes that no test row is of."""
        found = None if self.diagnosis is None else self.diagnosis.classes
        return [self.class_names[of.label] for of in found or () if of.rows == 0]

    def curve(self, name: str) -> tuple[tuple[float, float | None], ...]:
        """A measure over rounds."""
        return tuple((line["round"], line.get(name)) for line in self.history)

    def source_values(self, name: str, index: int) -> list[tuple[int, float | None]]:
        """A measure of one source over the rounds after the warm-up."""
        return [
            (line["round"], None if line.get(name) is None else line[name][index])
            for line in self.played
        ]

    def source_mean(self, name: str, index: int) -> float | None:
        """Mean over the rounds in which the source was there."""
        values = [value for _, value in self.source_values(name, index)]
        return mean(values)

    def rows_of(self, site: str) -> int | None:
        """Training rows of a site."""
        if site == self.config["target"]:
            return len(self.manifest["target"]) if "target" in self.manifest else None
        rows = self.manifest.get("sources", {}).get(site)
        return None if rows is None else len(rows)

    def missed(self, site: str) -> int:
        """Rounds in which a site was left out."""
        return sum(site in (line.get("failures") or {}) for line in self.history)


def read_run(folder: Path) -> RunRecord:
    """Read a run's folder; an older summary of a run that goes on does not count."""
    run = RunFolder(folder)
    config = run.config()
    if config is None:
        raise ReportError(f"Expected a run in {folder}, but it has no config.toml.")
    history = run.history()
    manifest = folder / "manifest.json"
    record = RunRecord(
        config,
        history,
        run.summary(),
        read_json(manifest) if manifest.exists() else {},
        read_tested(folder),
    )
    if record.summary is not None and record.summary["rounds"] != len(record.played):
        return replace(record, summary=None)
    return record


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ReportError(f"Could not read {path}: {error}.") from error
    if not isinstance(found, dict):
        raise ReportError(f"Expected a JSON object in {path}, but got {type(found).__name__}.")
    return found


def mean(values: Values) -> float | None:
    """Mean of what is there; None when nothing is."""
    there = [value for value in values if value is not None and math.isfinite(value)]
    return sum(there) / len(there) if there else None
