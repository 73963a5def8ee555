"""Replies of a site as Flower records: all that may leave it, and nothing else.

``ALLOWED`` is the whole list. A coordinator drops a reply with any other record or field, and a
test holds every message of a site against it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedbridge.base.errors import FedbridgeError
from fedbridge.evaluation.metrics import Evaluation, Metrics
from fedbridge.flower.codec import EncodingError, decode
from fedbridge.training.job import ClientResult, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedbridge.flower.site import Delivery

LONGEST = 400
QUOTED_ERROR = re.compile(r"([A-Za-z_]\w*): ", re.ASCII)
SITE = "site"
ALLOWED: Mapping[str, tuple[str, ...]] = {
    r"site": (
        "site",
        "role",
        "note",
        "epsilon",
        "failure",
        "target-failure",
        "input-shape",
        "class-names",
        "version",
        "choice",
        "candidates",
    ),
    r"hello": ("num-examples", "num-test", "num-classes", "num-outputs"),
    r"update-\d+": ("values", "steps"),
    r"buffers-\d+": ("*",),
    r"noise-\d+": ("noise", "sketches"),
    r"metrics-\d+": ("num-examples", "steps", "lr", "loss", "batches", "seconds"),
    r"arrays": ("*",),
    r"metrics": (
        "num-examples",
        "loss",
        "accuracy",
        "balanced-accuracy",
        "auc",
        "validation-loss",
        "held-out-losses",
    ),
}
"""Names of records (as patterns) and of their fields; ``*`` stands for the model's own names."""

KINDS = {"site": ConfigRecord, "hello": MetricRecord, "metrics": MetricRecord}
"""Records that hold texts and numbers, by the first part of their names; all others hold arrays."""

LARGEST = {"accuracy": 100.0, "balanced-accuracy": 100.0, "auc": 1.0}
"""Measures from 0 to so much."""


class SiteError(FedbridgeError):
    """Something went wrong at a site; its own log says what."""


class ReplyError(FedbridgeError):
    """A reply that is not what a site may send."""


def check_fields(content: RecordDict) -> None:
    """Refuse records and fields that are not on the list."""
    for record, fields in content.items():
        allowed = next((f for name, f in ALLOWED.items() if re.fullmatch(name, record)), None)
        if allowed is None:
            raise ReplyError(f"it holds a record {record[:40]!r} that no site may send")
        if not isinstance(fields, KINDS.get(record.partition("-")[0], ArrayRecord)):
            raise ReplyError(f"its record {record[:40]!r} is of another kind")
        for name in fields:
            if "*" not in allowed and name not in allowed:
                named = f"{record[:40]!r} holds a field {str(name)[:40]!r}"
                raise ReplyError(f"its record {named} too many")


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
        noise = {"noise": outcome.noise, "sketches": outcome.sketches}
        told = {name: value for name, value in noise.items() if value is not None}
        if told:
            content[f"noise-{k}"] = arrays(told)
        content[f"metrics-{k}"] = MetricRecord(
            {
                "num-examples": outcome.samples,
                "steps": outcome.steps,
                "lr": outcome.lr,
                "loss": outcome.loss,
                "batches": outcome.batches,
                "seconds": outcome.seconds,
            }
        )
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
        return ClientResult(
            Outcome(
                samples=scalars["num-examples"],  # type: ignore[arg-type]
                steps=scalars["steps"],  # type: ignore[arg-type]
                lr=scalars["lr"],  # type: ignore[arg-type]
                loss=scalars["loss"],  # type: ignore[arg-type]
                buffers=buffers,
                noise=noise.get("noise"),
                batches=scalars["batches"],  # type: ignore[arg-type]
                sketches=noise.get("sketches"),
                seconds=scalars["seconds"],  # type: ignore[arg-type]
            ),
            vector,
        )
    except EncodingError as error:
        raise ReplyError(f"its update cannot be decoded: {error}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise ReplyError(f"its answer is incomplete: {error}") from error


def evaluate_reply(
    site: str,
    samples: int,
    evaluation: Evaluation,
    model: Mapping[str, Tensor] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> RecordDict:
    """What a model is worth, and, where the target chose one itself, which."""
    measured = evaluation.test
    values: dict[str, float | None] = {"validation-loss": evaluation.validation}
    if measured is not None:
        values |= {
            "loss": measured.loss,
            "accuracy": measured.accuracy,
            "balanced-accuracy": measured.balanced_accuracy,
            "auc": measured.auc,
        }
    metrics = MetricRecord({"num-examples": samples})
    for name, value in values.items():
        if value is not None:
            metrics[name] = value
    about: dict[str, Any] = {}
    if facts is not None:
        about = {"choice": facts["choice"], "candidates": list(facts["losses"])}
        metrics["held-out-losses"] = list(map(float, facts["losses"].values()))
    content = RecordDict({SITE: _site(site, "target", about), "metrics": metrics})
    if model is not None:
        content["arrays"] = arrays(model)
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
        return float(value)

    loss = number("loss")
    test = None
    if loss is not None:
        names = ("accuracy", "balanced-accuracy", "auc")
        test = Metrics(loss, *(number(name) for name in names))
    return Evaluation(test, number("validation-loss"))


def read_choice(content: RecordDict) -> dict[str, Any]:
    """What the target chose, and the losses that it stands on."""
    about = content.config_records.get(SITE, ConfigRecord())
    losses = content.metric_records.get("metrics", MetricRecord()).get("held-out-losses", [])
    names = about.get("candidates", [])
    if not isinstance(names, list) or not isinstance(losses, list) or len(names) != len(losses):
        raise ReplyError("its choice is incomplete")
    known = {printable(name)[:40]: float(loss) for name, loss in zip(names, losses, strict=True)}
    return {"choice": printable(about.get("choice", "withheld"))[:40], "losses": known}


def printable(text: object) -> str:
    """Text from elsewhere on one line, without control characters and not too long."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:LONGEST])


def only_kind(error: BaseException) -> str:
    """The kind of an error, without its text, which may quote rows."""
    return f"{type(error).__name__} at the site, whose own log says more"


def public_reason(failure: str) -> str:
    """Why a job failed, for others: our own words, but of any other error only its kind."""
    quoted = QUOTED_ERROR.match(failure)
    if quoted is None:
        return failure
    return f"{quoted[1]} at the site, whose own log says more"


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
        return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
    except Exception as error:
        raise ReplyError(f"its arrays cannot be read ({type(error).__name__})") from error


def _site(site: str, role: str, about: Mapping[str, Any]) -> ConfigRecord:
    known = {name: value for name, value in about.items() if value is not None}
    return ConfigRecord({"site": site, "role": role, **known})
