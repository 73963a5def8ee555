"""The engine of a coordinator: jobs go out as one message per site and round, answers come back.

Methods and rules do not notice: they ask for jobs to be run and get outcomes, or the reason why
there is none.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, MessageType, RecordDict

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import to_json
from fedbridge.core.blocks import buffer_copies, parameter_vector
from fedbridge.engines import Answer, Finished, Traffic
from fedbridge.evaluation.metrics import Evaluation
from fedbridge.federation.needs import rows_to_train
from fedbridge.flower.messages import (
    SITE,
    Layout,
    ReplyError,
    RunSpec,
    arrays,
    check_fields,
    jobs_to_json,
    objective_tensors,
    printable,
    read_choice,
    read_epsilon,
    read_evaluation,
    read_result,
)
from fedbridge.flower.screening import Expected, screen_update
from fedbridge.flower.transport import NoAnswer, Transport
from fedbridge.training.job import TARGET, ClientResult, Job, Outcome
from fedbridge.training.state import State, clear
from fedbridge.training.target_side import Decision, News, TargetSide

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from fedbridge.flower.membership import Membership
    from fedbridge.flower.options import NetworkOptions
    from fedbridge.training.state import Model
    from fedbridge.training.trainer import Workbench

    Results = dict[str, list[ClientResult] | Outcome]

T = TypeVar("T")

ROUND, WORK = RESERVED = ("server-round", "work")
"""Entries of a message's ``config`` that are ours."""
PATIENCE = 3
"""Rounds in a row that the target may miss before the run stops, to be resumed."""


class TargetGoneError(FedbridgeError):
    """The target has taken no part for too long; everything up to then is kept."""


class NoChoiceError(FedbridgeError):
    """An app of somebody's own in which the target has no choice."""


class FlowerEngine:
    """Runs jobs at sites behind a Flower grid.

    Args:
        bench: the model and what is known of the task; no row is in it.
        transport: carries messages.
        membership: who is there.
        spec: what is the same for all sites and rounds.
        network: how long a missing target is waited for, and which updates are believed.
        own_training: sites have training loops of their own, so that steps and learning rates
            are theirs to say, and no gradients can be asked for.
        configs: more entries for the messages of a kind (``train``, ``evaluate``), as the owner of
            a training loop asked for.
        observe: shown the model of every round, and the initial one as that of round 0.
    """

    in_turns = False

    def __init__(
        self,
        bench: Workbench,
        transport: Transport,
        membership: Membership,
        spec: RunSpec,
        network: NetworkOptions,
        *,
        own_training: bool = False,
        configs: Mapping[str, Mapping[str, Any]] | None = None,
        observe: Callable[[int, ArrayRecord], object] | None = None,
    ) -> None:
        self.transport, self.membership, self.spec = transport, membership, spec
        self.network, self.own_training, self.probes = network, own_training, not own_training
        self.configs, self.observe = configs or {}, observe
        self.blocks, self.layout = bench.blocks, Layout.of_model(bench.model)
        self._buffers = buffer_copies(bench.model)
        self._initial = State(parameter_vector(bench.model), self._buffers)
        self._settings = spec.run_settings()
        self._notes: list[str] = []
        self._missed: set[int] = set()
        self._keeping: set[str] = set()
        self._has_decided = False
        self.kept: dict[int, Tensor] = {}
        self._absent: list[str] = []
        self._asked_in = 0

    def open(self, *, slots: int, rows: int) -> None:
        """Nothing to start: nodes are there before a run."""
        self._show(0, self._initial)

    def close(self) -> None:
        """Nothing to end: nodes outlive a run."""

    def host(self, make: Callable[[], TargetSide]) -> TargetSide:
        """The target makes its side by itself; here is only the shell of it."""
        return TargetSide()

    def run(self, jobs: Sequence[Job], starts: Sequence[State], *, round: int) -> Answer[Finished]:
        """Run all jobs; those of a site that is gone, fails or sends nonsense say so."""
        asked: dict[str, list[Job]] = {}
        for job in jobs:
            asked.setdefault(self._site_of(job), []).append(job)
        known = objective_tensors(jobs)
        more = {"objective": arrays(known)} if known else {}
        models = [arrays(self.layout.arrays(start)) for start in starts]
        contents = {}
        for name, theirs in asked.items():
            slots, mine = _own_slots(theirs)
            config = self._config(
                "train", round, jobs=jobs_to_json(mine), known=name in self._keeping
            )
            own = {_slot_name(k): models[slot] for k, slot in enumerate(slots)}
            contents[name] = RecordDict({**own, **more, "config": config})
        answers = self._train(round, contents)
        facts: dict[str, Any] = {}
        results: Results = {
            name: self._results(name, asked[name], answer, facts)
            for name, answer in answers.items()
        }
        vectors = torch.zeros(len(jobs), self.blocks.total)
        outcomes = self._in_order(jobs, results, vectors)
        return self._answer(Finished(outcomes, vectors), facts)

    def decide(self, round: int, news: News) -> Answer[Decision | None]:
        """Tell the target what came of the round and let it choose; its model stays there."""
        config = self._config("evaluate", round, decide=dict(news.facts), known=self._has_decided)
        told = RecordDict({"config": config})
        if news.tensors:
            told["news"] = arrays(news.tensors)

        def read(content: RecordDict) -> Decision:
            decision = Decision(None, read_choice(content), read_evaluation(content))
            self._note(self.spec.target, content)
            self._has_decided = True
            return decision

        return self._answer(self._ask_target(round, told, read, needed=True))

    def postpone(self, round: int, state: Model) -> bool:
        """A message of its own would cost the target more than it saves."""
        return False

    def evaluate(self, round: int, state: Model) -> Answer[Evaluation]:
        """Have the target measure a model, or its own if it has decided on one before."""
        assert isinstance(state, State)  # a blend is made by the target, which has measured it
        model = self._show(round, state)
        asked = RecordDict({"arrays": model, "config": self._config("evaluate", round)})
        found = self._ask_target(round, asked, read_evaluation)
        return self._answer(found or Evaluation(None))

    def _answer(self, value: T, facts: Mapping[str, Any] | None = None) -> Answer[T]:
        """A value with all that happened on the network since the last one."""
        traffic = Traffic(self.transport.up, self.transport.down)
        self.transport.up = self.transport.down = 0
        notes, self._notes = self._notes, []
        return Answer(value, notes, facts or {}, traffic)

    def _show(self, round: int, state: State) -> ArrayRecord:
        """The model as arrays, which an observer sees too, but for those of the warm-up."""
        model = arrays(self.layout.arrays(state))
        if self.observe is not None and (round >= 1 or state is self._initial):
            self.observe(round, model)
        return model

    def _config(self, kind: str, round: int, **work: Any) -> ConfigRecord:
        """The run spec and what is asked, as a record, beside what its owner has to say."""
        text = to_json({"spec": asdict(self.spec), "round": round, "absent": self._absent, **work})
        return ConfigRecord({**self.configs.get(kind, {}), ROUND: round, WORK: text})

    def _site_of(self, job: Job) -> str:
        """Who does a job: also those on more of the target's rows are the target's."""
        names = self.spec.sites
        return names[job.client] if job.client < len(names) else self.spec.target

    def _train(
        self, round: int, contents: Mapping[str, RecordDict]
    ) -> dict[str, RecordDict | NoAnswer]:
        """One message to each of these sites, and what came back."""
        self._meet(contents)
        there = {name: node for name, node in self.membership.nodes.items() if name in contents}
        messages = {there[name]: contents[name] for name in contents if name in there}
        names = {node: name for name, node in there.items()}
        found = self.transport.ask(MessageType.TRAIN, messages, f"round {round}", names=names)
        answers = {
            name: found[there[name]] if name in there else NoAnswer(self.membership.absence(name))
            for name in contents
        }
        if round != self._asked_in:
            self._absent, self._asked_in = [], round
        self._absent += [name for name, own in answers.items() if isinstance(own, NoAnswer)]
        for name, answer in answers.items():
            if isinstance(answer, NoAnswer) and answer.lost:
                self.membership.lose(name, silent=answer.silent)
        own = answers.get(self.spec.target)
        refused = isinstance(own, NoAnswer) and not own.lost
        if own is not None and not refused:
            self._count_misses(round, own if isinstance(own, NoAnswer) else None)
        return answers

    def _ask_target(
        self,
        round: int,
        content: RecordDict,
        read: Callable[[RecordDict], T],
        *,
        needed: bool = False,
    ) -> T | None:
        """What the target answers, read and checked; None, and a note, if that is nothing.

        A round without an answer that is ``needed`` is one that the target has missed.
        """
        target = self.spec.target
        self._meet([target])
        answer: RecordDict | NoAnswer = NoAnswer(self.membership.absence(target))
        if target in self.membership.nodes:
            node = self.membership.nodes[target]
            asked = {node: content}
            answer = self.transport.ask(
                MessageType.EVALUATE, asked, f"round {round}", names={node: target}
            )[node]
            if isinstance(answer, NoAnswer) and answer.lost:
                self.membership.lose(target, silent=answer.silent)
        if needed:
            self._count_misses(round, answer if isinstance(answer, NoAnswer) else None)
        if needed and self.own_training and isinstance(answer, NoAnswer) and not answer.lost:
            raise NoChoiceError(
                f"Expected the target {target!r} to choose its model, as {self.spec.method!r} asks "
                f"of it, but its app failed with {answer.reason}: answer evaluate messages there "
                f"with reply_to_decide."
            )
        if isinstance(answer, NoAnswer):
            self._notes.append(f"{target} did not measure its model: {answer.reason}")
            return None
        try:
            check_fields(answer, 0)
            return read(answer)
        except ReplyError as error:
            self._notes.append(f"{target}: its reply was refused: {error}")
            return None

    def _meet(self, names: Sequence[str] | Mapping[str, object]) -> None:
        """See who is there; the target is given time to come back."""
        self.membership.refresh()
        target = self.spec.target
        if target in names and target not in self.membership.nodes:
            self.membership.wait_for(target, self.network.wait)
        self._notes += self.membership.notes
        self.membership.notes = []

    def _count_misses(self, round: int, miss: NoAnswer | None) -> None:
        """Count the rounds in a row that the target has missed; too many end the run."""
        if miss is None:
            self._missed.clear()
            return
        self._missed.add(round)
        if len(self._missed) >= PATIENCE:
            raise TargetGoneError(
                f"Expected the target {self.spec.target!r} to take part, but it has not for "
                f"{PATIENCE} rounds ({miss.reason}). Everything up to then is kept: correct that, "
                f"or start its node again, and resume the run."
            )

    def _results(
        self,
        name: str,
        jobs: Sequence[Job],
        answer: RecordDict | NoAnswer,
        facts: dict[str, Any],
    ) -> list[ClientResult] | Outcome:
        """A site's results, looked at before anybody computes with them; or why there are none."""
        samples = self.membership.cards[name].samples if name in self.membership.cards else 1
        if isinstance(answer, NoAnswer):
            return Outcome(samples, failure=answer.reason, lost=answer.lost)
        try:
            check_fields(answer, len(jobs), self._buffers)
            about = answer.config_records.get(SITE, ConfigRecord())
            if about.get("site") != name:
                raise ReplyError(f"it answers as {printable(about.get('site'))!r}")
            spent = read_epsilon(answer)
            if spent is not None:
                facts.setdefault("epsilon", {})[name] = spent
            self._note(name, answer)
            results = []
            for k, job in enumerate(jobs):
                result = read_result(answer, k, self.spec.encoding, self.blocks.total)
                if result is None:
                    return Outcome(samples, failure=printable(about.get("failure")))
                expected = self._expected(job, samples)
                complaint = screen_update(result, expected, self.network.norm_bound)
                if complaint is not None:
                    raise ReplyError(complaint)
                clear(result.vector, job.keeps)
                results.append(result)
            if any(job.keeps for job in jobs):
                self._keeping.add(name)
            return results
        except ReplyError as error:
            reason = printable(f"its reply was refused: {error}")
            return Outcome(samples, failure=reason, lost=True)

    def _note(self, name: str, content: RecordDict) -> None:
        """Put down what a site has to say about its answer."""
        note = content.config_records.get(SITE, ConfigRecord()).get("note")
        if isinstance(note, str):
            self._notes.append(f"{name} {printable(note)}")

    def _expected(self, job: Job, samples: int) -> Expected:
        """What must come of a job; steps and learning rates only where they are ours to say."""
        if job.client == TARGET:
            samples = rows_to_train(samples, self._settings)
        elif job.client >= len(self.spec.sites):
            samples = self.membership.cards[self.spec.target].unlabelled
        return Expected.of_job(
            job,
            None if self.own_training else samples,
            self.blocks,
            buffers=self._buffers,
            sketch_size=self._settings.sketch_size,
        )

    def _in_order(self, jobs: Sequence[Job], results: Results, vectors: Tensor) -> list[Outcome]:
        """Outcomes in the order of the jobs; their vectors go into the rows."""
        waiting = {
            name: iter(found) for name, found in results.items() if not isinstance(found, Outcome)
        }
        outcomes = []
        for row, job in enumerate(jobs):
            found = results[self._site_of(job)]
            if isinstance(found, Outcome):
                outcomes.append(found)
                continue
            result = next(waiting[self._site_of(job)])
            vectors[row].copy_(result.vector)
            outcomes.append(result.outcome)
        return outcomes


def _own_slots(jobs: Sequence[Job]) -> tuple[list[int], list[Job]]:
    """The models that the jobs of one site are about, and the jobs with the numbers of these.

    So a site gets no model that is meant for others.
    """
    every = [*jobs, *(job.first for job in jobs if job.first is not None)]
    anchors = (job.anchor for job in every if job.anchor is not None)
    slots = sorted({*(job.slot for job in every), *anchors})
    places = {slot: place for place, slot in enumerate(slots)}

    def mine(job: Job) -> Job:
        anchor = None if job.anchor is None else places[job.anchor]
        first = None if job.first is None else mine(job.first)
        return replace(job, slot=places[job.slot], anchor=anchor, first=first)

    return slots, [mine(job) for job in jobs]


def _slot_name(slot: int) -> str:
    """``arrays``, as a Flower user expects, and ``arrays-1`` for a second model."""
    return "arrays" if slot == 0 else f"arrays-{slot}"
