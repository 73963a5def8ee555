"""Proximal terms: training that is held near the global model.

**FedProx.** Every client minimises ``f_i(w) + (μ/2) ‖w − w_t‖²`` from the global model ``w_t``; the
results are averaged as FedAvg averages. The pull is in the gradient, as in the authors' code.

**Ditto.** The global model ``w`` is FedAvg's. Beside it the target trains its own,

    min_v  f_T(v) + (λ/2) ‖v − w_t‖² ,

with ``w_t`` the global model at the round's start and the pull in the gradient, as the authors'
code has it. ``λ = 0`` is local training, a large ``λ`` (and a step that it allows) the global
model. Here only the target has a personal model: the sources' would change nothing for it. It lives
with the target (``federation.personal``).

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020. Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through
Personalization, ICML 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fedbridge.core import rules
from fedbridge.federation.personal import BesideFedAvg, PersonalSide
from fedbridge.methods.rule import RuleMethod
from fedbridge.training.job import TARGET
from fedbridge.training.objective import Proximal
from fedbridge.training.state import State
from fedbridge.training.target_side import Decision, News, TargetSide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.federation.federation import Federation

FEDPROX_PENALTY, DITTO_PENALTY = 0.01, 1.0


class FedProx(RuleMethod):
    """FedAvg with a pull of every client towards the global model, ``penalty`` 0.01.

    Options:
        penalty: strength of the pull towards the global model (0.01).
    """

    options: ClassVar[tuple[str, ...]] = ("penalty",)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, {}, rules.get("fedavg"))
        settings = federation.settings
        self.objective = Proximal.checked(
            options.get("penalty", FEDPROX_PENALTY),
            settings.source_plan(warm=False),
            settings.target_plan(warm=False),
        )


class DittoSide(PersonalSide):
    """The personal model."""

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation)
        self.pull = Proximal.checked(
            options.get("penalty", DITTO_PENALTY), federation.settings.target_plan(warm=False)
        )

    def decide(self, news: News) -> Decision:
        """Train it, pulled towards the global model of the round's start."""
        federation, anchor = self.federation, State.of_tensors(news.tensors)
        own = self.own or anchor
        job = federation.job(federation.round, TARGET, own, slot=0, anchor=1, objective=self.pull)
        change, outcome = self.train(job, [own.parameters, anchor.parameters])
        self.own = federation.trained(own, change, outcome)
        return Decision(self.own, {})


class Ditto(BesideFedAvg):
    """A personal model of the target, pulled towards FedAvg's with strength ``penalty`` (1).

    Options:
        penalty: strength of the pull towards FedAvg's model (1).
    """

    options: ClassVar[tuple[str, ...]] = ("penalty",)

    @classmethod
    def target_side(cls, federation: Federation, options: Mapping[str, Any]) -> TargetSide:
        """The personal model, with the target."""
        return DittoSide(federation, options)
