"""A model of the target's own beside FedAvg's, trained and kept where the target's rows are.

All clients train the shared model, as FedAvg does. Whatever is the target's alone lives in its side
(``TargetSide``), which hears of the shared model at the round's start and after it: nothing but
shared models and a few numbers passes between the two, in one process and over a network alike.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fedbridge.federation.method import Method, Record
from fedbridge.training.job import TARGET
from fedbridge.training.state import State
from fedbridge.training.target_side import Decision, News, TargetSide
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedbridge.federation.evidence import Gathered
    from fedbridge.federation.federation import Federation
    from fedbridge.training.job import Job, Outcome
    from fedbridge.training.trainer import Workbench

START = "start."
"""How news call the shared model of the round's start, where they tell the one after it too."""


class PersonalSide(TargetSide):
    """Has a model of its own, which starts where the shared one is when the target first decides.

    Attributes:
        own: that model; None before.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.own: State | None = None

    def train(
        self, job: Job, starts: Sequence[Tensor], bench: Workbench | None = None
    ) -> tuple[Tensor, Outcome]:
        """The change that a job makes, here and now; a failure is the target's."""
        federation = self.federation
        change = torch.empty_like(starts[0])
        with one_thread():
            outcome = (bench or federation.bench).run(job, torch.stack([*starts]), change)
        federation.failures(federation.round, [TARGET], [outcome])
        return change, outcome

    def memory(self) -> dict[str, Tensor]:
        """The model."""
        return {} if self.own is None else self.own.tensors()

    def remember(self, memory: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Take it up again."""
        self.own = State.of_tensors(memory) if memory else None


class BesideFedAvg(Method):
    """FedAvg's rounds, after each of which the target makes its own model of the shared one."""

    remembers: ClassVar[tuple[str, ...]] = ("shared",)
    travels: ClassVar[bool] = True

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.shared = federation.initial

    def gather(self, round: int) -> Gathered:
        """All clients' training from the shared model."""
        return self.federation.gather(round, self.shared, noise="none")[0]

    def news(self, before: State) -> News:
        """What the target must know of a round: by default the model that it started from."""
        return News(before.tensors())

    def take(self, decision: Decision, record: Record) -> None:
        """Take the target's model; where that stays with the target, the shared one is here."""
        own = decision.state
        self.state = own if isinstance(own, State) else self.shared

    def run_round(self, round: int) -> Record:
        """A round of FedAvg, and the target's own work after it."""
        federation, begun, before = self.federation, time.perf_counter(), self.shared
        gathered = self.gather(round)
        self.shared = federation.averaged(before, gathered)
        trained_at = time.perf_counter()
        record = Record(failures=dict(gathered.failures), seconds_train=trained_at - begun)
        if gathered.target is None:
            record.notes.append("the target is missing: its model stays as it was")
            return record
        decision = self.ask_target(round, self.news(before), record)
        if decision is not None:
            self.take(decision, record)
        record.seconds_aggregate = time.perf_counter() - trained_at
        return record
