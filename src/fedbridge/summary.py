"""A run in a few numbers: what ``summary.json`` holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedbridge._version import __version__
from fedbridge.intervals import wilson_interval
from fedbridge.metrics import SCORED_ROUNDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbridge.data.task import FederatedTask


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
    """The summary of a run that has played ``history`` of its ``rounds``."""
    played = [line for line in history if line["round"] >= 1]
    last = played[-SCORED_ROUNDS:]

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
        "rounds": len(played),
        "accuracy": accuracy,
        "accuracy_last": played[-1]["accuracy"] if played else None,
        "accuracy_interval": None if accuracy is None else list(wilson_interval(accuracy, count)),
        "balanced_accuracy": mean("balanced_accuracy"),
        "auc": mean("auc"),
        "loss": loss,
        "score": None if accuracy is not None or loss is None else -loss,
        "n_test": count,
        "n_target": len(task.target),
        "n_sources": {site.name: len(site) for site in task.sources},
        "stopped_early": len(played) < rounds,
        "bytes_up": sum(line["bytes_up"] for line in history),
        "bytes_down": sum(line["bytes_down"] for line in history),
        "parameters": parameters,
        "notes": list(task.notes),
        "seconds": seconds,
        "version": __version__,
    }
