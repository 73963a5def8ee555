"""What a client minimises: the loss on its labels, or what a method puts in its place.

A method that needs another loss, a second batch or a second model writes an ``Objective``; the
training loop, the engines, seeds and failures stay those of ``training``. Objectives travel to
worker processes: they are frozen dataclasses that hold settings and small tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fedbridge.base.errors import OptionError
from fedbridge.base.options import check_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    from fedbridge.training.job import LocalPlan
    from fedbridge.training.state import Slices, State


@dataclass(frozen=True)
class Batch:
    """Some rows of one site, ready for the model.

    Attributes:
        x: the prepared inputs.
        y: their labels (meaningless for rows that have none).
        rows: which rows of the site they are.
    """

    x: Tensor
    y: Tensor
    rows: Tensor


@dataclass
class StepContext:
    """All that an objective may look at in one step of a client's training.

    Attributes:
        module: the model, or what the method composed around it.
        flat: its trainable parameters as one vector; a loss may depend on it directly.
        anchor: another parameter vector that the job named.
        loss_of: the task's loss of outputs and labels.
        own: the client's batch.
        beside: a batch of every site that the job named besides.
        lr: learning rate of the step.
        told: what the objective wants to report to the method; the last values count.
    """

    module: nn.Module
    flat: nn.Parameter
    anchor: Tensor | None
    loss_of: Callable[[Tensor, Tensor], Tensor]
    own: Batch
    beside: tuple[Batch, ...]
    lr: float
    told: dict[str, Tensor] = field(default_factory=dict)


class Ask(Protocol):
    """Asks the model as it is, in evaluation mode, about the client's rows."""

    def __call__(self, answer: Callable[[nn.Module, Tensor], Tensor], *, round: int) -> Tensor:
        """An answer of the model, such as its features, for all of them."""


class AskModel(Protocol):
    """Asks another model about the rows that a client's training is about."""

    def __call__(self, state: State, /, *, round: int) -> Tensor:
        """Its outputs for all of them."""


class Part(NamedTuple):
    """Slices of the parameter vector with an optimiser of their own.

    Attributes:
        slices: where they are.
        rate: their learning rate as a multiple of the plan's.
    """

    slices: Slices
    rate: float = 1.0


class Step(NamedTuple):
    """One step of the optimisers.

    Attributes:
        loss: what to go down on.
        moves: numbers of the parts that move; None for all of them.
    """

    loss: Tensor
    moves: tuple[int, ...] | None = None


class Objective(ABC):
    """A loss over what is on the context."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts of the vector that learn apart; what is in none of them is one more, the last."""
        return ()

    @abstractmethod
    def __call__(self, context: StepContext) -> Tensor:
        """The loss to take one step on."""

    def steps(self, context: StepContext) -> Iterator[Step]:
        """The steps on one set of batches; a loss is made when the step before it is done."""
        yield Step(self(context))

    def taught(self, ask: AskModel) -> Objective:
        """The objective once other models were asked about the rows: usually as it is."""
        return self

    def tensors(self) -> dict[str, Tensor]:
        """What it is made of besides numbers and words, for its way to a site; usually nothing."""
        return {}

    def prepared(self, module: nn.Module, start: Tensor, labels: Tensor) -> Tensor:
        """Where a client with these labels starts: usually where it is told to."""
        return start

    def reports(self) -> dict[str, Tensor]:
        """Tensors of the names, types and shapes that ``report`` has; usually none."""
        return {}

    def report(self, labels: Tensor, ask: Ask) -> dict[str, Tensor]:
        """What a client tells of its rows after its training."""
        return {}

    def after_step(self, context: StepContext) -> None:  # noqa: B027 (most have nothing to do)
        """Put things right after the step, such as a parameter that must stay in an interval."""


@dataclass(frozen=True)
class Supervised(Objective):
    """The task's loss on the client's own labels."""

    def __call__(self, context: StepContext) -> Tensor:
        """ℓ(f(x), y)."""
        return context.loss_of(context.module(context.own.x), context.own.y)


@dataclass(frozen=True)
class Proximal(Supervised):
    """The same with a pull towards the anchor ``a``: ``ℓ(θ) + (λ/2) ‖θ − a‖²``.

    The pull ``λ (θ − a)`` is a part of the gradient that the optimiser sees, as in the code of
    Ditto and FedProx: every optimiser then ends at the minimum of the sum. A pull after the step
    would not: Adam forgets the size of a gradient but not that of the pull. Plain steps need
    ``ηλ < 2``, as every quadratic does.
    """

    penalty: float

    def __call__(self, context: StepContext) -> Tensor:
        """ℓ(f(x), y) + (λ/2) ‖θ − a‖²."""
        assert context.anchor is not None
        apart = (context.flat - context.anchor).square().sum()
        return super().__call__(context) + self.penalty / 2 * apart

    @classmethod
    def checked(cls, penalty: object, *plans: LocalPlan) -> Proximal:
        """The pull of a penalty that the steps of these plans can follow.

        On ``(λ/2) ‖θ − a‖²`` alone plain descent runs away from ``ηλ = 2`` on, and with momentum
        μ from ``2 (1 + μ)`` on. Adam's steps do not grow with the gradient.
        """
        number = check_number("penalty", penalty, least=0)
        for plan in plans:
            most = {"sgd": 2.0, "momentum": 2.0 * (1.0 + plan.momentum)}.get(plan.optimizer)
            if most is not None and number * plan.lr >= most:
                raise OptionError(
                    f"Expected a `penalty` below {most / plan.lr:g}, beyond which steps of "
                    f"{plan.lr:g} overshoot farther every time, but got {number:g}: lower it, or "
                    f"the learning rate, or use the optimizer 'adam'."
                )
        return cls(number)
