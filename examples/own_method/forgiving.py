"""A method for sources some of whose labels are wrong: a local loss that forgives them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedbridge import rules
from fedbridge.methods import Federation, Need, Objective, RuleMethod, StepContext, check_number


@dataclass(frozen=True)
class ForgivingLoss(Objective):
    """Mean of ``(1 − p_y^q) / q``, where ``p_y`` is the share that the model gives to the label.

    For ``q → 0`` it is the cross-entropy, for ``q = 1`` it is ``1 − p_y``. The gradient of a row is
    that of the cross-entropy times ``p_y^q``: a label that the model finds impossible, because it
    is wrong, hardly moves it.
    """

    q: float

    def __call__(self, context: StepContext) -> Tensor:
        """The loss of one batch of a client, in one step of its training."""
        shares: Tensor = context.module(context.own.x).softmax(dim=1)
        of_label = shares.gather(1, context.own.y[:, None]).clamp_min(1e-7)
        return ((1 - of_label**self.q) / self.q).mean()


class Forgiving(RuleMethod):
    """FedDA, with a local loss that forgives wrong labels the more the larger ``q`` is (0.7)."""

    options: ClassVar[tuple[str, ...]] = ("q", "beta")
    needs: ClassVar[tuple[Need, ...]] = (Need.CLASSES,)
    travels: ClassVar[bool] = False  # sites elsewhere would not know the loss

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        of_rule = {name: value for name, value in options.items() if name != "q"}
        super().__init__(federation, of_rule, rules.get("fedda"))
        self.objective = ForgivingLoss(check_number("q", options.get("q", 0.7), least=0.01, most=1))
