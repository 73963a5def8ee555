"""The options of a run: one frozen record, checked when it is made."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedbridge.base.errors import OptionError
from fedbridge.base.options import check_choice, check_known, check_number, check_whole
from fedbridge.base.values import object_name
from fedbridge.models.resnet import is_pretrained
from fedbridge.training.job import LocalPlan
from fedbridge.training.record_privacy import RecordPrivacy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FROZEN = "frozen"
CHOICES: dict[str, tuple[object, ...]] = {
    "align": (None, True, False),
    "align_evidence": (None, True, False),
    "blocks": ("tensor", "model", None),
    "weights": (None, "equal", "samples"),
    "buffers": ("target", "mean", "keep", FROZEN),
    "evidence": ("path", "init", "probe"),
    "noise_from": ("own", "borrowed"),
    "record_of": ("sources", "all"),
}
WHOLE = {
    "batch_size": 1,
    "batch_size_target": 1,
    "epochs": 1,
    "epochs_target": 1,
    "steps": 1,
    "steps_target": 1,
    "warmup": 0,
    "probe_batches": 1,
    "probe_batch_size": 1,
    "record_rounds": 1,
    "sketch_size": 1,
    "early_stopping": 1,
    "workers": 1,
}
"""Options that are whole numbers, and the least that each can be."""
MANY = 10**6
"""The most that any of them, or the rounds, can be: more is a slip, not a wish."""
MOST = dict.fromkeys(("batch_size", "batch_size_target", "probe_batch_size"), 10**9)

OFF = "off"
NORM_RATIO = 1000.0
"""Far above honest updates: on the tasks that come along their longest was 13 times the median."""

NUMBERS: dict[str, dict[str, float]] = {
    "lr": {},
    "lr_target": {},
    "momentum": {"least": 0, "below": 1},
    "server_momentum": {"least": 0, "below": 1},
    "weight_decay": {"least": 0},
    "lr_factor": {"above": 0},
    "participation": {"above": 0, "most": 1},
    "dropout": {"least": 0, "below": 1},
    "validation_fraction": {"least": 0, "below": 1},
    "norm_ratio": {"least": 1},
    "record_epsilon": {"above": 0},
    "record_clip": {"above": 0},
    "record_delta": {"above": 0, "below": 1},
}
"""Options that are numbers, and their limits; learning rates are checked with the local plan."""


@dataclass(frozen=True)
class Settings:
    """How a federation trains. None means: as the task, the method or another option says.

    Attributes:
        model: a built-in name (``linear``, ``mlp``, ``cnn``), ``module:function``, a module or a
            function of the task; None for the task's own.
        lr: learning rate of the sources.
        lr_target: learning rate of the target; None for that of the sources.
        batch_size: of the sources.
        batch_size_target: of the target; None for that of the sources, or a smaller one where a
            small target would have fewer than four batches.
        epochs: local epochs of the sources.
        epochs_target: local epochs of the target; None for those of the sources.
        steps: local steps of the sources instead of epochs.
        steps_target: local steps of the target instead of epochs.
        optimizer: ``sgd``, ``momentum``, ``adam`` or ``adamw``, made anew in every round.
        momentum: of the optimiser ``momentum``.
        weight_decay: L2 penalty.
        class_weights: ``balanced`` (each client by its own labels), one weight per class, or None.
        warmup: rounds of the sources' mean before the method starts.
        lr_factor: both learning rates are multiplied by it after the warm-up.
        align: put the sources' updates in the target's unit (steps x learning rate) before the
            rule sees them; None leaves it to the rule (plain averages take updates as they are).
        align_evidence: the same for what the weights are computed from; None for as in ``align``.
        blocks: apply the rule per parameter ``tensor`` or to the whole ``model`` (None too).
        weights: shares in every mean over clients, ``equal`` or by ``samples``; None for equal
            shares (1/N) in means over the sources, and by samples where FedAvg averages the target
            with them.
        buffers: whose BatchNorm statistics the model takes: the ``target``'s, the ``mean`` over
            all clients, or ``keep`` those it had; ``frozen`` also trains by those it had, as
            DomainBed does: the default for pretrained residual networks.
        evidence: what the weights are computed from: the training steps (``path``), the first
            round's (``init``, kept from then on), gradients at the round's start (``probe``).
        noise_from: the target's ``own`` noise, or ``borrowed``: not less than the sources' samples
            show.
        probe_batches: batches of a source's probe.
        sketch_size: numbers per block and half of a sketch.
        participation: share of the sources that take part in a round.
        dropout: chance that a client fails in a round, to see what that does.
        early_stopping: stop after so many rounds without a better validation loss, and deliver the
            best round's model; None never.
        validation_fraction: share of the target's training rows set aside for early stopping.
        norm_ratio: leave out of a round who sends an update so many times as long as the round's
            median; None for 1000, ``off`` for any length.
        device: ``cpu``, ``cuda``, ``mps`` ...
        workers: worker processes; None for one per core. Results do not depend on it.
        server_momentum: momentum of the rules' updates over the rounds, ``v ← μ v + update``;
            methods that are more than a rule take their updates as they are.
        probe_batch_size: rows in a batch of the target's probe for a rule, an incomplete one left
            out; None for the batches that it trains on. With it ``init`` takes gradients at the
            first round's start, not that round's steps: what a target of one batch needs.
        record_epsilon: record-level privacy (DP-SGD) of what clients send: the most that all rounds
            may cost for any one of a client's rows; None for none. Needs ``fedbridge[privacy]``.
        record_clip: longest that the gradient of a row may be then; None for 1.
        record_delta: chance with which that guarantee may fail; None for 1e-5.
        record_rounds: messages that it is to last for; None for one per round.
        record_of: whose rows are protected, those of the ``sources`` (None too) or of ``all``.
    """

    model: str | nn.Module | Callable[..., nn.Module] | None = None
    lr: float = 0.05
    lr_target: float | None = None
    batch_size: int = 32
    batch_size_target: int | None = None
    epochs: int = 1
    epochs_target: int | None = None
    steps: int | None = None
    steps_target: int | None = None
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
    class_weights: str | tuple[float, ...] | None = None
    warmup: int = 0
    lr_factor: float = 1.0
    align: bool | None = None
    align_evidence: bool | None = None
    blocks: str | None = "tensor"
    weights: str | None = None
    buffers: str = "target"
    evidence: str = "path"
    noise_from: str = "own"
    probe_batches: int = 10
    sketch_size: int = 64
    participation: float = 1.0
    dropout: float = 0.0
    early_stopping: int | None = None
    validation_fraction: float = 0.2
    norm_ratio: float | str | None = None
    device: str = "cpu"
    workers: int | None = None
    server_momentum: float | None = None
    probe_batch_size: int | None = None
    record_epsilon: float | None = None
    record_clip: float | None = None
    record_delta: float | None = None
    record_rounds: int | None = None
    record_of: str | None = None

    def __post_init__(self) -> None:
        usual = {field.name: field.default for field in fields(self)}
        given = {k: v for k, v in vars(self).items() if not (v is None and usual[k] is None)}
        for name, value in given.items():
            if name in WHOLE:
                number = check_whole(name, value, least=WHOLE[name], most=MOST.get(name, MANY))
                object.__setattr__(self, name, number)
            elif name in NUMBERS and (name, value) != ("norm_ratio", OFF):
                check_number(name, value, **NUMBERS[name])
            elif name in CHOICES:
                check_choice(name, value, CHOICES[name])
        check_device(self.device)
        protecting = [name for name in RECORD if getattr(self, name) is not None]
        if protecting and self.record_epsilon is None:
            raise OptionError(
                f"Expected `record_epsilon` beside `{protecting[0]}`, but it is missing: how much "
                f"may be told of a row?"
            )
        self.source_plan(warm=False)
        self.target_plan(warm=False)

    def source_plan(self, *, warm: bool) -> LocalPlan:
        """How sources train, in the warm-up or after it."""
        return LocalPlan(
            optimizer=self.optimizer,
            lr=self.lr * (1.0 if warm else self.lr_factor),
            batch_size=self.batch_size,
            epochs=self.epochs,
            steps=self.steps,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            drop_last=True,
        )

    def target_plan(self, *, warm: bool) -> LocalPlan:
        """How the target trains; what is not said is as at the sources."""
        own: dict[str, Any] = {
            name: value
            for name in ("lr", "batch_size", "epochs", "steps")
            if (value := getattr(self, f"{name}_target")) is not None
        }
        if "lr" in own and not warm:
            own["lr"] *= self.lr_factor
        return replace(self.source_plan(warm=warm), drop_last=False, **own)

    def record_privacy(self) -> RecordPrivacy | None:
        """How clients protect their rows; None if they do not."""
        if self.record_epsilon is None:
            return None
        own = {"clip": self.record_clip, "delta": self.record_delta}
        given = {name: value for name, value in own.items() if value is not None}
        return RecordPrivacy(self.record_epsilon, self.record_rounds or 1, **given)

    def by_samples(self, *, fedavg: bool) -> bool:
        """Whether clients count by their rows, in FedAvg's mean over all or one over sources."""
        return counts_by_samples(self.weights, fedavg=fedavg)

    @property
    def keeps_buffers(self) -> bool:
        """Whether the statistics of BatchNorm never change."""
        return self.buffers in ("keep", FROZEN)

    @property
    def longest(self) -> float | None:
        """How many times as long as the median an update may be; None for any length."""
        if isinstance(self.norm_ratio, str):
            return None
        return NORM_RATIO if self.norm_ratio is None else self.norm_ratio

    def to_json(self) -> dict[str, Any]:
        """A plain record for files."""
        return {**asdict(replace(self, model=None)), "model": self.model_name}

    @property
    def model_name(self) -> str | None:
        """The model in words; one that came as an object can be named, but not found again."""
        if self.model is None or isinstance(self.model, str):
            return self.model
        return object_name(self.model)


def counts_by_samples(weights: str | None, *, fedavg: bool) -> bool:
    """What ``weights`` mean: FedAvg's is a mean by samples, others are equal, unless said."""
    return fedavg if weights is None else weights == "samples"


NAMES = tuple(field.name for field in fields(Settings))
RECORD = tuple(name for name in NAMES if name.startswith("record_"))
"""Options of record-level privacy: a site's own where sites are elsewhere."""


def split_options(
    given: Mapping[str, object],
    method: str,
    method_options: tuple[str, ...],
    defaults: Mapping[str, object],
    usual_model: str | None = None,
) -> tuple[Settings, dict[str, object]]:
    """Sort options into those of every run and those of the method; unknown ones are an error.

    ``defaults`` (the task's) give way to what is ``given``. A pretrained residual network, the
    task's ``usual_model`` or one that is given, has its BatchNorm frozen unless somebody says how.
    """
    check_known(given, (*NAMES, *method_options), f"the run or of method {method!r}")
    of_run = {**{k: v for k, v in defaults.items() if k in (*NAMES, *method_options)}, **given}
    own_options = {name: value for name, value in of_run.items() if name in method_options}
    run_options = {name: value for name, value in of_run.items() if name not in own_options}
    if is_pretrained(run_options.get("model") or usual_model):
        run_options.setdefault("buffers", FROZEN)
    if not isinstance(run_options.get("class_weights"), str | None):
        run_options["class_weights"] = _class_weights(run_options["class_weights"])
    try:
        return Settings(**run_options), own_options  # type: ignore[arg-type]
    except TypeError as error:
        raise OptionError(f"Expected options of the right kind, but got {run_options}.") from error


def _class_weights(values: object) -> tuple[float, ...]:
    """One weight per class, whatever kind of list they came in."""
    try:
        weights = tuple(float(value) for value in values)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"Expected `class_weights` to be 'balanced' or numbers, but got {values!r}."
        ) from error
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise OptionError(f"Expected `class_weights` of at least 0, but got {list(weights)}.")
    return weights


class DeviceError(OptionError):
    """The device that was named is not in this machine."""

    in_words = "the device that the site names is not there"


def check_device(device: str) -> None:
    """Raise unless this machine can compute on a device.

    Raises:
        DeviceError: in one sentence, with torch's own reason.
    """
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise DeviceError(
            f"Expected a `device` that is there, such as 'cpu', but got {device!r}: {reason}"
        ) from error
