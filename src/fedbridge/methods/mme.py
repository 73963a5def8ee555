"""MME, minimax entropy: the head seeks doubt about unlabelled rows, the features remove it.

With the loss ``L`` on labelled rows of both domains and the mean entropy ``H`` of the predictions
for the target's unlabelled rows, every iteration takes two steps with one optimiser:

    1. features and head:  min L
    2. head:               max λ H     (its class vectors move towards the target's rows)
       features:           min λ H     (the target's rows gather around the class vectors)

the second by a gradient that is reversed between the two. The head has a learning rate of its own,
10 times that of the features, no bias, and answers on features of length 1 with a temperature,
``f(x) = W φ(x)/‖φ(x)‖ / T``; so does the model that is delivered. For residual networks it is
deep: ``φ`` passes through a full layer of 512 units first, which belongs to the features in the
second step and learns at the head's rate. The learning rate falls as ``(1 + 10⁻⁴ s)^(−3/4)`` with
the steps ``s``, and the batch of unlabelled rows is twice as large as the others. All of that is as
in the authors' code (VisionLearningGroup/SSDA_MME). ``λ`` is the option ``doubt``; 0 leaves out the
second step, which is the baseline "S+T". ``T`` is 0.05.

The rows must lie in one place, which no federation allows: a bound to compare with, and no bytes
are counted. A round takes as many iterations as FedAvg's largest source takes steps, with the
sources' step size and batch size.

Different from the original:

- It knows one source. Of several, every iteration draws a batch of each, and their mean loss stands
  for that of the one; the target's batch counts by its rows, as there.
- Optimiser, learning rate and weight decay are the run's. Theirs are SGD with Nesterov's momentum
  0.9 (``optimizer="momentum"`` is the plain one), 0.01 and 0.0005; momentum starts anew with every
  round, and the learning rate falls between rounds.
- The two halves of a batch of unlabelled rows are drawn apart, so a row may be in both.
- Not the best iteration on a validation split is delivered but the last one, unless
  ``early_stopping`` is asked for.

Saito, Kim, Sclaroff, Darrell, Saenko: Semi-supervised Domain Adaptation via Minimax Entropy,
ICCV 2019.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbridge.base.options import check_number
from fedbridge.core.blocks import load_buffers, load_parameter_vector
from fedbridge.federation.method import Method, Record
from fedbridge.federation.needs import Need
from fedbridge.methods.generalisation import pooled_plan, together
from fedbridge.methods.unsupervised import entropy, reverse_gradient
from fedbridge.models import SplitModel, head_slices, split_model, try_out
from fedbridge.models.resnet import ResNet
from fedbridge.training.job import TARGET, Job
from fedbridge.training.objective import Objective, Part, Step, StepContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.federation import Federation
    from fedbridge.training.state import Slices, State

DOUBT = 0.1
TEMPERATURE = 0.05
DEEP = 512
HEAD_RATE = 10.0
DECAY, POWER = 1e-4, 0.75


class CosineHead(nn.Module):
    """Classes by the direction of features, or of what a first layer makes of them."""

    def __init__(self, width: int, classes: int, deep: int | None = None) -> None:
        super().__init__()
        self.first = nn.Flatten() if deep is None else nn.Linear(width, deep)
        self.last = nn.Linear(deep or width, classes, bias=False)
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
        if isinstance(self.first, nn.Linear):
            nn.init.zeros_(self.first.bias)

    def forward(self, features: Tensor) -> Tensor:
        """``W z/‖z‖ / T``."""
        return self.answer(self.first(features))

    def reversed(self, features: Tensor) -> Tensor:
        """The same, but what lies before the class vectors learns the opposite."""
        return self.answer(reverse_gradient(self.first(features)))

    def answer(self, seen: Tensor) -> Tensor:
        """The class vectors' answer on directions, sharpened."""
        return cast("Tensor", self.last(functional.normalize(seen))) / TEMPERATURE


@dataclass(frozen=True)
class MinimaxEntropy(Objective):
    """The loss on labels, then the entropy of unlabelled rows with a reversal inside the head.

    The client's own rows are the target's labelled ones; beside them lie those of every source
    and, last, two batches of unlabelled ones.

    Attributes:
        doubt: λ.
        head: where the head lies.
    """

    doubt: float
    head: Slices

    @property
    def parts(self) -> tuple[Part, ...]:
        """The head learns faster."""
        return (Part(self.head, HEAD_RATE),)

    def __call__(self, context: StepContext) -> Tensor:
        """``L``: the mean over the rows of the target and of one source, as large as the mean."""
        *sources, _, _ = context.beside
        batches = (context.own, *sources)
        outputs = together(context.module, [batch.x for batch in batches])
        own, *theirs = (
            context.loss_of(answer, batch.y) for answer, batch in zip(outputs, batches, strict=True)
        )
        rows = sum(len(batch.y) for batch in sources) / len(sources)
        share = rows / (rows + len(context.own.y))
        context.told["share"] = torch.tensor(share)
        return share * torch.stack(theirs).mean() + (1 - share) * own

    def steps(self, context: StepContext) -> Iterator[Step]:
        """``L``; then ``−λ H`` for the class vectors, ``λ H`` for what lies before them."""
        yield Step(self(context))
        if not self.doubt:
            return
        features, head = split_model(context.module)
        unlabelled = torch.cat([batch.x for batch in context.beside[-2:]])
        doubt = entropy(cast("CosineHead", head).reversed(features(unlabelled)))
        context.told["entropy"] = doubt.detach()
        yield Step(-self.doubt * doubt)


class MME(Method):
    """Pooled sources and target: minimax entropy on unlabelled rows, ``doubt`` (λ) 0.1.

    Options:
        doubt: λ, the weight of the entropy on unlabelled rows (0.1).
    """

    options: ClassVar[tuple[str, ...]] = ("doubt",)
    bound_by: ClassVar[str] = "every step draws rows of several sites, which must lie in one place"
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
        """The model's features with a head of this kind in place of its own."""
        features, _ = split_model(model)
        width = prod(cast("Tensor", try_out(features, task)).shape[1:])
        assert task.n_classes is not None
        deep = DEEP if isinstance(model, ResNet) else None
        return SplitModel(features, CosineHead(width, task.n_classes, deep))

    @classmethod
    def restore(cls, model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The same, sized as what was saved."""
        features, _ = split_model(model)
        classes, width = tensors["head.last.weight"].shape
        first = tensors.get("head.first.weight")
        sizes = (width, classes) if first is None else (first.shape[1], classes, width)
        return SplitModel(features, CosineHead(*sizes))

    def deliver(self, model: nn.Module, state: State) -> nn.Module:
        """The same, with the parameters of a state."""
        delivered = self.restore(model, self.federation.bench.model.state_dict())
        load_parameter_vector(delivered, state.parameters)
        load_buffers(delivered, state.buffers)
        return delivered

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
        told = {name: float(value) for name, value in outcome.told.items()}
        each = told.pop("share") / len(sources)
        record.beta = [each if k + 1 in sources else None for k in range(federation.n_sources)]
        record.extra |= told
        return record

    def _job(self, round: int, sources: list[int]) -> Job:
        federation = self.federation
        unlabelled = federation.site_for(Need.UNLABELLED)
        plan = pooled_plan(federation, round, sources, TARGET)
        taken = (round - 1) * (plan.steps or 0)
        return federation.job(
            round,
            TARGET,
            self.state,
            plan=replace(plan, lr=plan.lr * (1 + DECAY * taken) ** -POWER, drop_last=True),
            objective=MinimaxEntropy(self.doubt, head_slices(federation.bench.model)),
            beside=(*sources, unlabelled, unlabelled),
        )
