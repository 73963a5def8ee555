"""Controls that every claim has to face: an upper bound, and the same steps without any source."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fedbridge.core import rules
from fedbridge.core.checks import check_beta
from fedbridge.federation.method import Method, Record
from fedbridge.federation.needs import Need
from fedbridge.methods.rule import RuleMethod
from fedbridge.training.job import TARGET

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.federation.evidence import Gathered
    from fedbridge.federation.federation import Federation

FIXED_BETA = ("fedda", "fedgp")
EQUAL_TRUST = 0.5
"""The trust of these in the sources, unless ``beta`` says otherwise."""


class Oracle(Method):
    """The upper bound: the target trained with the labels of all its training rows.

    It starts from the same initial model (and warm-up) as every other method and is tested on the
    same rows; only the number of labels differs. Nobody has these labels: it is no competitor.
    """

    needs: ClassVar[tuple[Need, ...]] = (Need.TARGET_LABELS,)

    def room(self) -> tuple[int, int]:
        """One training."""
        return 1, 1

    def run_round(self, round: int) -> Record:
        """One local training, by the plan of the target."""
        federation, begun = self.federation, time.perf_counter()
        site = federation.site_for(Need.TARGET_LABELS)
        weights = federation.plan(site, round).class_weights
        plan = replace(federation.plan(TARGET, round), class_weights=weights)
        job = federation.job(round, site, self.state, plan=plan)
        record = Record(beta=[0.0] * federation.n_sources)
        model, _ = self.train_target(round, job, self.state, record)
        self.state = self.state if model is None else model
        record.seconds_train = time.perf_counter() - begun
        return record


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
        beta = check_beta(options.get("beta", EQUAL_TRUST), federation.n_sources)
        counts = federation.sample_counts(range(federation.n_sources))[1:]
        shares = counts if self.by_samples else torch.ones_like(counts)
        trust = float((shares * beta).sum() / shares.sum())
        self.step = 1.0 - trust if self.match in FIXED_BETA else 1.0

    def _update(self, trained: Gathered, probed: Gathered | None, record: Record) -> Tensor:
        return self.step * super()._update(trained, probed, record)
