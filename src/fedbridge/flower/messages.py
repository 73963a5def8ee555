"""All that travels: what a coordinator asks of a site, what a site may answer, and the model.

**Questions** are plain JSON: nothing in a message is ever unpickled. A job's numbers are checked
again when they are read, so that a site only ever runs what a local run could have asked for.

**Answers** are Flower records, and ``ALLOWED`` is the whole list of what may leave a site. A
coordinator drops a reply with any other record or field, and a test holds every message of a site
against it.

**The model** travels as its state dict, under ``arrays``, as a Flower user expects. The federation
works with one flat vector and buffers apart. The layout is the dictionary between the two.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from io import BytesIO
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor, nn

from fedbridge import methods
from fedbridge.advice.measure import OF_SOURCES, Gradients
from fedbridge.base.errors import FedbridgeError, ShapeError
from fedbridge.base.files import parse_json
from fedbridge.base.text import plain
from fedbridge.evaluation.metrics import Evaluation, Metrics
from fedbridge.federation.settings import OFF, RECORD, Settings, split_options
from fedbridge.flower.codec import EncodingError, decode
from fedbridge.methods.kd3a import FOCUS, HEARD, Vote
from fedbridge.methods.pfedfda import COVARIANCE, MEANS, UnderGaussianHead
from fedbridge.training.job import SUPERVISED, ClientResult, Job, LocalPlan, Outcome
from fedbridge.training.objective import Objective, Proximal, Supervised
from fedbridge.training.state import State

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fedbridge.flower.site import Delivery
    from fedbridge.training.state import Slices


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
        joined: the first round of every source that was not there from the beginning.
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
    joined: Mapping[str, int] = field(default_factory=dict)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites by client number."""
        return (self.target, *self.sources)

    @classmethod
    def of_json(cls, about: Mapping[str, Any]) -> RunSpec:
        """What was sent as plain values."""
        try:
            known = {field.name: about[field.name] for field in fields(cls)}
            return cls(**{**known, "sources": tuple(map(str, known["sources"]))})
        except (KeyError, TypeError) as error:
            raise RequestError(f"Expected a complete run spec, but got {error}.") from error

    def run_settings(self) -> Settings:
        """The options of the run, for one process on a CPU."""
        own = {**dict.fromkeys(RECORD), "model": None, "device": "cpu", "workers": 1}
        given = {**self.settings, **own, "norm_ratio": OFF}
        settings, _ = split_options(given, self.method, methods.options_of(self.method), {})
        return settings


def jobs_to_json(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Jobs as plain values; buffers travel with the models."""
    if any(job.rows is not None for job in jobs):
        raise RequestError(
            "Expected jobs on all rows of one site, but a method wants rows that only the site "
            "knows: it does not run over a network."
        )
    return [_job_to_json(job) for job in jobs]


def _job_to_json(job: Job) -> dict[str, Any]:
    return {
        "client": job.client,
        "plan": asdict(job.plan),
        "seed": job.seed,
        "kind": job.kind,
        "slot": job.slot,
        "max_batches": job.max_batches,
        "objective": _objective_to_json(job.objective),
        "beside": job.beside,
        "anchor": job.anchor,
        "moves": job.moves,
        "keeps": job.keeps,
        "first": None if job.first is None else _job_to_json(job.first),
    }


def job_of_json(record: Mapping[str, Any], known: Mapping[str, Tensor] | None = None) -> Job:
    """One job, checked; ``known`` is what its objective is made of besides numbers."""
    try:
        if record["kind"] not in ("train", "probe"):
            raise RequestError(f"Expected a job to train or to probe, but got {record['kind']!r}.")
        plan = dict(record["plan"])
        if plan["noise"] not in ("none", "size", "sketch"):
            raise RequestError(f"Expected noise none, size or sketch, but got {plan['noise']!r}.")
        if plan["class_weights"] is not None:
            plan["class_weights"] = tuple(map(float, plan["class_weights"]))
        moves, aim, first = record["moves"], record["objective"], record.get("first")
        job = Job(
            int(record["client"]),
            LocalPlan(**plan),
            int(record["seed"]),
            record["kind"],
            int(record["slot"]),
            max_batches=None if record["max_batches"] is None else int(record["max_batches"]),
            objective=_objective_of_json(aim, known or {}),
            beside=tuple(map(int, record.get("beside", ()))),
            anchor=None if record["anchor"] is None else int(record["anchor"]),
            moves=None if moves is None else _slices(moves),
            first=None if first is None else job_of_json({**first, "first": None}),
            keeps=_slices(record.get("keeps", ())),
        )
        if job.first is not None and job.first.moves != job.keeps:
            raise RequestError(
                "Expected a job that comes before another one to change what stays at the site "
                "and nothing else, but it would change more."
            )
        return job
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"Expected a complete job, but got {error!r}.") from error


def _slices(pairs: Sequence[Sequence[int]]) -> Slices:
    return tuple((int(start), int(end)) for start, end in pairs)


def read(text: object) -> dict[str, Any]:
    """JSON of a message as a dictionary."""
    try:
        content = parse_json(str(text))
    except ValueError as error:
        raise RequestError(f"Expected JSON in the message, but got {error}.") from error
    if not isinstance(content, dict):
        raise RequestError("Expected a JSON object in the message, but got something else.")
    return content


def _objective_of_json(aim: Mapping[str, Any], known: Mapping[str, Tensor]) -> Objective:
    if not aim:
        return SUPERVISED
    if "penalty" in aim:
        return Proximal(float(aim["penalty"]))
    if "gate" in aim:
        return Vote.of_parts(known, aim)
    means, covariance = known[MEANS], known[COVARIANCE]
    size = means.shape[-1] if means.ndim == 2 else 0
    sound = all(t.dtype == torch.float64 and bool(t.isfinite().all()) for t in (means, covariance))
    if not sound or tuple(covariance.shape) != (size, size):
        raise RequestError("Expected means and a covariance of features, but got something else.")
    return UnderGaussianHead(means, covariance, int(aim["seed"]), int(aim["round"]))


def objective_tensors(jobs: Sequence[Job]) -> dict[str, Tensor]:
    """What the objectives of a message's jobs are made of besides numbers; they have it alike."""
    return {k: v for job in jobs for k, v in job.objective.tensors().items()}


def _objective_to_json(objective: Objective) -> dict[str, Any]:
    if type(objective) is Supervised:
        return {}
    if type(objective) is Proximal:
        return {"penalty": objective.penalty}
    if type(objective) is UnderGaussianHead:
        return {"seed": objective.seed, "round": objective.round}
    if type(objective) is Vote:
        return objective.numbers()
    raise RequestError(
        f"Expected an objective that can travel, but got {type(objective).__name__}: the method "
        f"does not run over a network."
    )


BUFFER_NAME = re.compile(r"(^|\.)(running_mean|running_var|num_batches_tracked)$")


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's trainable parameters and of its buffers, in order."""

    parameters: Mapping[str, tuple[int, ...]]
    buffers: Mapping[str, tuple[int, ...]]

    @classmethod
    def of_model(cls, model: nn.Module) -> Layout:
        """The layout of a module."""
        return cls(
            {n: tuple(p.shape) for n, p in model.named_parameters() if p.requires_grad},
            {name: tuple(buffer.shape) for name, buffer in model.named_buffers()},
        )

    def arrays(self, state: State) -> dict[str, Tensor]:
        """A state as a state dict."""
        sizes = [prod(shape) for shape in self.parameters.values()]
        parts = state.parameters.split(sizes)
        named = zip(self.parameters.items(), parts, strict=True)
        return {name: part.reshape(shape) for (name, shape), part in named} | dict(state.buffers)

    def state(self, arrays: Mapping[str, Tensor]) -> State:
        """A state dict as a state; names and shapes must be the model's own."""
        expected = {**self.parameters, **self.buffers}
        for name, shape in expected.items():
            if name not in arrays or tuple(arrays[name].shape) != shape:
                got = tuple(arrays[name].shape) if name in arrays else "nothing"
                raise ShapeError(f"Expected {name!r} of shape {shape} in the model, but got {got}.")
        return State(
            torch.cat([arrays[name].reshape(-1).float() for name in self.parameters]),
            {name: arrays[name] for name in self.buffers},
        )


class Skeleton(nn.Module):
    """Parameters and buffers without a network: all that a coordinator needs of a model."""

    def __init__(self, arrays: Mapping[str, Tensor]) -> None:
        """A module with these entries; which of them are buffers is told by type and name."""
        super().__init__()
        for path, value in arrays.items():
            *folders, name = path.split(".")
            owner: nn.Module = self
            for folder in folders:
                if folder not in owner._modules:
                    owner.add_module(folder, nn.Module())
                owner = owner.get_submodule(folder)
            if value.is_floating_point() and not BUFFER_NAME.search(path):
                owner.register_parameter(name, nn.Parameter(value.clone().float()))
            else:
                owner.register_buffer(name, value.clone())


LONGEST = 400
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""What a terminal obeys instead of showing."""

SAYS_MORE = " at the site, whose own log says more"
IN_WORDS: Mapping[type[BaseException], str] = {
    MemoryError: "the memory is not enough",
    OSError: "a file or folder cannot be read or written",
}
"""Kinds of errors that are not our own."""

QUOTED_ERROR = re.compile(r"([A-Za-z_]\w*): ", re.ASCII)
SITE = "site"
SCALARS = {
    "num-examples": "samples",
    **{name: name for name in ("steps", "lr", "loss", "batches", "seconds")},
}
"""A job's report by the names under which it travels."""

MEASURES = ("loss", "accuracy", "balanced-accuracy", "auc")
"""What a model is worth by the names under which it travels."""

HELD_OUT = {"losses": "held-out-losses", "errors": "held-out-errors", "weights": "weights"}
"""What the target knows of each of its candidates, by the names under which it travels."""

WORTH = {
    "rows": int,
    **dict.fromkeys(("alone", "gain", "error", "points", "points_error"), float),
    "of_classes": bool,
    "before": float,
}
"""What joining is worth to the target (``methods.candidates.Worth``), in this order."""

GRADIENTS = ("sigma2", *OF_SOURCES, "errors", "relative", "curve")
"""What the target finds when it compares gradients (``advice.measure.Gradients``)."""

MOST_NUMBERS = 10_000
"""So many numbers stand in one of these entries at most."""
NOISE = ("noise", "sketches", "added")
"""How noisy an update is: its error, sketches of it, and what of it was put in for privacy."""

ALLOWED: Mapping[str, tuple[str, ...]] = {
    r"site": (
        "site",
        "role",
        "note",
        "epsilon",
        "failure",
        "input-shape",
        "class-names",
        "version",
        "choice",
        "said",
        "candidates",
        "rules",
    ),
    r"hello": ("num-examples", "num-test", "num-classes", "num-outputs", "num-unlabelled"),
    r"update-\d+": ("values", "steps"),
    r"buffers-\d+": ("*",),
    r"noise-\d+": NOISE,
    r"told-\d+": (MEANS, COVARIANCE, FOCUS, HEARD),
    r"metrics-\d+": tuple(SCALARS),
    r"metrics": ("num-examples", *MEASURES, "validation-loss", *HELD_OUT.values(), "worth", "rest"),
    r"gradients": GRADIENTS,
}
"""Names of records (as patterns) and of their fields; ``*`` stands for the model's own names."""

KINDS = {"site": ConfigRecord, **dict.fromkeys(("hello", "metrics", "gradients"), MetricRecord)}
"""Records that hold texts and numbers, by the first part of their names; all others hold arrays."""

CHOICE = 80
"""Longest name of a candidate."""

MOST_CANDIDATES = 100
"""So many models a target may choose among at most."""

LARGEST = {"accuracy": 100.0, "balanced-accuracy": 100.0, "auc": 1.0}
"""Measures from 0 to so much."""


class SiteError(FedbridgeError):
    """Something went wrong at a site; its own log says what."""


class ReplyError(FedbridgeError):
    """A reply that is not what a site may send."""


def check_fields(
    content: RecordDict, jobs: int | None = None, names: Collection[str] | None = None
) -> None:
    """Refuse records and fields that are not on the list, before any of them is opened.

    Args:
        content: the reply.
        jobs: how many were asked for: there is nothing of any other; None for any number.
        names: the model's own, where they are known.
    """
    for record, entries in content.items():
        allowed = next((f for name, f in ALLOWED.items() if re.fullmatch(name, record)), None)
        if allowed is None:
            raise ReplyError(f"it holds a record {record[:40]!r} that no site may send")
        first, _, number = record.partition("-")
        if number and jobs is not None and record not in {f"{first}-{k}" for k in range(jobs)}:
            raise ReplyError(f"it holds a record {record[:40]!r} that nobody asked for")
        if names is not None and "*" in allowed:
            allowed = tuple(names)
        if not isinstance(entries, KINDS.get(record.partition("-")[0], ArrayRecord)):
            raise ReplyError(f"its record {record[:40]!r} is of another kind")
        for name in entries:
            if "*" not in allowed and name not in allowed:
                named = f"{record[:40]!r} holds a field {str(name)[:40]!r}"
                raise ReplyError(f"its record {named} too many")


def unable_reply(site: str, role: str, error: BaseException) -> RecordDict:
    """Who this is, and why it cannot take part."""
    return RecordDict({SITE: _site(site, role, {"failure": told(error)[:LONGEST]})})


def train_reply(
    site: str, role: str, deliveries: Sequence[Delivery], about: Mapping[str, str | float | None]
) -> RecordDict:
    """A round's work as records: one update, its noise and its scalars per job."""
    failures = [delivery.result.outcome.failure for delivery in deliveries]
    reasons = (public_reason(reason)[:LONGEST] for reason in failures if reason is not None)
    failure = next(reasons, None)
    content = RecordDict({SITE: _site(site, role, {**about, "failure": failure})})
    for k, delivery in enumerate(deliveries):
        outcome = delivery.result.outcome
        if outcome.failure is not None:
            continue
        content[f"update-{k}"] = arrays(delivery.tensors)
        if outcome.buffers:
            content[f"buffers-{k}"] = arrays(outcome.buffers)
        noise = {name: getattr(outcome, name) for name in NOISE}
        told = {name: value for name, value in noise.items() if value is not None}
        if told:
            content[f"noise-{k}"] = arrays(told)
        if outcome.told:
            content[f"told-{k}"] = arrays(outcome.told)
        scalars = {name: getattr(outcome, field) for name, field in SCALARS.items()}
        content[f"metrics-{k}"] = MetricRecord(scalars)
    return content


def read_result(content: RecordDict, k: int, encoding: str, size: int) -> ClientResult | None:
    """Job ``k`` of a reply; None if the site says that it failed.

    Raises:
        ReplyError: something is missing or of the wrong kind. What the numbers are worth is for
            ``screening`` to say.
    """
    if f"update-{k}" not in content:
        if content.config_records.get(SITE, ConfigRecord()).get("failure"):
            return None
        raise ReplyError(f"its update {k + 1} is missing")
    try:
        vector = decode(tensors(content.array_records[f"update-{k}"]), encoding, size)
        scalars = content.metric_records[f"metrics-{k}"]
        noise = tensors(content.array_records.get(f"noise-{k}", ArrayRecord()))
        buffers = tensors(content.array_records.get(f"buffers-{k}", ArrayRecord()))
        report: dict[str, Any] = {field: scalars[name] for name, field in SCALARS.items()}
        report |= {name: noise.get(name) for name in NOISE}
        told = tensors(content.array_records.get(f"told-{k}", ArrayRecord()))
        return ClientResult(Outcome(**report, buffers=buffers, told=told), vector)
    except EncodingError as error:
        raise ReplyError(f"its update cannot be decoded: {error}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise ReplyError(f"its answer is incomplete: {error}") from error


def evaluate_reply(
    site: str,
    samples: int,
    evaluation: Evaluation,
    facts: Mapping[str, Any] | None = None,
) -> RecordDict:
    """What a model is worth, and, where the target chose one itself, which."""
    values: dict[str, float | None] = {"validation-loss": evaluation.validation}
    if evaluation.test is not None:
        values |= {name: getattr(evaluation.test, name.replace("-", "_")) for name in MEASURES}
    metrics = MetricRecord({"num-examples": samples})
    metrics.update({name: value for name, value in values.items() if value is not None})
    about: dict[str, Any] = {}
    if facts is not None:
        about = {name: facts[name] for name in ("choice", "said", "note") if name in facts}
        about["candidates"] = list(facts.get("losses") or facts.get("weights", ()))
        for name, travels_as in HELD_OUT.items():
            if facts.get(name):
                metrics[travels_as] = [float(facts[name][c]) for c in about["candidates"]]
        if "worth" in facts:
            metrics["worth"] = [float(value) for value in facts["worth"].values()]
        metrics["rest"] = int(facts.get("rest", False))
    content = RecordDict({"metrics": metrics})
    if facts is not None and "gradients" in facts:
        found = facts["gradients"]
        about["rules"] = found["rules"]
        content["gradients"] = MetricRecord({name: found[name] for name in GRADIENTS})
    content[SITE] = _site(site, "target", about)
    return content


def read_evaluation(content: RecordDict) -> Evaluation:
    """The measures of an answer; a site may withhold them."""
    found = content.metric_records.get("metrics", MetricRecord())

    def number(name: str) -> float | None:
        value = found.get(name)
        if not isinstance(value, int | float):
            return None
        if name in LARGEST and not 0 <= value <= LARGEST[name]:
            raise ReplyError(f"its {name} of {value:g} is not between 0 and {LARGEST[name]:g}")
        if value < 0:
            raise ReplyError(f"its {name} of {value:g} is below 0")
        return float(value)

    test = None
    if (loss := number("loss")) is not None:
        test = Metrics(loss, *map(number, MEASURES[1:]))
    return Evaluation(test, number("validation-loss"))


def read_epsilon(content: RecordDict) -> float | None:
    """What a site says that its messages have cost so far; None if it says nothing."""
    spent = content.config_records.get(SITE, ConfigRecord()).get("epsilon")
    if spent is not None and not (isinstance(spent, float) and spent >= 0):
        raise ReplyError(f"its epsilon of {printable(spent)[:40]} is not a number of at least 0")
    return spent


def read_choice(content: RecordDict) -> dict[str, Any]:
    """What the target chose, and what it stands on: numbers of each of its candidates."""
    about = content.config_records.get(SITE, ConfigRecord())
    metrics = content.metric_records.get("metrics", MetricRecord())
    names = about.get("candidates", [])
    if not isinstance(names, list) or len(names) > MOST_CANDIDATES:
        raise ReplyError("its choice is incomplete, or among too many models")
    told: dict[str, Any] = {
        "choice": printable(about.get("choice", "withheld"))[:CHOICE],
        "rest": bool(metrics.get("rest", 0)),
        "losses": {},
    }
    if "said" in about:
        told["said"] = printable(about["said"])
    for name, travels_as in HELD_OUT.items():
        numbers = metrics.get(travels_as, [])
        if not isinstance(numbers, list) or (numbers and len(numbers) != len(names)):
            raise ReplyError("its choice is incomplete")
        if numbers:
            named = zip(names, numbers, strict=True)
            told[name] = {printable(one)[:CHOICE]: float(number) for one, number in named}
    if not all(0 <= weight <= 1 for weight in told.get("weights", {}).values()):
        raise ReplyError("its choice has weights that are not between 0 and 1")
    is_choice = "choice" in about or "weights" not in told
    if names and is_choice and not told["losses"]:
        raise ReplyError("its choice is incomplete")
    worth = metrics.get("worth", [])
    if not isinstance(worth, list) or (worth and len(worth) != len(WORTH)):
        raise ReplyError("its choice is incomplete")
    if worth:
        told["worth"] = {
            name: kind(v) for (name, kind), v in zip(WORTH.items(), worth, strict=True)
        }
    if "gradients" in content:
        told["gradients"] = _read_gradients(content, about.get("rules"))
    return told


def _read_gradients(content: RecordDict, names: object) -> dict[str, Any]:
    """What the target has found by comparing gradients: lists of numbers, of which all fit."""
    if not isinstance(names, list) or len(names) > MOST_CANDIDATES:
        raise ReplyError("it compares gradients by too many rules, or by none")
    told: dict[str, Any] = {"rules": [printable(name)[:CHOICE] for name in names]}
    for name in GRADIENTS:
        numbers = content.metric_records["gradients"].get(name)
        if not isinstance(numbers, list) or len(numbers) > MOST_NUMBERS:
            raise ReplyError(f"what it says of gradients has no {name}")
        told[name] = [float(number) for number in numbers]
        if not all(map(isfinite, told[name])):
            raise ReplyError(f"the {name} of its gradients is not finite")
    try:
        Gradients.of_told(told)
    except (ValueError, TypeError, IndexError) as error:
        raise ReplyError(f"what it says of gradients does not fit together: {error}") from error
    return told


def printable(text: object) -> str:
    """Text from elsewhere on one line, without control characters and not too long."""
    return plain(str(text)[:LONGEST]).replace("\n", " ")


def only_kind(error: BaseException) -> str:
    """The kind of an error in words, without its text, which may quote rows."""
    if isinstance(error, FedbridgeError):
        return f"{error.in_words}{SAYS_MORE}"
    known = (words for kind, words in IN_WORDS.items() if isinstance(error, kind))
    return f"{next(known, type(error).__name__)}{SAYS_MORE}"


def told(error: BaseException) -> str:
    """What others hear of an error: all of it only where it is about what they ask themselves."""
    return str(error) if isinstance(error, RequestError) else only_kind(error)


def public_reason(failure: str) -> str:
    """Why a job failed, for others: our own words, but of any other error only its kind."""
    quoted = QUOTED_ERROR.match(failure)
    return failure if quoted is None else f"{quoted[1]}{SAYS_MORE}"


def arrays(named: Mapping[str, Tensor]) -> ArrayRecord:
    """Tensors as a record."""
    return ArrayRecord({name: value.detach().cpu().contiguous() for name, value in named.items()})


def tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """A record's tensors, in memory of their own that may be written to.

    Raises:
        ReplyError: some bytes are no array. Whoever chose them also chose what their reader
            stumbles over, so that any error counts.
    """
    try:
        return {name: torch.from_numpy(_numbers(array)) for name, array in record.items()}
    except Exception as error:
        raise ReplyError(f"its arrays cannot be read ({type(error).__name__})") from error


def _numbers(array: Array) -> np.ndarray[Any, Any]:
    """The numbers of an array, whose header must speak of as many bytes as have come.

    Otherwise numpy would make room for whatever it speaks of.
    """
    file = BytesIO(array.data)
    shape, _, dtype = HEADERS[np.lib.format.read_magic(file)](file)
    if dtype.hasobject or prod(shape) * dtype.itemsize != len(array.data) - file.tell():
        raise ValueError("another size than its header says")
    return array.numpy().copy()


HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _site(site: str, role: str, about: Mapping[str, Any]) -> ConfigRecord:
    known = {name: value for name, value in about.items() if value is not None}
    return ConfigRecord({"site": site, "role": role, **known})
