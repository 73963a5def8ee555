"""The target's side of a method: models and choices that never leave the target.

A method that weighs its trust by the target's labels needs them, and they stay where they are: its
side lives beside the method in one process, over a network in the target's client. Once per round
the method tells the ``News``, and the side answers with its ``Decision``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.evaluation.metrics import Evaluation
    from fedbridge.training.state import Model, State


@dataclass(frozen=True)
class News:
    """What the target must know of a round: tensors and numbers by their names."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """How the target has decided.

    Attributes:
        state: its model; None if that stays with the target.
        facts: its choice and what it stands on, plain values; of these ``losses``, ``errors`` and
            ``weights`` are numbers by the names of candidates.
        evaluation: what the model is worth, if it was measured at once.
    """

    state: Model | None
    facts: Mapping[str, Any]
    evaluation: Evaluation | None = None


class TargetSide:
    """Decides once per round.

    As it stands it is the empty shell that a coordinator has of a target that is elsewhere: nothing
    is remembered here, and the engine asks the target to decide.
    """

    def decide(self, news: News) -> Decision:
        """Choose the target's model after a round."""
        raise NotImplementedError

    def expects(self, initial: State, news: News) -> dict[str, Tensor]:
        """Tensors of the names, types and shapes that news must have: usually one model."""
        return initial.tensors()

    def memory(self) -> dict[str, Tensor]:
        """Tensors to remember from one decision to the next."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Plain values to remember."""
        return {}

    def remember(self, memory: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from what ``memory`` and ``facts`` held."""
