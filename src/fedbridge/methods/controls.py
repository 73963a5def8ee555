"""Controls that every claim has to face: an upper bound, and the same steps without any source."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from fedbridge.base.options import check_flag
from fedbridge.core import rules
from fedbridge.core.checks import check_beta
from fedbridge.data.split import stratified_split
from fedbridge.federation.method import Method, Record, train_each
from fedbridge.federation.needs import Need
from fedbridge.methods.cross_validation import calibrated_loss
from fedbridge.methods.generalisation import MeanLoss
from fedbridge.methods.rule import RuleMethod
from fedbridge.training.job import SPLITTING, TARGET, Job, seed_of
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.federation.evidence import Gathered
    from fedbridge.federation.federation import Federation

FIXED_BETA = ("fedda", "fedgp")
FIFTH = 5
"""One row of so many judges how the upper bound trains."""


class Oracle(Method):
    """The upper bound: the target trained with the labels of all its training rows.

    It starts from the same initial model (and warm-up) as every other method and is tested on the
    same rows. Nobody has these labels: it is no competitor.

    All labels of a small target are not a bound by themselves: 288 noisy digits teach less than
    1,078 clean ones of the sources. So it trains two models in every round, one on the target's
    rows alone and one on them and the rows of all sources in one place, ``1/(N+1) Σ_i ℓ_i``; a twin
    of each never sees a fifth of the target's rows, and the model whose twin does better on that
    fifth is taken (``choice`` in the history). The test rows have no say; fewer than five rows are
    trained on alone.

    Both train as one source would that had all rows of the federation: its learning rate, its
    optimiser, its batch size (that of the pool is dealt out among the sites) and as many steps as
    all sites take together.

    The Oracle of the paper's tables keeps to the target's rows (``alone=True``); in its scripts it
    has a learning rate and a test set of its own.

    Options:
        alone: keep to the target's own rows (false).
    """

    options: ClassVar[tuple[str, ...]] = ("alone",)
    needs: ClassVar[tuple[Need, ...]] = (Need.TARGET_LABELS, Need.POOLED)
    remembers: ClassVar[tuple[str, ...]] = ("own", "own_twin", "pooled", "pooled_twin")

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.alone = check_flag("alone", options.get("alone", False))
        self.own = self.own_twin = self.pooled = self.pooled_twin = federation.initial
        self.site = federation.site_for(Need.TARGET_LABELS)
        pool = federation.bench.sites[self.site]
        labels = None if federation.task.n_classes is None else pool.y.numpy()
        chooser = np.random.default_rng(seed_of(federation.seed, 0, self.site, SPLITTING))
        count = len(pool) - len(pool) // FIFTH
        kept, aside = stratified_split(labels, len(pool), count, chooser)
        self.alone |= not len(aside)
        self.kept, self.aside = torch.from_numpy(kept), torch.from_numpy(aside)

    def room(self) -> tuple[int, int]:
        """Two models and their twins."""
        return 4, 4

    def run_round(self, round: int) -> Record:
        """Train all models, and take the better of the two."""
        federation, begun = self.federation, time.perf_counter()
        record = Record(beta=[0.0] * federation.n_sources)
        sources: list[int] = []
        ways: dict[str, tuple[int, ...]] = {"own": ()}
        if not self.alone:
            sources, record.failures = federation.present(round, with_target=False)
        if sources:
            ways["pooled"] = tuple(sources)
        rows = {"": None} if self.alone else {"": None, "_twin": self.kept}
        trainings = [(way + twin, ways[way], rows[twin]) for way in ways for twin in rows]
        jobs = [self._job(round, slot, *each) for slot, each in enumerate(trainings)]
        names = [name for name, _, _ in trainings]
        after, outcomes = train_each(federation, jobs, [getattr(self, name) for name in names])
        record.failures |= federation.failures(round, [TARGET], outcomes[:1])
        for name, model in zip(names, after, strict=True):
            setattr(self, name, model)
        choice = "own" if self.alone else min(("own", "pooled"), key=self._held_out_loss)
        record.extra["choice"] = choice
        self.state = getattr(self, choice)
        if choice == "pooled":
            there = {source: 1 / (len(sources) + 1) for source in sources}
            record.beta = [there.get(k + 1) for k in range(federation.n_sources)]
        record.seconds_train = time.perf_counter() - begun
        return record

    def _job(
        self, round: int, slot: int, name: str, sources: tuple[int, ...], rows: Tensor | None
    ) -> Job:
        """One training, alone or with sources beside, on all the target's rows or some."""
        federation = self.federation
        plan = federation.plan(self.site, round, beside=sources)
        sizes = [
            len(federation.bench.sites[c]) for c in (self.site, *range(1, federation.n_sources + 1))
        ]
        plan = replace(
            plan,
            batch_size=max(1, plan.batch_size // (1 + len(sources))),
            steps=sum(plan.total_steps(size) for size in sizes),
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

    def _held_out_loss(self, name: str) -> float:
        """Loss of a model's twin on the rows that it never saw."""
        federation = self.federation
        pool = federation.bench.sites[self.site]
        aside = replace(pool, x=pool.x[self.aside], y=pool.y[self.aside])
        outputs = federation.predict(getattr(self, f"{name}_twin"), aside)
        with one_thread():
            return calibrated_loss(outputs, aside.y, federation.task.n_classes)


class TargetOnlyMatched(RuleMethod):
    """``target-only`` at the step size, batch size and warm start of the method in ``match``.

    A rule with a fixed ``β`` takes only ``1 − β`` of the target's step. Much of what such a rule
    gains may be that shorter step and owe nothing to the sources; this control takes it too.

    Options:
        match: the method whose step size is matched (auto).
        beta: the trust of that method in the sources, one or one per source (0.5).
    """

    options: ClassVar[tuple[str, ...]] = ("match", "beta")

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        from fedbridge.methods import class_of

        super().__init__(federation, {}, rules.get("target-only"))
        self.match = str(options.get("match", "auto"))
        class_of(self.match)  # an unknown name is an error
        beta = check_beta(options.get("beta", 0.5), federation.n_sources)
        counts = federation.sample_counts(range(federation.n_sources))[1:]
        shares = counts if self.by_samples else torch.ones_like(counts)
        trust = float((shares * beta).sum() / shares.sum())
        self.step = 1.0 - trust if self.match in FIXED_BETA else 1.0

    def _update(self, trained: Gathered, probed: Gathered | None, record: Record) -> Tensor:
        return self.step * super()._update(trained, probed, record)
