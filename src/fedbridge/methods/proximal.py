"""Proximal terms: training that is held near the global model.

**FedProx.** Every client minimises ``f_i(w) + (μ/2) ‖w − w_t‖²`` from the global model ``w_t``; the
results are averaged as FedAvg averages. The pull is in the gradient, as in the authors' code.

**Ditto.** The global model ``w`` is FedAvg's. Beside it the target trains its own,

    min_v  f_T(v) + (λ/2) ‖v − w_t‖² ,

with ``w_t`` the global model at the round's start and the pull in the gradient, as the authors'
code has it. ``λ = 0`` is local training, a large ``λ`` (and a step that it allows) the global
model. Here only the target has a personal model: the sources' would change nothing for it.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020. Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through
Personalization, ICML 2021.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from fedbridge.core import rules
from fedbridge.federation.method import Method, Record
from fedbridge.methods.rule import RuleMethod
from fedbridge.training.job import TARGET
from fedbridge.training.objective import Proximal

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


class Ditto(Method):
    """A personal model of the target, pulled towards FedAvg's with strength ``penalty`` (1).

    Options:
        penalty: strength of the pull towards FedAvg's model (1).
    """

    options: ClassVar[tuple[str, ...]] = ("penalty",)
    remembers: ClassVar[tuple[str, ...]] = ("shared",)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.shared = federation.initial
        self.pull = Proximal.checked(
            options.get("penalty", DITTO_PENALTY), federation.settings.target_plan(warm=False)
        )

    def room(self) -> tuple[int, int]:
        """All clients train the global model, the target its own besides."""
        return 2, self.federation.n_sources + 2

    def run_round(self, round: int) -> Record:
        """A round of FedAvg, and one of the personal model beside it."""
        federation, begun = self.federation, time.perf_counter()
        present, failures = federation.present(round)
        jobs = [federation.job(round, client, self.shared) for client in present]
        has_target = TARGET in present
        if has_target:
            jobs.append(
                federation.job(
                    round,
                    TARGET,
                    self.state,
                    slot=1,
                    anchor=0,
                    objective=self.pull,
                )
            )
        outcomes, rows = federation.do(jobs, [self.shared, self.state])
        together = outcomes[: len(present)]
        federation.count_bytes(present, together)
        failures |= federation.failures(round, present, together)
        if has_target:
            failures |= federation.failures(round, [TARGET], outcomes[-1:])
        record = Record(failures=failures, seconds_train=time.perf_counter() - begun)
        gathered = federation.sort(present, together, rows[: len(present)], failures)
        self.shared = federation.averaged(self.shared, gathered)
        if has_target and outcomes[-1].failure is None:
            self.state = federation.trained(self.state, rows[len(jobs) - 1], outcomes[-1])
        else:
            record.notes.append("the target is missing: its model stays as it was")
        return record
