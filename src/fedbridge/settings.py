"""The options of a run: one frozen record, checked when it is made."""

from __future__ import annotations

import inspect
import math
from dataclasses import asdict, dataclass, fields, replace
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import torch

from fedbridge.errors import OptionError, UnknownOptionError, nearest
from fedbridge.jobs import LocalPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

CHOICES: dict[str, tuple[object, ...]] = {
    "align": (None, True, False),
    "blocks": ("tensor", "model", None),
    "weights": ("equal", "samples"),
    "buffers": ("target", "mean", "keep"),
    "evidence": ("path", "init", "probe"),
    "noise_from": ("own", "borrowed"),
}


@dataclass(frozen=True)
class Settings:
    """How a federation trains. None means: as the task, the method or another option says.

    Attributes:
        model: a built-in name (``linear``, ``mlp``, ``cnn``), ``module:function``, a module or a
            function of the task; None for the task's own.
        lr: learning rate of the sources; ``lr_target`` of the target, None for the same.
        batch_size: of the sources; ``batch_size_target`` of the target, None for the same.
        epochs: local epochs of the sources; ``epochs_target`` of the target, None for the same.
        steps: local steps of the sources instead of epochs; ``steps_target`` of the target.
        optimizer: ``sgd``, ``momentum``, ``adam`` or ``adamw``, made anew in every round.
        momentum: of the optimiser ``momentum``.
        weight_decay: L2 penalty.
        class_weights: ``balanced`` (each client by its own labels), one weight per class, or None.
        warmup: rounds of FedAvg over the sources before the method starts.
        lr_factor: both learning rates are multiplied by it after the warm-up.
        align: put the sources' updates in the target's unit (steps x learning rate) before the
            rule sees them; None leaves it to the rule (plain averages take updates as they are).
        blocks: apply the rule per parameter ``tensor`` or to the whole ``model`` (None too).
        weights: shares of the sources, ``equal`` (1/N) or by ``samples``.
        buffers: whose BatchNorm statistics the model takes: the ``target``'s, the ``mean`` over
            all clients, or ``keep`` those it had.
        evidence: what the weights are computed from: the training steps (``path``), the first
            round's (``init``), gradients at the round's start (``probe``).
        noise_from: the target's ``own`` noise, or also ``borrowed`` from the sources.
        probe_batches: batches of a source's probe.
        sketch_size: numbers per block and half of a sketch.
        participation: share of the sources that take part in a round.
        dropout: chance that a client fails in a round, to see what that does.
        early_stopping: stop after so many rounds without a better validation loss, and deliver the
            best round's model; None never.
        validation_fraction: share of the target's training rows set aside for early stopping.
        device: ``cpu``, ``cuda``, ``mps`` ...
        workers: worker processes; None for one per core.
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
    blocks: str | None = "tensor"
    weights: str = "equal"
    buffers: str = "target"
    evidence: str = "path"
    noise_from: str = "own"
    probe_batches: int = 10
    sketch_size: int = 64
    participation: float = 1.0
    dropout: float = 0.0
    early_stopping: int | None = None
    validation_fraction: float = 0.2
    device: str = "cpu"
    workers: int | None = None

    def __post_init__(self) -> None:
        self._check_types()
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                known = ", ".join(str(choice) for choice in allowed)
                raise OptionError(f"Expected `{name}` to be one of {known}, but got {value!r}.")
        for name in ("warmup", "probe_batches", "sketch_size"):
            least = 0 if name == "warmup" else 1
            if getattr(self, name) < least:
                raise OptionError(
                    f"Expected `{name}` of at least {least}, but got {getattr(self, name)}."
                )
        if not 0 < self.participation <= 1:
            raise OptionError(f"Expected `participation` in (0, 1], but got {self.participation}.")
        for name in ("dropout", "validation_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise OptionError(f"Expected `{name}` in [0, 1), but got {getattr(self, name)}.")
        if not self.lr_factor > 0:
            raise OptionError(f"Expected `lr_factor` above 0, but got {self.lr_factor}.")
        if self.early_stopping is not None and self.early_stopping < 1:
            raise OptionError(
                f"Expected `early_stopping` of at least 1 round, but got {self.early_stopping}."
            )
        self.source_plan(warm=False)
        self.target_plan(warm=False)

    def _check_types(self) -> None:
        """Numbers are numbers and counts are whole; the message names the option."""
        for name in WHOLE:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        for name in REAL:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real | None):
                raise OptionError(f"Expected `{name}` to be a number, but got {value!r}.")
        for name in ("momentum", "weight_decay"):
            value = getattr(self, name)
            if value < 0 or (name == "momentum" and value >= 1):
                limit = "in [0, 1)" if name == "momentum" else "of at least 0"
                raise OptionError(f"Expected `{name}` {limit}, but got {value}.")
        try:
            torch.empty(1, device=self.device)
        except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise OptionError(
                f"Expected a `device` that is there, such as 'cpu', but got {self.device!r}: "
                f"{reason}"
            ) from error

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
        return replace(
            self.source_plan(warm=warm),
            lr=_first(self.lr_target, self.lr) * (1.0 if warm else self.lr_factor),
            batch_size=_first(self.batch_size_target, self.batch_size),
            epochs=_first(self.epochs_target, self.epochs),
            steps=self.steps if self.steps_target is None else self.steps_target,
            drop_last=False,
        )

    def to_json(self) -> dict[str, Any]:
        """A plain record for files."""
        return {**asdict(replace(self, model=None)), "model": self.model_name}

    @property
    def model_name(self) -> str | None:
        """The model in words; one that came as an object can be named, but not found again."""
        if self.model is None or isinstance(self.model, str):
            return self.model
        described = self.model if inspect.isroutine(self.model) else type(self.model)
        return f"{OBJECT_MODEL}{described.__module__}.{described.__qualname__}"


OBJECT_MODEL = "object "
"""How the name of a model that came as an object begins: no ``module:function`` has a space."""

WHOLE = (
    "batch_size",
    "batch_size_target",
    "epochs",
    "epochs_target",
    "steps",
    "steps_target",
    "warmup",
    "probe_batches",
    "sketch_size",
    "early_stopping",
    "workers",
)
REAL = (
    "lr",
    "lr_target",
    "momentum",
    "weight_decay",
    "lr_factor",
    "participation",
    "dropout",
    "validation_fraction",
)
Number = TypeVar("Number", int, float)

NAMES = tuple(field.name for field in fields(Settings))


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """A whole number of any type (numpy's too), or an error that names the option."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise OptionError(f"Expected `{name}` to be a whole number, but got {value!r}.")
    number = index(value)
    if least is not None and number < least:
        raise OptionError(
            f"Expected `{name}` to be a whole number of at least {least}, but got {number}."
        )
    return number


def _first(own: Number | None, other: Number) -> Number:
    return other if own is None else own


def split_options(
    given: Mapping[str, object],
    method: str,
    method_options: tuple[str, ...],
    defaults: Mapping[str, object],
) -> tuple[Settings, dict[str, object]]:
    """Sort options into those of every run and those of the method; unknown ones are an error.

    ``defaults`` (the task's) give way to what is ``given``.
    """
    known = (*NAMES, *method_options)
    for name in given:
        if name not in known:
            own = f" and {', '.join(method_options)}" if method_options else ""
            raise UnknownOptionError(
                f"Expected an option of the run or of method {method!r}, but got {name!r}."
                f"{nearest(name, known)} Options are {', '.join(NAMES)}{own}."
            )
    own_options = {name: value for name, value in given.items() if name in method_options}
    of_run = {**{k: v for k, v in defaults.items() if k in NAMES}, **given}
    run_options = {name: value for name, value in of_run.items() if name not in own_options}
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
