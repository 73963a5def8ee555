"""MME, minimax entropy: the head seeks doubt about unlabelled rows, the features remove it.

With the loss ``L`` on labelled rows and the mean entropy ``H`` of the predictions for the target's
unlabelled rows,

    head:      min L − λ H        (its class vectors move towards the target's rows)
    features:  min L + λ H        (the target's rows gather around the class vectors)

in one step, with the gradient of ``H`` reversed between the two. The head answers on features of
length 1 with a temperature, ``f(x) = head(φ(x)/‖φ(x)‖)/T``, as in the paper; so does the model that
is delivered.

It is semi-supervised adaptation from a single source: every step draws a batch of every source, one
of the target's labelled rows and one of its unlabelled rows; ``L`` is half the mean loss over the
sources and half the loss on the target's labels. The rows must lie in one place, which no
federation allows: a bound to compare with, and no bytes are counted. A round takes as many steps as
FedAvg's largest source takes, with the sources' step size and batch size.

``λ`` is the option ``doubt``; ``T`` is 0.05. Different from the paper: the head keeps its bias, and
features and head share one learning rate.

Saito, Kim, Sclaroff, Darrell, Saenko: Semi-supervised Domain Adaptation via Minimax Entropy,
ICCV 2019.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbridge.base.options import check_number
from fedbridge.federation.method import Method, Record
from fedbridge.federation.needs import Need
from fedbridge.methods.generalisation import pooled_plan, together
from fedbridge.methods.unsupervised import entropy, reverse_gradient
from fedbridge.models import split_model
from fedbridge.training.job import TARGET, Job
from fedbridge.training.objective import Objective, StepContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.federation import Federation
    from fedbridge.training.state import State

DOUBT = 0.1
TEMPERATURE = 0.05


class CosineModel(nn.Module):
    """A model whose head sees only the direction of the features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The head's answer on the features of ``x``."""
        return self.answer(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Features as the model has them."""
        features, _ = split_model(self.model)
        return cast("Tensor", features(x))

    def answer(self, features: Tensor) -> Tensor:
        """The head on features of length 1, sharpened."""
        _, head = split_model(self.model)
        directions = functional.normalize(features.flatten(1)).view_as(features)
        return cast("Tensor", head(directions)) / TEMPERATURE


@dataclass(frozen=True)
class MinimaxEntropy(Objective):
    """The loss on labels, and the entropy of unlabelled rows with a reversal in front of the head.

    The client's own rows are the target's labelled ones; beside them lie those of every source
    and, last, the unlabelled ones.
    """

    doubt: float

    def __call__(self, context: StepContext) -> Tensor:
        """``L − λ H`` for the head, ``L + λ H`` for the features."""
        model = cast("CosineModel", context.module)
        *sources, unlabelled = context.beside
        batches = (context.own, *sources)
        outputs = together(model, [batch.x for batch in batches])
        own, *theirs = (
            context.loss_of(answer, batch.y) for answer, batch in zip(outputs, batches, strict=True)
        )
        doubt = entropy(model.answer(reverse_gradient(model.features(unlabelled.x))))
        context.told["entropy"] = doubt.detach()
        return (own + torch.stack(theirs).mean()) / 2 - self.doubt * doubt


class MME(Method):
    """Pooled sources and target: minimax entropy on unlabelled rows, ``doubt`` (λ) 0.1.

    Options:
        doubt: λ, the weight of the entropy on unlabelled rows (0.1).
    """

    options: ClassVar[tuple[str, ...]] = ("doubt",)
    needs: ClassVar[tuple[Need, ...]] = (
        Need.CLASSES,
        Need.FEATURES,
        Need.UNLABELLED,
        Need.POOLED,
    )

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.doubt = check_number("doubt", options.get("doubt", DOUBT), least=0)

    @classmethod
    def compose(cls, model: nn.Module, task: FederatedTask) -> nn.Module:
        """The model with its features brought to length 1."""
        return CosineModel(model)

    @classmethod
    def restore(cls, model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The same from a saved run."""
        return CosineModel(model)

    def deliver(self, model: nn.Module, state: State) -> nn.Module:
        """The model with its features brought to length 1."""
        return CosineModel(super().deliver(model, state))

    def room(self) -> tuple[int, int]:
        """One training."""
        return 1, 1

    def run_round(self, round: int) -> Record:
        """One training on the rows of all sites."""
        federation, begun = self.federation, time.perf_counter()
        present, failures = federation.present(round)
        record = Record(failures=failures)
        sources = [client for client in present if client != TARGET]
        if TARGET not in present or not sources:
            lacking = "no source is there" if TARGET in present else "the target is missing"
            record.notes.append(f"{lacking}: the model stays as it was")
            return record
        job = self._job(round, sources)
        model, outcome = self.train_target(round, job, self.state, record)
        record.seconds_train = time.perf_counter() - begun
        if model is None:
            record.notes.append("the target was lost: the model stays as it was")
            return record
        self.state = model
        half = 0.5 / len(sources)
        record.beta = [half if k + 1 in sources else None for k in range(federation.n_sources)]
        record.extra["entropy"] = float(outcome.told["entropy"])
        return record

    def _job(self, round: int, sources: list[int]) -> Job:
        federation = self.federation
        return federation.job(
            round,
            TARGET,
            self.state,
            plan=pooled_plan(federation, round, sources, TARGET),
            objective=MinimaxEntropy(self.doubt),
            beside=(*sources, federation.site_for(Need.UNLABELLED)),
        )
