"""fedbridge: data-rich sources help one data-poor target, and no data moves."""

from fedbridge import rules, theory
from fedbridge.aggregate import aggregate
from fedbridge.blocks import Blocks
from fedbridge.errors import FedbridgeError
from fedbridge.estimators import Estimate, NoiseStream, auto_beta, estimate
from fedbridge.geometry import Geometry, Noise, measure
from fedbridge.rules import Mix
from fedbridge.sketch import Sketch

__version__ = "0.1.0"

__all__ = [
    "Blocks",
    "Estimate",
    "FedbridgeError",
    "Geometry",
    "Mix",
    "Noise",
    "NoiseStream",
    "Sketch",
    "aggregate",
    "auto_beta",
    "estimate",
    "measure",
    "rules",
    "theory",
]
