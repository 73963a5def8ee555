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

import time
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedbridge.base.options import check_flag, check_number
from fedbridge.core.blocks import load_buffers, load_parameter_vector
from fedbridge.federation.method import INNER, Method, Record
from fedbridge.training.job import SUPERVISED, TARGET
from fedbridge.training.objective import Objective, StepContext
from fedbridge.training.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.federation import Federation

MIXING = 0.5
PERSONAL = "personal."


class Mixture(nn.Module):
    """The global model, the local one, and how much of the local one is taken."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.personal = deepcopy(model)
        self.last = nn.ParameterList([torch.zeros(1)])

    @property
    def mixing(self) -> nn.Parameter:
        """α, behind the parameters of both models in the flat vector; 0 in the warm-up."""
        return cast("nn.Parameter", self.last[0])

    def mixed(self, x: Tensor) -> Tensor:
        """Answer of the mixture; gradients reach the local model and the mixing alone."""
        shared = dict(self.model.named_parameters())
        blended = {
            name: self.mixing * own + (1 - self.mixing) * shared[name].detach()
            for name, own in self.personal.named_parameters()
        }
        return cast("Tensor", functional_call(self.personal, blended, (x,)))

    def forward(self, x: Tensor) -> Tensor:
        """In training the global model, which all clients train; else the target's mixture.

        A mixture without any of the local model is the global one, with its own buffers.
        """
        shared = self.training or float(self.mixing.detach()) == 0
        return cast("Tensor", self.model(x)) if shared else self.mixed(x)


@dataclass(frozen=True)
class TrainBoth(Objective):
    """``f(w) + f(v̄)``: the two sums have no parameter in common."""

    def __call__(self, context: StepContext) -> Tensor:
        """Both losses on the same batch."""
        module = cast("Mixture", context.module)
        x, y = context.own.x, context.own.y
        return context.loss_of(module.model(x), y) + context.loss_of(module.mixed(x), y)

    def after_step(self, context: StepContext) -> None:
        """Keep the mixing in [0, 1]."""
        cast("Mixture", context.module).mixing.clamp_(0, 1)


class Apfl(Method):
    """A mixture of FedAvg's model and a local one: ``mixing`` (0.5), or learned: ``adaptive``.

    Options:
        mixing: share of the local model in the mixture (0.5).
        adaptive: learn that share (false).
    """

    options: ClassVar[tuple[str, ...]] = ("mixing", "adaptive")

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.mixing = check_number("mixing", options.get("mixing", MIXING), least=0, most=1)
        self.adaptive = check_flag("adaptive", options.get("adaptive", False))
        self.size = (federation.blocks.total - 1) // 2
        federation.stays = ((self.size, federation.blocks.total),)
        federation.buffers_stay = frozenset(
            name for name in federation.initial.buffers if not name.startswith(INNER)
        )

    @classmethod
    def compose(cls, model: nn.Module, task: FederatedTask) -> nn.Module:
        """Two models and a number."""
        return Mixture(model)

    def deliver(self, model: nn.Module, state: State) -> nn.Module:
        """The mixture as one plain model."""
        shared, personal = state.parameters[: self.size], state.parameters[self.size : -1]
        mixing = float(state.parameters[-1])
        load_parameter_vector(model, torch.lerp(shared, personal, mixing))
        whose = INNER if mixing == 0 else PERSONAL
        own = {
            name.removeprefix(whose): value
            for name, value in state.buffers.items()
            if name.startswith(whose)
        }
        if own:
            load_buffers(model, own)
        return model

    def begin(self, state: State) -> None:
        """The local model starts where the global one is."""
        shared = state.parameters[: self.size]
        parameters = torch.cat((shared, shared, torch.tensor([self.mixing])))
        inner = {k: v for k, v in state.buffers.items() if k.startswith(INNER)}
        personal = {PERSONAL + k.removeprefix(INNER): v.clone() for k, v in inner.items()}
        super().begin(State(parameters, {**inner, **personal}))

    def run_round(self, round: int) -> Record:
        """All clients train the global model; the target the local one in the same steps."""
        federation, begun = self.federation, time.perf_counter()
        present, failures = federation.present(round)
        total = federation.blocks.total
        jobs = [
            federation.job(
                round,
                client,
                self.state,
                objective=TrainBoth() if client == TARGET else SUPERVISED,
                moves=((0, total if self.adaptive else total - 1),)
                if client == TARGET
                else ((0, self.size),),
            )
            for client in present
        ]
        outcomes, rows = federation.do(jobs, [self.state])
        federation.count_bytes(present, outcomes)
        failures |= federation.failures(round, present, outcomes)
        record = Record(failures=failures, seconds_train=time.perf_counter() - begun)
        gathered = federation.sort(present, outcomes, rows, failures)
        moved = federation.averaged(self.state, gathered)
        parameters, buffers = moved.parameters, dict(moved.buffers)
        parameters[self.size :] = self.state.parameters[self.size :]
        if gathered.target is None:
            record.notes.append("the target is missing: its local model stays as it was")
        else:
            parameters[self.size :] += gathered.rows[0][self.size :]
            if federation.settings.buffers != "keep":
                own = gathered.target.buffers
                buffers |= {k: v for k, v in own.items() if k.startswith(PERSONAL)}
        self.state = State(parameters, buffers)
        record.extra = {"mixing": float(parameters[-1])}
        return record
