"""Checkpoint files as publishers make them: pickled, with the checksum in the name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from fedbridge.base.files import sha256
from fedbridge.models.resnet import RESNETS, ResNet

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def save_checkpoint(content: Any, folder: Path, stem: str = "tiny") -> Path:
    """The content saved by torch, named after its checksum."""
    folder.mkdir(parents=True, exist_ok=True)
    unnamed = folder / stem
    torch.save(content, unnamed)
    return unnamed.rename(folder / f"{stem}-{sha256(unnamed.read_bytes())[:8]}.pth")


def random_resnet18(classes: int = 1000) -> ResNet:
    """A network like the one of the usual checkpoint file, with statistics unlike the initial."""
    torch.manual_seed(1)
    architecture = RESNETS["resnet18"]
    network = ResNet(architecture.block, architecture.depths, classes)
    for name, buffer in network.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.5, 1.5)
    return network.eval()


def place_resnet18(root: Path, monkeypatch: pytest.MonkeyPatch) -> ResNet:
    """Put weights where `fedbridge data fetch resnet18` does; returns the network they are of."""
    network = random_resnet18()
    file = save_checkpoint(network.state_dict(), root / "resnet18", "resnet18")
    monkeypatch.setenv("FEDBRIDGE_DATA", str(root))
    architecture = replace(RESNETS["resnet18"], file=file.name)
    monkeypatch.setitem(RESNETS, "resnet18", architecture)
    return network
