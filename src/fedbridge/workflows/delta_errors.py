"""True Delta errors of a task at the initial parameters, for the paper's map of winners.

All rows of the target, labelled or for testing, stand for its distribution: ``g_T`` is the mean of
their gradients and ``σ² = s²/n`` the noise of a mean over its n labelled ones. Projections are per
parameter tensor and without FedGP's filter, as in the paper's panel.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch.func import grad, vmap
from torch.nn import functional

from fedbridge.base.errors import OptionError
from fedbridge.core.theory import FilterMoments, fedda_delta, fedgp_delta
from fedbridge.data.rows import whole
from fedbridge.evaluation.metrics import squared_error
from fedbridge.models import build_model, called_with
from fedbridge.training.job import INITIALISING, seed_of
from fedbridge.training.trainer import seeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedbridge.data.task import FederatedTask

CHUNK = 500
EQUAL_TRUST = 0.5


def initial_moments(task: FederatedTask, seed: int) -> dict[str, Any]:
    """``σ²``, and per source ``d²``, ``τ²d²`` and the noise along its line, summed over tensors."""
    with seeded(seed_of(seed, 0, 0, INITIALISING), torch.device("cpu")):
        model = build_model(task.model, task)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    measured = squared_error if task.n_classes is None else functional.cross_entropy

    def loss(held: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return measured(called_with(model, held, x), y)

    def of_row(held: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(held, x[None], y[None])

    slope, slopes = grad(loss), vmap(grad(of_row), in_dims=(None, 0, 0), chunk_size=CHUNK)
    count = len(task.target)
    target, sources = (task.target, task.test), task.sources
    x = {site: whole(site.x, f"the rows of {site.name!r}") for site in (*target, *sources)}
    every = [torch.cat([x[site] for site in target]), torch.cat([site.y for site in target])]
    of_sources = [slope(parameters, x[source], source.y) for source in sources]
    moments: dict[str, Any] = {"sigma2": 0.0}
    moments |= {name: [0.0] * len(of_sources) for name in ("d2", "tau2_d2", "along")}
    for name, rows in slopes(parameters, *every).items():
        mean = rows.flatten(1).double().mean(0)
        errors = rows.flatten(1) - mean.float()
        moments["sigma2"] += float(errors.square().sum(1).double().mean()) / count
        for number, theirs in enumerate(of_sources):
            source = theirs[name].flatten().double()
            unit = source / source.norm()
            moments["d2"][number] += float((source - mean).square().sum())
            moments["tau2_d2"][number] += float(mean.square().sum() - (mean @ unit) ** 2)
            along = (errors @ unit.float()).double().square().mean()
            moments["along"][number] += float(along) / count
    return moments


def delta_error_of(method: str, options: Mapping[str, Any], moments: Mapping[str, Any]) -> float:
    """Delta error of a rule with one source, the mean over the sources."""
    sigma2, beta = moments["sigma2"], float(options.get("beta", EQUAL_TRUST))
    if method == "target-only":
        return float(sigma2)
    if method == "source-only":
        return fmean(moments["d2"])
    if method == "fedda":
        return fmean(fedda_delta(beta, sigma2, d2) for d2 in moments["d2"])
    if method != "fedgp":
        raise OptionError(
            f"Expected source-only, target-only, fedda or fedgp, whose Delta errors have a "
            f"formula, but got {method!r}: take it out of the panel of Delta errors."
        )
    pairs = zip(moments["tau2_d2"], moments["along"], strict=True)
    return fmean(
        fedgp_delta(
            beta, sigma2, off, along=0.0, target2=0.0, kept=FilterMoments(1.0, 0.0, variance)
        )
        for off, variance in pairs
    )
