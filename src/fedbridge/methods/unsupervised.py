"""What methods share that learn from the target's unlabelled rows."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from fedbridge.core.blocks import pooled_buffers
from fedbridge.federation.method import Method, Record
from fedbridge.federation.needs import Need
from fedbridge.training.job import TARGET
from fedbridge.training.state import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedbridge.data.task import Site
    from fedbridge.federation.evidence import Gathered


class UnsupervisedMethod(Method):
    """Sources train, then the target's unlabelled rows say what each of them is worth."""

    @abstractmethod
    def learn(self, round: int, trained: Gathered, models: list[State], record: Record) -> None:
        """Move the model by what the sources have sent: their ``models`` and reports."""

    def train_sources(self, round: int) -> tuple[Gathered, list[State]]:
        """What came of the sources' training, and their models."""
        federation = self.federation
        trained, _ = federation.gather(round, self.state, noise="none", with_target=False)
        models = [
            federation.trained(self.state, row, outcome)
            for row, (_, outcome) in zip(trained.rows, trained.sources, strict=True)
        ]
        return trained, models

    @property
    def unlabelled(self) -> Site:
        """The target's rows without labels."""
        return self.federation.bench.sites[self.federation.site_for(Need.UNLABELLED)]

    def run_round(self, round: int) -> Record:
        """Train the sources and learn from them; without the target nobody could."""
        federation, begun = self.federation, time.perf_counter()
        present, failures = federation.present(round)
        record = Record(failures=failures)
        if TARGET not in present:
            record.notes.append("the target is missing: the model stays as it was")
            return record
        trained, models = self.train_sources(round)
        record.failures |= trained.failures
        record.seconds_train = time.perf_counter() - begun
        if not trained.sources:
            record.notes.append("no source is there: the model stays as it was")
            return record
        self.learn(round, trained, models, record)
        record.seconds_aggregate = time.perf_counter() - begun - record.seconds_train
        return record

    def mix(self, models: Sequence[State], shares: Sequence[float]) -> None:
        """Move to the mean of models by their shares (sum 1), statistics of BatchNorm pooled."""
        parameters = torch.zeros_like(self.state.parameters)
        for model, share in zip(models, shares, strict=True):
            parameters.add_(model.parameters, alpha=share)
        buffers = self.state.buffers
        if not self.federation.settings.keeps_buffers:
            buffers = pooled_buffers([model.buffers for model in models], shares)
        self.state = State(parameters, buffers)


class _Reversal(torch.autograd.Function):
    """Identity on the way forward; the gradient comes back with its sign changed."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradients[0], None


def reverse_gradient(values: Tensor, strength: float = 1.0) -> Tensor:
    """The values as they are; what lies before them learns the opposite of what follows.

    Ganin et al.: Domain-Adversarial Training of Neural Networks, JMLR 2016.
    """
    return cast("Tensor", _Reversal.apply(values, strength))  # type: ignore[no-untyped-call]


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy ``−Σ_c p_c log p_c`` of the predictions, in nats."""
    logs = logits.log_softmax(dim=1)
    return -(logs.exp() * logs).sum(dim=1).mean()
