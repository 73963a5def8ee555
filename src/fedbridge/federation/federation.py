"""The federation: who is there, what a round costs, and what comes back from the clients.

Methods ask it to ``gather`` the clients' work from a point in parameter space; engine, seeds,
dropout, units and byte counts are dealt with here, once, for every method.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedbridge.base.errors import FedbridgeError, ModelError
from fedbridge.core.blocks import Blocks, buffer_copies, mean_buffers, parameter_vector
from fedbridge.data.split import round_half_up
from fedbridge.engines import Answer, Engine, Finished, Traffic, make_engine
from fedbridge.evaluation.metrics import Evaluation, Metrics, class_weights
from fedbridge.federation.evidence import Gathered
from fedbridge.federation.groups import Groups, are_many
from fedbridge.federation.lengths import Lengths, length_of
from fedbridge.federation.needs import Need, more_sites, rows_to_train, set_validation_aside
from fedbridge.federation.settings import FROZEN
from fedbridge.federation.source_rounds import DROPPED_OUT, SourceRounds
from fedbridge.training.accountant import Look, composed_epsilon
from fedbridge.training.job import (
    CHOOSING,
    DROPPING,
    PROBING,
    SPOILT,
    SUPERVISED,
    TARGET,
    TRAINING,
    Job,
    LocalPlan,
    Outcome,
    measurable_batch,
    seed_of,
)
from fedbridge.training.record_privacy import check_job, looks_of
from fedbridge.training.state import Buffers, Slices, State
from fedbridge.training.trainer import Workbench, one_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fedbridge.data.task import FederatedTask, Site
    from fedbridge.federation.settings import Settings
    from fedbridge.training.objective import Objective
    from fedbridge.training.state import Model
    from fedbridge.training.target_side import Decision, News, TargetSide


T = TypeVar("T")


class TargetFailedError(FedbridgeError):
    """The target's training came to nothing; without the target there is nothing to adapt to."""


class Federation:
    """A task, a model and an engine, ready to gather the work of clients."""

    def __init__(
        self,
        task: FederatedTask,
        model: nn.Module,
        settings: Settings,
        seed: int,
        needs: Sequence[Need] = (),
        engine: Callable[[Workbench], Engine] | None = None,
    ) -> None:
        """A federation whose clients are run by ``engine``; None for processes of this machine.

        ``needs`` says what besides the sites' labelled rows the method may see.
        """
        self.task, self.settings, self.seed = task, settings, seed
        self.initial = State(parameter_vector(model), buffer_copies(model))
        if self.initial.parameters.dtype != torch.float32:
            raise ModelError(
                f"Expected a model of float32 parameters, but got "
                f"{self.initial.parameters.dtype}: call its .float()."
            )
        self.validation, self.target_rows = set_validation_aside(task, settings, seed)
        more = more_sites(task, needs, self.validation)
        self.bench = Workbench(
            model,
            task,
            seed=seed,
            device=settings.device,
            sketch_size=settings.sketch_size,
            more_sites=tuple(more.values()),
            validation=self.validation,
            frozen=settings.buffers == FROZEN,
        )
        make = engine or partial(make_engine, workers=settings.workers)
        self.engine = make(self.bench)
        self._is_open = False
        self._more = {need: self.n_sources + 1 + k for k, need in enumerate(more)}
        self.blocks = self.bench.blocks
        self.rule_blocks = (
            self.blocks if settings.blocks == "tensor" else Blocks.whole(self.blocks.total)
        )
        self.begin_round(0)
        self.privacy = settings.record_privacy()
        self.looks: dict[str, Counter[Look]] = {}
        self.stays: Slices = ()
        self.buffers_stay: frozenset[str] = frozenset()

    @property
    def n_sources(self) -> int:
        """N."""
        return len(self.task.sources)

    def site_for(self, need: Need) -> int:
        """Number of the extra site that a method's need has opened, for jobs."""
        return self._more[need]

    def name_of(self, client: int) -> str:
        """A client's name."""
        return self.bench.sites[client].name

    def open(self, *, slots: int = 1, rows: int | None = None) -> None:
        """Start the engine with room for so many starting points and jobs, and for a warm-up."""
        self.engine.open(slots=slots, rows=max(rows or 0, self.n_sources + 1))
        self._is_open = True

    def close(self) -> None:
        """End the engine's processes."""
        self.engine.close()
        self._is_open = False

    def begin_round(self, round: int) -> None:
        """Count bytes, notes and facts from here on; predictions are of this round."""
        self.round = round
        self.bytes_up = self.bytes_down = 0
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}
        self._measured: Traffic | None = None

    @property
    def traffic(self) -> Traffic:
        """Bytes of the round: as measured on the wire, or what would have crossed one."""
        return self._measured or Traffic(self.bytes_up, self.bytes_down)

    def _heard(self, answer: Answer[T]) -> T:
        """Keep what an answer of the engine tells besides itself."""
        self.notes += answer.notes
        self.facts |= answer.facts
        if answer.traffic is not None:
            up, down = self._measured or (0, 0)
            self._measured = Traffic(up + answer.traffic.up, down + answer.traffic.down)
        return answer.value

    def batch_note(self) -> str | None:
        """What to say of the target's batches if they are smaller than its rows' number allows."""
        usual, own = self.settings.batch_size, self.plan(TARGET, 1).batch_size
        if self.settings.batch_size_target is not None or own == usual:
            return None
        rows = rows_to_train(len(self.task.target), self.settings)
        return (
            f"the target's {rows} rows are trained on in batches of {own} instead of {usual}, so "
            f"that the noise of its update can be measured: `batch_size_target` sets another size"
        )

    def participants(self, round: int) -> list[int]:
        """Sources (from 0) that take part in a round: a seeded choice, nobody only of nobody."""
        count = max(1, round_half_up(self.settings.participation * self.n_sources))
        if count >= self.n_sources:
            return list(range(self.n_sources))
        chooser = np.random.default_rng(seed_of(self.seed, round, 0, CHOOSING))
        return sorted(chooser.choice(self.n_sources, count, replace=False).tolist())

    def drops_out(self, round: int, client: int) -> bool:
        """Whether a client drops out of a round, by simulation."""
        if self.settings.dropout == 0:
            return False
        drawn = np.random.default_rng(seed_of(self.seed, round, client, DROPPING)).random()
        return bool(drawn < self.settings.dropout)

    def plan(self, client: int, round: int, beside: Sequence[int] = ()) -> LocalPlan:
        """How a client trains in a round, by itself or on its rows and those of others."""
        settings = self.settings
        plan_of = settings.target_plan if client == TARGET else settings.source_plan
        plan = plan_of(warm=round < 1)
        if client == TARGET and settings.batch_size_target is None:
            rows = rows_to_train(len(self.task.target), settings)
            plan = replace(plan, batch_size=measurable_batch(rows, plan.batch_size))
        if settings.class_weights is None or self.task.n_classes is None:
            return plan
        labels = torch.cat([self._labels(site) for site in (client, *beside)])
        if not len(labels):
            return plan  # who has the labels weighs them
        weights = class_weights(settings.class_weights, labels, self.task.n_classes)
        return replace(plan, class_weights=weights)

    def job(
        self,
        round: int,
        client: int,
        state: State,
        *,
        kind: Literal["train", "probe"] = "train",
        noise: Literal["none", "size", "sketch"] = "none",
        slot: int = 0,
        rows: Tensor | None = None,
        purpose: int | None = None,
        plan: LocalPlan | None = None,
        objective: Objective = SUPERVISED,
        beside: tuple[int, ...] = (),
        anchor: int | None = None,
        moves: Slices | None = None,
        first: Job | None = None,
        keeps: Slices = (),
    ) -> Job:
        """A piece of work for one client, starting from a state that is (to be) in a slot.

        A ``plan`` stands in for the one that the settings give this client; for the others see
        ``Job``.
        """
        probe = kind == "probe"
        if rows is None and client == TARGET:
            rows = self.target_rows
        number = (PROBING if probe else TRAINING) if purpose is None else purpose
        return Job(
            client,
            replace(plan or self.plan(client, round), noise=noise),
            seed_of(self.seed, round, client, number),
            kind,
            slot,
            self.buffers_for(state, first),
            rows,
            self.settings.probe_batches if probe and client != TARGET else None,
            objective,
            beside,
            anchor,
            moves,
            first,
            keeps,
        )

    def buffers_for(self, state: State, first: Job | None) -> Buffers:
        """Buffers that a job starts from: after another one those that it leaves, unless kept."""
        return state.buffers if first is None or self.settings.keeps_buffers else {}

    @property
    def kept(self) -> dict[int, Tensor]:
        """What clients keep of their own between rounds, where they are here (``Job.keeps``)."""
        return self.engine.kept

    def do(
        self, jobs: Sequence[Job], states: Sequence[State], round: int = 0
    ) -> tuple[list[Outcome], Tensor]:
        """Run jobs that start from ``states`` (by slot); outcomes, and their vectors as rows."""
        if not self._is_open:
            self.open(slots=len(states), rows=len(jobs))
        jobs = self._protected(jobs)
        done = self.run(jobs, states, round)
        lengths = Lengths(self.settings.longest)
        self.look_at(lengths, jobs, done)
        return self.without(self.refused(lengths, states), jobs, done.outcomes), done.vectors

    def run(self, jobs: Sequence[Job], states: Sequence[State], round: int) -> Finished:
        """Jobs as the engine runs them: nobody has looked at what came of them."""
        return self._heard(self.engine.run(jobs, states, round=round))

    def _protected(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Jobs with the record-level privacy that the settings ask for, and what it has cost."""
        privacy, first = self.privacy, 1 if self.settings.record_of != "all" else 0
        if privacy is None:
            return jobs
        for job in jobs:
            if job.beside:  # rows of others, which nobody protects
                check_job(job)
        own = {
            client: [job for job in jobs if job.client == client]
            for client in range(first, self.n_sources + 1)
        }
        frozen, found = self.settings.buffers == FROZEN, {}
        for client, asked in own.items():
            done = privacy.protected(asked, self.bench, frozen=frozen, secret=False)
            found[client] = iter(done)
            self.looks.setdefault(self.name_of(client), Counter()).update(
                looks_of(done, self.bench)
            )
        spent = {name: composed_epsilon(of, privacy.delta) for name, of in self.looks.items()}
        self.facts["epsilon"] = spent
        for name, epsilon in spent.items():
            if epsilon > privacy.epsilon:
                self.notes.append(
                    f"{name} has told an epsilon of {epsilon:.3g}, more than the "
                    f"{privacy.epsilon:g} asked for: the method sends several messages a round, "
                    f"raise `record_rounds`"
                )
        return [next(found[job.client]) if job.client in found else job for job in jobs]

    def look_at(self, lengths: Lengths, jobs: Sequence[Job], done: Finished) -> None:
        """See how long the updates of some jobs are."""
        for job, outcome, vector in zip(jobs, done.outcomes, done.vectors, strict=True):
            lengths.add(self.name_of(job.client), job, outcome, vector)

    def refused(self, lengths: Lengths, states: Sequence[State]) -> dict[str, str]:
        """Clients whose updates are too long, and why."""
        model = max((length_of(state.parameters) for state in states), default=0.0)
        return lengths.refused(model, self.name_of(TARGET))

    def without(
        self, refused: Mapping[str, str], jobs: Sequence[Job], outcomes: Sequence[Outcome]
    ) -> list[Outcome]:
        """Outcomes of the first jobs, failures in place of those of clients that are refused."""
        return [
            Outcome(1, failure=f"its reply was refused: {refused[name]}", lost=True)
            if (name := self.name_of(job.client)) in refused
            else outcome
            for job, outcome in zip(jobs, outcomes, strict=False)
        ]

    def host(self, make: Callable[[], TargetSide]) -> TargetSide:
        """Let the target's part of a method live with the target."""
        return self.engine.host(make)

    def decide(self, round: int, news: News) -> Decision | None:
        """Let the target decide on the round's mixture; None if it does not answer."""
        return self._heard(self.engine.decide(round, news))

    def gather(
        self,
        round: int,
        state: State,
        *,
        noise: Literal["none", "size", "sketch"] = "size",
        source_noise: bool = False,
        probe: bool = False,
        with_target: bool = True,
        with_sources: bool = True,
        objective: Objective = SUPERVISED,
        beside: tuple[int, ...] = (),
    ) -> tuple[Gathered, Gathered | None]:
        """Training, and probes if asked for, of all participants of a round.

        A client that fails, in either, is left out of the round and named. The ``objective`` may
        look at the round's starting point as its anchor, and at rows of the sites ``beside``.

        Raises:
            TargetFailedError: the target did not drop out but could not train.
        """
        present, failures = self.present(round, with_target=with_target, with_sources=with_sources)

        def asked(theirs: Literal["none", "size"], **more: Any) -> list[Job]:
            kept = {client: noise if client == TARGET else theirs for client in present}
            return [self.job(round, c, state, noise=kept[c], **more) for c in present]

        trains = {"objective": objective, "beside": beside, "anchor": 0}
        jobs = asked("size" if source_noise else "none", **trains)
        probes = asked("size", kind="probe") if probe else []
        smaller = self.settings.probe_batch_size
        if probes and smaller is not None:
            # Another plan, hence another message: a site answers each by one plan only.
            probes = [_in_batches(job, smaller) if job.client == TARGET else job for job in probes]
            told, seen = self.do(probes, [state], round)
            seen = seen.clone()
            outcomes, rows = self.do(jobs, [state], round)
            outcomes, rows = [*outcomes, *told], torch.cat((rows, seen))
        else:
            outcomes, rows = self.do([*jobs, *probes], [state], round)
        self.count_bytes(present, outcomes)
        parts = [outcomes[: len(present)], outcomes[len(present) :]]
        for part in parts:
            failures |= self.failures(round, present, part)
        trained = self.sort(present, parts[0], rows[: len(present)], failures)
        probed = self.sort(present, parts[1], rows[len(present) :], failures) if probe else None
        return trained, probed

    def are_many(self, round: int) -> bool:
        """Whether so many sources take part that updates should be used up as they come."""
        return are_many(len(self.participants(round)))

    def gather_groups(
        self,
        round: int,
        state: State,
        use: Callable[[Gathered], T],
        *,
        with_target: bool = True,
        objective: Objective = SUPERVISED,
    ) -> tuple[Gathered, list[T]]:
        """Training of all participants, used up in ``Groups``.

        Returns:
            What came back, with no vector but the target's, and what ``use`` made of each group.
        """
        present, failures = self.present(round, with_target=with_target)
        trains: dict[str, Any] = {"objective": objective, "anchor": 0}
        jobs = [
            self.job(round, client, state, noise="size" if client == TARGET else "none", **trains)
            for client in present
        ]
        groups = Groups(self, round, state, self._protected(jobs), use, with_target)
        made = groups.run()
        self.count_bytes(present, groups.believed)
        return groups.gathered(failures | groups.failures()), made

    def warm_up(self, round: int, state: State) -> tuple[State, dict[str, str]]:
        """A round of the sources' mean, the target watching; the same in all runs that share it."""
        shared = SourceRounds.current()
        if shared is not None:
            return shared.after(self, round, state)
        return self.sources_round(round, state)

    def sources_round(self, round: int, state: State) -> tuple[State, dict[str, str]]:
        """The same, done here and now."""
        if not self.are_many(round):
            gathered, _ = self.gather(round, state, noise="none", with_target=False)
            return self.averaged(state, gathered, fedavg=False), dict(gathered.failures)
        use = partial(self._mean, fedavg=False)
        gathered, made = self.gather_groups(round, state, use, with_target=False)
        if not made:
            return state, dict(gathered.failures)
        counts, means = (torch.stack(column) for column in zip(*made, strict=True))
        mean = (counts / counts.sum()).to(means.dtype) @ means
        return state.moved(mean, self.new_buffers(state, gathered)), dict(gathered.failures)

    def averaged(self, state: State, gathered: Gathered, *, fedavg: bool = True) -> State:
        """The model moved by the mean of what came back: FedAvg's over all, or over the sources.

        Clients have the shares that the setting ``weights`` gives them, here as in every rule.
        """
        if not len(gathered.rows):
            return state
        _, mean = self._mean(gathered, fedavg=fedavg)
        return state.moved(mean, self.new_buffers(state, gathered))

    def _mean(self, gathered: Gathered, *, fedavg: bool) -> tuple[Tensor, Tensor]:
        """How much all that came back counts, and its mean."""
        counts = gathered.samples[1 if gathered.target is None else 0 :]
        if not self.settings.by_samples(fedavg=fedavg):
            counts = torch.ones_like(counts)
        total = counts.sum()
        return total, (counts / total).to(gathered.rows.dtype) @ gathered.rows

    def trained(self, state: State, change: Tensor, outcome: Outcome) -> State:
        """A model of one client after its own training; buffers as trained, or kept."""
        kept = self.settings.keeps_buffers
        return state.moved(change, state.buffers if kept else dict(outcome.buffers))

    def sample_counts(self, sources: Sequence[int]) -> Tensor:
        """(n+1,) rows of the target and of these sources."""
        own = rows_to_train(len(self.task.target), self.settings)
        theirs = [len(self.task.sources[index]) for index in sources]
        return torch.tensor([own, *theirs], dtype=torch.float64)

    def new_buffers(self, state: State, gathered: Gathered) -> Buffers:
        """Buffers after a round, by the policy that the settings name; never a projection."""
        if self.settings.keeps_buffers or not state.buffers:
            return state.buffers
        if self.settings.buffers == "target" and gathered.target is not None:
            return dict(gathered.target.buffers)
        everyone = (gathered.target, *(outcome for _, outcome in gathered.sources))
        every = [outcome.buffers for outcome in everyone if outcome is not None]
        return mean_buffers(every) if every else state.buffers

    def postpone(self, round: int, state: Model) -> bool:
        """Whether a model is evaluated beside the next jobs; nothing may depend on it till then."""
        return self.validation is None and self.engine.postpone(round, state)

    def evaluate(self, round: int, state: Model) -> Evaluation:
        """What a model is worth to the target, wherever that is."""
        return self._heard(self.engine.evaluate(round, state))

    def measure(self, state: Model, site: Site | None = None) -> Metrics:
        """Measures of a model on the target's test split, or on another set that is here."""
        with one_thread():
            known = self.task.test if site is None else site
            return self.bench.measure(state, known, round=self.round)

    def predict(
        self,
        state: Model,
        site: Site,
        answer: Callable[[nn.Module, Tensor], Tensor] | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Outputs of a model, or another ``answer`` of it (its features), for rows of a set."""
        with one_thread():
            return self.bench.predict(state, site, answer, round=self.round, rows=rows)

    def present(
        self, round: int, *, with_target: bool = True, with_sources: bool = True
    ) -> tuple[list[int], dict[str, str]]:
        """Clients that are asked in a round, and those that (by simulation) drop out."""
        asked = [TARGET] if with_target else []
        if with_sources:
            asked += [index + 1 for index in self.participants(round)]
        gone = [client for client in asked if self.drops_out(round, client)]
        failures = {self.name_of(client): DROPPED_OUT for client in gone}
        return [client for client in asked if client not in gone], failures

    def failures(self, round: int, clients: list[int], outcomes: list[Outcome]) -> dict[str, str]:
        """Clients whose work failed, and why; a failure of the target itself ends the run."""
        failed = {
            client: outcome.failure
            for client, outcome in zip(clients, outcomes, strict=False)
            if outcome.failure is not None
        }
        if TARGET in failed and not outcomes[clients.index(TARGET)].lost:
            reason = failed[TARGET]
            advice = "correct what it says, and resume the run"
            if reason.startswith(SPOILT):
                advice = (
                    "lower lr_target or lr, look at its data, or leave out a source whose updates "
                    "may have led the model astray"
                )
            raise TargetFailedError(
                f"The target {self.name_of(TARGET)!r} could not train in round {round}: "
                f"{reason.rstrip('.')}: {advice}."
            )
        return {self.name_of(client): reason for client, reason in failed.items()}

    def sort(
        self, clients: list[int], outcomes: list[Outcome], rows: Tensor, failures: Mapping[str, str]
    ) -> Gathered:
        """Pair what came back with its client; rows are copied only where some are missing."""
        there = [k for k, client in enumerate(clients) if self.name_of(client) not in failures]
        kept = rows if len(there) == len(clients) else rows[there]
        has_target = bool(there) and clients[there[0]] == TARGET
        return Gathered(
            kept,
            outcomes[there[0]] if has_target else None,
            tuple((clients[k] - 1, outcomes[k]) for k in there if clients[k] != TARGET),
            failures,
        )

    def count_bytes(self, clients: list[int], outcomes: list[Outcome]) -> None:
        """What would cross a network: one model down per client, vectors and statistics up.

        A method says which slices of the vector (``stays``) and which buffers never leave a
        site (``buffers_stay``).
        """
        vector = 4 * (self.blocks.total - sum(end - start for start, end in self.stays))
        buffers = sum(
            buffer.numel() * buffer.element_size()
            for name, buffer in self.initial.buffers.items()
            if name not in self.buffers_stay
        )
        self.bytes_down += len(clients) * (vector + buffers)
        for outcome in outcomes:
            extras = [t for t in (outcome.noise, outcome.sketches) if t is not None]
            extras += outcome.told.values()
            self.bytes_up += vector + sum(4 * extra.numel() for extra in extras)
        self.bytes_up += len(clients) * buffers

    def _labels(self, client: int) -> Tensor:
        """The labels that a client trains on: those set aside for validation have no say."""
        labels = self.bench.sites[client].y
        held_back = client == TARGET and self.target_rows is not None
        return labels[self.target_rows] if held_back else labels


def _in_batches(job: Job, size: int) -> Job:
    """A job in batches of exactly this size."""
    return replace(job, plan=replace(job.plan, batch_size=size, drop_last=True))
