"""A model's answers with other numbers than its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch.func import functional_call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn


def called_with(model: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """What a model would answer with these parameters and buffers; it keeps its own.

    (``functional_call`` alone leaves the given tensors behind in a part of the model that stands in
    it under two names, as ``self.first`` and once more in a ``Sequential``.)
    """
    own = [(part, dict(part._parameters), dict(part._buffers)) for part in model.modules()]
    try:
        return cast("Tensor", functional_call(model, dict(tensors), (x,)))
    finally:
        for part, parameters, buffers in own:
            part._parameters.update(parameters)
            part._buffers.update(buffers)
