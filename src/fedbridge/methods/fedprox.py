"""FedProx: FedAvg whose clients do not stray far from the round's starting point.

Every client minimises ``f_i(w) + (μ/2) ‖w − w_t‖²`` from the global model ``w_t``; the results are
averaged as FedAvg averages. The pull is in the gradient, as in the authors' code.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fedbridge.core import rules
from fedbridge.methods.rule import RuleMethod
from fedbridge.training.objective import Proximal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedbridge.federation.federation import Federation

PENALTY = 0.01


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
            options.get("penalty", PENALTY),
            settings.source_plan(warm=False),
            settings.target_plan(warm=False),
        )
