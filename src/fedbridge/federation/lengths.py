"""How long updates are, and whose stand out: one client alone must not carry a model away."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median_low
from typing import TYPE_CHECKING

import torch

from fedbridge.base.options import check_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.training.job import Job, Outcome

PART = 1e-3
"""Updates shorter than this part of the model count as of this length when they are compared."""


@dataclass
class Lengths:
    """Of every client the longest training update, as it is and over steps x learning rate.

    Attributes:
        ratio: how many times as long as the median one may be; None for any length.
    """

    ratio: float | None
    lengths: dict[str, float] = field(default_factory=dict)
    paces: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, job: Job, outcome: Outcome, vector: Tensor) -> None:
        """Look at what came of a job of the client of this name."""
        if self.ratio is None or job.kind != "train" or outcome.failure or not outcome.time > 0:
            return
        length = length_of(vector)
        self.lengths[name] = max(self.lengths.get(name, 0.0), length)
        self.paces[name] = max(self.paces.get(name, 0.0), length / outcome.time)

    def refused(self, model: float, target: str) -> dict[str, str]:
        """Clients whose update stands out among the others', and why, by the model's length.

        Where training comes to its end honest updates get short, and one may be far longer than
        the median: what is shorter than a small part of the model never counts as too long. Of two
        the target's, whom the model is for, stands for the median; of one the model's own length.
        """
        if self.ratio is None:
            return {}
        own = self.paces.get(target) if len(self.paces) == 2 else None
        if len(self.paces) > 2 or own:
            overlong = screen_lengths(self.paces, self.ratio, own)
            allowed = self.ratio * PART * model
        else:
            said = f"its update is over {self.ratio:g} times the model"
            overlong = dict.fromkeys(self.lengths, said)
            allowed = self.ratio * model if model else math.inf
        return {n: reason for n, reason in overlong.items() if not self.lengths[n] <= allowed}


def screen_lengths(
    lengths: Mapping[str, float], multiple: float, own: float | None = None
) -> dict[str, str]:
    """Sites whose update is longer than a multiple of the round's median, and why they go.

    Give the lengths in the unit in which updates are compared (over steps x learning rate where
    they are aligned). Fewer than three replies tell nothing about who is wrong, unless the
    target's ``own`` is believed.
    """
    check_number("multiple", multiple, least=1.0)
    typical = own or (median_low(lengths.values()) if len(lengths) > 2 else 0.0)
    whose = "the target's" if own else "the median of the round"
    return {
        name: f"its update is {length / typical:.3g} times as long as {whose}, "
        f"and {multiple:g} times is allowed"
        for name, length in lengths.items()
        if typical and not length <= multiple * typical
    }


def length_of(vector: Tensor) -> float:
    """Length of a vector, in float64: the squares of large float32 numbers overflow."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
