"""FedRep: a body (representation) that all clients share, and a head of each client's own.

In a round every client first trains its head ``h_i`` with the shared body ``φ`` held fixed, then
the body with that head held fixed; the bodies are averaged by samples, the heads never leave their
clients:

    h_i ← argmin f_i(φ, h),    φ ← Σ_i (n_i / n) [φ − η ∇_φ f_i(φ, h_i)] .

Over a network too: a client keeps its head from round to round (``Job.keeps``). The target's model
is the shared body with the target's head, and stays with the target. On a linear model the head is
the whole of it: nothing is shared, and every client trains by itself.

Read beside copies of the authors' code and the one in omarfoq/knn-per: both train the head for 10
epochs per epoch of the body, as here by default; ``head_epochs=1`` is the cheap version. Different
from them: head and body have an optimiser each, made anew in every round (theirs goes on from the
head to the body); the authors train every head for 10 more epochs after the last round, while ours
is tested as the round leaves it.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized
Federated Learning, ICML 2021.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedbridge.base.options import check_whole
from fedbridge.federation.needs import Need
from fedbridge.federation.personal import BesideFedAvg
from fedbridge.models import head_slices
from fedbridge.training.job import TARGET, Job
from fedbridge.training.state import State, complement, put
from fedbridge.training.target_side import Decision, News, TargetSide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.federation.evidence import Gathered
    from fedbridge.federation.federation import Federation

HEAD_EPOCHS = 10
HEAD_PURPOSE = 200
"""Batches of the head's training come in another order than those of the body's."""


class FedRepSide(TargetSide):
    """The target's head, on the body that all share."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.head = head_slices(federation.bench.model)

    def decide(self, news: News) -> Decision:
        """Put it on the new body."""
        state, own = State.of_tensors(news.tensors), self.federation.kept.get(TARGET)
        if own is not None:
            state = replace(state, parameters=state.parameters.clone())
            put(state.parameters, own, self.head)
        return Decision(state, {})


class FedRep(BesideFedAvg):
    """A shared body and a local head; every client trains its head first, ``head_epochs`` (10).

    That is how often the head goes through what the body goes through once (``epochs`` or
    ``steps`` of the run).

    Options:
        head_epochs: passes of the head for one of the body (10).
    """

    options: ClassVar[tuple[str, ...]] = ("head_epochs",)
    needs: ClassVar[tuple[Need, ...]] = (Need.HEAD,)
    plain_jobs: ClassVar[bool] = False

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.head_epochs = check_whole(
            "head_epochs", options.get("head_epochs", HEAD_EPOCHS), least=1
        )
        self.head = head_slices(federation.bench.model)
        self.body = complement(self.head, federation.blocks.total)

    @classmethod
    def target_side(cls, federation: Federation, options: Mapping[str, Any]) -> TargetSide:
        """The target's head, with the target."""
        return FedRepSide(federation)

    def begin(self, state: State) -> None:
        """All heads start alike; from now on they stay where they are."""
        super().begin(state)
        self.federation.stays = self.head

    def gather(self, round: int) -> Gathered:
        """Heads, which clients keep, then bodies."""
        federation = self.federation
        present, failures = federation.present(round)
        jobs = [self.job(round, client) for client in present]
        outcomes, rows = federation.do(jobs, [self.shared], round)
        federation.count_bytes(present, outcomes)
        failures |= federation.failures(round, present, outcomes)
        return federation.sort(present, outcomes, rows, failures)

    def news(self, before: State) -> News:
        """The new body; what is in place of a head says nothing."""
        return News(self.shared.tensors())

    def job(self, round: int, client: int) -> Job:
        """A client's head and, if there is one, the body after it."""
        federation, shared = self.federation, self.shared
        plan = federation.plan(client, round)
        longer = replace(
            plan,
            epochs=self.head_epochs * plan.epochs,
            steps=None if plan.steps is None else self.head_epochs * plan.steps,
        )
        head = federation.job(
            round,
            client,
            shared,
            moves=self.head,
            keeps=self.head,
            plan=longer,
            purpose=HEAD_PURPOSE,
        )
        if not self.body:
            return head
        first = replace(head, keeps=())
        return federation.job(round, client, shared, moves=self.body, keeps=self.head, first=first)
