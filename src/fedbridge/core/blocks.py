"""A model as one flat vector of parameters with named blocks, and its buffers apart.

Every rule works on flat vectors, because inner products do not care about shapes. The blocks
remember which slice of the vector is which parameter tensor, so that a rule may look at the
whole model or at one tensor at a time. Buffers (BatchNorm statistics) are not gradients: they
never enter the vector and no rule ever projects them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import index
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedbridge.base.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True)
class Blocks:
    """Consecutive slices of a flat vector, each with a name."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes:
            raise ShapeError("Expected at least one block, but got none.")
        if len(self.names) != len(self.sizes):
            raise ShapeError(
                f"Expected one name per block, but got {len(self.names)} names "
                f"and {len(self.sizes)} sizes."
            )
        for name, size in zip(self.names, self.sizes, strict=True):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ShapeError(
                    f"Expected every block to have a whole number of entries above 0, "
                    f"but block {name!r} has size {size!r}."
                )

    @classmethod
    def whole(cls, size: int) -> Blocks:
        """The whole model as a single block."""
        return cls(("model",), (size,))

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Blocks:
        """Blocks known only by their sizes; they are called ``block 0``, ``block 1``, ..."""
        return cls(tuple(f"block {k}" for k in range(len(sizes))), tuple(sizes))

    @classmethod
    def of_model(cls, model: nn.Module) -> Blocks:
        """One block per trainable tensor, in the order of ``model.named_parameters()``."""
        named = [(n, p.numel()) for n, p in model.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in named), tuple(size for _, size in named))

    @classmethod
    def resolve(cls, blocks: Blocks | Sequence[int] | None, size: int) -> Blocks:
        """The blocks a caller meant, checked to cover a vector of ``size`` entries."""
        if blocks is None:
            return cls.whole(size)
        resolved = blocks if isinstance(blocks, Blocks) else cls.of_sizes(_whole_numbers(blocks))
        if resolved.total != size:
            raise ShapeError(
                f"Expected block sizes that add up to the {size} entries of an update, "
                f"but got {list(resolved.sizes)}, which add up to {resolved.total}."
            )
        return resolved

    @property
    def total(self) -> int:
        """Length of the flat vector, m in the formulas."""
        return sum(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def slices(self) -> Iterator[slice]:
        """The slice of every block, in order."""
        ends = list(accumulate(self.sizes))
        return (slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True))

    def first_without(self, fine: Tensor) -> str:
        """Name of the first block in which not every entry of a boolean vector holds."""
        parts = zip(self.names, self.slices(), strict=True)
        return next(name for name, columns in parts if not bool(fine[columns].all()))


def _whole_numbers(sizes: Sequence[int]) -> list[int]:
    """Sizes as plain whole numbers, whatever whole-number type (numpy's, torch's) they have."""
    try:
        return [index(size) for size in sizes]
    except TypeError as error:
        raise ShapeError(f"Expected `blocks` to be whole numbers, but got {sizes!r}.") from error


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that training changes; frozen ones are the same everywhere and stay put."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ShapeError("Expected a model with trainable parameters, but it has none.")
    return parameters


def placed_parameters(model: nn.Module) -> Iterator[tuple[nn.Parameter, slice]]:
    """The trainable parameters, each with its slice of the flat vector."""
    return zip(trainable_parameters(model), Blocks.of_model(model).slices(), strict=True)


def parameter_vector(model: nn.Module) -> Tensor:
    """A copy of the trainable parameters as one flat vector, in the order of the blocks."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in trainable_parameters(model)])


def load_parameter_vector(model: nn.Module, vector: Tensor) -> None:
    """Write a flat vector back into the model's trainable parameters, in place."""
    size = sum(parameter.numel() for parameter in trainable_parameters(model))
    if vector.shape != (size,):
        raise ShapeError(
            f"Expected a vector of the model's {size} trainable parameters, "
            f"but got shape {tuple(vector.shape)}."
        )
    with torch.no_grad():
        for parameter, columns in placed_parameters(model):
            parameter.copy_(vector[columns].view_as(parameter))


def buffer_copies(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the model's buffers by name: what is state, but not a parameter."""
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def load_buffers(model: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Write buffers back into the model, in place; names and shapes must be the model's own."""
    own = dict(model.named_buffers())
    if own.keys() != buffers.keys():
        raise ShapeError(f"Expected the model's buffers {sorted(own)}, but got {sorted(buffers)}.")
    for name, buffer in own.items():
        if buffer.shape != buffers[name].shape:
            raise ShapeError(
                f"Expected buffer {name!r} of shape {tuple(buffer.shape)}, "
                f"but got {tuple(buffers[name].shape)}."
            )
    with torch.no_grad():
        for name, buffer in own.items():
            buffer.copy_(buffers[name])


def mean_buffers(models: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Buffers averaged over models, each in its own type."""
    return {
        name: torch.stack([buffers[name].double() for buffers in models]).mean(0).to(value.dtype)
        for name, value in models[0].items()
    }


def pooled_buffers(
    models: Sequence[Mapping[str, Tensor]], shares: Sequence[float]
) -> dict[str, Tensor]:
    """Buffers of models by their shares, BatchNorm's as if all had been seen by one layer.

    Means and second moments are averaged; the variance is what they leave:
    ``Σ α_k (v_k + m_k²) − (Σ α_k m_k)²``.
    """
    weights = torch.tensor(shares, dtype=torch.float64)

    def averaged(values: list[Tensor]) -> Tensor:
        stacked = torch.stack([value.double() for value in values])
        return (weights.view(-1, *(1 for _ in stacked.shape[1:])) * stacked).sum(0)

    pooled = {name: averaged([buffers[name] for buffers in models]) for name in models[0]}
    for name in models[0]:
        stem, dot, last = name.rpartition(".")
        mean = f"{stem}{dot}running_mean"
        if last == "running_var" and mean in pooled:
            squares = averaged([buffers[mean].double().square() for buffers in models])
            pooled[name] = pooled[name] + squares - pooled[mean].square()
    return {
        name: (value if models[0][name].is_floating_point() else value.round()).to(
            models[0][name].dtype
        )
        for name, value in pooled.items()
    }
