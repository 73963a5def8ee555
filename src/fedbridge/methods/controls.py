"""Controls that every claim has to face: an upper bound, and the same steps without any source."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from fedbridge.base.options import check_flag
from fedbridge.core import rules
from fedbridge.core.checks import check_beta
from fedbridge.data.split import stratified_order
from fedbridge.federation.method import Method, Record, train_each
from fedbridge.federation.needs import Need
from fedbridge.methods.cross_validation import HOPELESS, calibrated_loss, without
from fedbridge.methods.generalisation import MeanLoss
from fedbridge.methods.rule import RuleMethod
from fedbridge.training.job import SPLITTING, TARGET, Job, seed_of
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from fedbridge.federation.evidence import Gathered
    from fedbridge.federation.federation import Federation

FIXED_BETA = ("fedda", "fedgp")
MATCH = "fedgp"
THIRDS = 3
"""Parts of the target's rows that judge, in turn, how the upper bound trains."""
WAYS = ("own", "pooled")
EQUAL_TRUST = 0.5
"""The trust of these in the sources, unless ``beta`` says otherwise."""


class Oracle(Method):
    """The upper bound: the target trained with the labels of all its training rows.

    It starts from the same initial model (and warm-up) as every other method and is tested on the
    same rows. Nobody has these labels: it is no competitor.

    All labels of a small target are not a bound by themselves: 288 noisy digits teach less than
    1,078 clean ones of the sources. So it trains two models in every round, one on the target's
    rows alone and one on them and the rows of all sources in one place, ``1/(N+1) Σ_i ℓ_i``. Three
    twins of each never see a third of the target's rows, and the model, of all rounds so far, whose
    twins do best on their thirds is taken (``choice`` in the history): a bound knows when to stop.
    The test rows have no say; fewer than six rows are trained on alone, to the end.

    Both train as one source would that had all rows of the federation: its learning rate, its
    optimiser, its batch size (that of the pool is dealt out among the sites) and as many steps as
    all sites take together (with the server's momentum ``μ``, as far as ``1/(1 − μ)`` times as
    many go).

    The Oracle of the paper's tables keeps to the target's rows (``with_sources=False``); in its
    scripts it has a learning rate and a test set of its own.

    Options:
        with_sources: take the sources' rows along where they help (true).
    """

    options: ClassVar[tuple[str, ...]] = ("with_sources",)
    needs: ClassVar[tuple[Need, ...]] = (Need.TARGET_LABELS, Need.POOLED)
    bound_by: ClassVar[str] = "it is a bound, with labels and rows that no federation has"
    models: ClassVar[tuple[str, ...]] = tuple(
        way + twin for way in WAYS for twin in ("", *(f"_{k}" for k in range(THIRDS)))
    )
    remembers: ClassVar[tuple[str, ...]] = (*models, "choice", "held_out_loss")

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.with_sources = check_flag("with_sources", options.get("with_sources", True))
        for name in self.models:
            setattr(self, name, federation.initial)
        self.choice, self.held_out_loss = "own", HOPELESS
        self.site = federation.site_for(Need.TARGET_LABELS)
        pool = federation.bench.sites[self.site]
        labels = None if federation.task.n_classes is None else pool.y.numpy()
        chooser = np.random.default_rng(seed_of(federation.seed, 0, self.site, SPLITTING))
        order = torch.from_numpy(stratified_order(labels, len(pool), chooser))
        self.thirds = [part.sort().values for part in order.tensor_split(THIRDS)]
        self.with_sources &= len(pool) >= 2 * THIRDS

    def room(self) -> tuple[int, int]:
        """Two models and their twins."""
        return len(self.models), len(self.models)

    def run_round(self, round: int) -> Record:
        """Train all models, and take the better of the two."""
        federation, begun = self.federation, time.perf_counter()
        record = Record(beta=[0.0] * federation.n_sources)
        sources: list[int] = []
        ways: dict[str, tuple[int, ...]] = {"own": ()}
        if self.with_sources:
            sources, record.failures = federation.present(round, with_target=False)
        if sources:
            ways["pooled"] = tuple(sources)
        rows: dict[str, Tensor | None] = {"": None}
        if self.with_sources:
            everyone = torch.cat(self.thirds).sort().values
            rows |= {f"_{k}": without(everyone, part) for k, part in enumerate(self.thirds)}
        trainings = [(way + twin, ways[way], rows[twin]) for way in ways for twin in rows]
        jobs = [self._job(round, slot, *each) for slot, each in enumerate(trainings)]
        names = [name for name, _, _ in trainings]
        after, outcomes = train_each(federation, jobs, [getattr(self, name) for name in names])
        record.failures |= federation.failures(round, [TARGET], outcomes[:1])
        for name, model in zip(names, after, strict=True):
            setattr(self, name, model)
        losses = {way: self._cross_validated(way) if self.with_sources else 0.0 for way in ways}
        best = min(losses, key=losses.__getitem__)
        if losses[best] <= self.held_out_loss:
            self.choice, self.held_out_loss, self.state = best, losses[best], getattr(self, best)
        record.extra["choice"] = self.choice
        if self.choice == "pooled":
            record.beta = [1 / (federation.n_sources + 1)] * federation.n_sources
        record.seconds_train = time.perf_counter() - begun
        return record

    def _job(
        self, round: int, slot: int, name: str, sources: tuple[int, ...], rows: Tensor | None
    ) -> Job:
        """One training, alone or with sources beside, on all the target's rows or some."""
        federation = self.federation
        plan = federation.plan(self.site, round, beside=sources)
        momentum = federation.settings.server_momentum or 0.0
        sizes = [
            len(federation.bench.sites[c]) for c in (self.site, *range(1, federation.n_sources + 1))
        ]
        plan = replace(
            plan,
            batch_size=max(1, plan.batch_size // (1 + len(sources))),
            steps=math.ceil(sum(plan.total_steps(size) for size in sizes) / (1.0 - momentum)),
        )
        return federation.job(
            round,
            self.site,
            getattr(self, name),
            slot=slot,
            rows=rows,
            plan=plan,
            objective=MeanLoss(),
            beside=sources,
        )

    def _cross_validated(self, way: str) -> float:
        """Loss over all the target's rows, each judged by the twin that never saw it."""
        federation = self.federation
        pool = federation.bench.sites[self.site]
        parts = [pool.select(rows) for rows in self.thirds]
        outputs = [
            federation.predict(getattr(self, f"{way}_{k}"), part) for k, part in enumerate(parts)
        ]
        with one_thread():
            truth = torch.cat([part.y for part in parts])
            return calibrated_loss(torch.cat(outputs), truth, federation.task.n_classes)


class TargetOnlyMatched(RuleMethod):
    """``target-only`` at the step size, batch size and warm start of the method in ``match``.

    A rule with a fixed ``β`` takes only ``1 − β`` of the target's step. Much of what such a rule
    gains may be that shorter step and owe nothing to the sources; this control takes it too.

    Options:
        match: the method whose step size is matched (fedgp).
        beta: the trust of that method in the sources, one or one per source (0.5).
    """

    options: ClassVar[tuple[str, ...]] = ("match", "beta")

    @classmethod
    def stands_beside(cls, given: Mapping[str, object]) -> str:
        """The matched method, whose batches, rates and warm start the run has then."""
        return str(given.get("match", MATCH))

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        from fedbridge.methods import class_of

        super().__init__(federation, {}, rules.get("target-only"))
        self.match = str(options.get("match", MATCH))
        class_of(self.match)  # an unknown name is an error
        beta = check_beta(options.get("beta", EQUAL_TRUST), federation.n_sources)
        counts = federation.sample_counts(range(federation.n_sources))[1:]
        shares = counts if self.by_samples else torch.ones_like(counts)
        trust = float((shares * beta).sum() / shares.sum())
        self.step = 1.0 - trust if self.match in FIXED_BETA else 1.0

    def _update(self, trained: Gathered, mix: Callable[[Record], Tensor], record: Record) -> Tensor:
        return self.step * super()._update(trained, mix, record)
