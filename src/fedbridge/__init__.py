"""fedbridge: data-rich sources help one data-poor target, and no data moves."""

__version__ = "0.1.0"

from fedbridge import methods, rules, theory
from fedbridge.advice import Advice, advise
from fedbridge.aggregate import aggregate
from fedbridge.blocks import Blocks
from fedbridge.data import FederatedTask
from fedbridge.data.load import load_task
from fedbridge.errors import FedbridgeError
from fedbridge.estimators import Estimate, NoiseStream, auto_beta, estimate, measure_noise
from fedbridge.geometry import Geometry, Noise, measure
from fedbridge.rules import Mix
from fedbridge.run import RunResult, run
from fedbridge.sketch import Sketch

__all__ = [
    "Advice",
    "Blocks",
    "Estimate",
    "FedbridgeError",
    "FederatedTask",
    "Geometry",
    "Mix",
    "Noise",
    "NoiseStream",
    "RunResult",
    "Sketch",
    "advise",
    "aggregate",
    "auto_beta",
    "estimate",
    "load_task",
    "measure",
    "measure_noise",
    "methods",
    "rules",
    "run",
    "theory",
]
