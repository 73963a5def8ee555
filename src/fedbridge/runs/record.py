"""What a run leaves in its folder, finished or not: its summary, its outputs on the test rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedbridge._version import __version__
from fedbridge.base.errors import NonFiniteError, ShapeError
from fedbridge.base.files import read_bytes, write_atomically
from fedbridge.evaluation.diagnostics import Diagnosis, OperatingPoint, at_threshold, diagnose
from fedbridge.evaluation.intervals import Evidence, WithInterval, evidence, wilson_interval
from fedbridge.evaluation.metrics import SCORED_ROUNDS
from fedbridge.runs.folder import RunFolder, RunFolderError
from fedbridge.runs.lines import PER_SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from fedbridge.data.task import FederatedTask, Site

Values = list[float | None]
TESTED_FILE = "test.safetensors"
OF_POSITIVE = ("positive", "sensitivity", "specificity", "precision", "notes")
"""Entries of a summary that depend on which of two classes is the positive one."""


@dataclass(frozen=True, eq=False)
class Tested:
    """Outputs of a model on a test set, and the truth.

    Attributes:
        outputs: ``(n, k)`` logits, or values for regression.
        labels: ``(n,)`` class indices, or values ``(n,)`` or ``(n, k)`` for regression.
    """

    outputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.outputs.ndim != 2 or len(self.outputs) != len(self.labels):
            raise ShapeError(
                f"Expected outputs (n, k) and n labels, but got {tuple(self.outputs.shape)} and "
                f"{tuple(self.labels.shape)}."
            )
        if not bool(self.outputs.isfinite().all()):
            raise NonFiniteError("Expected finite outputs on the test rows, but got NaN or Inf.")

    def __len__(self) -> int:
        return len(self.outputs)


@dataclass(frozen=True)
class Chance:
    """What somebody reaches who knows nothing of a row: an accuracy in percent, and how."""

    accuracy: float
    how: str


def tested_on(outputs: Tensor, test: Site) -> Tested | None:
    """What a model says of the test rows, if it is finite."""
    if not bool(outputs.isfinite().all()):
        return None
    said = test.scale.values(outputs.reshape(len(test), -1))
    return Tested(said, test.scale.values(test.y))


def write_tested(folder: Path, tested: Tested) -> None:
    """Keep the outputs and labels in a run's folder."""
    tensors = {
        "outputs": tested.outputs.to(torch.float32).contiguous(),
        "labels": tested.labels.contiguous(),
    }
    write_atomically(folder / TESTED_FILE, save(tensors))


def read_tested(folder: Path) -> Tested | None:
    """The outputs and labels of a run; None where test rows were not at hand, or in old runs."""
    file = folder / TESTED_FILE
    if not file.exists():
        return None
    try:
        tensors = load(read_bytes(file))
        return Tested(tensors["outputs"], tensors["labels"])
    except (OSError, SafetensorError, KeyError, ShapeError, NonFiniteError) as error:
        raise RunFolderError(
            f"Expected the outputs on the test rows in {file}, but it cannot be read ({error}): "
            f"restore or remove it."
        ) from error


def positive_measures(tested: Tested | None, task: FederatedTask) -> dict[str, float | None]:
    """What a summary tells of the positive class of two; nothing where no row was looked at."""
    if tested is None or task.n_classes != 2:
        return {}
    point = at_threshold(tested.outputs, tested.labels, positive=task.positive)
    return {name: None if of is None else of.value for name, of in point.shares.items()}


def summarise(
    task: FederatedTask,
    history: Sequence[Mapping[str, Any]],
    *,
    method: str,
    seed: int,
    rounds: int,
    parameters: int,
    seconds: float,
) -> dict[str, Any]:
    """The summary of a run that has a ``history`` of its ``rounds``."""
    trained = [line for line in history if line["round"] >= 1]
    last = trained[-SCORED_ROUNDS:]
    absent = absences(task.source_names, history)

    def mean(name: str) -> float | None:
        values = [line[name] for line in last if line[name] is not None]
        return sum(values) / len(values) if values else None

    accuracy, count = mean("accuracy"), len(task.test)
    loss = mean("loss")
    return {
        "task": task.name,
        "target": task.target.name,
        "sources": list(task.source_names),
        "method": method,
        "seed": seed,
        "rounds": len(trained),
        "accuracy": accuracy,
        "accuracy_last": trained[-1]["accuracy"] if trained else None,
        "accuracy_interval": None if accuracy is None else list(wilson_interval(accuracy, count)),
        "balanced_accuracy": mean("balanced_accuracy"),
        "auc": mean("auc"),
        "positive": task.positive_name,
        "loss": loss,
        "score": None if accuracy is not None or loss is None else -loss,
        "n_test": count,
        "n_target": len(task.target),
        "n_sources": {site.name: 0 if site.name in absent else len(site) for site in task.sources},
        **({"absent": absent} if absent else {}),
        "stopped_early": len(trained) < rounds,
        "bytes_up": sum(line["bytes_up"] for line in history),
        "bytes_down": sum(line["bytes_down"] for line in history),
        "parameters": parameters,
        "notes": list(task.notes),
        "seconds": seconds,
        "version": __version__,
    }


def told_positive(told: Mapping[str, Any], task: FederatedTask) -> str | None:
    """The positive class of a summary or configuration; the second of two where it says none."""
    if task.n_classes != 2:
        return None
    return str(told.get("positive") or (task.class_names or ("0", "1"))[1])


def retold(summary: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """A finished run's summary with what depends on the positive class as it is told now."""
    return {**summary, **{name: now[name] for name in OF_POSITIVE if name in now}}


def absences(sources: Sequence[str], history: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The sources that took part in no round, and the last reason."""
    told = [line.get("failures") or {} for line in history]
    return {name: told[-1][name] for name in sources if told and all(name in line for line in told)}


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
        return diagnose(self.tested.outputs, self.tested.labels, self.n_classes, self.positive)

    def at_threshold(self, threshold: float) -> OperatingPoint | None:
        """What a threshold on the positive class's probability does; None without a ROC curve."""
        if self.tested is None or self.diagnosis is None or self.diagnosis.roc is None:
            return None
        return at_threshold(self.tested.outputs, self.tested.labels, threshold, self.positive)

    @property
    def sources(self) -> list[str]:
        """Names of the sources, in the order of the history's lists."""
        return list(self.config["sources"])

    @property
    def absent(self) -> dict[str, str]:
        """The sources that took part in no round so far, and why not."""
        return absences(self.sources, self.history)

    @property
    def trained(self) -> list[dict[str, Any]]:
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
    def positive(self) -> int:
        """The class, of two, that measures are of; the second where the run does not say."""
        named = self.config.get("positive")
        return 1 if named is None else self.class_names.index(named)

    @property
    def result(self) -> dict[str, Any]:
        """The measures of the finished run, or of the last round so far."""
        return self.summary or (self.history[-1] if self.history else {})

    @property
    def chance(self) -> Chance | None:
        """What a model has to beat; None for regression.

        Where the test rows were looked at, always naming their commonest class beats a lot.
        """
        if self.n_classes is None:
            return None
        found = self.diagnosis
        if found is None or not found.classes:
            return Chance(100 / self.n_classes, f"one of {self.n_classes} classes by lot")
        commonest = max(of.rows for of in found.classes)
        return Chance(100 * commonest / found.count, "always the commonest class of the test set")

    @property
    def said(self) -> str | None:
        """What the method has to say of its choice, in a sentence, if it made one."""
        return next((line["said"] for line in reversed(self.history) if line.get("said")), None)

    @property
    def worth(self) -> dict[str, Any] | None:
        """What joining was worth by the target's labels when it last chose, if it could tell."""
        return next((w for line in reversed(self.history) if (w := line.get("worth"))), None)

    @property
    def candidates(self) -> list[tuple[str, float, float | None, float | None]]:
        """What the target last chose among: name, held-out loss, its error, and weight."""
        judged = (line for line in reversed(self.history) if line.get("cv_loss"))
        chosen: dict[str, Any] = next(judged, {})
        losses: dict[str, float | None] = chosen.get("cv_loss", {})
        errors, weights = chosen.get("cv_error") or {}, chosen.get("weights") or {}
        return [
            (name, loss, errors.get(name), weights.get(name))
            for name, loss in losses.items()
            if loss is not None
        ]

    @property
    def n_test(self) -> int | None:
        """Size of the test set, which the manifest knows before the summary does."""
        if self.summary is not None:
            return int(self.summary["n_test"])
        return len(self.manifest["test"]) if "test" in self.manifest else None

    @property
    def all_trained(self) -> bool:
        """Whether no row was left to test, so that nothing was measured."""
        return self.n_test == 0 and self.result.get("loss") is None

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
            return evidence(WithInterval(accuracy, *interval, rows))
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
            for line in self.trained
        ]

    def source_mean(self, name: str, index: int) -> float | None:
        """Mean over the rounds in which the source was there."""
        return mean([value for _, value in self.source_values(name, index)])

    def rows_of(self, site: str) -> int | None:
        """Training rows of a site, by the summary or else by the split."""
        summary, manifest = self.summary or {}, self.manifest
        if site == self.config["target"]:
            counted, listed = summary.get("n_target"), manifest.get("target")
        else:
            counted = summary.get("n_sources", {}).get(site)
            listed = manifest.get("sources", {}).get(site)
        return len(listed) if counted is None and listed is not None else counted

    def missed(self, site: str) -> int:
        """Rounds in which a site was left out."""
        return sum(site in (line.get("failures") or {}) for line in self.history)


def read_run(folder: Path) -> RunRecord:
    """Read a run's folder; an older summary of a run that goes on does not count."""
    run = RunFolder(folder)
    config = run.config(whole=True)
    if config is None:
        raise RunFolderError(f"Expected a run in {folder}, but it has no config.toml.")
    history, sources = run.history(), len(config["sources"])
    for line in history:
        listed = filter(None, map(line.get, PER_SOURCE))
        if any(len(values) != sources for values in listed):
            raise RunFolderError(
                f"Expected {sources} values, one per source, in {folder / 'history.jsonl'}, but "
                f"round {line['round']} has others: restore the file."
            )
    record = RunRecord(
        config, history, run.summary(whole=True), run.manifest() or {}, read_tested(folder)
    )
    named = config.get("positive")
    if named is not None and (len(record.class_names) != 2 or named not in record.class_names):
        raise RunFolderError(
            f"Expected `positive` in {folder / 'config.toml'} to be one of two classes, but got "
            f"{named!r} among {len(record.class_names)}: restore the file."
        )
    if record.summary is not None and record.summary["rounds"] != len(record.trained):
        return replace(record, summary=None)
    return record


def mean(values: Values) -> float | None:
    """Mean of what is there; None when nothing is."""
    there = [value for value in values if value is not None and math.isfinite(value)]
    return sum(there) / len(there) if there else None
