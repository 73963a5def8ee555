"""Who runs the clients: this process, worker processes, or sites on a network."""

from fedbridge.engines.base import Answer, Engine, Finished, Traffic
from fedbridge.engines.local import LocalEngine
from fedbridge.engines.workers import WorkerEngine, make_engine

__all__ = [
    "Answer",
    "Engine",
    "Finished",
    "LocalEngine",
    "Traffic",
    "WorkerEngine",
    "make_engine",
]
