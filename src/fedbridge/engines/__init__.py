"""Who runs the clients: this process, worker processes, or sites on a network."""

from fedbridge.engines.base import Answer, Engine, Finished, Traffic
from fedbridge.engines.workers import make_engine

__all__ = ["Answer", "Engine", "Finished", "Traffic", "make_engine"]
