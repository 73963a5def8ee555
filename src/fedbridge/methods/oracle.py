"""The upper bound: the target with all its training labels.

It starts from the same initial model (and warm-up) as every other method and is tested on the
same rows; only the number of labels differs. Nobody has these labels: it is no competitor.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

from fedbridge.jobs import TARGET
from fedbridge.methods.base import Method, Record
from fedbridge.needs import Need


class Oracle(Method):
    """The upper bound: the target trained with the labels of all its training rows."""

    needs: ClassVar[tuple[Need, ...]] = (Need.TARGET_LABELS,)

    def room(self) -> tuple[int, int]:
        """One training."""
        return 1, 1

    def play(self, round: int) -> Record:
        """One local training, by the plan of the target."""
        federation, begun = self.federation, time.perf_counter()
        site = federation.site_for(Need.TARGET_LABELS)
        weights = federation.plan(site, round).class_weights
        plan = replace(federation.plan(TARGET, round), class_weights=weights)
        job = federation.job(round, site, self.state, plan=plan)
        (outcome,), rows = federation.do([job], [self.state])
        record = Record(
            beta=[0.0] * federation.n_sources,
            failures=federation.failures(round, [TARGET], [outcome]),
            seconds_train=time.perf_counter() - begun,
        )
        if outcome.failure is None:
            self.state = federation.trained(self.state, rows[0], outcome)
        return record
