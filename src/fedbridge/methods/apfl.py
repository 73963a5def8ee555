"""APFL: the target's model is a mixture of a global and a local one, in parameter space.

    v̄ = α v + (1 − α) w .

``w`` is FedAvg's. In every step the target moves ``w`` on ``f_T(w)`` and ``v`` on ``f_T(v̄)`` (with
``w`` held fixed there). ``mixing`` is ``α``: 0 is FedAvg, 1 is local training. With ``adaptive`` it
is learned as well, by the run's optimiser on the gradient ``⟨∇f_T(v̄), v − w⟩``, and kept in [0, 1].

Read beside the authors' code (MLOPTPSU/FedTorch). Different: only the target has a local model,
since nobody else's is asked for; ``w`` and ``v`` move at once, where theirs takes the gradient of
``v`` after the step of ``w``; they learn ``α`` in the first step of a round alone, by plain
gradient descent with a decay of 0.02 α and with a mean of both models' gradients, ours in every
step and by the gradient of the mixture, as their text.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from fedbridge.base.options import check_flag, check_number
from fedbridge.federation.method import INNER
from fedbridge.federation.personal import START, BesideFedAvg, PersonalSide
from fedbridge.federation.settings import FROZEN
from fedbridge.models import called_with
from fedbridge.training.job import TARGET
from fedbridge.training.objective import Objective, StepContext
from fedbridge.training.state import State
from fedbridge.training.target_side import Decision, News, TargetSide
from fedbridge.training.trainer import Workbench

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.federation.federation import Federation
    from fedbridge.federation.method import Record

MIXING = 0.5
PERSONAL = "personal."
LOCAL = "local"
"""What the share of the local model is told as."""


class Mixture(nn.Module):
    """The global model, the local one, and how much of the local one is taken, in training."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.personal = deepcopy(model)
        self.last = nn.ParameterList([torch.zeros(1)])

    @property
    def mixing(self) -> nn.Parameter:
        """α, behind the parameters of both models in the flat vector."""
        return cast("nn.Parameter", self.last[0])

    def forward(self, x: Tensor) -> Tensor:
        """Answer of the mixture; gradients reach the local model and the mixing alone."""
        shared = dict(self.model.named_parameters())
        blended = {
            name: self.mixing * own + (1 - self.mixing) * shared[name].detach()
            for name, own in self.personal.named_parameters()
        }
        return called_with(self.personal, blended, x)


@dataclass(frozen=True)
class TrainBoth(Objective):
    """``f(w) + f(v̄)``: the two sums have no parameter in common."""

    def __call__(self, context: StepContext) -> Tensor:
        """Both losses on the same batch."""
        module = cast("Mixture", context.module)
        x, y = context.own.x, context.own.y
        return context.loss_of(module.model(x), y) + context.loss_of(module(x), y)

    def after_step(self, context: StepContext) -> None:
        """Keep the mixing in [0, 1]."""
        cast("Mixture", context.module).mixing.clamp_(0, 1)


class ApflSide(PersonalSide):
    """The local model and how much of it is taken.

    Its training needs the global model's at the target, step by step: that is done once more here.
    """

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation)
        self.mixing = check_number("mixing", options.get("mixing", MIXING), least=0, most=1)
        self.adaptive = check_flag("adaptive", options.get("adaptive", False))
        settings = federation.settings
        self.bench = Workbench(
            Mixture(deepcopy(federation.bench.model)),
            federation.task,
            seed=federation.seed,
            device=settings.device,
            frozen=settings.buffers == FROZEN,
        )

    def expects(self, initial: State, news: News) -> dict[str, Tensor]:
        """The global model before and after the round."""
        return {**initial.tensors(), **initial.tensors(START)}

    def decide(self, news: News) -> Decision:
        """Train both from where they were, and mix the local one with the new global one."""
        federation = self.federation
        shared, before = (State.of_tensors(news.tensors, prefix) for prefix in ("", START))
        own = self.own or before
        mixing = torch.tensor([self.mixing])
        both = State(
            torch.cat((before.parameters, own.parameters, mixing)),
            {
                **{f"{INNER}{name}": value for name, value in before.buffers.items()},
                **{f"{PERSONAL}{name}": value for name, value in own.buffers.items()},
            },
        )
        total, size = len(both.parameters), len(own.parameters)
        moves = ((0, total if self.adaptive else total - 1),)
        job = federation.job(federation.round, TARGET, both, objective=TrainBoth(), moves=moves)
        change, outcome = self.train(job, [both.parameters], self.bench)
        buffers = {
            name.removeprefix(PERSONAL): value
            for name, value in outcome.buffers.items()
            if name.startswith(PERSONAL)
        }
        self.own = federation.trained(own, change[size:-1], replace(outcome, buffers=buffers))
        self.mixing = float(mixing + change[-1:])
        return Decision(self._mixed(shared, self.own), {"weights": {LOCAL: self.mixing}})

    def _mixed(self, shared: State, own: State) -> State:
        """The mixture as one plain model; none of the local one is the global, with its buffers."""
        parameters = torch.lerp(shared.parameters, own.parameters, self.mixing)
        return State(parameters, own.buffers if self.mixing else shared.buffers)

    def facts(self) -> dict[str, Any]:
        """The mixing."""
        return {"mixing": self.mixing}

    def remember(self, memory: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Take both up again."""
        super().remember(memory, facts)
        self.mixing = float(facts["mixing"])


class Apfl(BesideFedAvg):
    """A mixture of FedAvg's model and a local one: ``mixing`` (0.5), or learned: ``adaptive``.

    Options:
        mixing: share of the local model in the mixture (0.5).
        adaptive: learn that share (false).
    """

    options: ClassVar[tuple[str, ...]] = ("mixing", "adaptive")

    @classmethod
    def target_side(cls, federation: Federation, options: Mapping[str, Any]) -> TargetSide:
        """The local model, with the target."""
        return ApflSide(federation, options)

    def news(self, before: State) -> News:
        """The global model before and after the round."""
        return News({**self.shared.tensors(), **before.tensors(START)})

    def take(self, decision: Decision, record: Record) -> None:
        """Take the mixture."""
        super().take(decision, record)
        record.extra["mixing"] = decision.facts.get("weights", {}).get(LOCAL)
