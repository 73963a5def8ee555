"""The networks: built-in ones sized from the data, pretrained ones, or a user's own."""

from fedbridge.models.build import build_model, registry
from fedbridge.models.fit import try_out
from fedbridge.models.parts import SplitModel, head_stretches, split_model
from fedbridge.models.pretrained import without_weights

__all__ = [
    "SplitModel",
    "build_model",
    "head_stretches",
    "registry",
    "split_model",
    "try_out",
    "without_weights",
]
