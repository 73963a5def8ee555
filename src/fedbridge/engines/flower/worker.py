"""What a site does with a coordinator's orders: the same work as in a local run, on its own rows.

A site sees the federation as everybody does, except that only its own rows are there. Nothing here
knows how messages travel.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedbridge import methods
from fedbridge.blocks import load_buffers, load_parameter_vector
from fedbridge.distant import DistantTask, distant_site
from fedbridge.engines.flower.encoding import Feedback
from fedbridge.engines.flower.keepsake import keep_model
from fedbridge.engines.flower.layout import Layout
from fedbridge.engines.flower.orders import OrderError, Orders
from fedbridge.engines.flower.privacy import Ledger, release
from fedbridge.engines.flower.reasons import public_reason
from fedbridge.federation import Federation
from fedbridge.jobs import TARGET, ClientResult
from fedbridge.models import build_model, is_built_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from fedbridge.data.site_package import LocalSite
    from fedbridge.engines.flower.memory import Memory
    from fedbridge.engines.flower.privacy import LocalPrivacy
    from fedbridge.home import Decision, News, TargetSide
    from fedbridge.jobs import Job
    from fedbridge.metrics import Evaluation
    from fedbridge.state import State

log = logging.getLogger("fedbridge")

LEDGER = "privacy.json"
HOME, WAITING, ROUNDING = "home", "waiting", "rounding"


@dataclass(frozen=True)
class Delivery:
    """A finished job, ready to travel.

    Attributes:
        result: what the coordinator will see.
        tensors: the vector, encoded.
    """

    result: ClientResult
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class SiteRound:
    """A site's answer to the orders of a round.

    Attributes:
        deliveries: one per job.
        home_failure: why the target cannot train at all, if it cannot.
        note: what the coordinator should put down about this site.
        epsilon: what the site's messages have cost so far, if it protects them.
    """

    deliveries: Sequence[Delivery]
    home_failure: str | None = None
    note: str | None = None
    epsilon: float | None = None


class SiteWorker:
    """One site at work on one run."""

    def __init__(
        self,
        site: LocalSite,
        orders: Orders,
        memory: Memory,
        *,
        model: Callable[[], nn.Module] | None = None,
        privacy: LocalPrivacy | None = None,
        budget: float | None = None,
    ) -> None:
        """``privacy`` protects what leaves, up to an epsilon of ``budget`` over all runs."""
        if site.name not in orders.sites:
            raise OrderError(
                f"Expected orders for the sites {', '.join(orders.sites)}, but this is "
                f"{site.name!r}: the coordinator and the site must agree on names."
            )
        self.site, self.orders, self.memory = site, orders, memory
        self.privacy, self.budget = privacy, budget
        self.client = orders.sites.index(site.name)
        if (self.client == TARGET) != (site.role == "target"):
            raise OrderError(
                f"Expected {site.name!r} to be a {site.role}, but the coordinator takes it for "
                f"the {'target' if self.client == TARGET else 'source'}."
            )
        task = own_view(site, orders)
        built = build_model(_built_in(orders.model), task) if model is None else model()
        self.model = built
        self.layout = Layout.of_model(built)
        self.federation = Federation(task, built, orders.run_settings(), orders.seed)

    def train(
        self, round: int, jobs: Sequence[Job], states: Sequence[State], settled: int | None = None
    ) -> SiteRound:
        """Do a round's jobs, and at the target what its method trains at home beside them.

        ``settled`` is the last round that the coordinator knows the target to have settled.
        """
        if not jobs or any(job.client != self.client for job in jobs):
            raise OrderError(f"Expected jobs for site {self.site.name!r}, but got others.")
        mine = [self._completed(job, states) for job in jobs]
        ledger = Ledger(self.memory.root / LEDGER)
        home, note = self._home(round, states, settled)
        trainings = [] if home is None else home.trainings(round)
        own = [replace(job, slot=len(states) + k) for k, (job, _) in enumerate(trainings)]
        starts = [*states, *(state for _, state in trainings)]
        self.federation.open(slots=len(starts), rows=len(jobs) + len(own))
        outcomes, rows = self.federation.do([*mine, *own], starts, round)
        done = [
            ClientResult(outcome, row.clone()) for outcome, row in zip(outcomes, rows, strict=True)
        ]
        works, at_home = done[: len(jobs)], done[len(jobs) :]
        for work in works:
            if work.outcome.failure is not None:
                log.warning("round %d: %s", round, work.outcome.failure)
        if self.privacy is not None:
            ledger.spend(self.privacy, self.budget)
            works = release(mine, works, self.privacy, self.federation.blocks)
        deliveries = self._encoded(round, mine, works)
        failure = None
        if home is not None:
            home.trained([delivery.result for delivery in deliveries], at_home)
            self.memory.save(WAITING, round, home.memory(), home.facts())
            stopped = at_home[0].outcome.failure
            failure = None if stopped is None else public_reason(stopped)
        if self.privacy is None:
            return SiteRound(deliveries, failure, note)
        return SiteRound(deliveries, None, note, ledger.epsilon(self.privacy.delta))

    def decide(self, round: int, news: News) -> Decision:
        """Let the lanes at home decide, and measure what they chose."""
        home = self._make_home()
        waiting = None if home is None else self.memory.load(WAITING, before=round + 1)
        if home is None or waiting is None or waiting.round != round:
            raise OrderError(
                f"Expected to have trained in round {round} before it is settled, but nothing "
                f"of it is remembered here."
            )
        home.begin(self.federation.initial)
        home.remember(waiting.tensors, waiting.facts)
        decision = home.decide(news)
        self.memory.save(HOME, round, home.memory(), home.facts())
        assert decision.state is not None
        return replace(decision, evaluation=self.federation.evaluate(round, decision.state))

    def evaluate(self, round: int, state: State) -> Evaluation:
        """What a model is worth to the target."""
        return self.federation.evaluate(round, state)

    def keep_model(self, state: State, evaluation: Evaluation) -> None:
        """Keep the target's model where the target is, ready for ``fedbridge predict``."""
        load_parameter_vector(self.model, state.parameters)
        if state.buffers:
            load_buffers(self.model, state.buffers)
        keep_model(self.memory.root, self.site, self.orders, self.model, evaluation)

    def _completed(self, job: Job, states: Sequence[State]) -> Job:
        """A job with what only the site knows: rows in use, class weights, the model's buffers."""
        if not (0 <= job.slot < len(states)) or (job.anchor or 0) >= len(states):
            raise OrderError(f"Expected a job on one of {len(states)} models, but got another.")
        plan = job.plan
        if self.federation.settings.class_weights is not None:
            own = self.federation.plan(self.client, 1)
            plan = replace(plan, class_weights=own.class_weights)
        rows = self.federation.target_rows if self.client == TARGET else None
        return replace(job, plan=plan, rows=rows, buffers=states[job.slot].buffers)

    def _make_home(self) -> TargetSide | None:
        if self.client != TARGET:
            return None
        kind = methods.class_of(self.orders.method)
        return kind.target_side(self.federation, self.orders.options)

    def _home(
        self, round: int, states: Sequence[State], settled: int | None
    ) -> tuple[TargetSide | None, str | None]:
        """The home as it was after the last round, on the lanes that the coordinator has."""
        home = self._make_home()
        if home is None:
            return None, None
        home.begin(states[0])
        if settled is None:
            self.memory.forget()
            return home, None
        past = self.memory.load(HOME, before=round)
        note = None
        if past is None:
            note = "had lost its memory: its own lanes start again from the shared model"
        else:
            home.remember(past.tensors, past.facts)
            if past.round < settled:
                note = f"goes on with its own lanes as they were after round {past.round}"
        home.follow(states)
        return home, note

    def _encoded(
        self, round: int, jobs: Sequence[Job], works: Sequence[ClientResult]
    ) -> list[Delivery]:
        """Vectors as they travel; the site goes on with what the coordinator will see of them."""
        feedback = Feedback(self.orders.encoding)
        past = self.memory.load(ROUNDING, before=round + 1)
        if past is not None:
            feedback.remember(past.tensors)
        deliveries = []
        for job, work in zip(jobs, works, strict=True):
            if work.outcome.failure is not None:
                deliveries.append(Delivery(work, {}))
                continue
            key = f"{job.kind} {job.slot}"
            sent = feedback.encode(key, round, work.vector)
            deliveries.append(Delivery(ClientResult(work.outcome, sent.decoded), sent.tensors))
        kept = feedback.memory()
        if kept:
            self.memory.save(ROUNDING, round, kept, {})
        return deliveries


def own_view(site: LocalSite, orders: Orders) -> DistantTask:
    """The task as one site sees it: its own rows, and the names of the others."""
    shape = tuple(site.train.x.shape[1:])
    outputs = 1 if site.train.y.ndim == 1 else int(site.train.y.shape[1])

    def elsewhere(name: str) -> Any:
        return distant_site(name, 0, shape, n_classes=site.n_classes, outputs=outputs)

    known = {site.name: site.train}
    target = known.get(orders.target) or elsewhere(orders.target)
    return DistantTask(
        name="federation",
        sources=tuple(known.get(name) or elsewhere(name) for name in orders.sources),
        target=target,
        test=elsewhere(f"{orders.target} (test)") if site.test is None else site.test,
        n_classes=site.n_classes,
        class_names=site.class_names,
    )


def _built_in(name: str | None) -> str:
    if name is None or not is_built_in(name):
        raise OrderError(
            f"Expected the name of a built-in model, but the coordinator says {name!r}: give the "
            f"site the model itself, client_app(model=...)."
        )
    return name
