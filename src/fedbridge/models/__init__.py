"""The networks: built-in ones sized from the data, pretrained ones, or a user's own."""

from fedbridge.models.build import build_model, registry
from fedbridge.models.parts import SplitModel, split_model
from fedbridge.models.pretrained import without_weights

__all__ = [
    "SplitModel",
    "build_model",
    "registry",
    "split_model",
    "without_weights",
]
