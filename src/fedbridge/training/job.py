"""One client's piece of work and its report: all that passes between a method and an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedbridge.base.errors import OptionError
from fedbridge.base.options import check_choice, check_whole
from fedbridge.training.objective import Objective, Supervised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.training.record_privacy import RecordNoise
    from fedbridge.training.state import Slices

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
SUPERVISED = Supervised()
TARGET = 0
"""Index of the target among the clients; source i has index i + 1."""

SPOILT = "the training loss or the update became NaN or Inf"
"""How the reason of a client begins whose training went astray, rather than its code."""

FIRST_ROUND = 2**20
"""Added to round numbers in seeds, because warm-up rounds are counted down to 0."""

TRAINING, PROBING, DROPPING, CHOOSING, SPLITTING = range(5)
INITIALISING, PREPARING = 50, 60
"""Purposes that seeds are made for."""


def seed_of(seed: int, round: int, client: int, purpose: int = 0) -> int:
    """A seed for one purpose of one client in one round, the same in every engine."""
    words = np.random.SeedSequence((seed, FIRST_ROUND + round, client, purpose))
    return int(words.generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True)
class LocalPlan:
    """How a client trains in one round.

    Attributes:
        optimizer: one of ``OPTIMIZERS``, made anew in every round.
        lr: learning rate.
        batch_size: samples per step.
        epochs: passes over the client's rows, unless ``steps`` is given.
        steps: number of steps instead of epochs.
        momentum: of ``momentum``.
        weight_decay: L2 penalty (decoupled for ``adamw``).
        drop_last: leave out a last batch that is not full, if there is another.
        class_weights: weight of every class in the cross-entropy; None for equal ones.
        noise: what to keep of the batch updates: nothing, the size of their noise, or also a
            sketch that tells its directions.
    """

    optimizer: str = "sgd"
    lr: float = 0.1
    batch_size: int = 16
    epochs: int = 1
    steps: int | None = None
    momentum: float = 0.9
    weight_decay: float = 0.0
    drop_last: bool = False
    class_weights: tuple[float, ...] | None = None
    noise: Literal["none", "size", "sketch"] = "none"

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise OptionError(f"Expected a learning rate above 0, but got {self.lr}.")
        for name in ("batch_size", "epochs"):
            check_whole(name, getattr(self, name), least=1)
        if self.steps is not None:
            check_whole("steps", self.steps, least=1)

    def batches_per_epoch(self, samples: int) -> int:
        """Steps that one pass over so many samples takes."""
        whole, rest = divmod(samples, self.batch_size)
        return whole + (1 if rest and not (self.drop_last and whole) else 0)

    def total_steps(self, samples: int) -> int:
        """Steps of the whole local training."""
        return self.steps or self.epochs * self.batches_per_epoch(samples)


LEAST_BATCHES, AIM = 4, 8
"""Batches that the noise of a client's update should stand on, and those that small ones get."""


def measurable_batch(rows: int, usual: int) -> int:
    """The usual batch size, or one so small that so many rows make enough batches.

    Fewer than ``LEAST_BATCHES`` say too little about the noise, one nothing. A last batch of a
    single row, which would count as much as the others, is avoided where another size does that.
    """
    if usual * (LEAST_BATCHES - 1) < rows:
        return usual
    least = -(-rows // AIM)
    sizes = range(least, -(-rows // (LEAST_BATCHES - 1)))
    return next((size for size in sizes if size == 1 or rows % size != 1), least)


@dataclass(frozen=True)
class Job:
    """One piece of work for one client, small enough to send anywhere.

    Attributes:
        client: 0 for the target, i + 1 for source i.
        plan: how to train.
        seed: of everything random in this job.
        kind: "train" returns the change of the parameters; "probe" the mean negative gradient at
            the start, without a step.
        slot: which of the engine's parameter vectors to start from.
        buffers: the model's buffers to start from.
        rows: which of the client's rows to use; None for all.
        max_batches: probe at most so many batches.
        objective: what training minimises.
        beside: other sites (by number) of whose rows the objective sees a batch in every step.
        anchor: slot of a second vector that the objective may look at.
        moves: slices (start, end) of the vector that may change; None for all of it.
        first: what the client does before, and goes on from; without buffers of its own the job
            goes on with those that this has left.
        keeps: slices of the vector that are the client's own: it goes on from what it kept of them
            in an earlier job, and nothing of their change is told.
        own: what it kept of them; None for nothing yet.
        privacy: how the client's rows are protected; the client's own word, which never travels.
    """

    client: int
    plan: LocalPlan
    seed: int
    kind: Literal["train", "probe"] = "train"
    slot: int = 0
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    rows: Tensor | None = None
    max_batches: int | None = None
    objective: Objective = SUPERVISED
    beside: tuple[int, ...] = ()
    anchor: int | None = None
    moves: Slices | None = None
    first: Job | None = None
    keeps: Slices = ()
    own: Tensor | None = None
    privacy: RecordNoise | None = None

    def steps(self, samples: int) -> int:
        """Steps that the job takes on so many samples (batches, for a probe)."""
        if self.kind == "train":
            return self.plan.total_steps(samples)
        per_epoch = self.plan.batches_per_epoch(samples)
        return min(per_epoch, self.max_batches or per_epoch)

    @property
    def lr(self) -> float:
        """Learning rate of the steps; a probe takes none, its vector is a gradient."""
        return self.plan.lr if self.kind == "train" else 1.0

    def noisy_batches(self, samples: int) -> int:
        """Batches that the measured noise stands on; 0 if it is not asked for."""
        if self.kind == "train" and self.plan.noise == "none":
            return 0
        return min(self.plan.batches_per_epoch(samples), self.steps(samples))


@dataclass(frozen=True)
class Outcome:
    """What a client reports besides its update vector, which the engine stores as a row.

    Attributes:
        samples: rows that took part.
        steps: steps taken (batches, for a probe).
        lr: learning rate of the steps.
        loss: mean training loss.
        buffers: the model's buffers afterwards.
        noise: (K,) squared error of the update, per block; None if not asked for or undefined.
        batches: how many batches that stands on.
        added: (K,) the part of the squared error that is noise put in for privacy, per block; None
            if none was, or nobody knows.
        sketches: (B−1, K, 2, size) sketches of the centred batch updates, if asked for.
        told: what the objective reports.
        seconds: time the work took.
        failure: why there is no update; None if all went well.
        lost: whether the client itself was lost, rather than its work gone wrong.
    """

    samples: int
    steps: int = 0
    lr: float = 0.0
    loss: float = math.nan
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    noise: Tensor | None = None
    batches: int = 0
    sketches: Tensor | None = None
    told: Mapping[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str | None = None
    lost: bool = False
    added: Tensor | None = None

    @property
    def time(self) -> float:
        """Steps x learning rate: how far plain gradient descent would have gone."""
        return self.steps * self.lr


@dataclass(frozen=True)
class ClientResult:
    """What a client has to show for a job: its report, and the vector that came of it."""

    outcome: Outcome
    vector: Tensor
