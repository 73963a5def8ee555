"""FedRep: a body (representation) that all clients share, and a head of each client's own.

In a round every client first trains its head ``h_i`` with the shared body ``φ`` held fixed, then
the body with that head held fixed; the bodies are averaged by samples, the heads never leave their
clients:

    h_i ← argmin f_i(φ, h),    φ ← Σ_i (n_i / n) [φ − η ∇_φ f_i(φ, h_i)] .

The target's model is the shared body with the target's head. On a linear model the head is the
whole of it: nothing is shared, and every client trains by itself.

Read beside copies of the authors' code and the one in omarfoq/knn-per: both train the head for 10
epochs per epoch of the body, as here by default; ``head_epochs=1`` is the cheap version. Different
from them: head and body have an optimiser each, made anew in every round (theirs goes on from the
head to the body); the authors train every head for 10 more epochs after the last round, while ours
is tested as the round leaves it.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized
Federated Learning, ICML 2021.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fedbridge.base.options import check_whole
from fedbridge.federation.method import Method, Record, train_each
from fedbridge.federation.needs import Need
from fedbridge.models import head_slices
from fedbridge.training.job import TARGET, Job, Outcome
from fedbridge.training.state import Slices, State, complement, entries, put

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.federation.federation import Federation

HEAD_EPOCHS = 10
HEAD_PURPOSE = 200
"""Batches of the head's training come in another order than those of the body's."""


class FedRep(Method):
    """A shared body and a local head; every client trains its head first, ``head_epochs`` (10).

    That is how often the head goes through what the body goes through once (``epochs`` or
    ``steps`` of the run).

    Options:
        head_epochs: passes of the head for one of the body (10).
    """

    options: ClassVar[tuple[str, ...]] = ("head_epochs",)
    needs: ClassVar[tuple[Need, ...]] = (Need.HEAD,)
    remembers: ClassVar[tuple[str, ...]] = ("heads",)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.head_epochs = check_whole(
            "head_epochs", options.get("head_epochs", HEAD_EPOCHS), least=1
        )
        self.head = head_slices(federation.bench.model)
        self.body = complement(self.head, federation.blocks.total)
        self.heads = self._everyone(federation.initial)

    def room(self) -> tuple[int, int]:
        """Every client starts from its own head."""
        return self.federation.n_sources + 1, self.federation.n_sources + 1

    def begin(self, state: State) -> None:
        """All heads start alike; from now on they stay where they are."""
        super().begin(state)
        self.federation.stays = self.head
        self.heads = self._everyone(state)

    def run_round(self, round: int) -> Record:
        """Heads, then bodies, then the mean of the bodies."""
        federation, begun = self.federation, time.perf_counter()
        present, failures = federation.present(round)
        record = Record(failures=failures)
        if present:
            starts = [self._state(client) for client in present]
            heads, outcomes = self._phase(round, present, starts, self.head, record)
            bodies = heads
            if self.body:
                bodies, outcomes = self._phase(round, present, heads, self.body, record)
            changes = torch.stack(
                [new.parameters - old.parameters for new, old in zip(bodies, heads, strict=True)]
            )
            federation.count_bytes(present, outcomes)
            self._keep_heads(present, heads, record)
            gathered = federation.sort(present, outcomes, changes, record.failures)
            moved = federation.averaged(self.state, gathered)
            put(moved.parameters, self.heads[TARGET], self.head)
            self.state = moved
        record.seconds_train = time.perf_counter() - begun
        if TARGET not in present:
            record.notes.append("the target is missing: its head stays as it was")
        return record

    def _everyone(self, state: State) -> Tensor:
        """(N+1, h) the same head for every client."""
        return entries(state.parameters, self.head).repeat(self.federation.n_sources + 1, 1)

    def _state(self, client: int) -> State:
        """The shared body with a client's head."""
        parameters = self.state.parameters.clone()
        put(parameters, self.heads[client], self.head)
        return State(parameters, self.state.buffers)

    def _phase(
        self, round: int, clients: list[int], states: list[State], moves: Slices, record: Record
    ) -> tuple[list[State], list[Outcome]]:
        """All clients train one part of their models; those that fail stay where they were."""
        jobs = [
            self._job(round, client, state, slot, moves)
            for slot, (client, state) in enumerate(zip(clients, states, strict=True))
        ]
        after, outcomes = train_each(self.federation, jobs, states)
        record.failures |= self.federation.failures(round, clients, outcomes)
        return after, outcomes

    def _job(self, round: int, client: int, state: State, slot: int, moves: Slices) -> Job:
        plan = self.federation.plan(client, round)
        if moves != self.head:
            return self.federation.job(round, client, state, slot=slot, moves=moves)
        plan = replace(
            plan,
            epochs=self.head_epochs * plan.epochs,
            steps=None if plan.steps is None else self.head_epochs * plan.steps,
        )
        return self.federation.job(
            round, client, state, slot=slot, moves=moves, plan=plan, purpose=HEAD_PURPOSE
        )

    def _keep_heads(self, clients: list[int], states: list[State], record: Record) -> None:
        for client, state in zip(clients, states, strict=True):
            if self.federation.name_of(client) not in record.failures:
                self.heads[client] = entries(state.parameters, self.head)
