"""What a site remembers between messages, in a folder of its own.

In a deployment every message starts a new process, and a node that was restarted is a new node to
Flower. So what must last (candidates of ``auto``, what rounding lost) is on the site's own disk.
Records are kept per round, the last two of each kind: a coordinator that goes back to its last
checkpoint asks for a round again, and finds what that round started from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING, Any

import platformdirs

from fedbridge.base.files import PRIVATE
from fedbridge.runs.checkpoint import Checkpoint, CheckpointStore
from fedbridge.training.job import FIRST_ROUND

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor


def default_folder() -> Path:
    """Where a site remembers things unless it says otherwise."""
    return platformdirs.user_state_path("fedbridge") / "sites"


class SiteMemory:
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
        """Keep a record, for this user's eyes only, and let go of all but the last two."""
        self.folder.mkdir(parents=True, exist_ok=True)
        os.chmod(self.folder, 0o700)  # noqa: PTH101
        self._records(kind).save(Checkpoint(round, dict(tensors), dict(facts)))

    def load(self, kind: str, *, before: int) -> Checkpoint | None:
        """The newest record of a round before this one that is whole; None if there is none."""
        return self._records(kind).load(before=before)

    def forget(self) -> None:
        """Remove all records: a run begins anew."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _records(self, kind: str) -> CheckpointStore:
        return CheckpointStore(self.folder, kind, FIRST_ROUND, PRIVATE)
