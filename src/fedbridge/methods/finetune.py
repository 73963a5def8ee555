"""Fine-tuning: the sources train a model together, then the target goes on alone with its labels.

The paper's Finetune_Offline: source-only rounds ``w ← Σ_i (n_i / n) w_i`` (no label of the target
has a part in them), then 50 epochs on the target's labelled rows. The history shows, for every
round, the model that fine-tuning would give if the sources stopped there.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedbridge.jobs import TARGET
from fedbridge.methods.base import Record
from fedbridge.methods.personal import PersonalMethod
from fedbridge.options import check_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.federation import Federation

EPOCHS = 50


class FinetuneOffline(PersonalMethod):
    """Source-only rounds, then ``finetune_epochs`` (50) on the target's labels, as the paper."""

    options: ClassVar[tuple[str, ...]] = ("finetune_epochs",)
    travels: ClassVar[bool] = True

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.epochs = check_whole(
            "finetune_epochs", options.get("finetune_epochs", EPOCHS), least=1
        )

    def play(self, round: int) -> Record:
        """The sources' round, and the target's fine-tuning after it."""
        begun = time.perf_counter()
        self.shared, failures = self.federation.warm_up(round, self.shared)
        record = Record(failures=failures)
        self.adapt(round, record)
        record.seconds_train = time.perf_counter() - begun
        return record

    def adapt(self, round: int, record: Record) -> None:
        """Fine-tune the shared model."""
        federation = self.federation
        plan = replace(federation.plan(TARGET, round), epochs=self.epochs, steps=None)
        job = federation.job(round, TARGET, self.shared, plan=plan)
        (outcome,), rows = federation.do([job], [self.shared])
        record.failures |= federation.failures(round, [TARGET], [outcome])
        if outcome.failure is None:
            self.state = federation.trained(self.shared, rows[0], outcome)
