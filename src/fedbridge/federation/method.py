"""What a method is: it runs rounds of a federation and always has a model for the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from fedbridge.core.blocks import load_buffers, load_parameter_vector, parameter_vector
from fedbridge.training.blend import blend_for
from fedbridge.training.job import TARGET, Job, Outcome
from fedbridge.training.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbridge.data.task import FederatedTask
    from fedbridge.evaluation.metrics import Evaluation
    from fedbridge.federation.federation import Federation
    from fedbridge.federation.needs import Need
    from fedbridge.training.state import Model
    from fedbridge.training.target_side import Decision, News, TargetSide

INNER = "model."
"""How the names of the model's own tensors begin in a composed module."""

HOME, CLIENT = "home", "client."
"""What checkpoints call that which the target's side remembers, and what clients keep."""


@dataclass
class Record:
    """What a round leaves in the history, besides the measures of the model.

    Attributes:
        beta: trust in every source, in the task's order; None for one that was not there.
        sigma2: the target's noise; None when undefined.
        d2: estimated squared distance of every source (raw, may be negative).
        tau2_d2: estimated squared distance of the target from every source's line (raw).
        cosine: cosine between the target's update and every source's.
        failures: clients that were left out, and why.
        notes: what a reader should know about this round.
        extra: what only this method has to tell.
        evaluation: what the model is worth, if the target has already said so.
        seconds_train: time of the clients' training.
        seconds_aggregate: time of measuring and mixing.
    """

    beta: list[float | None] | None = None
    sigma2: float | None = None
    d2: list[float | None] | None = None
    tau2_d2: list[float | None] | None = None
    cosine: list[float | None] | None = None
    failures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    seconds_train: float = 0.0
    seconds_aggregate: float = 0.0


class Method(ABC):
    """Runs one round at a time; everything it must remember is in ``memory`` and ``facts``.

    Subclasses keep state nowhere else, so that a run can be stopped after any round and go on
    elsewhere to the same bits. It is enough to name the attributes in ``remembers``: models and
    tensors go to ``memory``, plain values to ``facts``.

    Attributes:
        options: what the method takes besides the options of every run.
        needs: what it needs beyond updates; an unmet need is an error before anything runs.
        remembers: attributes that rounds change, besides ``state``.
        travels: whether it works when sites are elsewhere: no personal model, and no row of
            anybody, may be needed at the coordinator.
        bound_by: if not, why, as the end of "... does not run over a network: ...".
        plain_jobs: whether clients do nothing but train the whole model, or tell its gradient, so
            that training loops of their own will do.
    """

    options: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[Need, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ()
    travels: ClassVar[bool] = False
    plain_jobs: ClassVar[bool] = True
    bound_by: ClassVar[str] = "it does not say that it can (`travels`)"

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        self.federation = federation
        self.given = dict(options)
        self.state = federation.initial
        self.side: TargetSide | None = None
        if self.decides_at_target():
            self.side = federation.host(lambda: self._made_side(federation, options))

    @property
    def model(self) -> Model:
        """The target's model as it is now: ``state``, or what the method makes of several."""
        return self.state

    @classmethod
    def stands_beside(cls, given: Mapping[str, object]) -> str | None:
        """The method whose usual options a control has, by the options that it is given."""
        return None

    @classmethod
    def compose(cls, model: nn.Module, task: FederatedTask) -> nn.Module:
        """What is trained: the model, or a module around it with a second model or a discriminator.

        The model's parameters come first in such a module, under the name ``model``; called, it
        answers as the target's own model does.
        """
        return model

    @classmethod
    def restore(cls, model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The module that a run of this method has delivered, without its parameters yet.

        Args:
            model: the model that the run's configuration names.
            tensors: what was saved, for the sizes of what the method adds to the model.
        """
        return blend_for(model, tensors)

    @classmethod
    def target_side(cls, federation: Federation, options: Mapping[str, Any]) -> TargetSide | None:
        """The part of the method that lives with the target, if there is one."""
        return None

    @classmethod
    def _made_side(cls, federation: Federation, options: Mapping[str, Any]) -> TargetSide:
        """The same of a method that has one."""
        side = cls.target_side(federation, options)
        assert side is not None
        return side

    @classmethod
    def decides_at_target(cls) -> bool:
        """Whether the target makes its model by itself, so that over a network it stays there."""
        own = cls.target_side.__func__  # type: ignore[attr-defined]
        return own is not Method.target_side.__func__  # type: ignore[attr-defined]

    def ask_target(self, round: int, news: News, record: Record) -> Decision | None:
        """Let the target decide on a round's news; None, and a note, if it does not answer."""
        decision = self.federation.decide(round, news)
        if decision is None:
            record.notes.append("the target did not answer: its model stays as it was")
        else:
            record.evaluation = decision.evaluation
        return decision

    def deliver(self, model: nn.Module, state: State) -> nn.Module:
        """A finished model for the target in ``model``, a copy of the initial one."""
        own = {
            name.removeprefix(INNER): value
            for name, value in state.buffers.items()
            if name.startswith(INNER) or not self.composed
        }
        load_parameter_vector(model, state.parameters[: parameter_vector(model).numel()])
        if own:
            load_buffers(model, own)
        return model

    @property
    def composed(self) -> bool:
        """Whether more than the model itself is trained."""
        return type(self).compose.__func__ is not Method.compose.__func__  # type: ignore[attr-defined]

    def room(self) -> tuple[int, int]:
        """Starting points and jobs at a time that the engine must have room for."""
        return 1, self.federation.n_sources + 1

    def begin(self, state: State) -> None:
        """Start, with every model, from the initial one or the one after the warm-up."""
        self.state = state
        for name, value in self._kept().items():
            if isinstance(value, State):
                setattr(self, name, state)

    def warm_up(self, round: int) -> dict[str, str]:
        """A round before the first, in which the sources train; clients that failed, and why."""
        self.state, failures = self.federation.warm_up(round, self.state)
        return failures

    @abstractmethod
    def run_round(self, round: int) -> Record:
        """One round; ``self.state`` is the target's model afterwards."""

    def memory(self) -> dict[str, Tensor]:
        """Tensors to remember between rounds, besides the model."""
        kept: dict[str, Tensor] = {}
        for name, value in self._kept().items():
            if isinstance(value, State):
                kept |= value.tensors(f"{name}.")
            elif isinstance(value, Tensor):
                kept[name] = value
        if self.side is not None:
            kept |= {f"{HOME}.{name}": value for name, value in self.side.memory().items()}
        return kept | {f"{CLIENT}{client}": own for client, own in self.federation.kept.items()}

    def facts(self) -> dict[str, Any]:
        """Plain values to remember between rounds."""
        facts = {k: v for k, v in self._kept().items() if not isinstance(v, State | Tensor)}
        return facts if self.side is None else {**facts, HOME: self.side.facts()}

    def remember(
        self, model: Model, memory: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Go on from what ``model``, ``memory`` and ``facts`` held after some round."""
        assert isinstance(model, State)
        self.state = model
        for name, value in self._kept().items():
            if isinstance(value, State):
                setattr(self, name, State.of_tensors(memory, f"{name}."))
            else:
                setattr(self, name, (memory if isinstance(value, Tensor) else facts)[name])
        kept = {k.removeprefix(CLIENT): own for k, own in memory.items() if k.startswith(CLIENT)}
        self.federation.kept.update({int(client): own for client, own in kept.items()})
        self.remember_side(memory, facts)

    def remember_side(self, memory: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Let the target's side go on, where it is here."""
        if self.side is not None:
            start = f"{HOME}."
            own = {k.removeprefix(start): v for k, v in memory.items() if k.startswith(start)}
            self.side.remember(own, facts[HOME])

    def _kept(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.remembers}

    def train_target(
        self, round: int, job: Job, start: State, record: Record
    ) -> tuple[State | None, Outcome]:
        """The target's model after one job from ``start``; None, and a failure, if it was lost."""
        federation = self.federation
        (outcome,), rows = federation.do([job], [start], round)
        record.failures |= federation.failures(round, [TARGET], [outcome])
        if outcome.failure is not None:
            return None, outcome
        return federation.trained(start, rows[0], outcome), outcome


def train_each(
    federation: Federation, jobs: Sequence[Job], states: Sequence[State]
) -> tuple[list[State], list[Outcome]]:
    """Every model after the job of its slot; one whose job failed stays as it was."""
    outcomes, rows = federation.do(jobs, states)
    after = [
        state if outcome.failure else federation.trained(state, change, outcome)
        for state, outcome, change in zip(states, outcomes, rows, strict=True)
    ]
    return after, outcomes
