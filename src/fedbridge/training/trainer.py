"""Local work of one client: train from given parameters, probe gradients, predict.

A ``Workbench`` holds one copy of the model whose parameters and gradients are views of two flat
vectors. Loading parameters, taking a step and reading the update are then single vector
operations, whatever the model, and the optimiser sees one tensor instead of one per layer.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from fedbridge.base.errors import FedbridgeError
from fedbridge.core.blocks import (
    Blocks,
    buffer_copies,
    load_buffers,
    parameter_vector,
    placed_parameters,
)
from fedbridge.core.estimators import NoiseStream
from fedbridge.core.sketch import Sketch
from fedbridge.data.preparing import RowChance, prepared, row_seeds
from fedbridge.data.rows import MANY, at_once, some
from fedbridge.evaluation.metrics import (
    Evaluation,
    Metrics,
    measure_predictions,
    squared_error,
    weighted_cross_entropy,
)
from fedbridge.training.batch_last import MOST_ROWS, quicken
from fedbridge.training.chance import PrivateChance
from fedbridge.training.job import PREPARING, SPOILT, Job, LocalPlan, Outcome, seed_of
from fedbridge.training.neighbours import recalled
from fedbridge.training.objective import Batch, Objective, Part, Proximal, StepContext
from fedbridge.training.optimizers import FlatSGD, make_optimizer
from fedbridge.training.record_privacy import added_variance, clipped_sum, rate_of
from fedbridge.training.state import Blend, Recalled, State, complement, overwrite, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fedbridge.data.task import FederatedTask, Site
    from fedbridge.training.objective import AskModel
    from fedbridge.training.state import Model


class LocalFailureError(FedbridgeError):
    """A client's work came to nothing (a NaN loss, for example); the round goes on without it."""


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
    """A model on flat vectors and the rows of every client that this process may work for.

    Attributes:
        sites: rows by the number of their client; the target's first, sets for special needs last.
        test: the target's test split.
        seed: of what is random where nothing trains.
        validation: rows of the target set aside for early stopping, if there are any.

    With ``frozen`` BatchNorm layers train as they predict: by the statistics that the model came
    with, which never change, while their scale and shift learn (DomainBed's ``freeze_bn``).
    """

    def __init__(
        self,
        model: nn.Module,
        task: FederatedTask,
        *,
        seed: int = 0,
        device: str = "cpu",
        sketch_size: int = 64,
        more_sites: tuple[Site, ...] = (),
        validation: Site | None = None,
        frozen: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.blocks = Blocks.of_model(model)
        self.sites: tuple[Site, ...] = (task.target, *task.sources, *more_sites)
        self.test, self.validation, self.seed = task.test, validation, seed
        self.sketch = Sketch(self.blocks, size=sketch_size)
        self._classes = task.n_classes
        self._frozen = frozen
        self._has_batch_norm = any(isinstance(part, _BatchNorm) for part in model.modules())
        self._flat, self._gradient = flatten_in_place(model)
        quick = self.device.type == "cpu" and quicken(model)
        self._asks_at_once = MOST_ROWS if quick else MANY

    def __getstate__(self) -> dict[str, object]:
        """A copy in another process makes flat vectors of its own."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_flat", "_gradient")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._flat, self._gradient = flatten_in_place(self.model)

    def run(self, job: Job, starts: Tensor, result: Tensor) -> Outcome:
        """Do a job from its slot of ``starts`` and write its vector into ``result``."""
        begun = time.perf_counter()
        start = starts[job.slot].to(self.device)
        if job.own is not None:
            start = start.clone()
            put(start, job.own.to(self.device), job.keeps)
        try:
            before = None if job.first is None else self._change(job.first, start)
            with seeded(job.seed, self.device):
                anchor = None if job.anchor is None else starts[job.anchor].to(self.device)
                if job.privacy is not None:
                    return self._protected(job, start, anchor, result)
                if job.kind == "probe":
                    outcome = self._probe(job, start, result)
                else:
                    begin = start if before is None else start + before
                    outcome = self._train(job, begin, anchor, result)
            if before is not None:
                result.add_(before.to(result.device))
        except LocalFailureError as failure:
            outcome = Outcome(self.samples(job), failure=str(failure))
        except Exception as error:  # a site's failure must not take the federation down
            outcome = Outcome(self.samples(job), failure=f"{type(error).__name__}: {error}")
        return replace(outcome, seconds=time.perf_counter() - begun)

    def _change(self, job: Job, start: Tensor) -> Tensor:
        """What a job changes; its buffers stay in the model."""
        change = torch.empty_like(start)
        with seeded(job.seed, self.device):
            self._train(job, start, None, change)
        return change

    def predict(
        self,
        model: Model,
        site: Site,
        answer: Callable[[nn.Module, Tensor], Tensor] | None = None,
        *,
        round: int = 0,
        rows: Tensor | None = None,
    ) -> Tensor:
        """A model's outputs, or another ``answer`` of it, for rows of a site, on the CPU.

        Noise that is redrawn is that of the round: the same for all models that are compared in
        it, another in the next.
        """
        if isinstance(model, Blend):
            parts = [self.predict(one, site, round=round, rows=rows) for one in model.members]
            parts = [scale * part for scale, part in zip(model.scales, parts, strict=True)]
            if model.linear is not None:
                weight, bias = model.linear[:, :-1], model.linear[:, -1]
                inputs = self.inputs(site, round=round, rows=rows)
                parts.append(inputs @ weight.T + bias)
            return torch.stack(parts).sum(0)
        if isinstance(model, Recalled):
            answer = answer or partial(recalled, store=model.store)
            return self.predict(model.state, site, answer, round=round, rows=rows)
        self._load(model.parameters.to(self.device), model.buffers)
        self.model.eval()
        ask = self.model if answer is None else partial(answer, self.model)
        return self._asked(ask, site, round, rows)

    def inputs(self, site: Site, *, round: int = 0, rows: Tensor | None = None) -> Tensor:
        """What a model gets to see of rows of a site, each in one row."""
        return self._asked(lambda x: x.flatten(1).float(), site, round, rows)

    def _asked(
        self, ask: Callable[[Tensor], Tensor], site: Site, round: int, rows: Tensor | None
    ) -> Tensor:
        seed = seed_of(self.seed, round, crc32(site.name.encode()), PREPARING)
        every = torch.arange(len(site)) if rows is None else rows
        with torch.no_grad():
            parts = every.split(at_once(site.x))
            return torch.cat(
                [
                    ask(few).cpu()
                    for part in parts
                    for few in self._inputs(site, part, seed).split(self._asks_at_once)
                ]
            )

    def measure(self, state: Model, site: Site, *, round: int = 0) -> Metrics:
        """Measures of a model on a set."""
        outputs = site.scale.values(self.predict(state, site, round=round))
        return measure_predictions(outputs, site.scale.values(site.y), self._classes)

    def evaluate(self, round: int, state: Model) -> Evaluation:
        """What a model is worth, by the target's test split and the rows set aside."""
        aside = self.validation
        return Evaluation(
            self.measure(state, self.test, round=round) if len(self.test.x) else None,
            None if aside is None else self.measure(state, aside, round=round).loss,
        )

    def _train(self, job: Job, start: Tensor, anchor: Tensor | None, result: Tensor) -> Outcome:
        plan, objective = job.plan, job.objective.taught(self._others_asked(job))
        site = self.sites[job.client]
        labels = site.y if job.rows is None else site.y[job.rows]
        start = objective.prepared(self.model, start, labels)
        self._load(start, job.buffers)
        self._train_mode()
        optimizers = self._optimizers(plan, objective.parts)
        loss_of = self._loss(job)
        told: dict[str, Tensor] = {}
        samples = self.samples(job)
        per_epoch = plan.batches_per_epoch(samples)
        steps = job.steps(samples)
        stream = self._stream(plan) if plan.noise != "none" else None
        still = () if job.moves is None else complement(job.moves, len(start))
        puts_right = type(objective).after_step is not Objective.after_step
        total = torch.zeros((), device=self.device)
        before = self._flat.detach().clone()
        for step, (own, *beside) in enumerate(self._batches_of_steps(job, steps)):
            context = StepContext(
                self.model, self._flat, anchor, loss_of, own, tuple(beside), plan.lr, told
            )
            for loss, moves in objective.steps(context):
                self._gradient.zero_()
                loss.backward()
                for part, optimizer in optimizers:
                    if moves is None or part in moves:
                        optimizer.step()
                if still or puts_right:
                    with torch.no_grad():
                        overwrite(self._flat, start, still)
                        objective.after_step(context)
                total += loss.detach()
            if stream is not None and step < per_epoch:
                change = self._flat.detach() - before
                before.copy_(self._flat.detach())
                stream.add(change * steps)
        change = self._flat.detach() - start
        if not bool(total.isfinite()) or not bool(change.isfinite().all()):
            raise LocalFailureError(f"{SPOILT} (learning rate {plan.lr:g})")
        result.copy_(change)
        outcome = self._outcome(samples, steps, plan.lr, float(total) / steps, stream)
        if objective.reports():
            trained = State(self._flat.detach().clone(), dict(outcome.buffers))
            told |= objective.report(labels, partial(self.predict, trained, site, rows=job.rows))
        return replace(outcome, told={name: value.cpu() for name, value in told.items()})

    def _others_asked(self, job: Job) -> AskModel:
        """Asks models about the rows that the first site beside a client has, or its own."""
        site = self.sites[(*job.beside, job.client)[0]]
        return partial(self.predict, site=site)

    def _train_mode(self) -> None:
        self.model.train()
        for part in self.model.modules() if self._frozen else ():
            if isinstance(part, _BatchNorm):
                part.eval()

    def _optimizers(self, plan: LocalPlan, parts: Sequence[Part]) -> list[tuple[int, FlatSGD]]:
        """One for every slice of every part, with the number of its part."""
        taken = tuple(sorted(cut for part in parts for cut in part.slices))
        rest = Part(complement(taken, len(self._gradient)))
        return [
            (
                number,
                make_optimizer(
                    replace(plan, lr=plan.lr * part.rate),
                    self._flat.data[start:end],
                    self._gradient[start:end],
                ),
            )
            for number, part in enumerate((*parts, rest))
            for start, end in part.slices
        ]

    def _probe(self, job: Job, start: Tensor, result: Tensor) -> Outcome:
        """Mean negative gradient at the start over a few batches: one point, no step."""
        plan = job.plan
        self._load(start, job.buffers)
        self.model.eval()
        loss_of = self._loss(job)
        samples = self.samples(job)
        batches = job.steps(samples)
        stream = self._stream(plan)
        total = 0.0
        for batch in self._stream_of(job, batches):
            loss = loss_of(self.model(batch.x), batch.y)
            self._gradient.zero_()
            loss.backward()
            stream.add(-self._gradient)
            total += float(loss.detach())
        if not math.isfinite(total) or not bool(stream.mean.isfinite().all()):
            raise LocalFailureError("the loss or its gradient at the round's start is NaN or Inf")
        result.copy_(stream.mean)
        return self._outcome(samples, batches, 1.0, total / batches, stream)

    def _protected(self, job: Job, start: Tensor, anchor: Tensor | None, result: Tensor) -> Outcome:
        """Train or probe by gradients that tell of no single row (``record_privacy``).

        All that is reported is made of these gradients and of what everybody knows: no loss, no
        time, and the buffers as they came.
        """
        plan, probe = job.plan, job.kind == "probe"
        self._load(start, job.buffers)
        self._train_mode()
        if probe:
            self.model.eval()
        assert job.privacy is not None
        chance = PrivateChance(job.privacy.seed)
        optimizers = self._optimizers(plan, ())
        samples = self.samples(job)
        steps, counted = job.steps(samples), job.noisy_batches(samples)
        stream = self._stream(plan) if probe or plan.noise != "none" else None
        still = () if job.moves is None else complement(job.moves, len(start))
        for step in range(steps):
            before = self._flat.detach().clone()
            self._gradient.copy_(self._private_gradient(job, step, chance))
            if not probe:
                if isinstance(job.objective, Proximal):
                    assert anchor is not None
                    self._gradient += job.objective.penalty * (before - anchor)
                for _, optimizer in optimizers:
                    optimizer.step()
                with torch.no_grad():
                    overwrite(self._flat, start, still)
            if stream is not None and step < counted:
                moved = -self._gradient if probe else (self._flat.detach() - before) * steps
                stream.add(moved)
        change = stream.mean if probe and stream else self._flat.detach() - start
        if not bool(change.isfinite().all()):
            raise LocalFailureError(f"{SPOILT} (learning rate {plan.lr:g})")
        result.copy_(change)
        outcome = self._outcome(samples, steps, job.lr, math.nan, stream)
        added, noise = added_variance(job, samples, self.blocks), outcome.noise
        if stream is not None and added is not None:
            noise = added if noise is None else torch.maximum(noise, added)
        return replace(outcome, buffers=job.buffers, noise=noise, added=added)

    def _private_gradient(self, job: Job, step: int, chance: PrivateChance) -> Tensor:
        """The noisy mean of the clipped gradients of some rows."""
        assert job.privacy is not None
        site, samples = self.sites[job.client], self.samples(job)
        rate = rate_of(job, samples)
        rows = chance.subset(samples, rate)
        rows = rows if job.rows is None else job.rows[rows]
        seed = seed_of(job.seed, step, 0, PREPARING) if site.prepare else 0
        total = torch.zeros(len(self._gradient), dtype=torch.float64)
        if len(rows):
            x = self._inputs(site, rows, seed, training=True)
            labels = site.y[rows].to(self.device)
            total = clipped_sum(self.model, self._loss(job), x, labels, job.privacy.clip)
        total += job.privacy.noise * job.privacy.clip * chance.normals(len(total))
        return (total / (rate * samples)).to(self._gradient)

    def _outcome(
        self, samples: int, steps: int, lr: float, loss: float, stream: NoiseStream | None
    ) -> Outcome:
        outcome = Outcome(samples, steps, lr, loss, buffer_copies(self.model))
        if stream is None:
            return outcome
        noise = stream.noise()
        sigma2 = None if noise is None else noise.sigma2
        sketches = torch.stack(stream.sketches) if stream.sketches else None
        return replace(outcome, noise=sigma2, batches=stream.count, sketches=sketches)

    def _stream(self, plan: LocalPlan) -> NoiseStream:
        return NoiseStream(self.blocks, sketch=self.sketch if plan.noise == "sketch" else None)

    def _batches_of_steps(self, job: Job, steps: int) -> Iterator[tuple[Batch, ...]]:
        """The batches of every step: the client's own, then one of every site beside it."""
        beside = (
            replace(job, client=site, rows=None, seed=job.seed + place)
            for place, site in enumerate(job.beside, start=1)
        )
        return zip(*(self._stream_of(each, steps) for each in (job, *beside)), strict=True)

    def _stream_of(self, job: Job, steps: int) -> Iterator[Batch]:
        site = self.sites[job.client]
        per_epoch = job.plan.batches_per_epoch(self.samples(job))
        for step, rows in enumerate(self.batches(job, steps)):
            seed = seed_of(job.seed, step // per_epoch, 0, PREPARING) if site.prepare else 0
            inputs = self._inputs(site, rows, seed, training=True)
            yield Batch(inputs, some(site.y, rows).to(self.device), rows)

    def batches(self, job: Job, steps: int) -> Iterator[Tensor]:
        """Row numbers of every step: each epoch is a new random order of the client's rows.

        BatchNorm cannot train on one row; such a batch gets the epoch's first row as well.
        """
        generator = torch.Generator().manual_seed(job.seed)
        samples = self.samples(job)
        per_epoch = job.plan.batches_per_epoch(samples)
        taken = 0
        while taken < steps:
            order = torch.randperm(samples, generator=generator)
            if job.rows is not None:
                order = job.rows[order]
            for rows in order.split(job.plan.batch_size)[: min(per_epoch, steps - taken)]:
                alone = len(rows) == 1 and self._has_batch_norm and not self._frozen
                yield torch.cat((rows, order[:1])) if alone else rows
                taken += 1

    def _inputs(self, site: Site, rows: Tensor, seed: int, *, training: bool = False) -> Tensor:
        batch = some(site.x, rows).to(self.device)
        if site.prepare is None:
            return batch
        return prepared(site.prepare, batch, RowChance(row_seeds(seed, rows), training))

    def _loss(self, job: Job) -> Callable[[Tensor, Tensor], Tensor]:
        if self._classes is None:
            return squared_error
        if job.plan.class_weights is None:
            return functional.cross_entropy
        weight = torch.tensor(job.plan.class_weights, device=self.device)
        labels = self.sites[job.client].y
        own = labels if job.rows is None else labels[job.rows]
        if not job.beside and not bool(weight.cpu()[own].any()):
            raise LocalFailureError("all its rows are of classes whose weight is 0")
        return partial(weighted_cross_entropy, weight=weight)

    def samples(self, job: Job) -> int:
        """Rows that a job trains on."""
        return len(self.sites[job.client]) if job.rows is None else len(job.rows)

    def _load(self, parameters: Tensor, buffers: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            self._flat.copy_(parameters)
        if buffers:
            load_buffers(self.model, buffers)


def flatten_in_place(model: nn.Module) -> tuple[nn.Parameter, Tensor]:
    """Make the model's trainable parameters and gradients views of two flat vectors."""
    flat = nn.Parameter(parameter_vector(model))
    gradient = torch.zeros_like(flat)
    flat.grad = gradient
    for parameter, columns in placed_parameters(model):
        parameter.data = flat.data[columns].view_as(parameter)
        parameter.grad = gradient[columns].view_as(parameter)
    return flat, gradient
