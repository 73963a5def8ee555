"""What the target does at home for ``auto``: lanes, their replicas per fold, and the choice.

``alone`` and ``own`` train nowhere else. ``mixed`` is shared with the coordinator; at home it has a
replica per fold. See ``auto`` for what the lanes are and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fedbridge.home import Decision, News, TargetSide
from fedbridge.jobs import TARGET, ClientResult, Outcome
from fedbridge.methods.held_out import FOLDS, deal_folds, held_out_loss, labelled_rows, without
from fedbridge.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedbridge.federation import Federation
    from fedbridge.jobs import Job

OWN_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How much of the target's own training is added to the led model; the loss chooses."""

LOSS_MEMORY = 0.5
"""Weight of past held-out losses: enough to calm a small sample, not so much as to lag behind."""

HALF_TRUST = 0.5
REPLICA_PURPOSE = 100
LED, LED_UPDATE, VELOCITY, TIME = "led", "led.update", "mixed.velocity", "mixed.time"


@dataclass(frozen=True)
class Lane:
    """A model of the target: of a lane, trained on all rows or on all but a fold's."""

    kind: str
    fold: int | None = None

    @property
    def name(self) -> str:
        """What it is called in a checkpoint."""
        return self.kind if self.fold is None else f"{self.kind}.{self.fold}"


MIXED = Lane("mixed")


class Lanes(TargetSide):
    """The target's lanes, chosen among by cross-validated loss."""

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        self.federation = federation
        self.rows = labelled_rows(federation)
        self.folds = deal_folds(federation, options.get("folds", FOLDS))
        self.losses: dict[str, float] = {}
        self.choice = "alone"
        self.states: dict[str, State] = {}
        self.waiting: dict[str, ClientResult] = {}

    @property
    def size(self) -> int:
        """One model per lane."""
        return len(self.lanes())

    def begin(self, state: State) -> None:
        """All lanes start from the same model."""
        self.states = {lane.name: state for lane in (*self.lanes(), MIXED, Lane(LED))}
        self.waiting = {}

    def follow(self, shared: Sequence[State]) -> None:
        """``led`` and ``mixed`` are shared."""
        self.states[LED], self.states[MIXED.name] = shared

    def lanes(self) -> list[Lane]:
        """Everything that is trained at home, ``alone`` on all rows first."""
        folds = [*range(len(self.folds))] if len(self.rows) > 1 else []
        whole = [Lane("alone"), Lane("own")]
        return whole + [Lane(kind, k) for kind in ("alone", "own", "mixed") for k in folds]

    def trainings(self, round: int) -> list[tuple[Job, State]]:
        """Every lane goes on from where it is."""
        return [(self._job(round, lane), self.states[lane.name]) for lane in self.lanes()]

    def trained(self, shared: Sequence[ClientResult], own: Sequence[ClientResult]) -> None:
        """The target's part of ``mixed`` is the last of the coordinator's jobs."""
        lanes = [MIXED, *self.lanes()]
        self.waiting = {
            lane.name: ClientResult(work.outcome, work.vector.clone())
            for lane, work in zip(lanes, [shared[-1], *own], strict=True)
            if work.outcome.failure is None
        }

    def decide(self, news: News) -> Decision:
        """Move every lane by its mixture, then take the one with the smallest held-out loss."""
        led, step = news.tensors.get(LED_UPDATE), Velocity.of(news)
        if led is not None:
            start = f"{LED}.buffers."
            buffers = {
                name.removeprefix(start): value
                for name, value in news.tensors.items()
                if name.startswith(start)
            }
            self.states[LED] = self.states[LED].moved(led, buffers or None)
        for lane in (*self.lanes(), MIXED):
            work = self.waiting.get(lane.name)
            if work is None:
                continue
            moved = work.vector
            if lane.kind == "mixed" and step is not None:
                moved = step.shared_with(work.vector, work.outcome)
            elif lane.kind == "own" and led is not None:
                moved = work.vector + led
            self.states[lane.name] = self.federation.trained(
                self.states[lane.name], moved, work.outcome
            )
        self.waiting = {}
        self._choose()
        decided = {"choice": self.choice, "losses": dict(self.losses)}
        return Decision(self._model(self.choice, None), decided)

    def memory(self) -> dict[str, Tensor]:
        """All lanes, and what waits to be settled."""
        kept: dict[str, Tensor] = {}
        for name, state in self.states.items():
            kept |= state.tensors(f"{name}|")
        for name, work in self.waiting.items():
            kept |= State(work.vector, dict(work.outcome.buffers)).tensors(f"waiting|{name}|")
        return kept

    def facts(self) -> dict[str, Any]:
        """Running losses, the lane in use, steps and learning rates of what waits."""
        waiting = {n: [work.outcome.steps, work.outcome.lr] for n, work in self.waiting.items()}
        return {"losses": dict(self.losses), "choice": self.choice, "waiting": waiting}

    def remember(self, memory: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Take all lanes up again."""
        self.losses, self.choice = dict(facts["losses"]), str(facts["choice"])
        for name in self.states:
            self.states[name] = State.of_tensors(memory, f"{name}|")
        self.waiting = {}
        for name, (steps, lr) in facts["waiting"].items():
            change = State.of_tensors(memory, f"waiting|{name}|")
            outcome = Outcome(0, int(steps), float(lr), buffers=change.buffers)
            self.waiting[name] = ClientResult(outcome, change.parameters)

    def _job(self, round: int, lane: Lane) -> Job:
        rows = self.rows
        if lane.fold is not None:
            rows = without(rows, self.folds[lane.fold])
        purpose = REPLICA_PURPOSE + (0 if lane.fold is None else lane.fold + 1)
        return self.federation.job(
            round, TARGET, self.states[lane.name], rows=rows, purpose=purpose
        )

    def _choose(self) -> None:
        """Follow the running cross-validated losses."""
        for name, loss in self._held_out_losses().items():
            past = self.losses.get(name)
            self.losses[name] = (
                loss if past is None else LOSS_MEMORY * past + (1 - LOSS_MEMORY) * loss
            )
        if self.losses:
            self.choice = min(self.losses, key=self.losses.__getitem__)

    def _held_out_losses(self) -> dict[str, float]:
        """Mean loss of every candidate on rows that its replica never saw."""
        if len(self.rows) < 2:
            return {}
        candidates = ["alone", "mixed", *(f"own {share:g}" for share in OWN_SHARES)]
        return {name: self._held_out_loss(name) for name in candidates}

    def _held_out_loss(self, candidate: str) -> float:
        models = [self._model(candidate, fold) for fold in range(len(self.folds))]
        return held_out_loss(self.federation, models, self.folds)

    def _model(self, candidate: str, fold: int | None) -> State:
        """The model of a candidate, or its replica without a fold."""
        kind, _, share = candidate.partition(" ")
        state = self.states[Lane(kind, fold).name]
        if kind != "own":
            return state
        led, part = self.states[LED], float(share)
        parameters = torch.lerp(led.parameters, state.parameters, part)
        return State(parameters, state.buffers if part > 0 else led.buffers)


@dataclass(frozen=True)
class Velocity:
    """The sources' mixed update on a lane, per unit of time.

    Attributes:
        velocity: the update over steps x learning rate.
        time: how long they trained, averaged by their shares.
    """

    velocity: Tensor
    time: float

    @classmethod
    def of(cls, news: News) -> Velocity | None:
        """What the news say of it."""
        if VELOCITY not in news.tensors:
            return None
        return cls(news.tensors[VELOCITY], news.facts[TIME])

    def shared_with(self, change: Tensor, outcome: Outcome) -> Tensor:
        """Half trust: directions averaged per unit of time, a length between both."""
        length = outcome.time ** (1 - HALF_TRUST) * self.time**HALF_TRUST
        own = (1 - HALF_TRUST) / outcome.time * change
        mixed: Tensor = length * (own + HALF_TRUST * self.velocity)
        return mixed
