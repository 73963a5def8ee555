"""What a coordinator asks of a site, as plain JSON: nothing in a message is ever unpickled.

A job's numbers are checked again when they are read, so that a site only ever runs what a local
run could have asked for.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from fedbridge import methods
from fedbridge.base.errors import FedbridgeError
from fedbridge.federation.settings import Settings, split_options
from fedbridge.training.job import SUPERVISED, Job, LocalPlan
from fedbridge.training.objective import Objective, Proximal, Supervised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RequestError(FedbridgeError):
    """A message that asks for something that a site does not do."""


@dataclass(frozen=True)
class RunSpec:
    """What is the same for all sites and rounds of a run.

    Attributes:
        run: name of the run, under which a site keeps what it must remember.
        seed: of the run.
        target: name of the target.
        sources: names of the sources, in order.
        method: the method and
        options: its options.
        settings: options of the run.
        model: name of the model; None if the sites know it.
        encoding: how updates travel.
    """

    run: str
    seed: int
    target: str
    sources: tuple[str, ...]
    method: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    model: str | None
    encoding: str = "float32"

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites by client number."""
        return (self.target, *self.sources)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def of_json(cls, about: Mapping[str, Any]) -> RunSpec:
        """What ``to_json`` gave."""
        try:
            known = {field.name: about[field.name] for field in fields(cls)}
            return cls(**{**known, "sources": tuple(map(str, known["sources"]))})
        except (KeyError, TypeError) as error:
            raise RequestError(f"Expected a complete run spec, but got {error}.") from error

    def run_settings(self) -> Settings:
        """The options of the run, for one process on a CPU."""
        given = {**self.settings, "model": None, "device": "cpu", "workers": 1}
        settings, _ = split_options(given, self.method, methods.options_of(self.method), {})
        return settings


def jobs_to_json(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Jobs as plain values; buffers travel with the models."""
    records = []
    for job in jobs:
        if job.rows is not None or job.beside:
            raise RequestError(
                "Expected jobs on all rows of one site, but a method wants rows that only the "
                "site knows: it does not run over a network."
            )
        record = {
            "client": job.client,
            "plan": asdict(job.plan),
            "seed": job.seed,
            "kind": job.kind,
            "slot": job.slot,
            "max_batches": job.max_batches,
            "objective": _objective_to_json(job.objective),
            "anchor": job.anchor,
            "moves": job.moves,
        }
        records.append(record)
    return records


def job_of_json(record: Mapping[str, Any]) -> Job:
    """One job, checked."""
    try:
        if record["kind"] not in ("train", "probe"):
            raise RequestError(f"Expected a job to train or to probe, but got {record['kind']!r}.")
        plan = dict(record["plan"])
        if plan["noise"] not in ("none", "size", "sketch"):
            raise RequestError(f"Expected noise none, size or sketch, but got {plan['noise']!r}.")
        if plan["class_weights"] is not None:
            plan["class_weights"] = tuple(map(float, plan["class_weights"]))
        moves = record["moves"]
        return Job(
            int(record["client"]),
            LocalPlan(**plan),
            int(record["seed"]),
            record["kind"],
            int(record["slot"]),
            max_batches=None if record["max_batches"] is None else int(record["max_batches"]),
            objective=_objective_of_json(record["objective"]),
            anchor=None if record["anchor"] is None else int(record["anchor"]),
            moves=None if moves is None else tuple((int(a), int(b)) for a, b in moves),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"Expected a complete job, but got {error!r}.") from error


def read(text: object) -> dict[str, Any]:
    """JSON of a message as a dictionary."""
    try:
        content = json.loads(str(text))
    except ValueError as error:
        raise RequestError(f"Expected JSON in the message, but got {error}.") from error
    if not isinstance(content, dict):
        raise RequestError("Expected a JSON object in the message, but got something else.")
    return content


def _objective_to_json(objective: Objective) -> dict[str, float]:
    if type(objective) is Supervised:
        return {}
    if type(objective) is Proximal:
        return {"penalty": objective.penalty}
    raise RequestError(
        f"Expected an objective that can travel, but got {type(objective).__name__}: the method "
        f"does not run over a network."
    )


def _objective_of_json(record: Mapping[str, Any]) -> Objective:
    return Proximal(float(record["penalty"])) if record else SUPERVISED
