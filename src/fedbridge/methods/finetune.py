"""Fine-tuning: the sources train a model together, then the target goes on alone with its labels.

``finetune-offline`` is the paper's Finetune_Offline: source-only rounds ``w ← Σ_i (n_i / n) w_i``
(no label of the target has a part in them), then 50 epochs on the target's labelled rows. The
history shows, for every round, the model that fine-tuning would give if the sources stopped there.

``finetune-cv`` is the same, well tuned: every choice is made by cross-validated loss on the
target's labels. Beside the source-only model there is the model at the method's start (after the
warm-up): either may be fine-tuned. Learning rate ``η``, epochs ``e``, the start ``s`` and the
interpolation ``θ = s + p (fine-tuned − s)`` come from a grid,

    argmin over (s, η, e, p) of Σ_k ℓ(fold k; trained on the other folds) ,

with ``ℓ`` taken at the temperature that suits the model best. The choice is made anew every
``choose_every`` rounds, since it costs a training per fold, start and learning rate; in between the
last choice is applied to the newest model. It costs the sources nothing beyond source-only, and
every claim of a federated method has to face it.

Longer trainings go on from shorter ones, each stage with a fresh optimiser.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fedbridge.base.options import check_whole
from fedbridge.federation.method import Method, Record, train_each
from fedbridge.methods.cross_validation import (
    FOLDS,
    deal_folds,
    held_out_loss,
    labelled_rows,
    without,
)
from fedbridge.training.job import TARGET
from fedbridge.training.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedbridge.federation.federation import Federation
    from fedbridge.training.state import Model

OFFLINE_EPOCHS = 50

LR_FACTORS = (0.02, 0.1, 0.4, 1.0)
"""Learning rates to try, as factors of the target's own."""

EPOCHS = (3, 10, 30, 80)
PARTS = (0.25, 0.5, 0.75, 1.0)
"""How much of the training is taken; the start itself is tried besides."""

STARTS = ("begin", "shared")
CHOOSE_EVERY = 5
PURPOSE = 300
FAILED = "failed_trainings"


class FinetuneOffline(Method):
    """Source-only rounds, then ``finetune_epochs`` (50) on the target's labels, as the paper.

    Options:
        finetune_epochs: passes over the target's labelled rows (50).
    """

    options: ClassVar[tuple[str, ...]] = ("finetune_epochs",)
    remembers: ClassVar[tuple[str, ...]] = ("shared",)
    travels: ClassVar[bool] = True

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.shared = federation.initial
        self.epochs = check_whole(
            "finetune_epochs", options.get("finetune_epochs", OFFLINE_EPOCHS), least=1
        )

    def run_round(self, round: int) -> Record:
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
        model, _ = self.train_target(round, job, self.shared, record)
        self.state = self.state if model is None else model


@dataclass(frozen=True)
class Choice:
    """How to fine-tune: from where, how fast, how long, and how much of the result to take."""

    start: str
    lr_factor: float
    epochs: int
    part: float

    def __str__(self) -> str:
        """As the history shows it."""
        return (
            f"{self.part:.0%} of {self.epochs} epochs from {self.start} at lr x {self.lr_factor:g}"
        )


class FinetuneCv(FinetuneOffline):
    """Fine-tuning with learning rate, length, start and interpolation by cross-validation.

    Options:
        folds: parts of the target's rows for cross-validation (5).
        choose_every: rounds from one choice to the next (5).
    """

    options: ClassVar[tuple[str, ...]] = ("folds", "choose_every")
    remembers: ClassVar[tuple[str, ...]] = ("shared", "first")
    travels: ClassVar[bool] = False

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.rows = labelled_rows(federation)
        self.folds = deal_folds(federation, options.get("folds", FOLDS))
        self.choose_every = check_whole(
            "choose_every", options.get("choose_every", CHOOSE_EVERY), least=1
        )
        self.first = federation.initial
        self.choice = Choice("shared", LR_FACTORS[0], EPOCHS[0], 0.0)

    def room(self) -> tuple[int, int]:
        """Sources train by themselves; then all folds of one learning rate at a time."""
        trainings = len(STARTS) * len(self.folds)
        return trainings, trainings

    def adapt(self, round: int, record: Record) -> None:
        """Choose if it is time to, then fine-tune as chosen."""
        if len(self.rows) > 1 and (round - 1) % self.choose_every == 0:
            losses = self._losses(round, record)
            self.choice = min(losses, key=losses.__getitem__)
            record.extra["held_out_loss"] = losses[self.choice]
        record.extra["choice"] = str(self.choice)
        start = self._start(self.choice.start)
        end = start
        for stage in self._stages(self.choice.epochs if self.choice.part > 0 else 0):
            end = self._train(round, [end], self.choice.lr_factor, stage, [self.rows], record)[0]
        self.state = interpolated(start, end, self.choice.part)
        if FAILED in record.extra:
            record.notes.append(
                f"{record.extra[FAILED]} trainings of the target failed: their models stayed as "
                f"they were"
            )

    def facts(self) -> dict[str, Any]:
        """The last choice."""
        return {"choice": asdict(self.choice)}

    def remember(
        self, model: Model, memory: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Take the choice up again."""
        super().remember(model, memory, facts)
        self.choice = Choice(**facts["choice"])

    def _start(self, name: str) -> State:
        return self.first if name == "begin" else self.shared

    def _losses(self, round: int, record: Record) -> dict[Choice, float]:
        """Cross-validated loss of the whole grid."""
        untouched = {
            Choice(name, LR_FACTORS[0], EPOCHS[0], 0.0): [self._start(name)] * len(self.folds)
            for name in STARTS
        }
        losses = {
            choice: held_out_loss(self.federation, models, self.folds)
            for choice, models in untouched.items()
        }
        kept = [without(self.rows, fold) for fold in self.folds] * len(STARTS)
        starts = [self._start(name) for name in STARTS for _ in self.folds]
        for factor in LR_FACTORS:
            models = starts
            for epochs, stage in zip(EPOCHS, self._stages(EPOCHS[-1]), strict=True):
                models = self._train(round, models, factor, stage, kept, record)
                for index, name in enumerate(STARTS):
                    own = slice(index * len(self.folds), (index + 1) * len(self.folds))
                    for part in PARTS:
                        tried = [
                            interpolated(start, end, part)
                            for start, end in zip(starts[own], models[own], strict=True)
                        ]
                        loss = held_out_loss(self.federation, tried, self.folds)
                        losses[Choice(name, factor, epochs, part)] = loss
        return losses

    def _stages(self, epochs: int) -> list[int]:
        """How many epochs each stage adds, up to so many in all."""
        return [long - short for short, long in pairwise((0, *EPOCHS)) if long <= epochs]

    def _train(
        self,
        round: int,
        starts: Sequence[State],
        lr_factor: float,
        epochs: int,
        rows: Sequence[Tensor],
        record: Record,
    ) -> list[State]:
        """One stage of the target's training from each start; a start that fails is left as is."""
        federation = self.federation
        plan = federation.plan(TARGET, round)
        plan = replace(plan, lr=plan.lr * lr_factor, epochs=epochs, steps=None)
        jobs = [
            federation.job(
                round, TARGET, state, slot=slot, rows=own, plan=plan, purpose=PURPOSE + epochs
            )
            for slot, (state, own) in enumerate(zip(starts, rows, strict=True))
        ]
        after, outcomes = train_each(federation, jobs, starts)
        failed = sum(outcome.failure is not None for outcome in outcomes)
        if failed:
            record.extra[FAILED] = record.extra.get(FAILED, 0) + failed
        return after


def interpolated(start: State, end: State, part: float) -> State:
    """The model so far along the way; buffers are the start's at its very beginning only."""
    parameters = torch.lerp(start.parameters, end.parameters, part)
    return State(parameters, end.buffers if part > 0 else start.buffers)
