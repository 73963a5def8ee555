"""Checkpoints: everything a run needs to go on to the same bits, checked before it is believed.

A checkpoint is one safetensors file (the tensors) and one JSON file (round, plain values, and the
checksums of both). The JSON file is written last, so a checkpoint either is complete or does not
exist. The last two are kept: if the newest turns out damaged, the one before it serves.
"""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedbridge.errors import FedbridgeError
from fedbridge.files import sha256, to_json, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

FORMAT = 1
KEPT = 2


class CheckpointError(FedbridgeError):
    """A checkpoint that cannot be used."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run remembers after a round."""

    round: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically and let go of all but the last two."""
    # Cloned, because the file format refuses tensors that share memory (as lanes of `auto` do).
    tensors = {name: tensor.clone().contiguous() for name, tensor in checkpoint.tensors.items()}
    data = save(tensors)
    stem = f"round-{checkpoint.round + 10**6:07d}"
    body = {
        "format": FORMAT,
        "round": checkpoint.round,
        "tensors_sha256": sha256(data),
        "facts": checkpoint.facts,
    }
    write_atomically(folder / f"{stem}.safetensors", data)
    write_atomically(
        folder / f"{stem}.json", to_json({**body, "sha256": sha256(to_json(body).encode())})
    )
    for stale in _stems(folder)[:-KEPT]:
        for ending in ("json", "safetensors"):
            (folder / f"{stale}.{ending}").unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there is none.

    Raises:
        CheckpointError: it was written in a format that this version does not know.
    """
    for stem in reversed(_stems(folder)):
        try:
            return _read(folder, stem)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            if isinstance(error, CheckpointError):
                raise
            warnings.warn(
                f"Checkpoint {folder / stem} is damaged ({error}); using the one before it.",
                stacklevel=2,
            )
    return None


def _stems(folder: Path) -> list[str]:
    names = (path.stem for path in folder.glob("round-*.json"))
    return sorted(name for name in names if re.fullmatch(r"round-\d{7}", name))


def _read(folder: Path, stem: str) -> Checkpoint:
    body = json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))
    if body["format"] != FORMAT:
        raise CheckpointError(
            f"Expected a checkpoint of format {FORMAT}, but {folder / stem} has format "
            f"{body['format']}: use the version of fedbridge that wrote it."
        )
    if sha256(to_json({k: v for k, v in body.items() if k != "sha256"}).encode()) != body["sha256"]:
        raise ValueError("its checksum does not fit")
    data = (folder / f"{stem}.safetensors").read_bytes()
    if sha256(data) != body["tensors_sha256"]:
        raise ValueError("the checksum of its tensors does not fit")
    return Checkpoint(body["round"], load(data), body["facts"])
