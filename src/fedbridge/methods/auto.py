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
from fedbridge.home import News
from fedbridge.jobs import TARGET, Outcome
from fedbridge.methods.base import Method, Record
from fedbridge.methods.lanes import (
    HALF_TRUST,
    LED,
    LED_UPDATE,
    REPLICA_PURPOSE,
    TIME,
    VELOCITY,
    Lanes,
    Velocity,
)
from fedbridge.methods.ruled import describe
from fedbridge.rules import Mix
from fedbridge.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.engines import Finished
    from fedbridge.federation import Federation
    from fedbridge.home import Decision

MEMORY = 0.7
"""Weight of the past rounds in the running average of the evidence about the sources."""

CAUTION = 0.1
"""Pull of the shares towards equal ones: evidence that tells no source apart leaves them equal."""


class Auto(Method):
    """Lanes side by side, chosen by cross-validated loss."""

    options: ClassVar[tuple[str, ...]] = ("folds",)
    travels: ClassVar[bool] = True

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.side = federation.host(lambda: self.target_side(federation, options))
        self.led = self.mixed = federation.initial
        self.evidence: Tensor | None = None
        self.decided: int | None = None

    @classmethod
    def target_side(cls, federation: Federation, options: Mapping[str, Any]) -> Lanes:
        """The lanes, where the target's rows are."""
        return Lanes(federation, options)

    def room(self) -> tuple[int, int]:
        """Sources train on two lanes and probe; the target shares two jobs."""
        return 2, 3 * self.federation.n_sources + 2

    def begin(self, state: State) -> None:
        """All lanes start from the same model."""
        self.state = self.led = self.mixed = state
        self.side.begin(state)

    def play(self, round: int) -> Record:
        """Train all lanes, move them, let the target's labels choose."""
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
        """The shared lanes, the evidence so far, and what is at home, if that is here."""
        kept = {} if self.evidence is None else {"evidence": self.evidence}
        kept |= self.led.tensors("led|") | self.mixed.tensors("mixed|")
        kept |= {f"home.{name}": value for name, value in self.side.memory().items()}
        return kept

    def facts(self) -> dict[str, Any]:
        """The last round that the target has settled, and what is at home besides tensors."""
        return {"settled": self.decided, "home": self.side.facts()}

    def remember(
        self, state: State, memory: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Take all lanes up again."""
        super().remember(state, memory, facts)
        self.evidence, self.decided = memory.get("evidence"), facts["settled"]
        self.led, self.mixed = State.of_tensors(memory, "led|"), State.of_tensors(memory, "mixed|")
        self.side.remember(
            {k.removeprefix("home."): v for k, v in memory.items() if k.startswith("home.")},
            facts["home"],
        )

    def _train(self, round: int, sources: list[int]) -> Finished:
        """Sources train on the lanes ``led`` and ``mixed`` and probe ``led``.

        These two lanes pass between all clients; the target sends its probe and its part of
        ``mixed`` and trains the others at home.
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
        """Sources that failed in any lane, and the target if it cannot even train alone.

        A lane that sources have led astray only loses its claim to be chosen.
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
        """Move the shared lanes by what came back; what the lanes at home need to know of it."""
        n, federation = len(sources), self.federation
        there = [k for k in range(n) if federation.name_of(sources[k]) not in record.failures]
        news, step = News(), None
        if there:
            shares = self._shares(sources, outcomes, rows, there, record)
            led_step = _Step.of(shares, [outcomes[k] for k in there], rows[there])
            step = _Step.of(shares, [outcomes[n + k] for k in there], rows[[n + k for k in there]])
            keep = federation.settings.buffers == "keep"
            buffers = None if keep else led_step.buffers
            self.led = self.led.moved(led_step.update, buffers)
            told = {f"{LED}.buffers.{name}": value for name, value in (buffers or {}).items()}
            news = News(
                {LED_UPDATE: led_step.update, VELOCITY: step.velocity, **told}, {TIME: step.time}
            )
        else:
            record.notes.append("no source is there: only the target's own lanes move")
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
