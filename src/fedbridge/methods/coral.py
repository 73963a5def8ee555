"""CORAL: features whose means and covariances agree between sources.

With ``m_i`` and ``C_i`` the mean and covariance of the ``d`` features of source ``i``'s batch,

    1/N Σ_i ℓ_i + λ · mean over pairs i < j of ( ‖m_i − m_j‖² / d + ‖C_i − C_j‖² / d² ) .

The paper aligns the covariances of one source and a target and divides by ``4 d²``; this is
DomainBed's form for several sources, means included. A batch of one row has covariance 0. The
history shows ``penalty``, the mean over pairs in a round's last step. See ``generalisation`` for
what all of these methods share.

Sun, Saenko: Deep CORAL: Correlation Alignment for Deep Domain Adaptation, ECCV Workshops 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedbridge.base.options import check_number
from fedbridge.federation.needs import Need
from fedbridge.methods.generalisation import Generalisation, batches_of, losses_of, together
from fedbridge.models import split_model
from fedbridge.training.objective import Objective

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedbridge.federation.federation import Federation
    from fedbridge.training.objective import StepContext

PENALTY = 1.0


@dataclass(frozen=True)
class Aligned(Objective):
    """The mean loss, and ``penalty`` times how far the features of the sources are apart."""

    penalty: float

    def __call__(self, context: StepContext) -> Tensor:
        """One pass through the features, one through the head."""
        features, head = split_model(context.module)
        clouds = together(features, [batch.x for batch in batches_of(context)])
        apart = moments_apart([cloud.flatten(1) for cloud in clouds])
        context.told["penalty"] = apart.detach()
        return losses_of(context, together(head, clouds)).mean() + self.penalty * apart


def moments_apart(clouds: Sequence[Tensor]) -> Tensor:
    """Mean over pairs of clouds of how far their means and covariances are apart."""
    moments = [(cloud.mean(0), covariance(cloud)) for cloud in clouds]
    pairs = [
        (mean - other_mean).square().mean() + (spread - other_spread).square().mean()
        for (mean, spread), (other_mean, other_spread) in combinations(moments, 2)
    ]
    return torch.stack(pairs).mean() if pairs else clouds[0].new_zeros(())


def covariance(cloud: Tensor) -> Tensor:
    """(d, d) covariance of the rows; 0 for a single row."""
    centred = cloud - cloud.mean(0)
    return centred.T @ centred / max(len(cloud) - 1, 1)


class CORAL(Generalisation):
    """Pooled sources, features with equal means and covariances: ``penalty`` 1.

    Options:
        penalty: weight of the difference of means and covariances (1).
    """

    options: ClassVar[tuple[str, ...]] = ("penalty",)
    needs: ClassVar[tuple[Need, ...]] = (Need.POOLED, Need.FEATURES)

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.penalty = check_number("penalty", options.get("penalty", PENALTY), least=0)

    def objective(self, round: int, present: list[int]) -> Objective:
        """The same in every round."""
        return Aligned(self.penalty)
