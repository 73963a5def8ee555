"""Whether a model takes a task's samples and answers in the task's shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedbridge.errors import ModelError

if TYPE_CHECKING:
    from fedbridge.data.task import FederatedTask


def check_fit(model: nn.Module, task: FederatedTask) -> None:
    """Run two samples through the model; nothing of the model or the random state changes."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError("Expected a model with parameters to train, but it has none.")
    output = try_out(model, task)
    allowed: list[tuple[int, ...]] = [(2, task.outputs)]
    if task.kind == "regression" and task.target.y.ndim == 1:
        allowed.append((2,))
    found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if found not in allowed:
        needed = (
            f"{task.outputs} outputs, one per class"
            if task.kind == "classification"
            else f"{task.outputs} output(s)"
        )
        raise ModelError(
            f"Expected {needed}, so an output of shape {allowed[0]} for two samples of task "
            f"{task.name!r}, but the model returned {found}: size its last layer with "
            f"task.outputs."
        )


def try_out(model: nn.Module, task: FederatedTask) -> object:
    """What a model, or a part that takes its inputs, returns for two samples; it stays as it is."""
    site = task.target
    one = site.x[:1] if len(site.x) else torch.zeros(1, *task.input_shape)
    samples = one.repeat(2, *(1 for _ in task.input_shape))
    if site.prepare is not None:
        samples = site.prepare(samples, torch.Generator().manual_seed(0))
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return model.eval()(samples.to(next(model.parameters(), samples).device))
    except Exception as error:
        raise ModelError(
            f"Expected a model that takes batches of shape (n, "
            f"{', '.join(map(str, task.input_shape))}) and type {samples.dtype}, but it failed "
            f"with {type(error).__name__}: {error}"
        ) from error
    finally:
        for module, training in modes.items():
            module.training = training
