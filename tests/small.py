"""Small federations that train in milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import fedbridge as fb
from fedbridge.federation.federation import Federation
from fedbridge.federation.settings import Settings
from fedbridge.methods import class_of, make
from fedbridge.models import build_model

if TYPE_CHECKING:
    from fedbridge.federation.method import Method


def blobs(
    seed: int = 0,
    sources: int = 3,
    rows: int = 40,
    shift: float = 0.0,
    target_rows: int = 12,
    n_target: int | None = None,
) -> fb.FederatedTask:
    """Three classes of Gaussian blobs in the plane, the target's shifted.

    With ``n_target`` the target labels so many of its rows; the others are unlabelled.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])

    def site(count: int, move: float) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(count) % 3
        return centres[y] + move + 0.5 * torch.randn(count, 2, generator=generator), y

    return fb.FederatedTask.from_arrays(
        sources={f"site {k}": site(rows, 0.1 * k) for k in range(sources)},
        target=site(target_rows, shift),
        test=site(60, shift),
        seed=seed,
        n_target=n_target,
    )


def random_rows(shape: tuple[int, ...], n_classes: int = 10) -> fb.FederatedTask:
    """Random samples of some shape, two per class, the same at one source, target and test."""
    x = torch.rand(2 * n_classes, *shape)
    y = torch.arange(n_classes).repeat(2)
    return fb.FederatedTask.from_arrays([(x, y)], (x, y), (x, y))


def line(seed: int = 0) -> fb.FederatedTask:
    """Linear regression in three dimensions."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.tensor([1.0, -2.0, 0.5])

    def site(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, 3, generator=generator)
        return x, x @ weights + 0.1 * torch.randn(count, generator=generator)

    return fb.FederatedTask.from_arrays(
        sources=[site(30), site(30)], target=site(10), test=site(20), seed=seed
    )


def federation(
    task: fb.FederatedTask | None = None,
    model: str | nn.Module = "linear",
    method: str = "fedavg",
    seed: int = 0,
    **options: object,
) -> Federation:
    """A federation in this process, with plain SGD, for a method and what it composes and needs."""
    chosen = blobs() if task is None else task
    kind = class_of(method)
    torch.manual_seed(0)
    settings = Settings(**{"lr": 0.1, "batch_size": 8, "workers": 1, **options})  # type: ignore[arg-type]
    composed = kind.compose(build_model(model, chosen), chosen)
    return Federation(chosen, composed, settings, seed=seed, needs=kind.needs)


def method(name: str, on: Federation, **options: object) -> Method:
    """A method that has begun."""
    made = make(name, on, options)
    slots, rows = made.room()
    on.open(slots=slots, rows=rows)
    made.begin(on.initial)
    return made


class Normed(nn.Module):
    """A linear model behind a BatchNorm, whose statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(2), nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.norm(x))
        return outputs


def same_but_for_seconds(first: list[dict[str, object]], second: list[dict[str, object]]) -> bool:
    """Whether two histories agree in everything that is not a time."""

    def timeless(history: list[dict[str, object]]) -> list[dict[str, object]]:
        return [{k: v for k, v in ln.items() if not k.startswith("seconds")} for ln in history]

    return timeless(first) == timeless(second)


def same_model(first: nn.Module, second: nn.Module) -> bool:
    """Whether two models have the same bits."""
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def same_numbers(ours: object, theirs: object, path: str = "") -> None:
    """Equal, numbers to 1e-6."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), path
        for key in ours:
            same_numbers(ours[key], theirs[key], f"{path}/{key}")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), path
        for k, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            same_numbers(one, other, f"{path}/{k}")
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6), path
    else:
        assert ours == theirs, path
