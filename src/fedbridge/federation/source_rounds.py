"""Rounds of the sources alone, done once for all runs that have them in common.

The warm-up, and every round of a method that leaves the sources' model as they make it, depend on
the model that they start from, their rows and how they train, and on nothing of the method. Runs
of one comparison that begin with the same ones find them in a folder, by a checksum of all that
decides them, with the same bits; also runs whose targets differ, as in a table over the noise of
the target. The folder lives as long as the comparison: whose code has changed since does not find
what the old one has made.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedbridge._version import __version__
from fedbridge.base.errors import DataError, FedbridgeError
from fedbridge.base.files import read_bytes, to_json, write_atomically
from fedbridge.data.preparing import prepare_to_record
from fedbridge.runs.folder import checksum_of_rows
from fedbridge.training.job import Outcome
from fedbridge.training.state import State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fedbridge.data.task import FederatedTask
    from fedbridge.federation.federation import Federation

MOST_BYTES = 2**30
"""What a folder of rounds may hold; beyond it rounds are done again."""
WORTH_IT = 10**8
"""Rows times parameters that a round trains on, from which looking for it takes less time."""

DROPPED_OUT = "dropped out"
"""Why a client is missing that does so by simulation."""

_prints: WeakKeyDictionary[FederatedTask, str] = WeakKeyDictionary()
_shared: ContextVar[SourceRounds | None] = ContextVar("source_rounds", default=None)


@dataclass(frozen=True)
class SourceRounds:
    """A folder of the models that rounds of the sources alone have led to."""

    folder: Path

    @staticmethod
    def current() -> SourceRounds | None:
        """Those that the runs of this context share, if any."""
        return _shared.get()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Let the runs of this context share them."""
        token = _shared.set(self)
        try:
            yield
        finally:
            _shared.reset(token)

    def after(
        self, federation: Federation, round: int, state: State
    ) -> tuple[State, dict[str, str]]:
        """The sources' model after a round, and who failed: as somebody has found it, or trained.

        A round in which somebody failed is nobody else's, nor is one that cost privacy.
        """
        key = None
        if federation.privacy is None and self._work(federation, round) >= WORTH_IT:
            key = self.key(federation, round, state)
        if key is None:
            return federation.sources_round(round, state)
        found = self.get(key)
        if found is not None:
            present, failures = federation.present(round, with_target=False)
            federation.count_bytes(present, [Outcome(0)] * len(present))
            return found, failures
        after, failures = federation.sources_round(round, state)
        if not set(failures.values()) - {DROPPED_OUT}:
            self.put(key, after)
        return after, failures

    def _work(self, federation: Federation, round: int) -> int:
        sites = federation.bench.sites
        present, _ = federation.present(round, with_target=False)
        plans = [(federation.plan(client, round), len(sites[client])) for client in present]
        rows = sum(plan.total_steps(size) * min(size, plan.batch_size) for plan, size in plans)
        return rows * federation.blocks.total

    def key(self, federation: Federation, round: int, state: State) -> str | None:
        """A checksum of all that decides a round; None if something has no description."""
        settings, sites = federation.settings, federation.task.sources
        present, _ = federation.present(round, with_target=False)
        try:
            prepared = [prepare_to_record(site.prepare) for site in sites]
        except DataError:
            return None
        task = federation.task
        if task not in _prints:
            _prints[task] = checksum_of_rows(task.sources)
        decides = {
            "versions": [__version__, torch.__version__],
            "data": _prints[task],
            "prepared": prepared,
            "model": str(federation.bench.model),
            "seed": federation.seed,
            "round": round,
            "plans": [(client, repr(federation.plan(client, round))) for client in present],
            "settings": [
                settings.by_samples(fedavg=False),
                settings.buffers,
                settings.norm_ratio,
                settings.device,
            ],
        }
        digest = hashlib.sha256(to_json(decides).encode())
        for name, tensor in sorted(state.tensors().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()

    def get(self, key: str) -> State | None:
        """The model after a round that somebody has done; a damaged file counts as none."""
        try:
            return State.of_tensors(load(read_bytes(self._file(key))))
        except (OSError, ValueError, KeyError, SafetensorError):
            return None

    def put(self, key: str, state: State) -> None:
        """Keep the model after a round, where there is room; all of it or nothing."""
        data = save({name: value.clone().contiguous() for name, value in state.tensors().items()})
        try:
            held = sum(file.stat().st_size for file in self.folder.iterdir())
            if held + len(data) <= MOST_BYTES:
                write_atomically(self._file(key), data)
        except (OSError, FedbridgeError):
            return  # no room, or somebody has cleared up: who needs it trains

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"
