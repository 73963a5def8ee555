"""Local work of one client: train from given parameters, probe gradients, predict.

A ``Workbench`` holds one copy of the model whose parameters and gradients are views of two flat
vectors. Loading parameters, taking a step and reading the update are then single vector
operations, whatever the model, and the optimiser sees one tensor instead of one per layer.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from fedbridge.blocks import Blocks, buffer_copies, load_buffers, trainable_parameters
from fedbridge.errors import FedbridgeError, OptionError
from fedbridge.estimators import NoiseStream
from fedbridge.sketch import Sketch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fedbridge.data.task import FederatedTask, Site

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
TARGET = 0
"""Index of the target among the clients; source i has index i + 1."""

PREDICTION_BATCH = 2048


class LocalFailureError(FedbridgeError):
    """A client's work came to nothing (a NaN loss, for example); the round goes on without it."""


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
        if self.optimizer not in OPTIMIZERS:
            raise OptionError(
                f"Expected `optimizer` to be one of {', '.join(OPTIMIZERS)}, "
                f"but got {self.optimizer!r}."
            )
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise OptionError(f"Expected a learning rate above 0, but got {self.lr}.")
        for name in ("batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise OptionError(
                    f"Expected `{name}` of at least 1, but got {getattr(self, name)}."
                )
        if self.steps is not None and self.steps < 1:
            raise OptionError(f"Expected `steps` of at least 1, but got {self.steps}.")

    def batches_per_epoch(self, samples: int) -> int:
        """Steps that one pass over so many samples takes."""
        whole, rest = divmod(samples, self.batch_size)
        return whole + (1 if rest and not (self.drop_last and whole) else 0)

    def total_steps(self, samples: int) -> int:
        """Steps of the whole local training."""
        return self.steps or self.epochs * self.batches_per_epoch(samples)


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
    """

    client: int
    plan: LocalPlan
    seed: int
    kind: Literal["train", "probe"] = "train"
    slot: int = 0
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    rows: Tensor | None = None
    max_batches: int | None = None


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
        sketches: (B−1, K, 2, size) sketches of the centred batch updates, if asked for.
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
    seconds: float = 0.0
    failure: str | None = None
    lost: bool = False

    @property
    def time(self) -> float:
        """Steps x learning rate: how far plain gradient descent would have gone."""
        return self.steps * self.lr


@contextmanager
def one_thread() -> Iterator[None]:
    """Run on one torch thread, so that results do not depend on how many workers share a CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers for a while and leave the caller's as they were.

    ``torch.manual_seed`` would do, but it seeds every kind of device there is, which takes longer
    than a step of a small model.
    """
    kept = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        if device.type == "cpu":
            yield
        else:
            with torch.random.fork_rng(device_type=device.type):
                torch.get_device_module(device).manual_seed(seed)
                yield
    finally:
        torch.set_rng_state(kept)


class Workbench:
    """A model on flat vectors and the rows of every client that this process may work for."""

    def __init__(
        self, model: nn.Module, task: FederatedTask, *, device: str = "cpu", sketch_size: int = 64
    ) -> None:
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.blocks = Blocks.of_model(model)
        self.sites: tuple[Site, ...] = (task.target, *task.sources)
        self.sketch = Sketch(self.blocks, size=sketch_size)
        self._classes = task.n_classes
        self._has_batch_norm = any(isinstance(part, _BatchNorm) for part in model.modules())
        self._flat, self._gradient = flatten_in_place(model)

    def __getstate__(self) -> dict[str, object]:
        """A copy in another process makes flat vectors of its own."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_flat", "_gradient")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._flat, self._gradient = flatten_in_place(self.model)

    def run(self, job: Job, start: Tensor, result: Tensor) -> Outcome:
        """Do a job from ``start`` and write its vector into ``result``."""
        begun = time.perf_counter()
        work = self._train if job.kind == "train" else self._probe
        try:
            with seeded(job.seed, self.device):
                outcome = work(job, start.to(self.device), result)
        except LocalFailureError as failure:
            outcome = Outcome(self._samples(job), failure=str(failure))
        except Exception as error:  # a site's failure must not take the federation down
            outcome = Outcome(self._samples(job), failure=f"{type(error).__name__}: {error}")
        return replace(outcome, seconds=time.perf_counter() - begun)

    def predict(self, parameters: Tensor, buffers: Mapping[str, Tensor], site: Site) -> Tensor:
        """The model's outputs for every row of a site, on the CPU."""
        self._load(parameters.to(self.device), buffers)
        self.model.eval()
        generator = torch.Generator(self.device).manual_seed(0)
        rows = torch.arange(len(site)).split(PREDICTION_BATCH)
        with torch.no_grad():
            outputs = [self.model(self._inputs(site, part, generator)).cpu() for part in rows]
        return torch.cat(outputs)

    def _train(self, job: Job, start: Tensor, result: Tensor) -> Outcome:
        plan, site = job.plan, self.sites[job.client]
        self._load(start, job.buffers)
        self.model.train()
        optimizer = make_optimizer(plan, self._flat)
        loss_of = self._loss(plan)
        samples = self._samples(job)
        per_epoch = plan.batches_per_epoch(samples)
        steps = plan.total_steps(samples)
        stream = self._stream(plan) if plan.noise != "none" else None
        generator = torch.Generator(self.device).manual_seed(job.seed)
        total = torch.zeros((), device=self.device)
        before = self._flat.detach().clone()
        for step, rows in enumerate(self._batches(job, steps)):
            outputs = self.model(self._inputs(site, rows, generator))
            loss = loss_of(outputs, site.y[rows].to(self.device))
            self._gradient.zero_()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            if stream is not None and step < per_epoch:
                change = self._flat.detach() - before
                before.copy_(self._flat.detach())
                stream.add(change * steps)
        change = self._flat.detach() - start
        if not bool(total.isfinite()) or not bool(change.isfinite().all()):
            raise LocalFailureError(
                f"the training loss or the update became NaN or Inf (learning rate {plan.lr:g})"
            )
        result.copy_(change)
        return self._outcome(samples, steps, plan.lr, float(total) / steps, stream)

    def _probe(self, job: Job, start: Tensor, result: Tensor) -> Outcome:
        """Mean negative gradient at the start over a few batches: one point, no step."""
        plan, site = job.plan, self.sites[job.client]
        self._load(start, job.buffers)
        self.model.eval()
        loss_of = self._loss(plan)
        samples = self._samples(job)
        batches = plan.batches_per_epoch(samples)
        if job.max_batches is not None:
            batches = min(batches, job.max_batches)
        stream = self._stream(plan)
        generator = torch.Generator(self.device).manual_seed(job.seed)
        total = 0.0
        for rows in self._batches(job, batches):
            loss = loss_of(
                self.model(self._inputs(site, rows, generator)), site.y[rows].to(self.device)
            )
            self._gradient.zero_()
            loss.backward()
            stream.add(-self._gradient)
            total += float(loss.detach())
        if not math.isfinite(total) or not bool(stream.mean.isfinite().all()):
            raise LocalFailureError("the loss or its gradient at the round's start is NaN or Inf")
        result.copy_(stream.mean)
        return self._outcome(samples, batches, 1.0, total / batches, stream)

    def _outcome(
        self, samples: int, steps: int, lr: float, loss: float, stream: NoiseStream | None
    ) -> Outcome:
        noise = stream.noise() if stream is not None else None
        sketches = torch.stack(stream.sketches) if stream is not None and stream.sketches else None
        return Outcome(
            samples,
            steps,
            lr,
            loss,
            buffers=buffer_copies(self.model),
            noise=None if noise is None else noise.sigma2,
            batches=0 if stream is None else stream.count,
            sketches=sketches,
        )

    def _stream(self, plan: LocalPlan) -> NoiseStream:
        return NoiseStream(self.blocks, sketch=self.sketch if plan.noise == "sketch" else None)

    def _batches(self, job: Job, steps: int) -> Iterator[Tensor]:
        """Row numbers of every step: each epoch is a new random order of the client's rows.

        BatchNorm cannot train on one row; such a batch gets the epoch's first row as well.
        """
        generator = torch.Generator().manual_seed(job.seed)
        samples = self._samples(job)
        per_epoch = job.plan.batches_per_epoch(samples)
        taken = 0
        while taken < steps:
            order = torch.randperm(samples, generator=generator)
            if job.rows is not None:
                order = job.rows[order]
            for rows in order.split(job.plan.batch_size)[: min(per_epoch, steps - taken)]:
                alone = len(rows) == 1 and self._has_batch_norm
                yield torch.cat((rows, order[:1])) if alone else rows
                taken += 1

    def _inputs(self, site: Site, rows: Tensor, generator: torch.Generator) -> Tensor:
        batch = site.x[rows].to(self.device)
        return batch if site.prepare is None else site.prepare(batch, generator)

    def _loss(self, plan: LocalPlan) -> Callable[[Tensor, Tensor], Tensor]:
        if self._classes is None:
            return squared_error
        if plan.class_weights is None:
            return functional.cross_entropy
        weight = torch.tensor(plan.class_weights, device=self.device)
        return lambda outputs, labels: functional.cross_entropy(outputs, labels, weight=weight)

    def _samples(self, job: Job) -> int:
        return len(self.sites[job.client]) if job.rows is None else len(job.rows)

    def _load(self, parameters: Tensor, buffers: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            self._flat.copy_(parameters)
        if buffers:
            load_buffers(self.model, buffers)


def flatten_in_place(model: nn.Module) -> tuple[nn.Parameter, Tensor]:
    """Make the model's trainable parameters and gradients views of two flat vectors."""
    parameters = trainable_parameters(model)
    flat = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
    gradient = torch.zeros_like(flat)
    flat.grad = gradient
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = flat.data[start:end].view_as(parameter)
        parameter.grad = gradient[start:end].view_as(parameter)
        start = end
    return flat, gradient


def make_optimizer(plan: LocalPlan, parameters: nn.Parameter) -> torch.optim.Optimizer:
    """The plan's optimiser over one flat parameter."""
    if plan.optimizer in ("sgd", "momentum"):
        momentum = plan.momentum if plan.optimizer == "momentum" else 0.0
        return torch.optim.SGD(
            [parameters], lr=plan.lr, momentum=momentum, weight_decay=plan.weight_decay
        )
    kind = torch.optim.Adam if plan.optimizer == "adam" else torch.optim.AdamW
    return kind([parameters], lr=plan.lr, weight_decay=plan.weight_decay)


def squared_error(outputs: Tensor, values: Tensor) -> Tensor:
    """Squared error, summed over the outputs of a sample and averaged over samples."""
    return (outputs - values.view_as(outputs)).square().flatten(1).sum(1).mean()
