"""What the delivered model said of the test rows: the file that diagnostics are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedbridge.errors import NonFiniteError, ShapeError
from fedbridge.files import write_atomically
from fedbridge.rundir import RunFolderError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

FILE = "test.safetensors"


@dataclass(frozen=True, eq=False)
class Tested:
    """Outputs of a model on a test set, and the truth.

    Attributes:
        outputs: ``(n, k)`` logits, or values for regression.
        labels: ``(n,)`` class indices, or values ``(n,)`` or ``(n, k)`` for regression.
    """

    outputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.outputs.ndim != 2 or len(self.outputs) != len(self.labels):
            raise ShapeError(
                f"Expected outputs (n, k) and n labels, but got {tuple(self.outputs.shape)} and "
                f"{tuple(self.labels.shape)}."
            )
        if not bool(self.outputs.isfinite().all()):
            raise NonFiniteError("Expected finite outputs on the test rows, but got NaN or Inf.")

    def __len__(self) -> int:
        return len(self.outputs)


def write_tested(folder: Path, tested: Tested) -> None:
    """Keep the outputs and labels in a run's folder."""
    tensors = {
        "outputs": tested.outputs.to(torch.float32).contiguous(),
        "labels": tested.labels.contiguous(),
    }
    write_atomically(folder / FILE, save(tensors))


def read_tested(folder: Path) -> Tested | None:
    """The outputs and labels of a run; None where test rows were not at hand, or in old runs."""
    file = folder / FILE
    if not file.exists():
        return None
    try:
        tensors = load(file.read_bytes())
        return Tested(tensors["outputs"], tensors["labels"])
    except (OSError, SafetensorError, KeyError, ShapeError, NonFiniteError) as error:
        raise RunFolderError(
            f"Expected the outputs on the test rows in {file}, but it cannot be read ({error}): "
            f"restore or remove it."
        ) from error
