"""The networks: built-in ones sized from the data, pretrained ones, or a user's own."""

from fedbridge.models.build import build_model, check_built_in, is_built_in, registry, try_out
from fedbridge.models.functional import called_with
from fedbridge.models.heads import HeadPlace, head_inputs, linear_head, outputs_and_head_inputs
from fedbridge.models.networks import SplitModel, head_slices, slices_of, split_model
from fedbridge.models.resnet import without_weights

__all__ = [
    "HeadPlace",
    "SplitModel",
    "build_model",
    "called_with",
    "check_built_in",
    "head_inputs",
    "head_slices",
    "is_built_in",
    "linear_head",
    "outputs_and_head_inputs",
    "registry",
    "slices_of",
    "split_model",
    "try_out",
    "without_weights",
]
