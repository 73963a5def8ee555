"""What personalised methods share: a model of all clients beside the target's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedbridge.methods.base import Method
from fedbridge.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.federation import Federation


class PersonalMethod(Method):
    """Keeps ``shared``, the global model; ``state`` is the target's personal one."""

    def __init__(self, federation: Federation, options: Mapping[str, Any]) -> None:
        super().__init__(federation, options)
        self.shared = federation.initial

    def begin(self, state: State) -> None:
        """Both models start from the same point."""
        super().begin(state)
        self.shared = state

    def memory(self) -> dict[str, Tensor]:
        """The global model."""
        return self.shared.tensors("shared.")

    def remember(
        self, state: State, memory: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Take the global model up again."""
        super().remember(state, memory, facts)
        self.shared = State.of_tensors(memory, "shared.")
