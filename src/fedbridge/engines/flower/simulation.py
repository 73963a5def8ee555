"""Flower's simulation under the same control as an operation: no process is left afterwards.

``flwr run APP local`` leaves a link running in the background, on a port that is always the same.
Here the simulating link has a port and a home of its own, and ends with the context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbridge.engines.flower.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fedbridge.engines.flower.control import Control
    from fedbridge.engines.flower.options import ConfigValue


class Simulation(Operation):
    """A link that runs an app with simulated nodes, in processes of Ray.

    Nodes are told nothing but ``partition-id`` and ``num-partitions``, from 0 on.

    Args:
        folder: holds logs, the link's state and Flower's home.
        nodes: how many are simulated.
        environment: variables for the processes besides those of this one.
        start_within: seconds that the link may take to start.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int,
        *,
        environment: Mapping[str, str] | None = None,
        start_within: float = 120.0,
    ) -> None:
        super().__init__(
            folder, {}, apps="spawn", environment=environment, start_within=start_within
        )
        self.simulated_nodes = nodes

    def _link_command(self) -> list[str]:
        return [*super()._link_command(), "--simulation"]

    def _submit(self, control: Control, app: Path, config: Mapping[str, ConfigValue]) -> int:
        return control.submit(app, config, self.simulated_nodes)
