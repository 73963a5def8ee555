"""What must last from round to round, checked before it is believed: the last two rounds of it.

A checkpoint is one safetensors file (the tensors) and one JSON file (round, plain values, and the
checksums of both). The JSON file is written last, so a checkpoint either is complete or does not
exist. If the newest turns out damaged, the one before it serves. A run keeps its checkpoints this
way, to go on to the same bits, and a site what it remembers between messages.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedbridge.base.errors import FedbridgeError
from fedbridge.base.files import parse_json, read_bytes, sha256, to_json, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

FORMAT = 1
KEPT = 2
TENSORS, FACTS = "safetensors", "json"


class CheckpointError(FedbridgeError):
    """A checkpoint that cannot be used."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors and plain values as they were after a round."""

    round: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


@dataclass(frozen=True)
class CheckpointStore:
    """The last two checkpoints of one kind in a folder.

    Attributes:
        folder: where they are.
        kind: how the names of their files begin.
        offset: added to rounds in these names, since warm-up rounds are below 1.
        mode: who may read the files.
    """

    folder: Path
    kind: str = "round"
    offset: int = 10**6
    mode: int = 0o666

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint atomically and let go of all but the last two.

        Those of later rounds go too: who is back at this round has left them behind.
        """
        # Cloned, because the file format refuses tensors that share memory.
        tensors = {name: tensor.clone().contiguous() for name, tensor in checkpoint.tensors.items()}
        data = save(tensors)
        body = {
            "format": FORMAT,
            "round": checkpoint.round,
            "tensors_sha256": sha256(data),
            "facts": checkpoint.facts,
        }
        described = to_json({**body, "sha256": sha256(to_json(body).encode())})
        write_atomically(self._path(checkpoint.round, TENSORS), data, self.mode)
        write_atomically(self._path(checkpoint.round, FACTS), described, self.mode)
        rounds = self._rounds()
        kept = [number for number in rounds if number <= checkpoint.round][-KEPT:]
        for stale in set(rounds) - set(kept):
            for ending in (FACTS, TENSORS):
                self._path(stale, ending).unlink(missing_ok=True)

    def load(self, *, before: int | None = None) -> Checkpoint | None:
        """The newest checkpoint (of a round ``before`` another) that is whole; None without one.

        Raises:
            CheckpointError: it was written in a format that this version does not know.
        """
        for number in reversed(self._rounds()):
            if before is not None and number >= before:
                continue
            try:
                found = self._read(number)
            except CheckpointError:
                raise
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                stem = self._path(number, FACTS).with_suffix("")
                warnings.warn(
                    f"Checkpoint {stem} is damaged ({error}); using the one before it.",
                    stacklevel=2,
                )
            else:
                if found is not None:
                    return found
        return None

    def _path(self, round: int, ending: str) -> Path:
        return self.folder / f"{self.kind}-{self.offset + round:07d}.{ending}"

    def _rounds(self) -> list[int]:
        names = {path.name for path in self.folder.glob(f"{self.kind}-*")}
        wanted = rf"{re.escape(self.kind)}-(\d{{7}})\.({TENSORS}|{FACTS})"
        found = (re.fullmatch(wanted, name) for name in names)
        return sorted({int(match[1]) - self.offset for match in found if match})

    def _read(self, round: int) -> Checkpoint | None:
        """One checkpoint; None if it was never finished."""
        described = self._path(round, FACTS)
        if not described.exists():
            return _read_single(read_bytes(self._path(round, TENSORS)), round)
        body = parse_json(read_bytes(described))
        if body["format"] != FORMAT:
            raise CheckpointError(
                f"Expected a checkpoint of format {FORMAT}, but {described.with_suffix('')} has "
                f"format {body['format']}: use the version of fedbridge that wrote it."
            )
        plain = {k: v for k, v in body.items() if k != "sha256"}
        if sha256(to_json(plain).encode()) != body["sha256"]:
            raise ValueError("its checksum does not fit")
        data = read_bytes(self._path(round, TENSORS))
        if sha256(data) != body["tensors_sha256"]:
            raise ValueError("the checksum of its tensors does not fit")
        return Checkpoint(body["round"], load(data), body["facts"])


def _read_single(data: bytes, round: int) -> Checkpoint | None:
    """What a site remembered with version 0.1.0: one file, the plain values in its header."""
    header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
    facts = header.get("__metadata__", {}).get("facts")
    return None if facts is None else Checkpoint(round, load(data), parse_json(facts))
