"""``auto``, the recommended default: one model of the sources, and the target makes the best of it.

No fixed trust in sources is right: near sources should lead, far ones help a little, opposed ones
not at all. Which it is, the target's few labels can tell, if nothing that is judged by them has
seen them. So the sources train one model, the *led* one, as in ``source-only``; no label of the
target has a part in it. Everything else happens at the target (``candidates``): the led model as it
is, recalibrated, with its last layer fitted anew, beside a linear model of the inputs, with all
layers moved a little, fine-tuned, and models that need nobody else. All are cross-validated there,
and their outputs are added with weights by held-out loss.

**A round.** Every source trains once. The target gets the led model and answers with its choice and
what that is worth; its own model stays with it. In the rounds 1, 2, 4, 8, ... sources and target
also tell their gradients at the led model (probes), of which the joint rule makes the shares of the
sources in it: the point of the sources' hull that is nearest to the target's gradient. Shares are N
− 1 numbers, so that what they know of held-out labels is next to nothing. Probes also tell how much
the sources differ from each other (``discord``), and with that how far to trust their model as it
is.

**Choices** among all candidates are made in the same rounds; so is the one whether the target calls
classes by other names than the sources. In between the weights stay, and what is linear follows the
led model whenever its outputs for the target's rows have moved by 5%, from where the last fit
ended; networks that were trained or linearised stay as they are. If nothing moves, the model of a
round is that of the round before. Two bodies are in the choice: the led model of the round, and of
all earlier ones the one whose candidates had the smallest held-out loss (sources that go on to fit
their own looks lead away from the target's). Networks are linearised (from round 16 on) and trained
when the target's work so far, in rows and steps, stays below twice that of a source; for training,
where that would take more than 16 rounds, in a light form before (up to 60 labels, 20 beside
linearised ones). Those trained stay in the choice; a linear model is only ever fitted. From round 8
on, networks whose weight is below 0.001 are trained no more; and when everything that needs sources
has a smaller weight than that in two choices, sources are told to rest.

It goes its own way: the options ``align``, ``blocks``, ``evidence``, ``noise_from`` and ``weights``
are about a single rule and do not apply to it, and of ``buffers`` only ``keep`` and ``frozen`` do.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fedbridge.base.options import check_flag, check_whole
from fedbridge.base.text import shortened
from fedbridge.core.blocks import mean_buffers
from fedbridge.core.projections import nearest_in_hull
from fedbridge.federation.evidence import Vectors, measure_evidence
from fedbridge.federation.method import Method, Record
from fedbridge.methods.candidates import (
    ALONE,
    EARLIER,
    FULL,
    HEAD,
    INPUTS,
    LAST,
    LED,
    LIGHT,
    LINEARISED,
    NEGLIGIBLE,
    NETWORK,
    RECALIBRATED,
    TUNED,
    Bench,
    Body,
    Candidate,
    Recipe,
    Sum,
    Training,
    Worth,
    in_percent,
    joined,
    simplest,
)
from fedbridge.methods.rule import describe
from fedbridge.training.job import TARGET
from fedbridge.training.state import Blend, Model, State, model_of_tensors
from fedbridge.training.target_side import Decision, News, TargetSide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedbridge.core.geometry import Geometry
    from fedbridge.federation.federation import Federation

MOVED = 0.05
"""Relative change of the led model's outputs at which the weighty candidates are fitted anew."""

WEIGHTY = 0.01
REST_FROM = 8
MOST_NETWORKS = 3
SHARE_OF_WORK, PATIENCE = 2.0, 16
"""What networks may cost of one source's work, and rounds in which that should pay for a full
training of one family; where it does not, a light one is had before."""

MOST_FOR_LIGHT, MOST_BESIDE_LINEARISED = 60, 20
"""Labels beyond which a light training gives nothing that fits do not, and the same where these
move all layers."""

STEP_IN_ROWS = 64
"""What a step costs besides its rows, in rows; of a small network far more, of a large one less."""

LINEARISED_FROM, FITS_IN_ROWS, SLOPES_IN_ROWS = 16, 6_000, 6
"""The round from which networks are linearised; what that costs in rows, and how many pairs of
slopes cost as much as a row."""

MEMORY = 0.7
"""Weight of the past in the running average of the evidence about the sources."""

CAUTION = 1.0
"""Pull of the shares towards equal ones: evidence that tells no source apart leaves them equal."""

OTHER_NAMES = "The sources call classes by other names:"
MOST_TOLD, LONGEST_NAME = 3, 24
"""How many of these are listed, and the letters of a name that are."""

NOTHING = Blend((), torch.zeros(0))
"""The sum of no candidates."""

WORDS = {
    LED: "the sources' model as it is",
    RECALIBRATED: "the sources' model, recalibrated",
    HEAD: "the sources' model with a last layer fitted anew",
    INPUTS: "the sources' model beside a linear model of the inputs",
    LINEARISED: "the sources' model with all its layers moved a little",
    TUNED: "the sources' model, fine-tuned",
    ALONE: "a linear model of the target alone",
    NETWORK: "a network of the target alone",
}


class Auto(Method):
    """The sources' model, and what cross-validation at the target makes of it.

    Options:
        folds: parts of the target's rows for cross-validation (None: by their number).
        single: deliver one plain model instead of a blend (false).
    """

    options: ClassVar[tuple[str, ...]] = ("folds", "single")
    travels: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.led = federation.initial
        self.chosen: Model | None = None
        self.evidence: Tensor | None = None
        self.discord: float | None = None
        self.resting = not self.joins

    @classmethod
    def target_side(cls, federation: Federation, options: Mapping[str, Any]) -> AutoTargetSide:
        """The candidates, where the target's rows are."""
        return AutoTargetSide(federation, options, joins=cls.joins)

    @property
    def model(self) -> Model:
        """What the target has chosen; the led model while that is not known here."""
        return self.led if self.chosen is None else self.chosen

    def room(self) -> tuple[int, int]:
        """Sources train and probe, and the target probes."""
        return 1, 2 * self.federation.n_sources + 1

    def begin(self, state: State) -> None:
        """Start from the initial model or the one after the warm-up."""
        self.state = self.led = state

    def warm_up(self, round: int) -> dict[str, str]:
        """The led model is what the sources have made so far."""
        failures = super().warm_up(round)
        self.led = self.state
        return failures

    def run_round(self, round: int) -> Record:
        """Sources move the led model, and the target chooses."""
        begun = time.perf_counter()
        present, failures = self.federation.present(round)
        record = Record(failures=failures)
        sources = [] if self.resting else [client for client in present if client != TARGET]
        work = self._move(round, sources, TARGET in present, record) if sources else 0.0
        if self.resting:
            record.failures = {}
            record.beta = [0.0] * self.federation.n_sources
            if self.joins:
                record.notes.append("sources rest: nothing that needs them is left in the choice")
        elif not sources:
            record.notes.append("no source is there: the led model stays as it was")
        trained_at = time.perf_counter()
        record.seconds_train = trained_at - begun
        if TARGET not in present:
            record.notes.append("the target is missing: its model stays as it was")
            return record
        decision = self.ask_target(round, self._news(round, work), record)
        if decision is not None:
            self._take(decision, record)
        record.seconds_aggregate = time.perf_counter() - trained_at
        return record

    def _news(self, round: int, work: float) -> News:
        """What the target hears: the led model, the work of one source, how sources differ."""
        known = {} if self.discord is None else {"discord": self.discord}
        return News(self.led.tensors(), {"work": work, **known})

    def memory(self) -> dict[str, Tensor]:
        """The led model, the evidence so far, and the target's side, if that is here."""
        kept = {} if self.evidence is None else {"evidence": self.evidence}
        return {**kept, **self.led.tensors("led."), **super().memory()}

    def facts(self) -> dict[str, Any]:
        """Whether sources rest, a choice is known here, sources differ; and the target's side."""
        return {
            "resting": self.resting,
            "chosen": self.chosen is not None,
            "discord": self.discord,
            **super().facts(),
        }

    def remember(
        self, model: Model, memory: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Take everything up again."""
        self.led = State.of_tensors(memory, "led.")
        self.chosen = model if facts["chosen"] else None
        known, more = memory.get("evidence"), self.federation.n_sources
        if known is not None and len(known) < more:  # sources have joined, of whom nothing is known
            more -= len(known)
            known = torch.nn.functional.pad(known, (0, more, 0, more), value=torch.nan)
        self.evidence, self.resting = known, bool(facts["resting"])
        self.discord = facts.get("discord")  # 0.2.0 did not keep it
        self.remember_side(memory, facts)

    def _move(self, round: int, sources: list[int], target: bool, record: Record) -> float:
        """Let the sources move the led model; the work of one of them, in rows."""
        federation, n = self.federation, len(sources)
        probes = target and federation.engine.probes
        probes = probes and federation.n_sources > 1 and round & (round - 1) == 0
        jobs = [federation.job(round, client, self.led) for client in sources]
        asked = [TARGET, *sources] if probes else []
        jobs += [
            federation.job(round, client, self.led, kind="probe", noise="size") for client in asked
        ]
        outcomes, rows = federation.do(jobs, [self.led], round)
        federation.count_bytes([*sources, *asked[:1]], outcomes)
        failed = federation.failures(round, sources, outcomes[:n])
        failed |= federation.failures(round, sources, outcomes[n + 1 :])
        record.failures |= failed
        there = [k for k in range(n) if federation.name_of(sources[k]) not in failed]
        if not there:
            record.notes.append("no source came back: the led model stays as it was")
            return 0.0
        present = [sources[k] - 1 for k in there]
        if probes and outcomes[n].failure is not None:
            record.notes.append(f"the target told no gradient ({outcomes[n].failure})")
        elif probes:
            picked = [n + 1 + k for k in there]
            reports = [outcomes[k] for k in picked]
            ones = torch.ones(len(there), dtype=torch.float64)
            vectors = Vectors(rows[n], rows[picked], outcomes[n], reports, ones)
            self._learn(vectors, present, record)
        shares = self._shares(present)
        record.beta = [None] * federation.n_sources
        for index, share in zip(present, shares.tolist(), strict=True):
            record.beta[index] = share
        done = [outcomes[k] for k in there]
        kept = federation.settings.keeps_buffers
        buffers = None if kept else mean_buffers([outcome.buffers for outcome in done])
        self.led = self.led.moved(shares.to(rows.dtype) @ rows[there], buffers)
        batch = federation.plan(sources[0], round).batch_size
        steps = sum(outcome.steps for outcome in done) / len(done)
        return float(steps * (min(batch, max(o.samples for o in done)) + STEP_IN_ROWS))

    def _learn(self, vectors: Vectors, present: list[int], record: Record) -> None:
        """Put the probes of a round into its record and into the running evidence."""
        federation = self.federation
        whole = federation.rule_blocks.whole(federation.blocks.total)
        geometry = measure_evidence(vectors, whole, federation.bench.sketch, reads="sketched")
        describe(record, geometry, None, present, federation.n_sources)
        found = discord(geometry, vectors)
        if found is not None:
            before = found if self.discord is None else self.discord
            self.discord = MEMORY * before + (1 - MEMORY) * found
        now = geometry.difference_gram[0]
        fresh = now / now.diagonal().mean().clamp(min=torch.finfo(now.dtype).tiny)
        fresh = fresh + CAUTION * torch.eye(len(fresh), dtype=fresh.dtype)
        if self.evidence is None:
            size = federation.n_sources
            self.evidence = torch.full((size, size), torch.nan, dtype=torch.float64)
        index = torch.tensor(present)
        past = self.evidence[index[:, None], index]
        self.evidence[index[:, None], index] = torch.where(
            past.isnan(), fresh, MEMORY * past + (1 - MEMORY) * fresh
        )

    def _shares(self, present: list[int]) -> Tensor:
        """Shares of the sources: the joint rule on all probes so far; equal without any."""
        index = torch.tensor(present)
        known = None if self.evidence is None else self.evidence[index[:, None], index]
        if known is None or bool(known.isnan().any()):
            return torch.full((len(present),), 1 / len(present), dtype=torch.float64)
        return nearest_in_hull(known)

    def _take(self, decision: Decision, record: Record) -> None:
        """Take what the target has chosen."""
        facts = decision.facts
        self.chosen = decision.state
        self.resting = self.resting or bool(facts.get("rest", False))
        record.extra = {"choice": facts["choice"], "cv_loss": dict(facts["losses"])}
        told = {"errors": "cv_error", **{name: name for name in ("weights", "worth", "said")}}
        record.extra |= {key: facts[name] for name, key in told.items() if name in facts}
        if record.beta is not None and "weights" in facts:
            trust = sum(w for kin, w in facts["weights"].items() if not kin.startswith(ALONE))
            record.beta = [None if share is None else trust * share for share in record.beta]


class AloneAuto(Auto):
    """What ``auto`` makes of the target's rows alone: its candidates that need no source.

    The control of ``auto``: what it has over this comes from the sources.

    Options:
        folds: parts of the target's rows for cross-validation (None: by their number).
    """

    options: ClassVar[tuple[str, ...]] = ("folds",)
    joins: ClassVar[bool] = False

    def warm_up(self, round: int) -> dict[str, str]:
        """No source trains."""
        return {}


class AutoTargetSide(TargetSide):
    """The target's candidates and its choice among them."""

    def __init__(
        self, federation: Federation, options: Mapping[str, Any], *, joins: bool = True
    ) -> None:
        """``joins`` says whether anything of the sources is in the choice."""
        self.joins = joins
        folds = options.get("folds")
        number = None if folds is None else check_whole("folds", folds, least=2)
        self.single = check_flag("single", options.get("single", False))
        self.federation, self.bench = federation, Bench(federation, number)
        self.single = self.single and not self.bench.is_linear  # then there is nothing but one
        self.chosen_in = 0
        self.credit, self.income = 0.0 if joins else self._price(FULL), 0.0
        self.lone = 0
        self.discord = 0.0
        self.out = set() if joins else {TUNED}
        if self.bench.is_linear and self.bench.has_inputs:
            self.out = {TUNED, NETWORK}
        self.weights: dict[Recipe, float] = {}
        self.pulls: dict[Recipe, Tensor | None] = {}
        self.fixed = self.moving = NOTHING
        self.outputs = torch.zeros(0)
        self.best: State | None = None
        self.best_loss = math.inf
        self.networks: list[Candidate] = []
        self._of_best: list[Candidate] | None = None
        self.told: dict[str, Any] = {}
        self.names: Tensor | None = None
        self.best_names: Tensor | None = None

    def decide(self, news: News) -> Decision:
        """Choose if it is time to, and make the round's model."""
        led = State.of_tensors(news.tensors)
        earned = SHARE_OF_WORK * news.facts["work"]
        self.credit, self.income = self.credit + earned, max(self.income, earned)
        self.discord = float(news.facts.get("discord", self.discord))
        body = self.bench.body(LAST, led)
        if len(self.bench.labelled) < 2:
            return Decision(led, _as_it_is("one label is too few to judge by", self.joins))
        fitted: list[Candidate] = []
        chooses = not self.told or (self.joins and self.federation.round >= 2 * self.chosen_in)
        if chooses and self.joins:
            self.names = self.bench.names(body)
        if self.names is not None:
            body = self.bench.renamed(body, self.names)
        if chooses:
            fitted = self._choose(body)
            self.chosen_in = self.federation.round
            if not self.told:
                return Decision(led, _as_it_is("nothing else gives finite numbers", self.joins))
        elif self._has_moved(body):
            fitted = self.bench.refit_from(body, self.pulls)
        if fitted:
            weighted = [(c, self.weights[c.recipe]) for c in fitted if c.recipe in self.weights]
            self.pulls = {candidate.recipe: candidate.pulls for candidate, _ in weighted}
            self.moving = Sum.of(self.bench, weighted).blend({LAST: body.state})
            self.outputs = body.outputs
        return Decision(simplest(joined(self.moving, self.fixed), self.bench), self.told)

    def _has_moved(self, body: Body) -> bool:
        """Whether the led model says something else than when it was last fitted to."""
        if not self.weights:
            return False
        change = (body.outputs - self.outputs).square().sum()
        return bool(change > MOVED**2 * self.outputs.square().sum())

    def _choose(self, body: Body) -> list[Candidate]:
        """Fit and judge all candidates, weigh them, and put down what stays until the next time.

        Returns those of the round's body.
        """
        bench = self.bench
        own = _finite(bench.refit(body)) if self.joins else []
        if self.single:
            own = [c for c in own if c.inputs is None and (bench.place or c.recipe.family == LED)]
        others: list[Candidate] = []
        bodies = {LAST: body.state}
        if self.best is not None and not self.single:
            bodies[EARLIER] = self.best
            if self._of_best is None:
                self._of_best = bench.refit(bench.body(EARLIER, self.best))
            others += self._of_best
        if not self.single:
            others += bench.alone
        loss = self._smallest_loss(own)
        name = EARLIER if EARLIER in bodies and self.best_loss < loss else LAST
        linearised = self._linearised(body)
        most = MOST_BESIDE_LINEARISED if linearised else MOST_FOR_LIGHT
        others += [*linearised, *self._trained(name, bodies[name], most)]
        every = [*own, *_finite(others)]
        if not every:
            return []
        weights = bench.weigh(every, self.discord)
        kept = self._few(every, weights)
        self.networks = [c for c, _ in kept if c.network is not None]
        self._drop(every, weights)
        self.told = self._tell(every, weights)
        if own and loss <= self.best_loss:
            self.best, self.best_loss, self.best_names = body.state, loss, self.names
            self._of_best = [replace(c, recipe=replace(c.recipe, body=EARLIER)) for c in own]
        self.weights = _weighty({c.recipe: w for c, w in kept if _moves(c)})
        self.moving, self.pulls = NOTHING, {}
        staying = [(c, w) for c, w in kept if not _moves(c)]
        self.fixed = Sum.of(bench, staying).blend(bodies)
        return own

    def _drop(self, candidates: Sequence[Candidate], weights: Tensor) -> None:
        """Train no more networks of a kind that has lost clearly, and count lonely choices.

        Early on the sources' model is too poor to tell.
        """
        if self.federation.round < REST_FROM:
            return
        shares: dict[str, float] = {}
        needed = 0.0
        for candidate, weight in zip(candidates, weights.tolist(), strict=True):
            family = candidate.recipe.family
            shares[family] = shares.get(family, 0.0) + weight
            needed += weight if candidate.recipe.body else 0.0
        lost = {family for family, share in shares.items() if share < NEGLIGIBLE}
        self.out |= lost & {LINEARISED, TUNED, NETWORK}
        self.lone = self.lone + 1 if needed < NEGLIGIBLE else 0

    def _few(
        self, candidates: Sequence[Candidate], weights: Tensor
    ) -> list[tuple[Candidate, float]]:
        """The candidates that are delivered: those of the heaviest networks, and linear models."""
        pairs = [
            (c, float(w))
            for c, w in zip(candidates, weights, strict=True)
            if float(w) >= NEGLIGIBLE / len(candidates)
        ]
        heavy: dict[object, float] = {}
        for candidate, weight in pairs:
            if (key := _network_of(candidate)) is not None:
                heavy[key] = heavy.get(key, 0.0) + weight
        most = 1 if self.single else MOST_NETWORKS
        ranked = sorted(heavy, key=heavy.__getitem__, reverse=True)[:most]
        kept = [(c, w) for c, w in pairs if _network_of(c) in (None, *ranked)]
        if self.single and any(c.network is not None for c, _ in kept):
            kept = [(c, w) for c, w in kept if c.network is not None]
        total = sum(weight for _, weight in kept)
        return [(candidate, weight / total) for candidate, weight in kept]

    def _smallest_loss(self, candidates: Sequence[Candidate]) -> float:
        if not candidates:
            return math.inf
        return float(self.bench.losses_of(candidates).mean(1).min())

    def _linearised(self, body: Body) -> list[Candidate]:
        """What comes of moving all layers of the round's body, where the work so far pays for it.

        Not before the sources' model is what it will be, nearly: it is dear to be done again.
        """
        number = self.bench.slopes
        price = FITS_IN_ROWS + number**2 / SLOPES_IN_ROWS
        wanted = self.joins and not self.single and LINEARISED not in self.out
        wanted = wanted and self.federation.round >= LINEARISED_FROM
        if not number or not wanted or self.credit < price:
            return []
        found = self.bench.linearised(body)
        if found:
            self.credit -= price
        else:
            self.out.add(LINEARISED)
        return found

    def _trained(self, name: str, body: State, most: int) -> list[Candidate]:
        """Networks: those in use, and in their place what the work so far pays for.

        Up to ``most`` labels that may be the light form.

        One of the target alone begins where it began before: it is trained again only if it was
        in the light form and can be had in the full one, which no light one replaces.
        """
        found: list[Candidate] = []
        within_reach = max(self.credit, PATIENCE * self.income) >= self._price(FULL)
        how = FULL if within_reach else LIGHT
        for family, of, start in (
            (TUNED, name, body),
            (NETWORK, "", self.federation.initial),
        ):
            mine = [c for c in self.networks if c.recipe.family == family]
            is_full = any(c.recipe.slope in FULL.rates for c in mine)
            if family == TUNED:
                again = how is FULL or not is_full
            else:
                again = not mine or (how is FULL and not is_full)
            wanted = how is FULL or len(self.bench.labelled) <= most
            again = again and wanted and family not in self.out
            if again and self.credit >= self._price(how):
                self.credit -= self._price(how)
                mine = self.bench.tuned(family, of, start, how) or mine
            found += mine
        return found

    def _price(self, how: Training) -> float:
        """What one family of networks costs, in rows."""
        steps, rows = self.bench.tuning_steps(how)
        return float(steps * (rows + STEP_IN_ROWS))

    def _tell(self, candidates: Sequence[Candidate], weights: Tensor) -> dict[str, Any]:
        """What the history says of the choice: the families, and a sentence."""
        bench = self.bench
        losses: dict[str, float] = {}
        errors: dict[str, float] = {}
        shares: dict[str, float] = {}
        judged = bench.losses_of(candidates)
        means = judged.mean(1).tolist()
        number = judged.shape[1]
        for k, (candidate, weight) in enumerate(zip(candidates, weights.tolist(), strict=True)):
            kin = candidate.recipe.kin
            if not math.isfinite(means[k]):
                continue
            shares[kin] = shares.get(kin, 0.0) + weight
            if means[k] < losses.get(kin, math.inf):
                losses[kin] = means[k]
                spread = float(judged[k].std()) if number > 1 else 0.0
                errors[kin] = spread / (number / bench.draws) ** 0.5
        heaviest = max(shares, key=shares.__getitem__)
        worth = bench.worth(candidates, weights)
        if worth is not None and "worth" in self.told:
            worth = replace(worth, before=self.told["worth"]["gain"])
        return {
            "choice": heaviest,
            "losses": losses,
            "errors": errors,
            "weights": shares,
            **({} if worth is None else {"worth": asdict(worth)}),
            "said": self._said(shares, worth),
            "rest": self.lone >= 2,
        }

    def _said(self, shares: Mapping[str, float], worth: Worth | None) -> str:
        """One sentence for somebody who wants to know what came out.

        It names the heaviest kind of the heavier side, and tells the gain by what decides, the
        loss, beside the accuracy, which is easier to read and noisier.
        """
        alone = {kin: w for kin, w in shares.items() if kin.startswith(ALONE)}
        joined = {kin: w for kin, w in shares.items() if kin not in alone}
        side = max((joined, alone), key=lambda of: sum(of.values()))
        heaviest = max(side, key=side.__getitem__)
        family = next(f for f in sorted(WORDS, key=len, reverse=True) if heaviest.startswith(f))
        words = WORDS[family]
        what = f"Mostly {words}" if len(shares) > 1 else f"{words[0].upper()}{words[1:]}"
        what = f"{what}, judged by your {len(self.bench.labelled)} labels{_of_worth(worth)}."
        names = self.best_names if heaviest.endswith(EARLIER) else self.names
        return what if side is alone else f"{what}{self._renamings(names)}"

    def _renamings(self, names: Tensor | None) -> str:
        """Which classes have other names at the sources, of those that the target has."""
        if names is None:
            return ""
        every = self.federation.task.class_names or [*map(str, range(len(names)))]
        own = [shortened(name, LONGEST_NAME) for name in every]
        present = self.bench.rows.labels.unique().tolist()
        pairs = [f"{own[k]} is {own[names[k]]} there" for k in present if names[k] != k]
        more = [f"{len(pairs) - MOST_TOLD} more"] if len(pairs) > MOST_TOLD else []
        return f" {OTHER_NAMES} {', '.join(pairs[:MOST_TOLD] + more)}." if pairs else ""

    def memory(self) -> dict[str, Tensor]:
        """The best body so far, and what stays as it is until the next choice."""
        kept = self.fixed.tensors("fixed.") | self.moving.tensors("moving.")
        kept["outputs"] = self.outputs
        for number, pulls in enumerate(self.pulls.values()):
            if pulls is not None:
                kept[f"pulls-{number}"] = pulls
        if self.best is not None:
            kept |= self.best.tensors("best.")
        for number, candidate in enumerate(self.networks):
            assert candidate.network is not None
            assert candidate.held_out is not None
            kept |= candidate.network.tensors(f"network-{number}.")
            kept[f"network-{number}.held_out"] = candidate.held_out
        return kept

    def facts(self) -> dict[str, Any]:
        """Weights, what is out, the last choice, and the work that is still to be had."""
        return {
            "chosen_in": self.chosen_in,
            "credit": self.credit,
            "income": self.income,
            "discord": self.discord,
            "lone": self.lone,
            "best_loss": None if math.isinf(self.best_loss) else self.best_loss,
            "told": self.told,
            "names": [None if n is None else n.tolist() for n in (self.names, self.best_names)],
            "out": sorted(self.out),
            "networks": [asdict(candidate.recipe) for candidate in self.networks],
            "weights": [[asdict(recipe), self.weights[recipe]] for recipe in self.pulls],
        }

    def remember(self, memory: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Take everything up again."""
        self.chosen_in, self.credit = int(facts["chosen_in"]), float(facts["credit"])
        self.income = float(facts.get("income", 0.0))  # 0.2.0 did not keep these
        self.discord = float(facts.get("discord", 0.0))
        loss = facts["best_loss"]
        self.lone, self.best_loss = int(facts["lone"]), math.inf if loss is None else float(loss)
        self.told = dict(facts["told"])
        names = facts.get("names", [None, None])  # 0.2.0 did not look for them
        self.names, self.best_names = (None if n is None else torch.tensor(n) for n in names)
        self.out = set(facts["out"])
        self.networks = [
            Candidate(
                Recipe(**known),
                memory[f"network-{number}.held_out"],
                network=State.of_tensors(memory, f"network-{number}."),
            )
            for number, known in enumerate(facts["networks"])
        ]
        self.weights = {Recipe(**known): float(weight) for known, weight in facts["weights"]}
        self.pulls = {
            recipe: memory.get(f"pulls-{number}") for number, recipe in enumerate(self.weights)
        }
        self.best = State.of_tensors(memory, "best.") if "best.parameters" in memory else None
        fixed, moving = (model_of_tensors(memory, f"{name}.") for name in ("fixed", "moving"))
        assert isinstance(fixed, Blend)
        assert isinstance(moving, Blend)
        self.fixed, self.moving, self.outputs = fixed, moving, memory["outputs"]


def discord(geometry: Geometry, vectors: Vectors) -> float | None:
    """``τ² / σ²``: how much the sources differ from each other, over the noise of the target.

    ``τ² = 1/(N−1) Σ ‖g_i − mean g‖² − mean σ_i²`` estimates the variance of gradients among sites
    without bias, at the led model; below 0 it is 0. If the target is a site like the others, its
    gradient differs as much from theirs; ``σ²`` is what its few labels can tell of that. None where
    a noise was not measured, or one source has nobody to differ from.
    """
    noises = [report.noise for report in vectors.reports]
    number, own = len(noises), geometry.noise
    if number < 2 or own is None or any(noise is None for noise in noises):
        return None
    gram = geometry.source_gram.sum(0)
    apart = float(gram.trace() - gram.sum() / number) / (number - 1)
    among = apart - sum(float(noise.sum()) for noise in noises if noise is not None) / number
    least = float(own.sigma2.sum())
    found = max(among, 0.0) / least if least > 0 else math.inf
    return found if math.isfinite(found) else None


def _moves(candidate: Candidate) -> bool:
    """Whether a candidate is fitted anew to the led model of every round."""
    fixed = candidate.network is not None or candidate.change is not None
    return candidate.recipe.body == LAST and not fixed


def _weighty(weights: dict[Recipe, float]) -> dict[Recipe, float]:
    """Weights without the very small ones, whose sum goes to the others."""
    total, most = sum(weights.values()), max(weights.values(), default=0.0)
    kept = {recipe: w for recipe, w in weights.items() if w >= WEIGHTY * most}
    return {recipe: w * total / sum(kept.values()) for recipe, w in kept.items()}


def _network_of(candidate: Candidate) -> object:
    """The network that a candidate needs; None for a linear model of the inputs."""
    if candidate.network is not None:
        return candidate.recipe
    return candidate.recipe.kin if candidate.change is not None else candidate.recipe.body or None


def other_names(said: str) -> str:
    """What a sentence says of other names, without the full stop; empty if nothing."""
    _, found, names = said.partition(OTHER_NAMES)
    return f"{found}{names}".rstrip(".")


def _of_worth(worth: Worth | None) -> str:
    """The part of the sentence that says what joining is worth."""
    if worth is None:
        return ""
    told = f"cross-validated loss {in_percent(worth)}"
    if worth.of_classes:
        told += f", accuracy {worth.points:+.0f} ± {worth.points_error:.0f} points"
    if worth.decision == "join":
        return f"; joining is worth it ({told}, against training alone)"
    if worth.decision == "alone":
        return f"; you would do as well alone ({told} with the sources)"
    return f"; these do not tell it from training alone ({told})"


def _as_it_is(why: str, joins: bool) -> dict[str, Any]:
    what = "The sources' model as it is" if joins else "The model as it began"
    return {"choice": f"{LED}, {LAST}", "losses": {}, "said": f"{what}: {why}."}


def _finite(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates without those that have come to nothing."""
    return [c for c in candidates if c.held_out is not None and bool(c.held_out.isfinite().all())]
