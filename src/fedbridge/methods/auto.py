"""``auto``, the recommended default: several ways at once, and the target's own labels decide.

No fixed trust in sources is right: near sources should lead, far ones help a little, opposed
ones not at all. Gradients alone cannot tell (with few samples the target's gradient is small
against its noise, so even a conflicting source looks useful), but the loss on the target's
labels can. So ``auto`` keeps a few *candidates* going side by side:

- ``alone``: the target by itself;
- ``led``: the sources' updates at their full length, mixed by the shares of the joint rule (the
  point of their hull nearest to the target's gradient, from probes of this and past rounds);
- ``own``: the led model plus what the target's own training adds to it, round after round; taken
  whole or in part, which is fine-tuning and interpolation;
- ``mixed``: half trust, ``T [½ t/T_T + ½ Σ p_i g_i/T_i]``, with steps counted in the unit
  ``T = steps x learning rate`` and a length between the two, ``T = T_T^{1−b} T_S^b`` for b = ½.

It goes its own way: the options ``align``, ``blocks``, ``evidence``, ``noise_from`` and ``weights``
are about a single rule and do not apply to it, and of ``buffers`` only ``keep`` and ``frozen`` do.

Which candidate the target takes is decided in every round by the cross-validated loss on its
labelled rows: every candidate that trains on them has a replica per fold that never trains on the
fold's rows. A trace of them remains, since the sources train once and not once per fold: their
shares come from the gradient on all the target's rows, and their updates of ``mixed`` start from
the candidate, not from its replicas.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fedbridge.core.blocks import mean_buffers
from fedbridge.core.projections import nearest_in_hull
from fedbridge.core.rules import Mix
from fedbridge.federation.evidence import Vectors, measure_evidence
from fedbridge.federation.method import Method, Record
from fedbridge.methods.cross_validation import (
    FOLDS,
    deal_folds,
    held_out_loss,
    labelled_rows,
    without,
)
from fedbridge.methods.rule import describe
from fedbridge.training.job import TARGET, ClientResult, Job, Outcome
from fedbridge.training.state import State
from fedbridge.training.target_side import Decision, News, TargetSide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedbridge.engines import Finished
    from fedbridge.federation.federation import Federation

OWN_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How much of the target's own training is added to the led model; the loss chooses."""

LOSS_MEMORY = 0.5
"""Weight of past held-out losses: enough to calm a small sample, not so much as to lag behind."""

HALF_TRUST = 0.5
REPLICA_PURPOSE = 100
LED, LED_UPDATE, VELOCITY, TIME = "led", "led.update", "mixed.velocity", "mixed.time"

MEMORY = 0.7
"""Weight of the past rounds in the running average of the evidence about the sources."""

CAUTION = 0.1
"""Pull of the shares towards equal ones: evidence that tells no source apart leaves them equal."""


class Auto(Method):
    """Candidates side by side, chosen by cross-validated loss.

    Options:
        folds: parts of the target's rows, each kept from one replica per candidate (5).
    """

    options: ClassVar[tuple[str, ...]] = ("folds",)
    travels: ClassVar[bool] = True

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.side = federation.host(lambda: self.target_side(federation, options))
        self.led = self.mixed = federation.initial
        self.evidence: Tensor | None = None
        self.decided: int | None = None

    @classmethod
    def target_side(cls, federation: Federation, options: Mapping[str, Any]) -> AutoTargetSide:
        """The candidates, where the target's rows are."""
        return AutoTargetSide(federation, options)

    def room(self) -> tuple[int, int]:
        """Sources train on two candidates and probe; the target shares two jobs."""
        return 2, 3 * self.federation.n_sources + 2

    def begin(self, state: State) -> None:
        """All candidates start from the same model."""
        self.state = self.led = self.mixed = state
        self.side.begin(state)

    def run_round(self, round: int) -> Record:
        """Train all candidates, move them, let the target's labels choose."""
        begun = time.perf_counter()
        present, failures = self.federation.present(round)
        record = Record(failures=failures)
        if TARGET not in present:
            record.notes.append("the target is missing: the model stays as it was")
            return record
        sources = [client for client in present if client != TARGET]
        done = self._train(round, sources)
        outcomes, rows = done.outcomes, done.vectors
        record.failures |= self._failed(round, sources, done)
        trained_at = time.perf_counter()
        record.seconds_train = trained_at - begun
        if self.federation.name_of(TARGET) in record.failures:
            record.notes.append("the target was lost: the model stays as it was")
            return record
        news = self._move(sources, outcomes, rows, record)
        decision = self.federation.decide(round, news)
        if decision is None:
            record.notes.append("the target was lost before it chose: the model stays as it was")
        else:
            self.decided = round
            self._take(decision, record)
        record.seconds_aggregate = time.perf_counter() - trained_at
        return record

    def memory(self) -> dict[str, Tensor]:
        """The shared candidates, the evidence so far, and the target's side, if that is here."""
        kept = {} if self.evidence is None else {"evidence": self.evidence}
        kept |= self.led.tensors("led|") | self.mixed.tensors("mixed|")
        kept |= {f"home.{name}": value for name, value in self.side.memory().items()}
        return kept

    def facts(self) -> dict[str, Any]:
        """The last round in which the target has decided, and its side besides tensors."""
        return {"settled": self.decided, "home": self.side.facts()}

    def remember(
        self, state: State, memory: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Take all candidates up again."""
        super().remember(state, memory, facts)
        self.evidence, self.decided = memory.get("evidence"), facts["settled"]
        self.led, self.mixed = State.of_tensors(memory, "led|"), State.of_tensors(memory, "mixed|")
        self.side.remember(
            {k.removeprefix("home."): v for k, v in memory.items() if k.startswith("home.")},
            facts["home"],
        )

    def _train(self, round: int, sources: list[int]) -> Finished:
        """Sources train on the candidates ``led`` and ``mixed`` and probe ``led``.

        These two candidates pass between all clients; the target sends its probe and its part of
        ``mixed``, and its side trains the others.
        """
        federation, states = self.federation, [self.led, self.mixed]
        jobs = [federation.job(round, client, self.led) for client in sources]
        jobs += [federation.job(round, client, self.mixed, slot=1) for client in sources]
        jobs += [
            federation.job(round, client, self.led, kind="probe", noise="size")
            for client in (TARGET, *sources)
        ]
        jobs.append(federation.job(round, TARGET, self.mixed, slot=1, purpose=REPLICA_PURPOSE))
        done = federation.do_beside(jobs, states, round, decided=self.decided)
        federation.count_bytes([TARGET, TARGET, *sources, *sources], done.outcomes)
        return done

    def _failed(self, round: int, sources: list[int], done: Finished) -> dict[str, str]:
        """Sources that failed in any candidate, and the target if it cannot even train alone.

        A candidate that sources have led astray only loses its claim to be chosen.
        """
        n, outcomes = len(sources), done.outcomes
        failed: dict[str, str] = {}
        for part in (outcomes[:n], outcomes[n : 2 * n], outcomes[2 * n + 1 : 3 * n + 1]):
            failed |= self.federation.failures(round, sources, part)
        assert done.alone is not None
        return failed | self.federation.failures(round, [TARGET], [done.alone])

    def _move(
        self, sources: list[int], outcomes: list[Outcome], rows: Tensor, record: Record
    ) -> News:
        """Move the shared candidates by what came back; what the target's side must know of it."""
        n, federation = len(sources), self.federation
        there = [k for k in range(n) if federation.name_of(sources[k]) not in record.failures]
        news, step = News(), None
        if there:
            shares = self._shares(sources, outcomes, rows, there, record)
            led_step = _Step.of(shares, [outcomes[k] for k in there], rows[there])
            step = _Step.of(shares, [outcomes[n + k] for k in there], rows[[n + k for k in there]])
            kept = federation.settings.keeps_buffers
            buffers = None if kept else led_step.buffers
            self.led = self.led.moved(led_step.update, buffers)
            told = {f"{LED}.buffers.{name}": value for name, value in (buffers or {}).items()}
            news = News(
                {LED_UPDATE: led_step.update, VELOCITY: step.velocity, **told}, {TIME: step.time}
            )
        else:
            record.notes.append("no source is there: only the target's own candidates move")
        outcome, change = outcomes[3 * n + 1], rows[3 * n + 1]
        if outcome.failure is None:
            mixed = Velocity.of(news)
            moved = change.clone() if mixed is None else mixed.shared_with(change, outcome)
            self.mixed = federation.trained(self.mixed, moved, outcome)
        return news

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

    def _take(self, decision: Decision, record: Record) -> None:
        """Take the model that the target has chosen."""
        self.state = self.led if decision.state is None else decision.state
        record.evaluation = decision.evaluation
        choice = str(decision.facts["choice"])
        if record.beta is not None:
            trust = {"alone": 0.0, "mixed": HALF_TRUST}.get(choice.partition(" ")[0], 1.0)
            record.beta = [None if share is None else trust * share for share in record.beta]
        record.extra = {"choice": choice, "cv_loss": dict(decision.facts["losses"])}


@dataclass(frozen=True)
class _Step:
    """The sources' part of a round on one candidate.

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


@dataclass(frozen=True)
class Candidate:
    """A model of the target, trained on all rows or (a replica) on all but a fold's."""

    kind: str
    fold: int | None = None

    @property
    def name(self) -> str:
        """What it is called in a checkpoint."""
        return self.kind if self.fold is None else f"{self.kind}.{self.fold}"


MIXED = Candidate("mixed")


class AutoTargetSide(TargetSide):
    """The target's candidates, their replicas per fold, and the choice by cross-validated loss.

    ``alone`` and ``own`` train nowhere else. ``mixed`` is shared with the coordinator and has a
    replica per fold here.
    """

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
        """One model per candidate."""
        return len(self.candidates())

    def begin(self, state: State) -> None:
        """All candidates start from the same model."""
        self.states = {
            candidate.name: state for candidate in (*self.candidates(), MIXED, Candidate(LED))
        }
        self.waiting = {}

    def follow(self, shared: Sequence[State]) -> None:
        """``led`` and ``mixed`` are shared."""
        self.states[LED], self.states[MIXED.name] = shared

    def candidates(self) -> list[Candidate]:
        """Everything that is trained here, ``alone`` on all rows first."""
        folds = [*range(len(self.folds))] if len(self.rows) > 1 else []
        whole = [Candidate("alone"), Candidate("own")]
        return whole + [Candidate(kind, k) for kind in ("alone", "own", "mixed") for k in folds]

    def trainings(self, round: int) -> list[tuple[Job, State]]:
        """Every candidate goes on from where it is."""
        return [
            (self._job(round, candidate), self.states[candidate.name])
            for candidate in self.candidates()
        ]

    def trained(self, shared: Sequence[ClientResult], own: Sequence[ClientResult]) -> None:
        """The target's part of ``mixed`` is the last of the coordinator's jobs."""
        candidates = [MIXED, *self.candidates()]
        self.waiting = {
            candidate.name: ClientResult(result.outcome, result.vector.clone())
            for candidate, result in zip(candidates, [shared[-1], *own], strict=True)
            if result.outcome.failure is None
        }

    def decide(self, news: News) -> Decision:
        """Move every candidate by its mixture, then take that with the smallest held-out loss."""
        led, step = news.tensors.get(LED_UPDATE), Velocity.of(news)
        if led is not None:
            start = f"{LED}.buffers."
            buffers = {
                name.removeprefix(start): value
                for name, value in news.tensors.items()
                if name.startswith(start)
            }
            self.states[LED] = self.states[LED].moved(led, buffers or None)
        for candidate in (*self.candidates(), MIXED):
            result = self.waiting.get(candidate.name)
            if result is None:
                continue
            moved = result.vector
            if candidate.kind == "mixed" and step is not None:
                moved = step.shared_with(result.vector, result.outcome)
            elif candidate.kind == "own" and led is not None:
                moved = result.vector + led
            self.states[candidate.name] = self.federation.trained(
                self.states[candidate.name], moved, result.outcome
            )
        self.waiting = {}
        self._choose()
        decided = {"choice": self.choice, "losses": dict(self.losses)}
        return Decision(self._model(self.choice, None), decided)

    def memory(self) -> dict[str, Tensor]:
        """All candidates, and what waits for the decision."""
        kept: dict[str, Tensor] = {}
        for name, state in self.states.items():
            kept |= state.tensors(f"{name}|")
        for name, result in self.waiting.items():
            kept |= State(result.vector, dict(result.outcome.buffers)).tensors(f"waiting|{name}|")
        return kept

    def facts(self) -> dict[str, Any]:
        """Running losses, the candidate in use, steps and learning rates of what waits."""
        waiting = {
            n: [result.outcome.steps, result.outcome.lr] for n, result in self.waiting.items()
        }
        return {"losses": dict(self.losses), "choice": self.choice, "waiting": waiting}

    def remember(self, memory: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Take all candidates up again."""
        self.losses, self.choice = dict(facts["losses"]), str(facts["choice"])
        for name in self.states:
            self.states[name] = State.of_tensors(memory, f"{name}|")
        self.waiting = {}
        for name, (steps, lr) in facts["waiting"].items():
            change = State.of_tensors(memory, f"waiting|{name}|")
            outcome = Outcome(0, int(steps), float(lr), buffers=change.buffers)
            self.waiting[name] = ClientResult(outcome, change.parameters)

    def _job(self, round: int, candidate: Candidate) -> Job:
        rows = self.rows
        if candidate.fold is not None:
            rows = without(rows, self.folds[candidate.fold])
        purpose = REPLICA_PURPOSE + (0 if candidate.fold is None else candidate.fold + 1)
        return self.federation.job(
            round, TARGET, self.states[candidate.name], rows=rows, purpose=purpose
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
        """Mean loss of every choice on rows that its replica never saw."""
        if len(self.rows) < 2:
            return {}
        choices = ["alone", "mixed", *(f"own {share:g}" for share in OWN_SHARES)]
        return {name: self._held_out_loss(name) for name in choices}

    def _held_out_loss(self, choice: str) -> float:
        models = [self._model(choice, fold) for fold in range(len(self.folds))]
        return held_out_loss(self.federation, models, self.folds)

    def _model(self, choice: str, fold: int | None) -> State:
        """The model that a choice means, or its replica without a fold."""
        kind, _, share = choice.partition(" ")
        state = self.states[Candidate(kind, fold).name]
        if kind != "own":
            return state
        led, part = self.states[LED], float(share)
        parameters = torch.lerp(led.parameters, state.parameters, part)
        return State(parameters, state.buffers if part > 0 else led.buffers)


@dataclass(frozen=True)
class Velocity:
    """The sources' mixed update on a candidate, per unit of time.

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
