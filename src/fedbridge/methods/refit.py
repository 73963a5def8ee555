"""A source-led model whose last layer the target fits anew to its own labels.

The sources train as in ``source-only`` (and the first part of ``finetune-offline``); no label of
the target has a part in that. After every round the target takes the model, computes the features
that go into its last layer, and fits a few last layers, from none of its own to more and more. The
cross-validated loss on its labels chooses among them:

    argmin over choices of Σ_k ℓ(fold k; fitted on the other folds) .

The sources' model never saw the target's rows, so only the last layer is fitted once per fold. The
fit happens where the labels are (``TargetSide``), from the model alone: nothing is remembered
there, and the same bits come out over a network.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor
from torch.nn import functional

from fedbridge.federation.method import Method, Record
from fedbridge.federation.needs import Need
from fedbridge.federation.source_rounds import DROPPED_OUT
from fedbridge.methods.cross_validation import (
    FOLDS,
    HOPELESS,
    deal_folds,
    labelled_rows,
    without,
)
from fedbridge.models import HeadPlace, head_inputs
from fedbridge.training.job import TARGET, Outcome
from fedbridge.training.state import State
from fedbridge.training.target_side import Decision, News, TargetSide
from fedbridge.training.trainer import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbridge.federation.federation import Federation

Head = tuple[Tensor, Tensor]
"""Weights and bias of a last layer, in float64."""

CHOICE = "choice"


class Refit(TargetSide):
    """Fits last layers to the target's labels and chooses one by cross-validation."""

    names: ClassVar[tuple[str, ...]]
    """The choices, the simplest first: equal losses fall to it."""

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        self.federation = federation
        self.rows = labelled_rows(federation)
        self.folds = deal_folds(federation, options.get("folds", FOLDS))
        self.place = HeadPlace.of(federation.bench.model)

    @abstractmethod
    def fit(self, choice: int, features: Tensor, labels: Tensor, head: Head) -> Head:
        """The last layer that a choice means, fitted to these rows."""

    def decide(self, news: News) -> Decision:
        """Fit the last layer of the model in the news, as chosen before or chosen now."""
        led, site = State.of_tensors(news.tensors), self.federation.task.target
        features = self.federation.predict(led, site, head_inputs).double()
        head = self.place.read(led.parameters)
        with one_thread():
            losses: dict[str, float] = {}
            choice = int(news.facts.get(CHOICE, 0))
            if CHOICE not in news.facts and len(self.rows) > 1:
                held_out = self._held_out_losses(features, site.y, head)
                choice = held_out.index(min(held_out))
                losses = dict(zip(self.names, held_out, strict=True))
            fitted = self.fit(choice, features[self.rows], site.y[self.rows], head)
        parameters = self.place.put(led.parameters, *fitted)
        told = {"choice": self.names[choice], "losses": losses}
        return Decision(State(parameters, led.buffers), told)

    def _held_out_losses(self, features: Tensor, labels: Tensor, head: Head) -> list[float]:
        """Mean loss of every choice over the rows of all folds, each judged without itself."""
        totals = [0.0] * len(self.names)
        for fold in self.folds:
            rows = without(self.rows, fold)
            for choice in range(len(totals)):
                weight, bias = self.fit(choice, features[rows], labels[rows], head)
                outputs = features[fold] @ weight.T + bias
                loss = functional.cross_entropy(outputs, labels[fold], reduction="sum")
                totals[choice] += float(loss) if bool(loss.isfinite()) else HOPELESS
        return [total / len(self.rows) for total in totals]


class SourceLed(Method):
    """Source-only rounds; after each the target makes its model, usually by its last layer.

    Attributes:
        refit: how that is fitted.
        choose_every: rounds from one choice to the next.
    """

    needs: ClassVar[tuple[Need, ...]] = (Need.CLASSES, Need.LINEAR_HEAD)
    remembers: ClassVar[tuple[str, ...]] = ("shared", "choice")
    travels: ClassVar[bool] = True
    refit: ClassVar[type[Refit]]
    choose_every: int = 1

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.shared = federation.initial
        self.choice: int | None = None

    @classmethod
    def target_side(cls, federation: Federation, options: Mapping[str, Any]) -> TargetSide:
        """The fits, where the target's labels are."""
        return cls.refit(federation, options)

    @classmethod
    def choices(cls) -> Sequence[str]:
        """What the target chooses among."""
        return cls.refit.names

    def news(self, choice: int | None) -> News:
        """What the target must know to choose, or to do what it chose before."""
        return News(self.shared.tensors(), {} if choice is None else {CHOICE: choice})

    def run_round(self, round: int) -> Record:
        """The sources' round, then the target's fit."""
        begun = time.perf_counter()
        self.shared, failures = self.federation.warm_up(round, self.shared)
        trained_at = time.perf_counter()
        record = Record(failures=failures, seconds_train=trained_at - begun)
        self.adapt(round, record)
        record.seconds_aggregate = time.perf_counter() - trained_at
        return record

    def adapt(self, round: int, record: Record) -> None:
        """Let the target make its model of the shared one."""
        federation = self.federation
        if federation.drops_out(round, TARGET):
            record.failures[federation.name_of(TARGET)] = DROPPED_OUT
            record.notes.append("the target is missing: its model stays as it was")
            return
        kept = None if (round - 1) % self.choose_every == 0 else self.choice
        decision = self.ask_target(round, self.news(kept), record)
        federation.count_bytes([TARGET], [Outcome(0)])
        if decision is not None:
            self.take(decision, record)

    def take(self, decision: Decision, record: Record) -> None:
        """Take the fitted model; one that stays with the target leaves the sources' here."""
        own = decision.state
        self.state = own if isinstance(own, State) else self.shared
        choice, known = str(decision.facts["choice"]), self.choices()
        self.choice = known.index(choice) if choice in known else None
        record.extra["choice"] = choice
        if decision.facts["losses"]:
            record.extra["cv_loss"] = dict(decision.facts["losses"])
