"""The control that every claim has to face: the same steps, without any source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fedbridge import methods, rules
from fedbridge.checks import check_beta
from fedbridge.methods.ruled import RuleMethod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.federation import Federation
    from fedbridge.methods.base import Record
    from fedbridge.state import Gathered

FIXED_BETA = ("fedda", "fedgp")


class TargetOnlyMatched(RuleMethod):
    """``target-only`` at the step size, batch size and warm start of the method in ``match``.

    A rule with a fixed ``β`` takes only ``1 − β`` of the target's step. Much of what such a rule
    gains may be that shorter step and owe nothing to the sources; this control takes it too.
    """

    options: ClassVar[tuple[str, ...]] = ("match", "beta")

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, {}, rules.get("target-only"))
        self.match = str(options.get("match", "auto"))
        methods.class_of(self.match)
        beta = check_beta(options.get("beta", 0.5), federation.n_sources)
        counts = federation.sample_counts(range(federation.n_sources))[1:]
        shares = counts if self.by_samples else torch.ones_like(counts)
        trust = float((shares * beta).sum() / shares.sum())
        self.step = 1.0 - trust if self.match in FIXED_BETA else 1.0

    def _update(self, trained: Gathered, probed: Gathered | None, record: Record) -> Tensor:
        return self.step * super()._update(trained, probed, record)
