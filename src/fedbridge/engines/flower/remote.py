"""The engine of a coordinator: jobs go out as one message per site and round, answers come back.

Methods and rules do not notice: they ask for jobs to be done and get outcomes, or the reason why
there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ConfigRecord, MessageType, RecordDict

from fedbridge.engines.flower.courier import NoAnswer
from fedbridge.engines.flower.layout import Layout
from fedbridge.engines.flower.orders import jobs_to_json
from fedbridge.engines.flower.reasons import printable
from fedbridge.engines.flower.replies import (
    SITE,
    ReplyError,
    arrays,
    check_fields,
    read_choice,
    read_evaluation,
    read_work,
    tensors,
)
from fedbridge.engines.flower.screening import (
    Expected,
    layout_of,
    length_of,
    screen_lengths,
    screen_model,
    screen_update,
)
from fedbridge.engines.local import check_room
from fedbridge.errors import FedbridgeError
from fedbridge.files import to_json
from fedbridge.home import Settled
from fedbridge.jobs import TARGET, Outcome
from fedbridge.labels_in_use import rows_to_train
from fedbridge.metrics import Evaluation
from fedbridge.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flwr.app import ArrayRecord

    from fedbridge.engines.flower.courier import Courier
    from fedbridge.engines.flower.orders import Orders
    from fedbridge.engines.flower.roll import Roll
    from fedbridge.federation import Federation
    from fedbridge.home import News, Work
    from fedbridge.jobs import Job

PATIENCE = 3
"""Rounds in a row that the target may miss before the run stops, to be resumed."""


class TargetGoneError(FedbridgeError):
    """The target has been silent for too long; everything up to then is kept."""


class FlowerRemote:
    """Sites behind a Flower grid.

    Attributes:
        round: the round that is being played.
        at_home: whether the target could train at all in it.
        notes: what happened on the network, for the history.
        facts: more entries for it.
        settled: the last round that the target has settled.
        norm_bound: longest update that is believed; None for any.
        norm_ratio: the same as a multiple of the round's median.
        own_training: sites have training loops of their own, so that steps and learning rates
            are theirs to say.
    """

    def __init__(
        self,
        courier: Courier,
        roll: Roll,
        orders: Orders,
        *,
        wait: float,
        norm_bound: float | None = None,
        norm_ratio: float | None = None,
        own_training: bool = False,
    ) -> None:
        self.courier, self.roll, self.orders, self.wait = courier, roll, orders, wait
        self.norm_bound, self.norm_ratio, self.own_training = norm_bound, norm_ratio, own_training
        self.round = 0
        self.at_home = Outcome(0)
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}
        self.settled: int | None = None
        self._engine: FlowerEngine | None = None
        self._missed = 0

    def open(self, federation: Federation, *, slots: int, rows: int) -> FlowerEngine:
        """The engine that reaches the sites."""
        self._engine = FlowerEngine(self, federation, slots=slots, rows=rows)
        return self._engine

    def traffic(self) -> tuple[int, int]:
        """Bytes up and down since the last call."""
        moved = self.courier.up, self.courier.down
        self.courier.up = self.courier.down = 0
        return moved

    def train(self, contents: Mapping[str, RecordDict]) -> dict[str, RecordDict | NoAnswer]:
        """One message to each of these sites, and what came back."""
        self._meet(contents)
        there = {name: self.roll.nodes[name] for name in contents if name in self.roll.nodes}
        found = self.courier.ask(
            MessageType.TRAIN,
            {node: contents[name] for name, node in there.items()},
            str(self.round),
        )
        absent = NoAnswer("is not connected")
        answers = {n: found[there[n]] if n in there else absent for n in contents}
        for name, answer in answers.items():
            if isinstance(answer, NoAnswer) and answer.lost:
                self.roll.lose(name, silent=answer.silent)
        self._count_misses(answers.get(self.orders.target))
        return answers

    def settle(self, round: int, news: News) -> Settled | None:
        """Tell the target what the round's mixture is and let it choose."""
        told = RecordDict({"config": self.config(round, settle=dict(news.facts))})
        if news.tensors:
            told["news"] = arrays(news.tensors)
        content = self._ask_target(told)
        if content is None:
            return None
        try:
            choice = read_choice(content)
            state = None
            if "arrays" in content:
                assert self._engine is not None
                state = self._engine.model_of(content.array_records["arrays"])
            return Settled(state, choice, read_evaluation(content))
        except ReplyError as error:
            self.notes.append(f"{self.orders.target}: its reply was refused: {error}")
            return None

    def judge(self, round: int, state: State) -> Evaluation:
        """Have the target measure a model."""
        assert self._engine is not None
        model = arrays(self._engine.layout.arrays(state))
        content = self._ask_target(RecordDict({"arrays": model, "config": self.config(round)}))
        if content is None:
            return Evaluation(None)
        try:
            return read_evaluation(content)
        except ReplyError as error:
            self.notes.append(f"{self.orders.target}: its reply was refused: {error}")
            return Evaluation(None)

    def config(self, round: int, **work: Any) -> ConfigRecord:
        """Orders as a record."""
        text = to_json({"orders": self.orders.to_json(), "round": round, **work})
        return ConfigRecord({"server-round": round, "work": text})

    def _ask_target(self, content: RecordDict) -> RecordDict | None:
        target = self.orders.target
        self._meet([target])
        if target not in self.roll.nodes:
            self.notes.append(f"{target} is not connected: its model was not measured")
            return None
        node = self.roll.nodes[target]
        answer = self.courier.ask(MessageType.EVALUATE, {node: content}, str(self.round))[node]
        if isinstance(answer, NoAnswer):
            self.notes.append(f"{target} did not measure its model: {answer.reason}")
            if answer.lost:
                self.roll.lose(target, silent=answer.silent)
            return None
        try:
            check_fields(answer)
        except ReplyError as error:
            self.notes.append(f"{target}: {error}")
            return None
        return answer

    def _meet(self, names: Sequence[str] | Mapping[str, object]) -> None:
        """See who is there; the target is given time to come back."""
        self.roll.refresh()
        target = self.orders.target
        if target in names and target not in self.roll.nodes:
            self.roll.wait_for(target, self.wait)
        self.notes += self.roll.notes
        self.roll.notes = []

    def _count_misses(self, answer: RecordDict | NoAnswer | None) -> None:
        if answer is None:
            return
        self._missed = self._missed + 1 if isinstance(answer, NoAnswer) and answer.lost else 0
        if self._missed >= PATIENCE:
            raise TargetGoneError(
                f"Expected the target {self.orders.target!r} to take part, but it has been silent "
                f"for {PATIENCE} rounds. Everything up to then is kept: start its node again and "
                f"resume the run."
            )


class FlowerEngine:
    """Does jobs at sites that are elsewhere.

    Attributes:
        starts: (slots, m) parameter vectors that jobs may start from.
        results: (rows, m) one row per job of the last ``run``.
        layout: the model as named arrays.
    """

    def __init__(
        self, remote: FlowerRemote, federation: Federation, *, slots: int, rows: int
    ) -> None:
        self._remote, self._federation = remote, federation
        self.layout = Layout.of_model(federation.bench.model)
        self.starts = torch.zeros(slots, federation.blocks.total)
        self.results = torch.zeros(rows, federation.blocks.total)

    def close(self) -> None:
        """Nothing to end: nodes outlive a run."""

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Do all jobs; those of a site that is gone, fails or sends nonsense say so."""
        check_room(jobs, self.results)
        names = self._remote.orders.sites
        asked = {names[job.client]: [j for j in jobs if j.client == job.client] for job in jobs}
        models = self._models(jobs)
        contents = {
            name: RecordDict(
                {
                    **models,
                    "config": self._remote.config(
                        self._remote.round,
                        jobs=jobs_to_json(theirs),
                        settled=self._remote.settled,
                    ),
                }
            )
            for name, theirs in asked.items()
        }
        answers = self._remote.train(contents)
        self._federation.task = self._remote.roll.task(self._federation.task.name)
        works = {name: self._works(name, asked[name], answer) for name, answer in answers.items()}
        self._hold_against_each_other(asked, works)
        self._remote.at_home = self._home(answers, works)
        taken = dict.fromkeys(asked, 0)
        outcomes = []
        for row, job in enumerate(jobs):
            name = names[job.client]
            found = works[name]
            if isinstance(found, Outcome):
                outcomes.append(found)
                continue
            work = found[taken[name]]
            taken[name] += 1
            self.results[row].copy_(work.vector)
            outcomes.append(work.outcome)
        return outcomes

    def model_of(self, record: ArrayRecord) -> State:
        """A whole model that a site sends, looked at before anybody uses it."""
        found = tensors(record)
        known = layout_of(self._federation.initial.buffers)
        complaint = screen_model(found, self.layout.parameters, known)
        if complaint is not None:
            raise ReplyError(complaint)
        return self.layout.state(found)

    def _models(self, jobs: Sequence[Job]) -> dict[str, ArrayRecord]:
        """The models that jobs start from: ``arrays``, and ``arrays-1`` for a second one."""
        buffers = {job.slot: dict(job.buffers) for job in jobs}
        slots = {*buffers, *(job.anchor for job in jobs if job.anchor is not None)}
        return {
            "arrays" if slot == 0 else f"arrays-{slot}": arrays(
                self.layout.arrays(State(self.starts[slot].clone(), buffers.get(slot, {})))
            )
            for slot in sorted(slots)
        }

    def _works(
        self, name: str, jobs: Sequence[Job], answer: RecordDict | NoAnswer
    ) -> list[Work] | Outcome:
        """A site's work, looked at before anybody computes with it; or why there is none."""
        roll = self._remote.roll
        samples = roll.cards[name].samples if name in roll.cards else 1
        if isinstance(answer, NoAnswer):
            return Outcome(samples, failure=answer.reason, lost=answer.lost)
        try:
            check_fields(answer)
            about = answer.config_records.get(SITE, ConfigRecord())
            if about.get("site") != name:
                raise ReplyError(f"it answers as {printable(about.get('site'))!r}")
            spent = about.get("epsilon")
            if isinstance(spent, float):
                self._remote.facts.setdefault("epsilon", {})[name] = spent
            note = about.get("note")
            if isinstance(note, str):
                self._remote.notes.append(f"{name} {printable(note)}")
            works = []
            for k, job in enumerate(jobs):
                work = read_work(answer, k, self._remote.orders.encoding, len(self.starts[0]))
                if work is None:
                    return Outcome(samples, failure=printable(about.get("failure")))
                complaint = screen_update(
                    work.vector,
                    _report(work.outcome),
                    self._expected(job, samples),
                    self._remote.norm_bound,
                )
                if complaint is not None:
                    raise ReplyError(complaint)
                works.append(work)
            return works
        except ReplyError as error:
            reason = printable(f"its reply was refused: {error}")
            return Outcome(samples, failure=reason, lost=True)

    def _expected(self, job: Job, samples: int) -> Expected:
        federation = self._federation
        if job.client == TARGET:
            samples = rows_to_train(samples, federation.settings)
        expected = Expected.of_job(
            job,
            samples,
            federation.blocks,
            buffers=federation.initial.buffers,
            sketch_size=federation.settings.sketch_size,
        )
        if not self._remote.own_training:
            return expected
        return Expected(
            expected.size,
            expected.blocks,
            expected.buffers,
            noise=expected.noise,
            sketch_size=expected.sketch_size,
        )

    def _hold_against_each_other(
        self, asked: Mapping[str, Sequence[Job]], works: dict[str, list[Work] | Outcome]
    ) -> None:
        """Drop sites whose longest training update stands out by its length, if that is asked."""
        ratio = self._remote.norm_ratio
        if ratio is None:
            return
        lengths = {}
        for name, found in works.items():
            if isinstance(found, Outcome):
                continue
            trained = [w for w, j in zip(found, asked[name], strict=True) if j.kind == "train"]
            if trained:
                lengths[name] = max(length_of(w.vector) / w.outcome.time for w in trained)
        for name, reason in screen_lengths(lengths, ratio).items():
            works[name] = Outcome(1, failure=f"its reply was refused: {reason}", lost=True)

    def _home(
        self,
        answers: Mapping[str, RecordDict | NoAnswer],
        works: Mapping[str, list[Work] | Outcome],
    ) -> Outcome:
        """Whether the target could train at all."""
        target = self._remote.orders.target
        found = works.get(target)
        if isinstance(found, Outcome):
            return found
        answer = answers.get(target)
        if isinstance(answer, RecordDict):
            failure = answer.config_records.get(SITE, ConfigRecord()).get("home-failure")
            if failure:
                return Outcome(0, failure=printable(failure))
        return Outcome(0)


def _report(outcome: Outcome) -> dict[str, Any]:
    """What a site said besides its vector, by name."""
    told = {
        "samples": outcome.samples,
        "steps": outcome.steps,
        "lr": outcome.lr,
        "loss": outcome.loss,
        "buffers": outcome.buffers,
        "batches": outcome.batches,
        "seconds": outcome.seconds,
    }
    for name in ("noise", "sketches"):
        value = getattr(outcome, name)
        if value is not None:
            told[name] = value
    return told
