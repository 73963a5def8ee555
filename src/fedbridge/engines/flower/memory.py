"""What a site remembers between messages, in a folder of its own.

In a deployment every message starts a new process, and a node that was restarted is a new node to
Flower. So what must last (the lanes of ``auto``, what rounding lost) is on the site's own disk.
Records are kept per round, the last two of each kind: a coordinator that goes back to its last
checkpoint asks for a round again, and finds what that round started from.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import platformdirs
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedbridge.files import PRIVATE, to_json, write_atomically
from fedbridge.seeds import FIRST_ROUND

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

KEPT = 2


class Remembered(NamedTuple):
    """Tensors and plain values as they were after a round."""

    round: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def default_folder() -> Path:
    """Where a site remembers things unless it says otherwise."""
    return platformdirs.user_state_path("fedbridge") / "sites"


class Memory:
    """Records of one site in one run.

    Attributes:
        root: the site's own folder.
        folder: the part of it that belongs to this run.
    """

    def __init__(self, folder: Path, run: str, site: str) -> None:
        """``run`` comes from the coordinator and ``site`` from a user: neither may name a path."""
        name = hashlib.sha256(f"{run}\n{site}".encode()).hexdigest()[:32]
        self.root, self.folder = folder, folder / name

    def save(
        self, kind: str, round: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Keep a record, for this user's eyes only, and let go of all but the last two.

        Records of later rounds go too: a coordinator that is back at this round, or begins anew,
        has left them behind.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        os.chmod(self.folder, 0o700)  # noqa: PTH101
        data = save(
            {name: tensor.clone().contiguous() for name, tensor in tensors.items()},
            metadata={"facts": to_json(dict(facts))},
        )
        write_atomically(self._path(kind, round), data, mode=PRIVATE)
        rounds = self._rounds(kind)
        kept = [number for number in rounds if number <= round][-KEPT:]
        for stale in set(rounds) - set(kept):
            self._path(kind, stale).unlink(missing_ok=True)

    def load(self, kind: str, *, before: int) -> Remembered | None:
        """The newest record of a round before this one that is whole; None if there is none."""
        for number in reversed([k for k in self._rounds(kind) if k < before]):
            try:
                data = self._path(kind, number).read_bytes()
                length = int.from_bytes(data[:8], "little")
                header = json.loads(data[8 : 8 + length])
                facts = json.loads(header["__metadata__"]["facts"])
                return Remembered(number, load(data), facts)
            except (OSError, SafetensorError, ValueError, KeyError, TypeError):
                continue
        return None

    def forget(self) -> None:
        """Remove all records: a run begins anew."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, kind: str, round: int) -> Path:
        return self.folder / f"{kind}-{FIRST_ROUND + round}.safetensors"

    def _rounds(self, kind: str) -> list[int]:
        names = self.folder.glob(f"{kind}-*.safetensors") if self.folder.is_dir() else ()
        found = (re.fullmatch(rf"{kind}-(\d+)", path.stem) for path in names)
        return sorted(int(match[1]) - FIRST_ROUND for match in found if match)
