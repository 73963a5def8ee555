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

Longer trainings go on from shorter ones, each stage with a fresh optimiser. All of it happens where
the labels are (``TargetSide``), from the models alone: nothing is remembered there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import pairwise, product
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
from fedbridge.methods.refit import CHOICE, SourceLed
from fedbridge.training.job import TARGET
from fedbridge.training.state import State
from fedbridge.training.target_side import Decision, News, TargetSide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedbridge.federation.federation import Federation
    from fedbridge.federation.needs import Need

OFFLINE_EPOCHS = 50

LR_FACTORS = (0.02, 0.1, 0.4, 1.0)
"""Learning rates to try, as factors of the target's own."""

EPOCHS = (3, 10, 30, 80)
PARTS = (0.25, 0.5, 0.75, 1.0)
"""How much of the training is taken; the start itself is tried besides."""

STARTS = ("begin", "shared")
CHOOSE_EVERY = 5
PURPOSE = 300
FIRST = "first."
"""How news call the model of the method's start."""
FAILED = "trainings of the target failed: their models stayed as they were"


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


def choices() -> list[Choice]:
    """All that is tried: each start as it is, and what is made of it."""
    untouched = [Choice(start, LR_FACTORS[0], EPOCHS[0], 0.0) for start in STARTS]
    return untouched + [Choice(*each) for each in product(STARTS, LR_FACTORS, EPOCHS, PARTS)]


class FinetuneSide(TargetSide):
    """Fine-tunes at the target, as cross-validation on its labels says."""

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        self.federation = federation
        self.rows = labelled_rows(federation)
        self.folds = deal_folds(federation, options.get("folds", FOLDS))
        self.failed = 0

    def expects(self, initial: State, news: News) -> dict[str, Tensor]:
        """A start, and where the target is to choose, the other one too."""
        more = {} if CHOICE in news.facts else initial.tensors(FIRST)
        return {**initial.tensors(), **more}

    def decide(self, news: News) -> Decision:
        """Choose if it is time to, then fine-tune as chosen."""
        known, self.failed = choices(), 0
        starts = dict.fromkeys(STARTS, State.of_tensors(news.tensors))
        losses: dict[str, float] = {}
        if CHOICE in news.facts:
            choice = known[min(int(news.facts[CHOICE]), len(known) - 1)]
        else:
            starts["begin"] = State.of_tensors(news.tensors, FIRST)
            choice = Choice("shared", LR_FACTORS[0], EPOCHS[0], 0.0)
            if len(self.rows) > 1:
                found = self.losses(starts)
                choice = min(found, key=found.__getitem__)
                losses = {str(choice): found[choice]}
        start = end = starts[choice.start]
        for stage in _stages(choice.epochs if choice.part > 0 else 0):
            (end,) = self._train([end], choice.lr_factor, stage, [self.rows])
        told: dict[str, Any] = {"choice": str(choice), "losses": losses}
        if self.failed:
            told["said"] = f"{self.failed} {FAILED}"
        return Decision(interpolated(start, end, choice.part), told)

    def losses(self, starts: Mapping[str, State]) -> dict[Choice, float]:
        """Cross-validated loss of the whole grid."""
        losses = {
            choice: held_out_loss(
                self.federation, [starts[choice.start]] * len(self.folds), self.folds
            )
            for choice in choices()[: len(STARTS)]
        }
        kept = [without(self.rows, fold) for fold in self.folds] * len(STARTS)
        begun = [starts[name] for name in STARTS for _ in self.folds]
        for factor in LR_FACTORS:
            models = begun
            for epochs, stage in zip(EPOCHS, _stages(EPOCHS[-1]), strict=True):
                models = self._train(models, factor, stage, kept)
                for index, name in enumerate(STARTS):
                    own = slice(index * len(self.folds), (index + 1) * len(self.folds))
                    for part in PARTS:
                        tried = [
                            interpolated(start, end, part)
                            for start, end in zip(begun[own], models[own], strict=True)
                        ]
                        loss = held_out_loss(self.federation, tried, self.folds)
                        losses[Choice(name, factor, epochs, part)] = loss
        return losses

    def _train(
        self, starts: Sequence[State], lr_factor: float, epochs: int, rows: Sequence[Tensor]
    ) -> list[State]:
        """One stage of the target's training from each start; a start that fails is left as is."""
        federation = self.federation
        plan = federation.plan(TARGET, federation.round)
        plan = replace(plan, lr=plan.lr * lr_factor, epochs=epochs, steps=None)
        jobs = [
            federation.job(
                federation.round,
                TARGET,
                state,
                slot=slot,
                rows=own,
                plan=plan,
                purpose=PURPOSE + epochs,
            )
            for slot, (state, own) in enumerate(zip(starts, rows, strict=True))
        ]
        after, outcomes = train_each(federation, jobs, starts)
        self.failed += sum(outcome.failure is not None for outcome in outcomes)
        return after


def _stages(epochs: int) -> list[int]:
    """How many epochs each stage adds, up to so many in all."""
    return [long - short for short, long in pairwise((0, *EPOCHS)) if long <= epochs]


class FinetuneCv(SourceLed):
    """Fine-tuning with learning rate, length, start and interpolation by cross-validation.

    Options:
        folds: parts of the target's rows for cross-validation (5).
        choose_every: rounds from one choice to the next (5).
    """

    options: ClassVar[tuple[str, ...]] = ("folds", "choose_every")
    needs: ClassVar[tuple[Need, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = (*SourceLed.remembers, "first")

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.choose_every = check_whole(
            "choose_every", options.get("choose_every", CHOOSE_EVERY), least=1
        )
        self.first = federation.initial

    @classmethod
    def target_side(cls, federation: Federation, options: Mapping[str, Any]) -> TargetSide:
        """The trainings, where the target's labels are."""
        return FinetuneSide(federation, options)

    @classmethod
    def choices(cls) -> Sequence[str]:
        """The whole grid."""
        return [str(choice) for choice in choices()]

    def room(self) -> tuple[int, int]:
        """Sources train by themselves; then all folds of one learning rate at a time."""
        folds = check_whole("folds", self.given.get("folds", FOLDS), least=2)
        return len(STARTS) * folds, len(STARTS) * folds

    def news(self, choice: int | None) -> News:
        """Both starts to choose from, or the one that was chosen."""
        if choice is None:
            return News({**self.shared.tensors(), **self.first.tensors(FIRST)})
        start = self.first if choices()[choice].start == "begin" else self.shared
        return News(start.tensors(), {CHOICE: choice})

    def take(self, decision: Decision, record: Record) -> None:
        """Take the model, and say what was chosen."""
        super().take(decision, record)
        if losses := record.extra.pop("cv_loss", {}):
            (record.extra["held_out_loss"],) = losses.values()
        if "said" in decision.facts:
            record.notes.append(decision.facts["said"])


def interpolated(start: State, end: State, part: float) -> State:
    """The model so far along the way; buffers are the start's at its very beginning only."""
    parameters = torch.lerp(start.parameters, end.parameters, part)
    return State(parameters, end.buffers if part > 0 else start.buffers)
