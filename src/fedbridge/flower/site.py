"""What a site does with what a coordinator asks: the same work as in a local run, on its own rows.

A site sees the federation as everybody does, except that only its own rows are there. Nothing here
knows how messages travel.

In a deployment every message starts a new process, and a node that was restarted is a new node to
Flower. So what must last (the target's own model and its candidates, the part of a model that
stays with a site, the smallest validation loss, what rounding lost) is on the site's own disk.
Records are kept per round, the last two of each kind: a coordinator that goes back to its last
checkpoint asks for a round again, and finds what that round started from.
"""

from __future__ import annotations

import hashlib
import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import platformdirs
import torch

from fedbridge import methods
from fedbridge.advice.measure import ADVICE
from fedbridge.base.errors import ModelError, OptionError
from fedbridge.base.files import PRIVATE, file_name
from fedbridge.data.task import DistantTask, distant_site
from fedbridge.federation.federation import Federation
from fedbridge.federation.needs import Need
from fedbridge.federation.settings import FROZEN
from fedbridge.flower.codec import Feedback
from fedbridge.flower.floors import Floors, singles_out
from fedbridge.flower.messages import Layout, RequestError, RunSpec
from fedbridge.flower.privacy import LocalPrivacy, PrivacyBudget, release
from fedbridge.flower.screening import screen_news, types_and_shapes
from fedbridge.flower.target_run import TargetRun, line_of, run_in
from fedbridge.methods.kd3a import Vote
from fedbridge.methods.pfedfda import MEANS
from fedbridge.models import build_model, is_built_in
from fedbridge.runs.checkpoint import Checkpoint, CheckpointStore
from fedbridge.training.job import FIRST_ROUND, INITIALISING, TARGET, ClientResult, Job, seed_of
from fedbridge.training.record_privacy import RecordPrivacy, looks_of
from fedbridge.training.state import model_of_tensors
from fedbridge.training.trainer import seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from fedbridge.data.site_package import LocalSite
    from fedbridge.evaluation.metrics import Evaluation
    from fedbridge.training.objective import Objective
    from fedbridge.training.state import Model, State
    from fedbridge.training.target_side import Decision, News, TargetSide


def default_folder() -> Path:
    """Where a site remembers things unless it says otherwise."""
    return platformdirs.user_state_path("fedbridge") / "sites"


MODEL = "model"
"""Folder of the target's models where it has no folder of a deployment: one for every run."""


class SiteMemory:
    """Records of one site in one run.

    Attributes:
        root: the site's own folder.
        folder: the part of it that belongs to this run.
        home: the site's folder of a deployment, which then holds the target's run; None if there
            is none.
    """

    def __init__(self, folder: Path, run: str, site: str, home: Path | None = None) -> None:
        """``run`` comes from the coordinator, the others from a user: none may name a path."""
        name = hashlib.sha256(f"{run}\n{site}".encode()).hexdigest()[:32]
        self.root, self.folder, self.home, self.run = folder, folder / name, home, run

    def model(self) -> Path:
        """The folder of the run's model, at the target, for this user's eyes only."""
        if self.home is None:
            place = self.root / MODEL / file_name(self.run)
            self.keep_private(place)
            return place
        place = run_in(self.home, self.run)
        place.mkdir(exist_ok=True, mode=0o700)
        return place

    def save(
        self, kind: str, round: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Keep a record, for this user's eyes only, and let go of all but the last two."""
        self.keep_private(self.folder)
        self._records(kind).save(Checkpoint(round, dict(tensors), dict(facts)))

    def load(self, kind: str, *, before: int) -> Checkpoint | None:
        """The newest record of a round before this one that is whole; None if there is none."""
        return self._records(kind).load(before=before)

    def keep_private(self, folder: Path) -> None:
        """Make a folder below the site's own, all on the way to it for this user's eyes only."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self.root
        for name in folder.relative_to(self.root).parts:
            part /= name
            part.mkdir(exist_ok=True, mode=0o700)
            part.chmod(0o700)

    def forget(self, kind: str) -> None:
        """Remove all records of a kind: a run begins anew."""
        for file in self.folder.glob(f"{kind}-*"):
            file.unlink(missing_ok=True)

    def _records(self, kind: str) -> CheckpointStore:
        return CheckpointStore(self.folder, kind, FIRST_ROUND, PRIVATE)


log = logging.getLogger("fedbridge")

SPENDING, ASKED = "privacy.json", "asked.json"
KEPT = "keeps the sketches of its batches to itself, since they would tell a single row apart"
LARGEST_SYSTEM = 10**6
UNEVEN = 100
"""Rows whose weight is less than the largest over this hardly count."""

CPU = "cpu"
"""What a site computes on unless it says otherwise."""

LOST = "has lost what it kept of its own in earlier rounds, and begins that anew"
SIDE, BEST, ROUNDING, PART = "side", "best", "rounding", "part"
"""Kinds of records."""

OWN, MEMORY = "own.", "memory."
"""In the record of a decision: the target's model, and what its side remembers."""


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
    """A site's answer to what is asked of it in a round.

    Attributes:
        deliveries: one per job.
        note: what the coordinator should put down about this site.
        epsilon: what the site's messages have cost so far, if it protects them.
    """

    deliveries: Sequence[Delivery]
    note: str | None = None
    epsilon: float | None = None


class SiteWorker:
    """One site at work on one run."""

    def __init__(
        self,
        site: LocalSite,
        spec: RunSpec,
        memory: SiteMemory,
        *,
        model: Callable[[], nn.Module] | None = None,
        privacy: LocalPrivacy | RecordPrivacy | None = None,
        budget: float | None = None,
        floors: Floors | None = None,
        device: str = CPU,
        advises: bool = False,
    ) -> None:
        """``privacy`` protects rows in what leaves, up to an epsilon of ``budget`` over all runs.

        What is asked must keep to the ``floors``, the usual ones by default. ``device`` is the
        site's own to choose: what a run says of it is the coordinator's. ``advises`` lets a
        source's batches be told apart for advice, where the target gets to see their sketches.
        """
        if site.name not in spec.sites:
            raise RequestError(
                f"Expected work for the sites {', '.join(spec.sites)}, but this is "
                f"{site.name!r}: the coordinator and the site must agree on names."
            )
        self.site, self.spec, self.memory = site, spec, memory
        self.privacy, self.budget, self.floors = privacy, budget, floors or Floors()
        self.advises = advises
        self.client = spec.sites.index(site.name)
        if (self.client == TARGET) != (site.role == "target"):
            raise RequestError(
                f"Expected {site.name!r} to be a {site.role}, but the coordinator takes it for "
                f"the {'target' if self.client == TARGET else 'source'}."
            )
        task = own_view(site, spec)
        with seeded(seed_of(spec.seed, 0, 0, INITIALISING), torch.device("cpu")):
            # as at the coordinator: what the target trains from the beginning begins there
            built = build_model(_built_in(spec.model), task) if model is None else model()
        self.model = built
        self.layout = Layout.of_model(built)
        settings = replace(spec.run_settings(), device=device)
        loose = self.client == TARGET and Need.UNLABELLED in methods.needs_of(spec.method)
        needs = [Need.UNLABELLED] if loose and site.unlabelled is not None else []
        self.federation = Federation(task, built, settings, spec.seed, needs)
        self._unlabelled = len(spec.sites) if needs else None

    def train(
        self, round: int, jobs: Sequence[Job], states: Sequence[State], *, known: bool = False
    ) -> SiteRound:
        """Do a round's jobs; ``known`` says that the site has kept a part of its own before."""
        self._check_whose(jobs)
        if self.client != TARGET and not self.advises and any(map(_is_told_apart, jobs)):
            raise RequestError(
                "Expected no sketches of a source's batches, which the target would see: this "
                "site's own `advice = true`, which only its site.toml says, allows them."
            )
        self.floors.count(self.memory.root / ASKED, "train")
        self.federation.begin_round(round)
        mine = [self._completed(job, states) for job in jobs]
        spending = PrivacyBudget(self.memory.root / SPENDING)
        self.floors.check_jobs(mine, self._rows_of(mine), self._counted(mine))
        self._check_reports(mine)
        by_record = isinstance(self.privacy, RecordPrivacy)
        if isinstance(self.privacy, RecordPrivacy):
            mine = self._by_record(mine, self.privacy, spending)
        elif self._single_out(mine, sketches=False):
            raise RequestError(
                "Expected jobs whose rows differ in several, but the vectors of this message could "
                "be solved for one of this site's rows: ask for other seeds, or for fewer jobs."
            )
        lost = self._take_part_up(round, mine)
        self.federation.open(slots=len(states), rows=len(jobs))
        outcomes, rows = self.federation.do(mine, states, round)
        results = [
            ClientResult(outcome, row.clone()) for outcome, row in zip(outcomes, rows, strict=True)
        ]
        self._keep_part(round)
        notes = [LOST] if known and lost else []
        sketched = any(result.outcome.sketches is not None for result in results)
        if sketched and not by_record and self._single_out(mine, sketches=True):
            results = [replace(r, outcome=replace(r.outcome, sketches=None)) for r in results]
            notes.append(KEPT)
        for result in results:
            if result.outcome.failure is not None:
                log.warning("round %d: %s", round, result.outcome.failure)
        if isinstance(self.privacy, LocalPrivacy):
            spending.spend({self.privacy.look: 1}, self.privacy.delta, self.budget)
            results = release(mine, results, self.privacy, self.federation.blocks)
        deliveries = self._encoded(round, mine, results)
        note = "; ".join(notes) or None
        if self.privacy is None:
            return SiteRound(deliveries, note)
        return SiteRound(deliveries, note, spending.epsilon(self.privacy.delta))

    def _check_whose(self, jobs: Sequence[Job]) -> None:
        """Refuse jobs on other rows than this site's, or on some of these and some of those."""
        on = {job.client for job in jobs}
        if len(on) != 1 or not on <= {self.client, self._unlabelled}:
            raise RequestError(f"Expected jobs for site {self.site.name!r}, but got others.")
        if any(job.beside not in ((), (self._unlabelled,)) for job in jobs) or (
            len(jobs) > 1 and (self._unlabelled in on or any(job.beside for job in jobs))
        ):
            raise RequestError("Expected one job a message on rows without labels, but got others.")
        for job in jobs:
            self._check_vote(job.objective)

    def _check_vote(self, objective: Objective) -> None:
        """Refuse a vote of what are no models of this run."""
        if not isinstance(objective, Vote):
            return
        count, start = len(objective.models), self.federation.initial
        like = Vote.of_models([start] * max(count, 1), objective.gate, objective.round)
        complaint = screen_news(objective.tensors(), types_and_shapes(like.tensors()))
        if complaint is not None or count > len(self.spec.sources):
            raise RequestError(
                f"Expected a vote of models of this run, but: {complaint or 'there are too many'}."
            )

    def _rows_of(self, jobs: Sequence[Job]) -> int:
        """How many rows the jobs of a message are about."""
        return len(self.federation.bench.sites[jobs[0].client])

    def _by_record(
        self, jobs: Sequence[Job], privacy: RecordPrivacy, spending: PrivacyBudget
    ) -> list[Job]:
        """Jobs that tell of no single row; what they will cost is written down before they run."""
        bench, frozen = self.federation.bench, self.federation.settings.buffers == FROZEN
        try:
            protected = privacy.protected(jobs, bench, frozen=frozen, secret=True)
        except (ModelError, OptionError) as error:
            raise RequestError(str(error)) from error
        spending.spend(looks_of(protected, bench), privacy.delta, self.budget)
        return protected

    def decide(self, round: int, news: News, *, known: bool = False) -> Decision:
        """Let the target's side decide, from what it remembers, and measure what it chose.

        ``known`` says that it has decided before, in this run.
        """
        self.floors.count(self.memory.root / ASKED, "measure")
        side = self._make_side()
        if side is None:
            raise RequestError(
                f"Expected a method whose target decides, but {self.spec.method} has none."
            )
        self._check_news(side, news)
        rows, used = len(self.site.train), self.federation.target_rows
        self.floors.check_choice(rows if used is None else len(used), rows)
        self.federation.begin_round(round)
        if round == 1:
            self.memory.forget(SIDE)
        past = self.memory.load(SIDE, before=round)
        if past is not None:
            tensors = past.tensors.items()
            memory = {k.removeprefix(MEMORY): v for k, v in tensors if k.startswith(MEMORY)}
            side.remember(memory, past.facts)
        self._take_part_up(round + 1)
        decision = side.decide(news)
        own = decision.state
        assert own is not None
        memory = {f"{MEMORY}{name}": value for name, value in side.memory().items()}
        facts = side.facts()
        self.memory.save(SIDE, round, {**memory, **own.tensors(OWN)}, facts)
        lost = known and past is None and (memory or facts)
        told = {**decision.facts, "note": LOST} if lost else decision.facts
        return replace(decision, facts=told, evaluation=self.federation.evaluate(round, own))

    def _check_reports(self, jobs: Sequence[Job]) -> None:
        """Refuse to tell statistics of the rows, unless this site's own settings allow it."""
        if not any(job.objective.reports() for job in jobs):
            return
        if self.privacy is not None:
            raise RequestError(
                "Expected work whose results this site's differential privacy covers, but it does "
                "not cover what this method tells of them besides an update: choose another one."
            )
        if any(MEANS in job.objective.reports() for job in jobs):
            self.floors.count(
                self.memory.root / ASKED, "tell statistics of features", "most_statistics"
            )

    def _take_part_up(self, before: int, jobs: Sequence[Job] = ()) -> bool:
        """Go on from the part of the model that this site keeps; whether it has none to go on from.

        The part is that of the newest round ``before`` another; ``jobs`` must fit it.
        """
        total = self.federation.blocks.total
        wanted = {job.keeps for job in jobs} - {()}
        ends = [end for keeps in wanted for cut in keeps for end in cut]
        if len(wanted) > 1 or ends != sorted(ends) or any(not 0 <= end <= total for end in ends):
            raise RequestError("Expected all jobs to leave one part of the model at this site.")
        if wanted and before == 1:
            self.memory.forget(PART)
        past = self.memory.load(PART, before=before)
        if past is not None:
            own = past.tensors[PART]
            if wanted and len(own) != sum(end - start for start, end in next(iter(wanted))):
                raise RequestError("Expected jobs that leave the same part at this site as before.")
            self.federation.kept[self.client] = own
        return bool(wanted) and past is None

    def _keep_part(self, round: int) -> None:
        """Put the part of the model down that this site keeps, if there is one."""
        own = self.federation.kept.get(self.client)
        if own is not None:
            self.memory.save(PART, round, {PART: own}, {})

    @property
    def measures(self) -> bool:
        """Whether this is no run for a model, but one for advice."""
        return self.spec.method == ADVICE

    def own_model(self, round: int) -> Model | None:
        """The model that the target has decided on, up to a round; None if there is none."""
        if round < 1 or self._make_side() is None:
            return None
        past = self.memory.load(SIDE, before=round + 1)
        return None if past is None else model_of_tensors(past.tensors, OWN)

    def evaluate(self, round: int, state: Model) -> Evaluation:
        """What a model is worth to the target."""
        self.floors.count(self.memory.root / ASKED, "measure")
        return self.federation.evaluate(round, state)

    def keep(
        self,
        round: int,
        state: Model,
        evaluation: Evaluation,
        facts: Mapping[str, Any] | None = None,
        absent: Sequence[str] = (),
    ) -> None:
        """Keep the model of a round; where rows are set aside, only if it is the best on them.

        ``facts`` are what a decision stands on, ``absent`` the sources that took no part. Advice
        makes no model to keep: that of an earlier run stays where it is.
        """
        if self.measures:
            return
        kept = TargetRun(
            self.memory.model(),
            self.site,
            self.spec,
            self.federation,
            self.model,
            pages=self.memory.home is not None,
        )
        best = self._is_best(round, evaluation)
        line = line_of(round, evaluation, facts or {}, absent)
        kept.keep(line, state if best else None)

    def _is_best(self, round: int, evaluation: Evaluation) -> bool:
        """Whether no earlier round was better, as far as rows set aside can tell."""
        loss = evaluation.validation
        if loss is None or round < 1:
            return True
        if round == 1:
            self.memory.forget(BEST)
        past = self.memory.load(BEST, before=round)
        least = math.inf if past is None else float(past.facts["loss"])
        if past is not None and not loss < least:
            self.memory.save(BEST, round, {}, past.facts)
            return False
        if loss < least:
            self.memory.save(BEST, round, {}, {"loss": loss})
        return True

    def _check_news(self, side: TargetSide, news: News) -> None:
        """Refuse news of another model than this run's, or of one that is none."""
        numbers = [*news.facts.values()]
        if not all(type(n) in (int, float) and 0 <= n < math.inf for n in numbers):
            raise RequestError("Expected numbers of at least 0 in the news, but got others.")
        wanted = types_and_shapes(side.expects(self.federation.initial, news))
        complaint = screen_news(news.tensors, wanted)
        if complaint is not None:
            raise RequestError(f"Expected news of a model of this run, but: {complaint}.")

    def _completed(self, job: Job, states: Sequence[State]) -> Job:
        """A job with what only the site knows: rows in use, class weights, the model's buffers."""
        if not (0 <= job.slot < len(states)) or (job.anchor or 0) >= len(states):
            raise RequestError(f"Expected a job on one of {len(states)} models, but got another.")
        plan = replace(job.plan, class_weights=self.federation.plan(self.client, 1).class_weights)
        rows = self.federation.target_rows if job.client == TARGET else None
        first = None if job.first is None else self._completed(job.first, states)
        buffers = self.federation.buffers_for(states[job.slot], first)
        return replace(job, plan=plan, rows=rows, buffers=buffers, first=first)

    def _counted(self, jobs: Sequence[Job]) -> int:
        """Rows that count in an update: a coordinator may have given classes weights.

        Where privacy bounds what an update tells all rows count: whether a request is refused would
        tell how many there are of a class, which nothing bounds.
        """
        given, labels = self.federation.settings.class_weights, self.site.train.y
        if jobs[0].client != self.client:
            return self._rows_of(jobs)
        protected = self.privacy is not None
        if protected or not isinstance(given, tuple) or self.site.n_classes is None:
            return len(labels)
        weights = torch.tensor(given)
        return int((weights >= weights.max() / UNEVEN)[labels].sum())

    def _single_out(self, jobs: Sequence[Job], *, sketches: bool) -> bool:
        """Whether the vectors of some jobs tell a row apart, to first order in their steps.

        With ``sketches`` every batch is known by itself too. What is too large to find out counts.
        """
        floors, rows = self.floors, len(self.site.train)
        if sketches and not all(floors.may_be_told_apart(job, rows) for job in jobs):
            return True
        if len(jobs) < 2 or floors.least_batch < 2:
            return False
        sizes = [rows if job.rows is None else len(job.rows) for job in jobs]
        batches = sum(job.noisy_batches(n) for job, n in zip(jobs, sizes, strict=True))
        if sketches and batches * rows > LARGEST_SYSTEM:
            return True
        weights = []
        for job, size in zip(jobs, sizes, strict=True):
            total = torch.zeros(rows, dtype=torch.float64)
            for k, batch in enumerate(self.federation.bench.batches(job, job.steps(size))):
                part = torch.zeros(rows if sketches else 0, dtype=torch.float64)
                total[batch] += 1 / len(batch)
                if sketches and k < job.noisy_batches(size):
                    part[batch] = 1.0
                    weights.append(part)
            weights.append(total)
        return singles_out(torch.stack(weights))

    def _make_side(self) -> TargetSide | None:
        if self.client != TARGET:
            return None
        kind = methods.class_of(self.spec.method)
        return kind.target_side(self.federation, self.spec.options)

    def _encoded(
        self, round: int, jobs: Sequence[Job], results: Sequence[ClientResult]
    ) -> list[Delivery]:
        """Vectors as they travel; the site goes on with what the coordinator will see of them."""
        feedback = Feedback(self.spec.encoding)
        past = self.memory.load(ROUNDING, before=round + 1)
        if past is not None:
            feedback.remember(past.tensors)
        deliveries = []
        for job, result in zip(jobs, results, strict=True):
            if result.outcome.failure is not None:
                deliveries.append(Delivery(result, {}))
                continue
            sent = feedback.encode(f"{job.kind} {job.slot}", round, result.vector)
            deliveries.append(Delivery(ClientResult(result.outcome, sent.decoded), sent.tensors))
        kept = feedback.memory()
        if kept:
            self.memory.save(ROUNDING, round, kept, {})
        return deliveries


def _is_told_apart(job: Job) -> bool:
    return job.plan.noise == "sketch"


def own_view(site: LocalSite, spec: RunSpec) -> DistantTask:
    """The task as one site sees it: its own rows, and the names of the others."""
    shape = tuple(site.train.x.shape[1:])
    outputs = 1 if site.train.y.ndim == 1 else int(site.train.y.shape[1])

    def elsewhere(name: str) -> Any:
        return distant_site(name, 0, shape, n_classes=site.n_classes, outputs=outputs)

    known = {site.name: site.train}
    return DistantTask(
        name="federation",
        sources=tuple(known.get(name) or elsewhere(name) for name in spec.sources),
        target=known.get(spec.target) or elsewhere(spec.target),
        test=elsewhere(f"{spec.target} (test)") if site.test is None else site.test,
        n_classes=site.n_classes,
        class_names=site.class_names,
        positive=site.positive,
        unlabelled=site.unlabelled,
    )


def _built_in(name: str | None) -> str:
    if name is None or not is_built_in(name):
        raise RequestError(
            f"Expected the name of a built-in model, but the coordinator says {name!r}: give the "
            f"site the model itself, client_app(model=...)."
        )
    return name
