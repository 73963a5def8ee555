"""Ports of this machine that nobody listens on."""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING

from fedbridge.errors import FedbridgeError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
# Below what Linux and macOS hand out to outgoing connections, which could take one in between.
CANDIDATES = range(20_000, 32_000)


def free_ports() -> Iterator[int]:
    """Different free ports on the loopback address, in an order that differs each time."""
    shuffled = random.SystemRandom().sample(CANDIDATES, len(CANDIDATES))
    yield from (port for port in shuffled if is_free(port))
    raise FedbridgeError(
        f"Expected a free port on {LOOPBACK} between {CANDIDATES.start} and {CANDIDATES.stop - 1}, "
        "but all are taken: stop some of the programs that listen there."
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
