"""Record-level differential privacy: local training from which no single row can be told (DP-SGD).

**A step.** Every row takes part with chance ``q = batch / n``, whatever the others do (Poisson
sampling, as the accountant assumes). The gradient of each is clipped to ``C``, their sum gets
noise ``N(0, (zC)²)`` in every entry and is divided by the batch size that was expected,

    g = (Σ_i g_i min(1, C / ‖g_i‖) + zC ξ) / (q n),    ξ ~ N(0, I).

A probe takes the same looks at the rows without stepping in between (Abadi et al. 2016).

**What is protected.** That a row is there or not: one row more moves the sum by at most ``C``.
What an optimiser, a rule or anybody makes of such gradients costs nothing more. So a client may
tell its update and how noisy its batches were, for both are made of these gradients alone; losses
and statistics of rows are not, and stay. The number of rows, hence of steps, is taken as known.

**Which noise.** A site has a budget and a number of rounds for which it is to last; the least noise
with which it does is computed for the plan that is asked for (``accountant.noise_within``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedbridge.base.errors import ModelError, OptionError
from fedbridge.base.options import check_number, check_whole
from fedbridge.models.functional import called_with
from fedbridge.training.accountant import Look, noise_within
from fedbridge.training.objective import Proximal, Supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fedbridge.core.blocks import Blocks
    from fedbridge.training.job import Job
    from fedbridge.training.trainer import Workbench

AT_ONCE = 2**22
"""Entries of single rows' gradients that are held at a time."""


@dataclass(frozen=True)
class RecordNoise:
    """How one job is protected; the client itself says so, never who asks for the job.

    Attributes:
        clip: ``C``, the longest that the gradient of a row may be.
        noise: ``z``, the standard deviation of the noise over ``C``.
        seed: of rows and noise, for runs on one machine; None draws from the operating system,
            the only choice that protects anything.
    """

    clip: float
    noise: float
    seed: int | None = None


@dataclass(frozen=True)
class RecordPrivacy:
    """What a client is ready to tell of any one of its rows.

    Attributes:
        epsilon: the most that all its messages together may cost.
        rounds: messages that the budget is to last for.
        clip: the longest that the gradient of a row may be.
        delta: the chance with which the guarantee may fail; well below one over the rows.
    """

    epsilon: float
    rounds: int
    clip: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        check_number("record_epsilon", self.epsilon, above=0)
        check_whole("record_rounds", self.rounds, least=1)
        check_number("record_clip", self.clip, above=0)
        check_number("record_delta", self.delta, above=0, below=1)

    def protected(
        self, jobs: Sequence[Job], bench: Workbench, *, frozen: bool, secret: bool
    ) -> list[Job]:
        """The jobs of one message, with the noise that lets ``rounds`` such messages be sent.

        Args:
            jobs: of one client, all that is asked of it at a time.
            bench: what they are done with.
            frozen: whether BatchNorm trains as it predicts.
            secret: draw from the operating system rather than by the seeds of the jobs.
        """
        check_model(bench.model, frozen=frozen)
        alike: dict[float, list[int]] = {}
        for job in jobs:
            check_job(job)
            rows = bench.samples(job)
            alike.setdefault(rate_of(job, rows), []).append(job.steps(rows))
        protected = []
        for job in jobs:
            rate = rate_of(job, bench.samples(job))
            first, *more = alike[rate]
            noise = noise_within(self.epsilon, self.delta, rate, first, self.rounds, sum(more))
            own = RecordNoise(self.clip, noise, None if secret else job.seed)
            protected.append(replace(job, privacy=own))
        return protected


def looks_of(jobs: Sequence[Job], bench: Workbench) -> Counter[Look]:
    """The looks at their rows that protected jobs take."""
    looks: Counter[Look] = Counter()
    for job in jobs:
        assert job.privacy is not None
        rows = bench.samples(job)
        looks[Look(rate_of(job, rows), job.privacy.noise)] += job.steps(rows)
    return looks


def rate_of(job: Job, samples: int) -> float:
    """Chance with which a row takes part in a step."""
    return min(1.0, job.plan.batch_size / samples)


def check_model(model: nn.Module, *, frozen: bool) -> None:
    """Refuse a model in which rows of a batch change each other, or what later rows meet."""
    for name, part in model.named_modules():
        fixed = frozen and isinstance(part, _BatchNorm) and part.track_running_stats
        if (isinstance(part, _BatchNorm) and not fixed) or (
            isinstance(part, _InstanceNorm) and part.track_running_stats
        ):
            raise ModelError(
                f"Expected a model whose rows do not change each other, as record-level privacy "
                f"needs it, but {name!r} is a {type(part).__name__}: use GroupNorm in its place, "
                f"or the setting buffers='frozen'."
            )


def check_job(job: Job) -> None:
    """Refuse what is not a sum over the client's own rows."""
    if type(job.objective) not in (Supervised, Proximal) or job.beside:
        raise OptionError(
            f"Expected a method whose clients minimise the loss of their own rows, as record-level "
            f"privacy needs it, but got the objective {type(job.objective).__name__}: use a rule, "
            f"'fedprox' or 'auto'."
        )
    if job.first is not None or job.keeps:
        raise OptionError(
            "Expected a method whose clients train once in a round, as record-level privacy needs "
            "it, but got one whose clients train a part of their own as well, which would not be "
            "protected: use a rule, 'fedprox' or 'auto'."
        )
    if job.plan.class_weights is not None:
        raise OptionError(
            "Expected no `class_weights` with record-level privacy, since a row's weight would "
            "tell how many there are of its class: leave them out."
        )


def clipped_sum(
    model: nn.Module,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    clip: float,
) -> Tensor:
    """``Σ_i g_i min(1, C / ‖g_i‖)`` over rows, as a flat vector in float64.

    Gradients of single rows come from ``torch.func``, which needs no list of layers; what it cannot
    do for many rows at once is done row by row. One that is not finite counts as 0.
    """
    own = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    fixed = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    fixed |= dict(model.named_buffers())

    def loss(parameters: Mapping[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        outputs = called_with(model, {**parameters, **fixed}, row[None])
        return loss_of(outputs, label[None])

    of_row = grad(loss)
    of_rows = vmap(of_row, in_dims=(None, 0, 0), randomness="different")
    size = sum(p.numel() for p in own.values())
    total = torch.zeros(size, dtype=torch.float64)
    piece = max(1, AT_ONCE // size)
    for rows, labels in zip(x.split(piece), y.split(piece), strict=True):
        if not len(rows):
            continue
        try:
            found = of_rows(own, rows, labels)
        except RuntimeError:
            each = [of_row(own, *one) for one in zip(rows, labels, strict=True)]
            found = {name: torch.stack([one[name] for one in each]) for name in own}
        flat = torch.cat([found[name].flatten(1) for name in own], dim=1).cpu().double()
        lengths = flat.norm(dim=1)
        finite = lengths.isfinite()
        factors = clip / lengths[finite].clamp(min=clip)
        total += factors @ flat[finite]
    return total


def added_variance(job: Job, samples: int, blocks: Blocks) -> Tensor | None:
    """(K,) squared length of the noise that a job has put into its vector, per block.

    None where the optimiser makes of it what only the steps themselves tell (Adam).
    """
    assert job.privacy is not None
    steps, plan = job.steps(samples), job.plan
    step = job.privacy.noise * job.privacy.clip / (rate_of(job, samples) * samples)
    if job.kind == "probe":
        parts = [1 / steps] * steps
    elif plan.optimizer in ("sgd", "momentum"):
        kept = plan.momentum if plan.optimizer == "momentum" else 0.0
        parts = [plan.lr * (1 - kept**k) / (1 - kept) for k in range(1, steps + 1)]
    else:
        return None
    sizes = torch.tensor(blocks.sizes, dtype=torch.float64)
    return sizes * step**2 * sum(part**2 for part in parts)
