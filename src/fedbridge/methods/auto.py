"""``auto``, the recommended default: several ways at once, and the target's own labels decide.

No fixed trust in sources is right: near sources should lead, far ones help a little, opposed
ones not at all. Gradients alone cannot tell (with few samples the target's gradient is small
against its noise, so even a conflicting source looks useful), but the loss on the target's
labels can. So ``auto`` keeps a few *lanes* going side by side:

- ``alone``: the target by itself;
- ``led``: the sources' updates at their full length, mixed by the shares of the joint rule (the
  point of their hull nearest to the target's gradient, from probes of this and past rounds);
- ``own``: the led model plus what the target's own training adds to it, round after round; taken
  whole or in part, which is fine-tuning and interpolation;
- ``mixed``: half trust, ``T [½ t/T_T + ½ Σ p_i g_i/T_i]``, with steps counted in the unit
  ``T = steps x learning rate`` and a length between the two, ``T = T_T^{1−b} T_S^b`` for b = ½.

It goes its own way: the options ``align``, ``blocks``, ``evidence``, ``noise_from`` and ``weights``
are about a single rule and do not apply to it, and of ``buffers`` only ``keep`` does.

Which lane the target takes is decided in every round by the cross-validated loss on its labelled
rows: every lane that trains on them has a replica per fold that never trains on the fold's rows.
A trace of them remains, since the sources train once and not once per fold: their shares come from
the gradient on all the target's rows, and their updates of ``mixed`` start from the lane, not from
its replicas.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fedbridge.blocks import mean_buffers
from fedbridge.cone import nearest_in_hull
from fedbridge.evidence import Vectors, measure_evidence
from fedbridge.jobs import TARGET, Outcome
from fedbridge.methods.base import Method, Record
from fedbridge.methods.held_out import (
    FOLDS,
    deal_folds,
    held_out_loss,
    labelled_rows,
    without,
)
from fedbridge.methods.ruled import describe
from fedbridge.rules import Mix
from fedbridge.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.federation import Federation
    from fedbridge.jobs import Job

OWN_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How much of the target's own training is added to the led model; the loss chooses."""

MEMORY = 0.7
"""Weight of the past rounds in the running average of the evidence about the sources."""

LOSS_MEMORY = 0.5
"""The same for held-out losses: enough to calm a small sample, not so much as to lag behind."""

CAUTION = 0.1
"""Pull of the shares towards equal ones: evidence that tells no source apart leaves them equal."""

HALF_TRUST = 0.5
REPLICA_PURPOSE = 100


@dataclass(frozen=True)
class _Task:
    """One training of the target: of a lane, on all rows or on all but a fold's."""

    lane: str
    fold: int | None

    @property
    def name(self) -> str:
        return self.lane if self.fold is None else f"{self.lane}.{self.fold}"


class Auto(Method):
    """Lanes side by side, chosen by cross-validated loss."""

    options: ClassVar[tuple[str, ...]] = ("folds",)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.rows = labelled_rows(federation)
        self.folds = deal_folds(federation, options.get("folds", FOLDS))
        self.lanes: dict[str, State] = {}
        self.losses: dict[str, float] = {}
        self.evidence: Tensor | None = None
        self.choice = "alone"

    def room(self) -> tuple[int, int]:
        """Sources train on two lanes and probe; the target trains every lane and replica."""
        trainings = len(self._tasks())
        return 2 + trainings, 3 * self.federation.n_sources + 1 + trainings

    def begin(self, state: State) -> None:
        """All lanes start from the same model."""
        self.state = state
        self.lanes = {task.name: state for task in self._tasks()} | {"led": state}

    def play(self, round: int) -> Record:
        """Train all lanes, move them, let the target's labels choose."""
        begun = time.perf_counter()
        present, failures = self.federation.present(round)
        record = Record(failures=failures)
        if TARGET not in present:
            record.notes.append("the target is missing: the model stays as it was")
            return record
        sources = [client for client in present if client != TARGET]
        outcomes, rows = self._train(round, sources)
        record.failures |= self._failed(round, sources, outcomes)
        trained_at = time.perf_counter()
        record.seconds_train = trained_at - begun
        if self.federation.name_of(TARGET) in record.failures:
            record.notes.append("the target was lost: the model stays as it was")
            return record
        self._move(sources, outcomes, rows, record)
        self._choose(record)
        record.seconds_aggregate = time.perf_counter() - trained_at
        return record

    def memory(self) -> dict[str, Tensor]:
        """All lanes and the evidence so far."""
        kept = {} if self.evidence is None else {"evidence": self.evidence}
        for name, state in self.lanes.items():
            kept |= state.tensors(f"{name}|")
        return kept

    def facts(self) -> dict[str, Any]:
        """Running losses and the lane in use."""
        return {"losses": self.losses, "choice": self.choice}

    def remember(
        self, state: State, memory: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Take all lanes up again."""
        super().remember(state, memory, facts)
        self.losses, self.choice = dict(facts["losses"]), str(facts["choice"])
        self.evidence = memory.get("evidence")
        for name in list(self.lanes):
            self.lanes[name] = State.of_tensors(memory, f"{name}|")

    def _tasks(self) -> list[_Task]:
        """Every training of the target in a round."""
        folds = [None, *range(len(self.folds))] if len(self.rows) > 1 else [None]
        return [_Task(lane, fold) for lane in ("alone", "own", "mixed") for fold in folds]

    def _train(self, round: int, sources: list[int]) -> tuple[list[Outcome], Tensor]:
        """Sources train on the lanes ``led`` and ``mixed`` and probe ``led``; the target all.

        These two lanes pass between all clients; the target sends its probe and its part of
        ``mixed``.
        """
        federation, tasks = self.federation, self._tasks()
        states = [self.lanes["led"], *(self.lanes[task.name] for task in tasks)]
        mixed = 1 + tasks.index(_Task("mixed", None))
        jobs = [federation.job(round, client, states[0]) for client in sources]
        jobs += [federation.job(round, client, states[mixed], slot=mixed) for client in sources]
        jobs += [
            federation.job(round, client, states[0], kind="probe", noise="size")
            for client in (TARGET, *sources)
        ]
        jobs += [self._target_job(round, task, slot + 1) for slot, task in enumerate(tasks)]
        outcomes, rows = federation.do(jobs, states)
        first = 3 * len(sources) + 1
        federation.count_bytes(
            [TARGET, TARGET, *sources, *sources], [*outcomes[:first], outcomes[first + mixed - 1]]
        )
        return outcomes, rows

    def _target_job(self, round: int, task: _Task, slot: int) -> Job:
        rows = self.rows
        if task.fold is not None:
            rows = without(rows, self.folds[task.fold])
        purpose = REPLICA_PURPOSE + (0 if task.fold is None else task.fold + 1)
        state = self.lanes[task.name]
        return self.federation.job(round, TARGET, state, slot=slot, rows=rows, purpose=purpose)

    def _failed(self, round: int, sources: list[int], outcomes: list[Outcome]) -> dict[str, str]:
        """Sources that failed in any lane, and the target if it cannot even train alone.

        A lane that sources have led astray only loses its claim to be chosen.
        """
        n = len(sources)
        failed: dict[str, str] = {}
        for part in (outcomes[:n], outcomes[n : 2 * n], outcomes[2 * n + 1 : 3 * n + 1]):
            failed |= self.federation.failures(round, sources, part)
        alone = outcomes[3 * n + 1 + self._tasks().index(_Task("alone", None))]
        return failed | self.federation.failures(round, [TARGET], [alone])

    def _move(
        self, sources: list[int], outcomes: list[Outcome], rows: Tensor, record: Record
    ) -> None:
        """Move every lane by its mixture of what came back."""
        n, federation = len(sources), self.federation
        there = [k for k in range(n) if federation.name_of(sources[k]) not in record.failures]
        led_step = mixed_step = None
        if there:
            shares = self._shares(sources, outcomes, rows, there, record)
            led_step = _Step.of(shares, [outcomes[k] for k in there], rows[there])
            mixed_step = _Step.of(
                shares, [outcomes[n + k] for k in there], rows[[n + k for k in there]]
            )
            led, keep = self.lanes["led"], federation.settings.buffers == "keep"
            self.lanes["led"] = led.moved(
                led_step.update, led.buffers if keep else led_step.buffers
            )
        else:
            record.notes.append("no source is there: only the target's own lanes move")
        first = 3 * n + 1
        for index, task in enumerate(self._tasks()):
            outcome, change = outcomes[first + index], rows[first + index]
            if outcome.failure is not None:
                continue
            state = self.lanes[task.name]
            if task.lane == "mixed" and mixed_step is not None:
                moved = mixed_step.shared_with(change, outcome)
            elif task.lane == "own" and led_step is not None:
                moved = change + led_step.update
            else:
                moved = change.clone()
            self.lanes[task.name] = federation.trained(state, moved, outcome)

    def _shares(
        self,
        sources: list[int],
        outcomes: list[Outcome],
        rows: Tensor,
        there: list[int],
        record: Record,
    ) -> Tensor:
        """Shares of the sources: the joint rule on the probes of this and of past rounds."""
        federation, n = self.federation, len(sources)
        if outcomes[2 * n].failure is not None:
            return torch.full((len(there),), 1 / len(there), dtype=torch.float64)
        probes = rows[2 * n : 3 * n + 1]
        picked = [1 + k for k in there]
        reports = [outcomes[2 * n + k] for k in picked]
        vectors = Vectors(
            probes[0], probes[picked], outcomes[2 * n], reports, torch.ones(len(there)).double()
        )
        whole = federation.rule_blocks.whole(federation.blocks.total)
        geometry = measure_evidence(vectors, whole, federation.bench.sketch)
        present = [sources[k] - 1 for k in there]
        shares = nearest_in_hull(self._remembered(geometry.difference_gram[0], present))
        whole_trust = Mix(torch.zeros(1), shares[None], shares[None])
        describe(record, geometry, whole_trust, present, federation.n_sources)
        return shares

    def _remembered(self, now: Tensor, present: list[int]) -> Tensor:
        """Running average of the (scaled) Gram matrix of differences, for the sources at hand."""
        fresh = now / now.diagonal().mean().clamp(min=torch.finfo(now.dtype).tiny)
        fresh = fresh + CAUTION * torch.eye(len(fresh), dtype=fresh.dtype)
        if self.evidence is None:
            size = self.federation.n_sources
            self.evidence = torch.full((size, size), torch.nan, dtype=torch.float64)
        index = torch.tensor(present)
        past = self.evidence[index[:, None], index]
        past = torch.where(past.isnan(), fresh, MEMORY * past + (1 - MEMORY) * fresh)
        self.evidence[index[:, None], index] = past
        return past

    def _trust(self) -> float:
        lane = self.choice.partition(" ")[0]
        return {"alone": 0.0, "mixed": HALF_TRUST}.get(lane, 1.0)

    def _choose(self, record: Record) -> None:
        """Take the model with the smallest running cross-validated loss."""
        for name, loss in self._held_out_losses().items():
            past = self.losses.get(name)
            self.losses[name] = (
                loss if past is None else LOSS_MEMORY * past + (1 - LOSS_MEMORY) * loss
            )
        if self.losses:
            self.choice = min(self.losses, key=self.losses.__getitem__)
        self.state = self._model(self.choice, None)
        if record.beta is not None:
            trust = self._trust()
            record.beta = [None if share is None else trust * share for share in record.beta]
        record.extra = {"choice": self.choice, "cv_loss": dict(self.losses)}

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
        lane, _, share = candidate.partition(" ")
        state = self.lanes[_Task(lane, fold).name]
        if lane != "own":
            return state
        led, part = self.lanes["led"], float(share)
        parameters = torch.lerp(led.parameters, state.parameters, part)
        return State(parameters, state.buffers if part > 0 else led.buffers)


@dataclass(frozen=True)
class _Step:
    """The sources' part of a round on one lane.

    Attributes:
        update: their mixed update at its full length.
        velocity: the same per unit of time (steps x learning rate).
        time: how long they trained, averaged by their shares.
        buffers: the mean of their buffers.
    """

    update: Tensor
    velocity: Tensor
    time: float
    buffers: dict[str, Tensor]

    @classmethod
    def of(cls, shares: Tensor, outcomes: list[Outcome], updates: Tensor) -> _Step:
        times = torch.tensor([outcome.time for outcome in outcomes], dtype=torch.float64)
        weights = shares.to(updates.dtype)
        return cls(
            weights @ updates,
            (weights / times.to(updates.dtype)) @ updates,
            float((shares * times).sum()),
            mean_buffers([outcome.buffers for outcome in outcomes]),
        )

    def shared_with(self, change: Tensor, outcome: Outcome) -> Tensor:
        """Half trust: directions averaged per unit of time, a length between both."""
        length = outcome.time ** (1 - HALF_TRUST) * self.time**HALF_TRUST
        own = (1 - HALF_TRUST) / outcome.time * change
        mixed: Tensor = length * (own + HALF_TRUST * self.velocity)
        return mixed
